"""Patterns on a grid whose number of rows is left open: what `product` is once the lengths are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from weft.acsr import build
from weft.acsr.terms import NotAffineError
from weft.pattern.algebra import Align, Operator, Pattern, Where
from weft.pattern.arguments import integer, library
from weft.pattern.bounds import Ints
from weft.pattern.leaves import Product
from weft.pattern.relation import NDBool
from weft.recognition.bitrows import BitRows
from weft.recognition.raster import kronecker, raster


@dataclass(frozen=True)
class Folded(Operator):
    """Live where (q // width, k // width) is live in `outer` and (q % width, k % width) in `inner`."""

    outer: Pattern
    inner: Pattern
    width: int

    @property
    def parts(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return (self.outer, self.inner)

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return replace(self, outer=parts[0], inner=parts[1])

    def alignments(self) -> Iterator[Align]:
        yield "top-left"  # a row of the grid begins with the first query, and with the first key
        yield from super().alignments()

    def rows(self, m: int, n: int) -> tuple[int, int]:
        """Rows of the grid that m queries and n keys reach."""
        return -(-m // self.width), -(-n // self.width)

    def check(self, m: int, n: int, asked: str) -> None:
        self.outer.check(*self.rows(m, n), asked)
        self.inner.check(self.width, self.width, asked)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        m, n = self.rows(at.m, at.n)
        outer = self.outer.holds(q // self.width, k // self.width, replace(at, m=m, n=n))
        inner = self.inner.holds(q % self.width, k % self.width, replace(at, m=self.width, n=self.width))
        return outer & inner


@library
def folded(outer: Pattern, inner: Pattern, width: int) -> Pattern:
    """Tokens are the points of a grid of rows of `width`: `outer` relates rows, `inner` places in a row. The last row
    may be ragged.
    """
    return Folded(outer, inner, integer("folded", "width", width, 1))


@build.lower.register
def _(pattern: Folded, m: int, n: int) -> build.Union:
    if m % pattern.width or n % pattern.width:
        raise NotAffineError(f"the last row of a grid of rows of {pattern.width} is ragged")
    rows = pattern.rows(m, n)
    grid = Product((pattern.outer, pattern.inner), (rows[0], pattern.width), (rows[1], pattern.width))
    return build.lower(grid, m, n)


@raster.register
def _(pattern: Folded, m: int, n: int) -> BitRows:
    rows, width = pattern.rows(m, n), pattern.width
    whole = kronecker([raster(pattern.outer, *rows), raster(pattern.inner, width, width)])
    return whole if (whole.m, whole.n) == (m, n) else BitRows.pack(whole.dense(slice(0, m))[:, :n])
