"""Long tables as runs: one number and one slope for each stretch of a table that rises steadily, documents say.

A `Ragged` piece holds the runs and behaves as the piece that lists every value: what has no rule for runs expands it.
The rules here cut the runs of several functions at each other's ends, and those of an inner function where the outer
one changes. So their cost is the number of runs and not the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from weft.pattern.bounds import INF, Ints
from weft.pattern.relation import NDBool
from weft.recognition import changes
from weft.recognition.periodic import LARGEST, LONGEST, NoFormError, Piece

LEAST = 1024  # entries from which on a table is looked at for runs
SHARE = 8  # runs are kept where they are at most this part of the entries
FEW = 3  # and as plain pieces if they are no more than these
SAMPLE = 4096


@dataclass(frozen=True, eq=False)
class Runs:
    """f(x) = value[j] + slope[j] * (x - begin[j]) in run j, begin[j] <= x < begin[j + 1]; the last one ends at stop."""

    begin: Ints
    value: Ints
    slope: Ints
    stop: int

    @staticmethod
    def steps(begin: Ints, value: Ints, stop: int) -> Runs:
        """Runs of one value each."""
        return Runs(begin, value, np.zeros(begin.size, np.int64), stop)

    @cached_property
    def lengths(self) -> Ints:
        return _gaps(self.begin, self.stop)

    @cached_property
    def last(self) -> Ints:
        """The value at the end of each run."""
        return self.value + self.slope * (self.lengths - 1)

    @cached_property
    def extent(self) -> tuple[int, int]:
        ends = self.value, self.last
        return min(int(x.min()) for x in ends), max(int(x.max()) for x in ends)

    def place(self, x: Ints) -> Ints:
        """The run of each index."""
        return np.searchsorted(self.begin, x, side="right") - 1

    def at(self, x: Ints) -> Ints:
        run = self.place(x)
        return self.value[run] + self.slope[run] * (x - self.begin[run])

    def cut(self, begin: Ints, stop: int | None = None) -> Runs:
        """The same function in other runs, each of them inside one of these."""
        if begin.size == self.begin.size and stop in (None, self.stop) and (begin == self.begin).all():
            return self
        if self.begin.size == 1:
            value = self.value + self.slope * (begin - self.begin)
            return Runs(begin, value, np.full(begin.size, self.slope[0]), self.stop if stop is None else stop)
        run = self.place(begin)
        value = self.value[run] + self.slope[run] * (begin - self.begin[run])
        return Runs(begin, value, self.slope[run], self.stop if stop is None else stop)

    def cut_also(self, places: Ints) -> Runs:
        """The same function in runs that end at some sorted places too, few beside those that there are."""
        at = np.searchsorted(self.begin, places)
        new = self.begin[np.minimum(at, self.begin.size - 1)] != places
        if not new.any():
            return self
        at, begin = at[new], places[new]
        value = self.value[at - 1] + self.slope[at - 1] * (begin - self.begin[at - 1])
        inserted = [
            np.insert(old, at, new)
            for old, new in ((self.begin, begin), (self.value, value), (self.slope, self.slope[at - 1]))
        ]
        return Runs(inserted[0], inserted[1], inserted[2], self.stop)

    def within(self, start: int, stop: int) -> Runs:
        if (start, stop) == (self.begin[0], self.stop):
            return self
        inner = self.begin[(self.begin > start) & (self.begin < stop)]
        return self.cut(np.append(start, inner), stop)

    def stepped(self) -> Runs:
        """Runs of one value each: what rises is written out."""
        if not self.slope.any():
            return self.joined()
        counts = np.where(self.slope != 0, self.lengths, 1)
        begin = np.repeat(self.begin, counts) + _counted(counts)
        return Runs.steps(begin, self.cut(begin).value, self.stop).joined()

    def joined(self) -> Runs:
        """Runs that go on as the one before them are one with it."""
        if self.begin.size < 2:
            return self
        if not self.slope.any():
            new = np.append(True, self.value[1:] != self.value[:-1])
            return self if new.all() else Runs.steps(self.begin[new], self.value[new], self.stop)
        slope = np.where(self.lengths == 1, 0, self.slope)
        new = np.ones(self.begin.size, np.bool_)
        new[1:] = (slope[:-1] * self.lengths[:-1] + self.value[:-1] != self.value[1:]) | (slope[1:] != slope[:-1])
        return self if new.all() else Runs(self.begin[new], self.value[new], slope[new], self.stop)


class Ragged(Piece):
    """A table as a piece, kept as runs; `values` lists it for whoever needs that."""

    runs: Runs
    is_runs: ClassVar[bool] = True

    def __init__(self, runs: Runs) -> None:
        for name, value in (("start", int(runs.begin[0])), ("stop", runs.stop), ("runs", runs)):
            object.__setattr__(self, name, value)

    @cached_property
    def values(self) -> Ints:
        found = self._expanded(self.start, self.stop)
        return np.roll(found, self.start % found.size)

    @property
    def constant(self) -> bool:
        return False

    @property
    def straight(self) -> bool:
        return False

    @property
    def period(self) -> int:
        return self.length

    @property
    def cells(self) -> int:
        return self.length

    def within(self, start: int, stop: int) -> Piece:
        if start >= stop:
            return Piece(start, stop, np.zeros(1, np.int64))
        return self if (start, stop) == (self.start, self.stop) else Ragged(self.runs.within(start, stop))

    def scaled(self, by: int, base: int = 0) -> Piece:
        runs = self.runs
        return Ragged(Runs(runs.begin, runs.value * by + base, runs.slope * by, runs.stop))

    def at(self, x: Ints) -> Ints:
        return self.runs.at(x)

    def inside(self, x: Ints) -> Ints:
        return self.runs.at(x)

    def over(self, first: int, stop: int, run: int = 1) -> Ints:
        inside = run == 1 and self.start <= first < stop <= self.stop
        return self._expanded(first, stop) if inside else super().over(first, stop, run)

    def _expanded(self, start: int, stop: int) -> Ints:
        if stop - start > LONGEST:
            raise NoFormError("its values follow no short rule")
        runs = self.runs.within(start, stop)
        found = np.repeat(runs.value, runs.lengths)
        return found + np.repeat(runs.slope, runs.lengths) * _counted(runs.lengths) if runs.slope.any() else found

    @property
    def lead(self) -> int:
        return int(self.runs.value[0])

    @property
    def first(self) -> int:
        return self.lead

    @property
    def last(self) -> int:
        return int(self.runs.last[-1])

    @property
    def extent(self) -> tuple[int, int]:
        return self.runs.extent

    @property
    def rises(self) -> bool:
        runs = self.runs
        return bool((runs.slope >= 0)[runs.lengths > 1].all() and (runs.value[1:] >= runs.last[:-1]).all())


def merged(*places: Ints) -> Ints:
    """All of some numbers, in order and each once. (numpy's hashing unique is slow on what is nearly sorted.)

    Nothing is sorted where each list is the longest one or its first entry, as the beginnings of runs mostly are.
    """
    longest = max(places, key=len)
    if len(places) > 1 and all(p.size in (1, longest.size) and (p == longest[: p.size]).all() for p in places):
        return longest
    found = np.sort(np.concatenate(places), kind="stable")
    return found[np.append(found.size > 0, found[1:] != found[:-1])[: found.size]]


def distinct(values: Ints) -> bool:
    """Whether no number occurs twice."""
    return bool((values[1:] > values[:-1]).all()) or merged(values).size == values.size


def among(x: Ints, places: Ints) -> NDBool:
    """Which entries are one of some sorted places, of which there are some."""
    return places[np.minimum(np.searchsorted(places, x), places.size - 1)] == x


def _gaps(begin: Ints, stop: int) -> Ints:
    """How long the runs are that begin at some places. (np.diff with append= takes three times as long.)"""
    found = np.empty(begin.size, np.int64)
    np.subtract(begin[1:], begin[:-1], out=found[:-1])
    found[-1] = stop - begin[-1]
    return found


def _counted(counts: Ints) -> Ints:
    """0, 1, ... counts[0] - 1, 0, 1, ... counts[1] - 1, ..."""
    return np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)


def apart(a: Runs, b: Runs, sign: int, gap: int) -> bool:
    """Whether a = sign * b + gap as they are spelled."""
    alike = np.array_equal(a.begin, b.begin) and np.array_equal(a.slope, sign * b.slope)
    return alike and np.array_equal(a.value, sign * b.value + gap)


def pieces_of(runs: Runs) -> list[Piece]:
    """Runs as pieces: plain ones where they are few."""
    runs = runs.joined()
    if runs.begin.size > FEW:
        return [Ragged(runs)]
    ends = [*runs.begin[1:].tolist(), runs.stop]
    each = zip(runs.begin.tolist(), ends, runs.value.tolist(), runs.slope.tolist(), strict=True)
    return [Piece(a, b, np.array([v - s * a]), s) if b - a > 1 else Piece(a, b, np.array([v])) for a, b, v, s in each]


# ---- from a list ----------------------------------------------------------------------------------------------------
def of_table(values: Any, lo: int) -> Runs | None:
    """The runs of a list of integers or booleans, x -> values[x - lo]; None where it is short, or has too many."""
    if values.size < LEAST or values.size < 2:
        return None
    most = max(1, values.size // SHARE)
    some = values[:SAMPLE]
    if np.count_nonzero(some[1:] != some[:-1]) <= some.size // SHARE:
        begin = changes.steps(values, most)
        if begin is not None:
            return Runs.steps(begin + lo, values[begin].astype(np.int64), lo + values.size)
    return None if values.dtype == np.bool_ else _of_slopes(values, lo, most)


def _of_slopes(values: Any, lo: int, most: int) -> Runs | None:
    """The runs of a list whose values rise or fall in most of them.

    Narrow integers are subtracted as they are. Steps that are alike but for a wrap differ all in one direction. So the
    run does not end at the value that it should. The list is then looked through again in 64 bits.
    """
    for dtype in dict.fromkeys((values.dtype, np.dtype(np.int64))):
        begin = changes.bends(values, dtype, most)
        if begin is None:
            return None
        first, second = (values[np.minimum(begin + i, values.size - 1)].astype(np.int64) for i in (0, 1))
        length = _gaps(begin, values.size)
        slope = np.where(length > 1, second - first, 0)
        if (slope > 2 * LARGEST).any() or (slope < -2 * LARGEST).any():  # no modest numbers; a difference may wrap
            return None
        found = Runs(begin + lo, first, slope, lo + values.size)
        if np.array_equal(found.last, values[begin + length - 1].astype(np.int64)):
            return _without_pairs(found)
    return None


def _without_pairs(runs: Runs) -> Runs:
    """Two unlike values are no slope: so the 0 and 1 of conditions never rise."""
    pair = (runs.lengths == 2) & (runs.slope != 0)
    cut = runs.cut_also(runs.begin[pair] + 1)
    return Runs(cut.begin, cut.value, np.where(cut.lengths == 1, 0, cut.slope), cut.stop).joined()


def of_piece(piece: Piece, start: int, stop: int, most: int) -> Runs | None:
    """A piece on start <= x < stop as at most so many runs; None where it takes more."""
    if isinstance(piece, Ragged):
        return piece.runs.within(start, stop) if piece.runs.begin.size <= most else None
    if piece.values.size == 1 and (piece.run == 1 or not piece.slope):
        ends = np.array([start])
        return Runs(ends, piece.at(ends), np.array([piece.slope]), stop)
    first, last = start // piece.run, -(-stop // piece.run)
    if last - first > most:
        return None
    begin = np.maximum(np.arange(first, last, dtype=np.int64) * piece.run, start)
    return Runs.steps(begin, piece.at(begin), stop)


def stepped(pieces: Sequence[Piece]) -> Runs:
    """Adjacent bounded pieces as runs of one value each."""
    parts = []
    for piece in pieces:
        if isinstance(piece, Ragged):
            parts.append(piece.runs.stepped())
            continue
        first, last = (0, 1) if piece.constant else (piece.start // piece.run, -(-piece.stop // piece.run))
        begin = np.maximum(np.arange(first, last, dtype=np.int64) * piece.run, piece.start)
        value = piece.values if piece.constant else piece.over(first, last, piece.run)
        parts.append(Runs.steps(begin, value, piece.stop).joined())
    if len(parts) == 1:
        return parts[0]
    begin, value = (np.concatenate([getattr(p, x) for p in parts]) for x in ("begin", "value"))
    return Runs.steps(begin, value, pieces[-1].stop).joined()


def changes_often(pieces: Sequence[Piece], tilt: int, most: int) -> bool:
    """Whether the slopes of adjacent pieces, tilt * x added to them, alone make more than so many changes."""
    for runs in (piece.runs for piece in pieces if isinstance(piece, Ragged)):
        rising = (runs.slope != -tilt) & (runs.lengths > 1)
        if int(runs.lengths[rising].sum()) > most + int(rising.sum()):
            return True
    return False


def constant_between(pieces: Sequence[Piece], edges: Ints) -> bool:
    """Whether adjacent bounded pieces change at some of these indices only."""
    return not changes_often(pieces, 0, edges.size) and bool(among(stepped(pieces).begin[1:], edges).all())


def straight_between(pieces: Sequence[Piece], slope: int, edges: Ints) -> bool:
    """Whether pieces are one table of runs that all have a slope, and begin at some of these indices only."""
    if len(pieces) > 1 or not isinstance(pieces[0], Ragged):
        return False
    runs = pieces[0].runs
    return bool(((runs.slope == slope) | (runs.lengths == 1)).all()) and bool(among(runs.begin[1:], edges).all())


# ---- together and one after the other -------------------------------------------------------------------------------
def joined(pieces: Sequence[Piece], start: int, stop: int, rule: Callable[..., Any]) -> list[Piece] | None:
    """The rule on the values and slopes of several pieces, run by run. None where one of them is no table of runs, or
    the rule makes no line of two that rise.
    """
    parts = [of_piece(piece, start, stop, (stop - start) // SHARE + FEW) for piece in pieces]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    begin = merged(*(part.begin for part in known))
    cut = [part.cut(begin) for part in known]
    made = rule([part.value for part in cut], [part.slope for part in cut])
    return None if made is None else pieces_of(Runs(begin, made[0], made[1], stop))


def composed(outer: Sequence[Piece], inner: Runs) -> list[Piece] | None:
    """The function that the outer pieces make of the inner one, whose values they have. None where it rises by more
    than 1 or falls by more, or where the outer function has no few runs.
    """
    if (np.abs(inner.slope) > 1).any():
        return None
    low, high = np.minimum(inner.value, inner.last), np.maximum(inner.value, inner.last)
    least, most = inner.extent
    table = _on(outer, least, most + 1, (inner.stop - int(inner.begin[0])) // SHARE + FEW)
    if table is None:
        return None
    first, behind = (np.searchsorted(table.begin, x, side="right") for x in (low, high))
    counts = 1 + behind - first  # its own begin, and where it reaches another run of the outer function
    run, turn = np.repeat(np.arange(counts.size), counts), _counted(counts)
    slope, begin, value = (x[run] for x in (inner.slope, inner.begin, inner.value))
    down = slope < 0
    place = np.where(down, behind[run] - turn, first[run] + turn) - 1  # the run of the outer function
    edge = table.begin[np.minimum(place + down, table.begin.size - 1)]  # where it is reached, or left behind
    ahead = np.where(turn > 0, np.where(down, value - edge + 1, edge - value), 0)
    at = value + slope * ahead
    made = table.value[place] + table.slope[place] * (at - table.begin[place])
    return pieces_of(Runs(begin + ahead, made, table.slope[place] * slope, inner.stop))


def _on(pieces: Sequence[Piece], lo: int, hi: int, most: int) -> Runs | None:
    """Adjacent pieces on lo <= y < hi as runs; tables that follow no runs are looked through."""
    parts = []
    for piece in pieces:
        start, stop = max(piece.start, lo), min(piece.stop, hi)
        if start >= stop:
            continue
        part = of_piece(piece, start, stop, most)
        if part is None and stop - start <= LONGEST:
            begin = changes.bends(piece.over(start, stop), np.int64, most) if piece.run == 1 else None
            found = None if begin is None else np.append(begin + start, stop)
            part = None if found is None else _sloped(piece, found[:-1], stop)
        if part is None:
            return None
        parts.append(part)
    begin, value, slope = (np.concatenate([getattr(p, x) for p in parts]) for x in ("begin", "value", "slope"))
    return Runs(begin, value, slope, hi)


def _sloped(piece: Piece, begin: Ints, stop: int) -> Runs:
    """Runs that begin at known places, their slopes read off the piece."""
    value = piece.at(begin)
    more = np.diff(begin, append=stop) > 1
    return _without_pairs(Runs(begin, value, np.where(more, piece.at(begin + more) - value, 0), stop))


def inverse(pieces: Sequence[Piece]) -> list[Piece] | None:
    """y -> the first k with g(k) >= y, g's stop where there is none, for adjacent bounded pieces of a g that never
    decreases. None where it rises by more than 1, or is no few runs.
    """
    lo, hi = pieces[0].start, pieces[-1].stop
    g = _on(pieces, lo, hi, (hi - lo) // SHARE + FEW)
    if g is None or (g.slope > 1).any():
        return None
    reached = np.append(-INF, g.last[:-1])  # before the run, and the y up to its first value are reached at its begin
    rising = (g.slope > 0) & (g.lengths > 1)
    flat, sloped = reached < g.value, rising
    begin = np.concatenate([reached[flat] + 1, g.value[sloped] + 1, g.last[-1:] + 1])
    value = np.concatenate([g.begin[flat], g.begin[sloped] + 1, [g.stop]])
    slope = np.repeat([0, 1, 0], [int(flat.sum()), int(sloped.sum()), 1])
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    begin[0] = -INF
    return pieces_of(Runs(begin, value[order], slope[order], INF))
