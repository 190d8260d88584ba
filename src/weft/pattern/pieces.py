"""The library, third part: bounds, sets and parts one by one, for what has no name of its own.

Recognition writes what it finds with these where the library has no better word for it. They are functions like the
others: they print, compare and cross into compiled graphs as the call that makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from weft.errors import LengthError, PatternError
from weft.pattern.algebra import Align, Call, Operator, Pattern, Where
from weft.pattern.arguments import axes, choice, integer, integers, library
from weft.pattern.bounds import INF, Bound, Ints, IntTable, Stair, Steps
from weft.pattern.leaves import Affine, Leaf
from weft.pattern.relation import NDBool, Relation, Residue

ALIGNMENTS = (None, "top-left", "bottom-right")
SIDES = ("from", "before")


# ---- combs: teeth of `width` indices, `step` apart ------------------------------------------------------------------
@library
def keys(first: int, stop: int, step: int = 1, width: int = 1) -> Pattern:
    """first <= k < stop and (k - first) % step < width: some keys, for every query."""
    return _comb("keys", (first, integer("keys", "stop", stop) - 1, step, width), None)


@library
def queries(first: int, stop: int, step: int = 1, width: int = 1, align: Align = None) -> Pattern:
    """first <= q < stop and (q - first) % step < width: some queries see every key."""
    return _comb("queries", (first, integer("queries", "stop", stop) - 1, step, width), align)


@library
def diagonals(first: int, last: int, step: int = 1, width: int = 1, align: Align = None) -> Pattern:
    """first <= k - q <= last and (k - q - first) % step < width."""
    return _comb("diagonals", (first, last, step, width), align)


def _comb(function: str, numbers: tuple[int, int, int, int], align: Align) -> Pattern:
    """One relation for each index of a tooth; a solid comb is one interval."""
    first, last, step, width = numbers
    for name, value, least in (("first", first, None), ("last", last, None), ("step", step, 1), ("width", width, 1)):
        integer(function, name, value, least)
    choice(function, "align", align, ALIGNMENTS)
    if step == 1 or width >= step:
        return _tooth(function, (first, last, 1), align)
    return reduce(or_, [_tooth(function, (first + i, last, step), align) for i in range(width)])


def _tooth(function: str, numbers: tuple[int, int, int], align: Align) -> Pattern:
    first, last, step = numbers
    at = Residue(step, first)
    if function == "keys":
        return Affine(Relation.span(first, last + 1, of_rows=False, residue=at))
    if function == "queries":
        return Affine(Relation.span(first, last + 1, of_rows=True, residue=at), positional=True, align=align)
    return Affine(Relation((Stair(base=first),), (Stair(base=last + 1),), diagonal=at), positional=True, align=align)


# ---- staircases -----------------------------------------------------------------------------------------------------
@library
def staircase(side: str, step: Any, origin: Any = (0, 0), clip: Any = None, align: Align = None) -> Pattern:
    """k >= T(q) ("from") or k < T(q) ("before"), T(q) = rise * ((q + shift) // run) + base, clipped.

    step: (rise, run); origin: (shift, base); clip: (least, largest) value of T.
    """
    rise, run = axes("staircase", "step", step, 2, 1)
    shift, base = axes("staircase", "origin", origin, 2, -INF)
    low, high = (-INF, INF) if clip is None else axes("staircase", "clip", clip, 2, -INF)
    return _half("staircase", side, Stair(rise, run, shift, base, low, high), align)


@library
def steps(side: str, breaks: Any, values: Any, align: Align = None) -> Pattern:
    """k >= T(q) ("from") or k < T(q) ("before"), T(q) = values[how many breaks are <= q], which must not decrease."""
    tables = [integers("steps", name, x, -INF) for name, x in (("breaks", breaks), ("values", values))]
    if len(tables[1]) != len(tables[0]) + 1 or any((np.diff(t.array) < 0).any() for t in tables):
        raise PatternError(
            f"steps({side!r}, ...)", "breaks and values must not decrease, and there is one value more than breaks",
            "pass sorted lists",
        )  # fmt: skip
    return _half("steps", side, Steps(*tables), align)


def _half(function: str, side: str, bound: Bound, align: Align) -> Pattern:
    choice(function, "align", align, ALIGNMENTS)
    below = choice(function, "side", side, SIDES) == "before"
    relation = Relation(upper=(bound,)) if below else Relation(lower=(bound,))
    return Affine(relation, positional=True, align=align)


# ---- blocks of tokens -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Coarse(Operator):
    """Live where (q // block_q, k // block_k) is live in the part, asked at the numbers of blocks."""

    part: Pattern
    block_q: int
    block_k: int

    @property
    def parts(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return (self.part,)

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return replace(self, part=parts[0])

    def sizes(self, m: int, n: int) -> tuple[int, int]:
        """Numbers of blocks."""
        return -(-m // self.block_q), -(-n // self.block_k)

    def check(self, m: int, n: int, asked: str) -> None:
        self.part.check(*self.sizes(m, n), asked)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        m, n = self.sizes(at.m, at.n)
        return self.part.holds(q // self.block_q, k // self.block_k, replace(at, m=m, n=n))


@library
def coarse(pattern: Pattern, block: Any) -> Pattern:
    """(q // block_q, k // block_k) is live in `pattern`, which is asked at the numbers of blocks (the last one may be
    ragged). block: one size or (block_q, block_k).
    """
    return Coarse(pattern, *axes("coarse", "block", block, 2, 1))


# ---- bits -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bits(Leaf):
    """Pairs listed bit by bit: row q is `width` words of 64 keys each, lowest bit first."""

    words: IntTable
    m: int
    n: int

    def check(self, m: int, n: int, asked: str) -> None:
        if (m, n) != (self.m, self.n):
            raise LengthError(
                asked, f"its pairs are listed one by one, for {self.m} queries and {self.n} keys",
                "use it at these lengths, or recognise a mask of the new ones",
            )  # fmt: skip

    @property
    def rows(self) -> Ints:
        """(m, words a row)."""
        return self.words.array.reshape(self.m, -(-self.n // 64))

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return np.asarray((self.rows[q, k // 64] >> (k % 64)) & 1, np.bool_)


@library
def bits(words: Any, m: int, n: int) -> Pattern:
    """The pairs of an m x n mask one by one. Each query has ceil(n / 64) words, and key k is bit k % 64 of word k //
    64.
    """
    table = integers("bits", "words", words, -(1 << 63))
    m, n = integer("bits", "m", m, 0), integer("bits", "n", n, 0)
    if len(table) != m * -(-n // 64):
        raise PatternError(f"bits(m={m}, n={n})", f"{len(table)} words do not fit", f"pass {m * -(-n // 64)} words")
    return Bits(table, m, n)


# ---- a size ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class OnlyAt(Operator):
    """The part, at m queries and n keys and nowhere else: what a mask of that size proves."""

    part: Pattern
    m: int
    n: int

    @property
    def parts(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return (self.part,)

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return replace(self, part=parts[0])

    def check(self, m: int, n: int, asked: str) -> None:
        if (m, n) != (self.m, self.n):
            raise LengthError(
                asked, f"it was recognised from a mask of {self.m} x {self.n}, which says nothing about {m} x {n}",
                "recognise a mask of these lengths, or pass generalize=True if the closed form is what you mean",
            )  # fmt: skip
        self.part.check(m, n, asked)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return self.part.holds(q, k, at)


@library
def sized(pattern: Pattern, m: int, n: int) -> Pattern:
    """`pattern`, to be used at m queries and n keys only; any other lengths raise LengthError."""
    return OnlyAt(pattern, integer("sized", "m", m, 0), integer("sized", "n", n, 0))


def unsized(pattern: Pattern, m: int, n: int) -> Pattern:
    """What `sized(pattern, m, n)` was made of, for those who know the lengths; any other pattern as it is."""
    if not (isinstance(pattern, Call) and pattern.name == "sized"):
        return pattern
    inner: Pattern = dict(pattern.args)["pattern"]
    return inner if pattern == sized(inner, m, n) else pattern


# ---- a grid without a number of rows ---------------------------------------------------------------------------------
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
