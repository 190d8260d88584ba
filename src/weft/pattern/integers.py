"""Integers that a pattern is given: shifts, lengths, batch rows and heads, checked."""

from __future__ import annotations

from typing import Any

from weft.errors import PatternError
from weft.pattern.listed import SPAN


def scalar(value: Any) -> Any:
    """A number of numpy, or an array or a tensor without axes, as Python's own."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def integer(value: Any, function: str, name: str) -> int:
    value = scalar(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise PatternError(
            f"{function}({name}={value!r})", f"{name} must be an integer, not {type(value).__name__}", "pass an int"
        )
    if abs(value) > SPAN:
        raise PatternError(
            f"{function}({name}={value})", f"{name} is beyond any sequence (2**31 tokens)",
            f"pass {name} within 2**31",
        )  # fmt: skip
    return int(value)


def length_of(value: Any, name: str) -> int:
    length = integer(value, "pattern at", name)
    if length < 0:
        raise PatternError(f"a pattern at {name}={length}", "a length is negative", "pass a length of 0 or more")
    return length


def below(index: Any, size: int | None, name: str, pattern: object) -> None:
    index = integer(index, "pattern at", name)
    if index < 0 or (size is not None and index >= size):
        raise PatternError(
            f"{name} {index} of {pattern}",
            f"the pattern tells {size} of them apart" if size is not None else "the index is negative",
            f"ask for 0 <= {name} < {size}" if size is not None else "ask for an index of 0 or more",
        )
