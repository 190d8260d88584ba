"""Integer functions of one index, known exactly at every index, however many there are.

Functions are built from an index by + - * // %, abs, minimum, maximum, where and comparisons with constants. Between
finitely many places each is periodic up to a slope: f(x + P) = f(x) + S. A `Line` holds such a function as a few
pieces, and is closed under those operations and under composition. A table is one piece of its own length. A condition
is a Line of 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import gcd, lcm
from typing import Any, TypeAlias

import numpy as np

from weft.pattern.bounds import INF, Ints
from weft.recognition import alike, runs
from weft.recognition.periodic import LONGEST, MANY, BeyondTableError, NoFormError, Piece, listed, short, tidied
from weft.recognition.remember import held, remembered

Rule: TypeAlias = Callable[[Sequence[Ints], Sequence[Any]], tuple[Ints, Any] | None]
FEW = 16  # pieces that are looked up one after the other


@dataclass(frozen=True, eq=False)
class Line:
    """Adjacent pieces; the function exists from the first one's start to the last one's stop."""

    pieces: tuple[Piece, ...]

    # ---- making --------------------------------------------------------------------------------------------------
    @staticmethod
    @remembered
    def constant(value: int, lo: int = -INF, hi: int = INF) -> Line:
        return Line((Piece(lo, hi, np.array([value], np.int64)),))

    @staticmethod
    @remembered
    def index(lo: int = -INF, hi: int = INF, scale: int = 1, base: int = 0) -> Line:
        """x -> scale * x + base."""
        return Line(tuple(tidied([Piece(lo, hi, np.array([base], np.int64), scale)])))

    @staticmethod
    def table(values: Ints, lo: int = 0) -> Line:
        """x -> values[x - lo]."""
        found = runs.of_table(values, lo)
        if found is not None:
            return Line(tuple(runs.pieces_of(found)))
        if values.size > LONGEST:
            raise NoFormError(f"a table of {values.size} entries is too long to be written down")
        values = values.astype(np.int64, copy=False)
        return Line(tuple(tidied([listed(values, lo, lo + values.size)])))

    @staticmethod
    @remembered
    def floor(by: int) -> Line:
        """x -> x // by."""
        return Line((Piece(-INF, INF, np.zeros(1, np.int64), 1, by),))

    @staticmethod
    @remembered
    def modulo(by: int) -> Line:
        """x -> x % by."""
        return Line((Piece(-INF, INF, np.arange(short(by), dtype=np.int64)),))

    @staticmethod
    @remembered
    def between(lo: int, hi: int) -> Line:
        """x -> 1 where lo <= x < hi, else 0."""
        edges = [-INF, max(lo, -INF), min(max(hi, lo), INF), INF]
        parts = [(a, b, value) for (a, b), value in zip(pairwise(edges), (0, 1, 0), strict=True) if a < b]
        return Line(tuple(tidied([Piece(a, b, np.array([value], np.int64)) for a, b, value in parts])))

    # ---- reading -------------------------------------------------------------------------------------------------
    @property
    def lo(self) -> int:
        return self.pieces[0].start

    @property
    def hi(self) -> int:
        return self.pieces[-1].stop

    @property
    def bounded(self) -> bool:
        return self.lo > -INF and self.hi < INF

    @property
    def is_constant(self) -> bool:
        return len(self.pieces) == 1 and self.pieces[0].constant

    @property
    def is_index(self) -> bool:
        """Whether it is x -> x."""
        (piece, *more) = self.pieces
        return not more and piece.straight and piece.slope == 1 and not piece.values[0]

    @property
    def value(self) -> int:
        """Its value where it has only one."""
        return int(self.pieces[0].values[0])

    @cached_property
    def starts(self) -> Ints:
        return np.array([piece.start for piece in self.pieces], np.int64)

    def at(self, x: Ints) -> Ints:
        """f(x) for an array of indices; BeyondTableError where there is none."""
        if x.size and (int(x.min()) < self.lo or int(x.max()) >= self.hi):
            raise BeyondTableError(f"a table of indices {self.lo} to {self.hi - 1} is read beyond its ends")
        if len(self.pieces) == 1:
            return self.pieces[0].inside(x)
        place = np.searchsorted(self.starts, x, side="right") - 1
        out = np.empty(x.shape, np.int64)
        for i in range(len(self.pieces)) if len(self.pieces) <= FEW else np.unique(place):
            here = place == i
            out[here] = self.pieces[i].inside(x[here])
        return out

    def all(self, run: int = 1) -> Ints:
        """Every value of a bounded function; with a `run` that divides its grain, one for each cell of so many."""
        parts = [piece.over(piece.start // run, -(-piece.stop // run), run) for piece in self.pieces]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @cached_property
    def steps(self) -> runs.Runs:
        """A bounded function as runs of one value each."""
        return runs.stepped(self.pieces)

    @cached_property
    def long(self) -> bool:
        """Whether it lists many values."""
        return any(not piece.is_runs and piece.values.size > MANY for piece in self.pieces)

    @property
    def kept_as_runs(self) -> bool:
        return any(piece.is_runs for piece in self.pieces)

    @property
    def grain(self) -> int:
        """The longest cells, counted from 0, in which a bounded function never changes."""
        cells = [piece.run for piece in self.pieces if not piece.constant]
        return gcd(*cells, *self.starts.tolist()) or self.hi

    @cached_property
    def extent(self) -> tuple[int, int]:
        """(least, largest) that its values cannot go beyond."""
        spans = [piece.extent for piece in self.pieces]
        return min(low for low, _ in spans), max(high for _, high in spans)

    @cached_property
    def rises(self) -> bool:
        """Whether it never decreases."""
        if any(not piece.rises for piece in self.pieces):
            return False
        return all(a.last <= b.first for a, b in pairwise(self.pieces))

    @cached_property
    def falls(self) -> bool:
        """Whether it never increases."""
        return (-self).rises

    # ---- algebra -------------------------------------------------------------------------------------------------
    def __neg__(self) -> Line:
        return self.scaled(-1)

    @remembered
    def scaled(self, by: int, base: int = 0) -> Line:
        """by * f + base."""
        if not by:
            return Line.constant(base, self.lo, self.hi)
        if (by, base) == (1, 0):
            return self
        found = Line(tuple(p.scaled(by, base) for p in self.pieces))
        if (by, base) == (-1, 0):
            held((Line.scaled, found, -1), self)
        return found

    @remembered
    def __add__(self, other: Line) -> Line:
        if other.is_constant and (other.lo, other.hi) == (self.lo, self.hi):
            return self.scaled(1, other.value)
        return together([self, other], lambda v, s: (v[0] + v[1], s[0] + s[1]))

    def __sub__(self, other: Line) -> Line:
        return self + -other

    @remembered
    def __mul__(self, other: Line) -> Line:
        return together([self, other], _times)

    def __and__(self, other: Line) -> Line:
        """The meet of two conditions."""
        return self * other

    @remembered
    def __or__(self, other: Line) -> Line:
        """The union of two conditions."""
        return ~(~self * ~other)

    def __invert__(self) -> Line:
        """The complement of a condition."""
        return self.scaled(-1, 1)

    @remembered
    def same(self, other: Line) -> bool:
        """Whether two functions agree everywhere."""
        return self is other or ((self.lo, self.hi) == (other.lo, other.hi) and self.gap(other) == 0)

    @remembered
    def gap(self, other: Line, sign: int = 1) -> int | None:
        """The c for which self = sign * other + c everywhere; None if there is none."""
        return alike.gap(self, other, sign)

    @cached_property
    def sampled(self) -> Ints:
        """Its values at some indices, the same ones for all functions of one length."""
        return self.at(alike.samples(self.lo, self.hi))

    @remembered
    def restricted(self, lo: int, hi: int) -> Line:
        """The same function on lo <= x < hi only."""
        kept = [p.within(max(p.start, lo), min(p.stop, hi)) for p in self.pieces if p.start < hi and p.stop > lo]
        return Line(tuple(tidied(kept)))

    @remembered
    def of(self, inner: Line) -> Line:
        """x -> self(inner(x))."""
        if inner.is_constant:
            return Line.constant(int(self.at(np.array([inner.value]))[0]), inner.lo, inner.hi)
        if inner.is_index and (inner.lo, inner.hi) == (self.lo, self.hi):
            return self
        return Line(tuple(tidied([part for piece in inner.pieces for part in _composed(self, piece)])))


@remembered
def chosen(condition: Line, yes: Line, no: Line) -> Line:
    """x -> yes(x) where condition(x), else no(x)."""
    return together([condition, yes, no], _choice)


# ---- several functions of one index ---------------------------------------------------------------------------------
def together(lines: Sequence[Line], rule: Rule) -> Line:
    """The function that `rule` makes of the values and slopes of several, over a period that all of them have.

    Where it makes none, or the common period is longer than a bounded piece, the values are listed.
    """
    lo, hi = max(line.lo for line in lines), min(line.hi for line in lines)
    cuts = sorted({lo, hi, *(p.start for line in lines for p in line.pieces if lo < p.start < hi)})
    if len(cuts) > MANY:
        raise NoFormError("its parts change at too many places")
    places = [0] * len(lines)
    found = []
    for start, stop in pairwise(cuts):
        for i, line in enumerate(lines):
            while line.pieces[places[i]].stop <= start:
                places[i] += 1
        pieces = [line.pieces[place] for line, place in zip(lines, places, strict=True)]
        found += _joined(pieces, start, stop, rule)
    return Line(tuple(tidied(found)))


def _joined(pieces: Sequence[Piece], start: int, stop: int, rule: Rule) -> list[Piece]:
    """The rule on one interval, over runs, or over cells that are cells of all pieces."""
    by_runs = runs.joined(pieces, start, stop, rule) if any(piece.is_runs for piece in pieces) else None
    if by_runs is not None:
        return by_runs
    run = gcd(*(0 if piece.constant else piece.run for piece in pieces)) or 1
    period = lcm(run, *(piece.period for piece in pieces))
    if period < stop - start or stop - start >= INF:
        cells = short(period // run)
        slopes = [piece.slope * (period // piece.period) for piece in pieces]
        made = rule([piece.over(0, cells, run) for piece in pieces], slopes)
        if made is not None:
            return [Piece(start, stop, *made, run)]
    made = rule([piece.over(start // run, -(-stop // run), run) for piece in pieces], [0] * len(pieces))
    assert made is not None  # functions without a slope always combine
    return [listed(made[0], start, stop, run)]


def _times(values: Sequence[Ints], slopes: Sequence[Any]) -> tuple[Ints, Any] | None:
    """(v + S t) * c is c v + c S t for a constant c; two slopes make a square, which is no line. Runs have a slope
    each.
    """
    if isinstance(slopes[0], np.ndarray):
        square = (slopes[0] * slopes[1]).any()
        return None if square else (values[0] * values[1], values[0] * slopes[1] + values[1] * slopes[0])
    for i, j in ((0, 1), (1, 0)):
        if not slopes[i] and (not slopes[j] or (values[i] == values[i][0]).all()):
            return values[0] * values[1], slopes[j] * int(values[i][0])
    return None


def _choice(values: Sequence[Ints], slopes: Sequence[Any]) -> tuple[Ints, Any] | None:
    """One side where the condition never changes; both in turns where their slopes agree."""
    condition, yes, no = values
    if isinstance(slopes[0], np.ndarray):
        rises = slopes[0].any()
        return None if rises else (np.where(condition, yes, no), np.where(condition, slopes[1], slopes[2]))
    if condition.all():
        return yes, slopes[1]
    if not condition.any():
        return no, slopes[2]
    return (np.where(condition, yes, no), slopes[1]) if slopes[1] == slopes[2] else None


# ---- composition ----------------------------------------------------------------------------------------------------
def _composed(outer: Line, piece: Piece) -> Iterator[Piece]:
    """outer after one piece of the inner function, cut where the inner values cross from one outer piece to the next.

    Between cuts f(x + m P) = f(x) + m S with m S a multiple of the outer period Q, so outer(f) gains m S / Q slopes.
    """
    by_runs = _by_runs(outer, piece)
    if by_runs is not None:
        yield from by_runs
        return
    if not piece.slope:
        yield Piece(piece.start, piece.stop, outer.at(piece.values), 0, piece.run)
        return
    mixed = [_crossing(piece, int(edge)) for edge in (*outer.starts[1:], outer.hi) if edge < INF]
    cuts = sorted({piece.start, piece.stop, *(x for pair in mixed for x in pair if piece.start < x < piece.stop)})
    if len(cuts) > MANY:
        raise NoFormError("its parts change at too many places")
    for start, stop in pairwise(cuts):
        if any(lo <= start and stop <= hi for lo, hi in mixed):
            yield listed(outer.at(piece.within(start, stop).own), start, stop, piece.run)
        else:
            part = piece.within(start, stop)
            yield from _by_runs(outer, part) or [_followed(outer, part)]


def _by_runs(outer: Line, piece: Piece) -> list[Piece] | None:
    """outer after a piece, run by run, where one of them is kept as runs."""
    if not piece.is_runs and (piece.length > LONGEST or not outer.kept_as_runs):
        return None
    inner = runs.of_piece(piece, piece.start, piece.stop, piece.length // runs.SHARE + runs.FEW)
    if inner is None:
        return None
    low, high = inner.extent
    if low < outer.lo or high >= outer.hi:
        raise BeyondTableError(f"a table of indices {outer.lo} to {outer.hi - 1} is read beyond its ends")
    return runs.composed(outer.pieces, inner)


def _crossing(piece: Piece, edge: int) -> tuple[int, int]:
    """(lo, hi): the rule is on one side of f(x) >= edge for all x < lo and on the other for all x >= hi."""
    size, slope, run = piece.values.size, piece.slope, piece.run
    cell = np.arange(size, dtype=np.int64)
    if slope > 0:
        first = cell + size * -((piece.values - edge) // slope)  # of its residue class, the first at edge or above
        return run * int(first.min()), run * (int(first.max()) - size + 1)
    last = cell + size * ((piece.values - edge) // -slope)  # of its residue class, the last at edge or above
    return run * (int(last.min()) + size), run * (int(last.max()) + 1)


def _followed(outer: Line, piece: Piece) -> Piece:
    """outer after a piece whose values all lie in one outer piece."""
    some = piece.start if piece.start > -INF else piece.stop - 1 if piece.stop < INF else 0
    value = int(piece.at(np.array([some]))[0])
    if not outer.lo <= value < outer.hi:
        raise BeyondTableError(f"a table of indices {outer.lo} to {outer.hi - 1} is read beyond its ends")
    target = outer.pieces[int(np.searchsorted(outer.starts, value, side="right")) - 1]
    if target.constant:
        return Piece(piece.start, piece.stop, target.values)
    piece = _thinned(piece, target.run)
    times = lcm(target.period, abs(piece.slope)) // abs(piece.slope)
    cells = times * piece.values.size
    if cells >= piece.cells:
        return listed(target.inside(piece.own), piece.start, piece.stop, piece.run)
    values = target.at(piece.over(0, short(cells), piece.run))
    return Piece(piece.start, piece.stop, values, target.slope * (piece.slope * times // target.period), piece.run)


def _thinned(piece: Piece, run: int) -> Piece:
    """A piece v + s c, c its cells, as one of longer cells whose values lie in the same cells of `run` numbers.

    Where s divides run, (v + s c) // run = (v // s + c) // (run / s). That is one number for all c from g j to g (j +
    1) - 1 if g divides both run / s and v // s.
    """
    slope = piece.slope
    if piece.values.size > 1 or slope < 0 or run % slope:
        return piece
    wide = gcd(run // slope, int(piece.values[0]) // slope)
    return Piece(piece.start, piece.stop, piece.values, slope * wide, piece.run * wide)
