"""What a launch program promises to its kernels, checked while the oracle runs it."""

from __future__ import annotations


class BrokenLaw(AssertionError):
    """A program or its tables break a promise that a kernel relies on."""


def law(holds: object, text: str) -> None:
    """Raise BrokenLaw unless a promise holds. text: what is wrong if it does not."""
    if not holds:
        raise BrokenLaw(text)
