"""What recognition hands back."""

from __future__ import annotations

from dataclasses import dataclass

from weft.pattern.algebra import Pattern

WIDTH = 400  # characters of a pattern that are printed


@dataclass(frozen=True)
class Recognized:
    """A pattern and what is known about it.

    exact: it equals what was given on every pair. proof: "symbolic" where that follows from the function itself, or
    "evaluated at (M, N)". why: what was found, in words. m, n: the lengths it was recognised at, None if at any.
    remainder: pairs that have no affine form and are listed one by one, over all distinct masks.
    """

    pattern: Pattern
    exact: bool
    proof: str
    why: str
    m: int | None
    n: int | None
    remainder: int = 0

    @property
    def closed(self) -> bool:
        """Whether no pair had to be listed."""
        return self.remainder == 0

    def __str__(self) -> str:
        text = str(self.pattern)
        text = text if len(text) <= WIDTH else text[: WIDTH - 4] + " ..."
        return f"{text}\n  proof: {'exact, ' if self.exact else ''}{self.proof}\n  found: {self.why}"
