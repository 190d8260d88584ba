"""Recognition: what is known pair by pair becomes a pattern, proven on every pair. Numpy only."""

from weft.recognition.files import load_mask
from weft.recognition.mask import recognize_mask
from weft.recognition.result import Recognized

__all__ = ["Recognized", "load_mask", "recognize_mask"]
