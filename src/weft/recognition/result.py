"""What recognition hands back: a pattern, how it is proven, and the format that will run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.acsr.format import Acsr
from weft.acsr.work import share_of_dense
from weft.errors import IrregularError
from weft.outside import lines
from weft.pattern.algebra import Pattern

WIDTH = 400  # characters of a pattern that are printed
TOLD_AT = 4096  # queries and keys at which a pattern of any length is described


@dataclass(frozen=True)
class Form:
    """What a pattern becomes at m queries and n keys: the format that plans and kernels are made of.

    terms: the most of any batch row and head. Sums over batch rows and heads that differ. listed: tokens in lists.
    remainder: live pairs that no term has, listed bit by bit. remainder_bytes: of these. nbytes: all bytes of metadata.
    cost: pairs that are computed over all pairs, where 1.0 is the dense mask.
    """

    m: int
    n: int
    terms: int
    listed: int
    remainder: int
    remainder_bytes: int
    nbytes: int
    cost: float

    @staticmethod
    def of(pattern: Pattern, m: int, n: int) -> Form:
        """The form of a pattern. Raises what `Pattern.acsr` raises."""
        batches, heads = pattern.extent()
        at = {pattern.at(b, h): (b, h) for b, h in np.ndindex(batches or 1, heads or 1)}
        return Form.of_all([pattern.acsr(m, n, b, h) for b, h in at.values()])

    @staticmethod
    def of_all(found: list[Acsr]) -> Form:
        """The form of batch rows and heads that differ."""
        return Form(
            found[0].m,
            found[0].n,
            max(len(one.terms) for one in found),
            sum(len(term.rows.tokens) + len(term.keys.tokens) for one in found for term in one.terms),
            sum(one.remainder.count(one.m, one.n) for one in found),
            sum(one.remainder.nbytes for one in found),
            sum(one.nbytes for one in found),
            float(np.mean([share_of_dense(one) for one in found])),
        )

    def __str__(self) -> str:
        parts = [f"{self.terms} term{'s' * (self.terms != 1)}"]
        if self.listed:
            parts.append(f"{self.listed:,} listed tokens")
        if self.remainder:
            parts.append(f"a remainder of {self.remainder:,} pairs ({self.remainder_bytes:,} bytes)")
        return f"{', '.join(parts)}, {self.nbytes:,} bytes in all; {self.cost:.1%} of dense at {self.m} x {self.n}"


@dataclass(frozen=True)
class Recognized:
    """A pattern and what is known about it.

    exact: it equals what was given on every pair. proof: "symbolic" where that follows from the function itself, or
    "evaluated at (M, N)". why: what was found, in words. m, n: the lengths it was recognised at, None if at any.
    asked: the lengths that the caller named, if any.
    """

    pattern: Pattern
    exact: bool
    proof: str
    why: str
    m: int | None
    n: int | None
    asked: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Where the form is told: the lengths that it holds at or was asked at, else TOLD_AT of each."""
        asked = self.asked or (TOLD_AT, TOLD_AT)
        return (asked[0] if self.m is None else self.m, asked[1] if self.n is None else self.n)

    @cached_property
    def form(self) -> Form:
        """The format that will run at `size`. Raises IrregularError where it is too large to be written down."""
        return Form.of(self.pattern, *self.size)

    @property
    def remainder(self) -> int:
        """Live pairs that no affine term has, so that they are listed bit by bit; over all masks that differ."""
        return self.form.remainder

    @property
    def closed(self) -> bool:
        """Whether the format that will run has no remainder: terms alone, which may have lists of tokens."""
        try:
            return self.remainder == 0
        except IrregularError:  # the remainder is too large to be looked at
            return False

    def __str__(self) -> str:
        text = str(self.pattern)
        text = text if len(text) <= WIDTH else text[: WIDTH - 4] + " ..."
        try:
            runs = str(self.form)
        except IrregularError as error:
            runs = f"no plan: {error.wrong}"
        proof = f"{'exact, ' if self.exact else ''}{self.proof}"
        return lines(f"{text}\n  proof: {proof}\n  found: {self.why}\n  runs as: {runs}")
