"""Recognition: what is known pair by pair, or by a function, becomes a pattern, proven. Numpy only."""

from typing import Any

from weft.errors import InputError
from weft.recognition.files import load_mask
from weft.recognition.function import recognize_function
from weft.recognition.mask import recognize_mask
from weft.recognition.result import Form, Recognized

__all__ = ["Form", "Recognized", "load_mask", "recognize", "recognize_function", "recognize_mask"]


def recognize(
    x: Any,
    *,
    size: Any = None,
    batch: int | None = None,
    heads: int | None = None,
    generalize: bool = False,
    limit: float | None = None,
) -> Recognized:
    """The pattern of a boolean mask (see `recognize_mask`) or of a mask function (see `recognize_function`)."""
    if callable(x):
        return recognize_function(x, size=size, batch=batch, heads=heads, generalize=generalize, limit=limit)
    if (size, batch, heads, limit) != (None, None, None, None):
        raise InputError(
            f"recognize(a {type(x).__name__}, size=..., batch=..., heads=... or limit=...)", "a mask has its own sizes",
            "leave them out: they are for functions",
        )  # fmt: skip
    return recognize_mask(x, generalize=generalize)
