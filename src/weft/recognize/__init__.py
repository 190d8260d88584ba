"""Recognition: what is known pair by pair becomes a pattern, proven on every pair. Numpy only."""

from weft.recognize.files import load_mask
from weft.recognize.mask import recognize_mask
from weft.recognize.result import Recognized

__all__ = ["Recognized", "load_mask", "recognize_mask"]
