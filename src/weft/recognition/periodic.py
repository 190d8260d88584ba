"""One rule on an interval, periodic up to a slope: the piece that Lines are made of.

A piece lists one value for each cell of `run` indices, so that x // 4096 % 64 takes 64 numbers. It is kept with the
shortest period and the longest cells that say it, and adjacent pieces of one rule are joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weft.pattern.bounds import INF, Ints

LARGEST = 1 << 40  # numbers that a function may read: beyond it a sum could leave 64 bits
LONGEST = 1 << 21  # values that a piece may list
MANY = 4096  # pieces of one function, or values that are compared to join two of them


class NoFormError(Exception):
    """Internal: an expression has no closed form; the text says which and why."""


class BeyondTableError(NoFormError):
    """Internal: a function is asked at an index that it does not have."""


@dataclass(frozen=True, eq=False)
class Piece:
    """f(x) = values[c % P] + slope * (c // P) for start <= x < stop, where c = x // run is a cell, P = len(values)."""

    start: int
    stop: int
    values: Ints
    slope: int = 0
    run: int = 1
    is_runs: ClassVar[bool] = False  # whether it is kept as runs (`weft.recognition.runs`)

    # ---- its extent ----------------------------------------------------------------------------------------------
    @property
    def length(self) -> int:
        """Indices in the piece; INF or more where it is open."""
        return self.stop - self.start

    @property
    def period(self) -> int:
        """P cells, in indices."""
        return self.run * self.values.size

    @property
    def cells(self) -> int:
        """Cells that it reaches into; INF or more where it is open."""
        return self.length if self.length >= INF else -(-self.stop // self.run) - self.start // self.run

    @property
    def constant(self) -> bool:
        return self.values.size == 1 and not self.slope

    @property
    def straight(self) -> bool:
        """Whether it is slope * x + values[0]."""
        return self.values.size == self.run == 1

    def within(self, start: int, stop: int) -> Piece:
        return Piece(start, stop, self.values, self.slope, self.run)

    @property
    def lead(self) -> int:
        """A number that a multiple and a shift of the rule change as they change its values."""
        return int(self.values[0])

    def scaled(self, by: int, base: int = 0) -> Piece:
        """by * f + base."""
        return Piece(self.start, self.stop, self.values * by + base, self.slope * by, self.run)

    # ---- its values ----------------------------------------------------------------------------------------------
    def at(self, x: Ints) -> Ints:
        """The rule at any x, inside the piece or not."""
        cell = x // self.run if self.run > 1 else x
        if self.values.size == 1:
            return self.values[0] + self.slope * cell if self.slope else np.full(x.shape, self.values[0])
        turns, place = np.divmod(cell, self.values.size)
        found = self.values[place]
        return found + self.slope * turns if self.slope else found

    def inside(self, x: Ints) -> Ints:
        """`at` for indices in the piece: a table is read without a division."""
        return self.values[x] if self.run == 1 and self.start >= 0 and self.stop <= self.values.size else self.at(x)

    def over(self, first: int, stop: int, run: int = 1) -> Ints:
        """The rule in cell first, first + 1, ... before stop, of `run` indices each; run divides the piece's own."""
        if stop - first > LONGEST:
            raise NoFormError("its values follow no short rule")
        parts = 1 if self.constant else self.run // run
        begin, end = first // parts, -(-stop // parts)
        found = self._cells(begin, end)
        if parts == 1:
            return found
        edges = np.clip(np.arange(begin, end + 1, dtype=np.int64) * parts, first, stop)
        return np.repeat(found, np.diff(edges))

    def _cells(self, first: int, stop: int) -> Ints:
        """`over` its own cells: `at` without a division for each of them."""
        size = self.values.size
        if size == 1 and self.slope:
            return np.arange(first, stop, dtype=np.int64) * self.slope + self.values
        turn = first // size
        turns = np.arange(turn, -(-stop // size), dtype=np.int64)
        whole = self.values + self.slope * turns[:, None] if turns.size > 1 or self.slope else self.values
        return whole.reshape(-1)[first - turn * size : stop - turn * size]

    def span(self, start: int, stop: int) -> Ints:
        """The rule at start, start + 1, ... before stop."""
        return self.over(start, stop)

    @property
    def own(self) -> Ints:
        """The rule in every cell of a piece that begins and ends somewhere."""
        return self.over(self.start // self.run, -(-self.stop // self.run), self.run)

    @property
    def first(self) -> int:
        """f(start) of a piece that begins somewhere."""
        return int(self.over(self.start, self.start + 1)[0])

    @property
    def last(self) -> int:
        """f(stop - 1) of a piece that ends somewhere."""
        return int(self.over(self.stop - 1, self.stop)[0])

    @property
    def extent(self) -> tuple[int, int]:
        """(least, largest) that its values cannot go beyond."""
        low, high = int(self.values.min()), int(self.values.max())
        if not self.slope:
            return low, high
        ends = (self.start, self.stop - (self.stop < INF))
        turns = [end if abs(end) >= INF else end // self.period for end in ends]
        gains = [max(-INF, min(INF, turn * self.slope)) for turn in turns]
        return max(-INF, low + min(gains)), min(INF, high + max(gains))

    @property
    def rises(self) -> bool:
        """Whether it never decreases."""
        size = self.values.size
        if size == 1:
            return self.slope >= 0 or self.cells == 1
        start = self.start if self.start > -INF else min(self.stop, INF // 2) - self.period - self.run
        first, stop = start // self.run, -(-min(self.stop, INF) // self.run)
        return bool((np.diff(self.over(first, min(stop, first + size + 1), self.run)) >= 0).all())


# ---- one spelling for one function ----------------------------------------------------------------------------------
def tidied(pieces: Sequence[Piece]) -> list[Piece]:
    """Shortest periods, and adjacent pieces of one rule joined."""
    kept: list[Piece] = []
    for piece in (_reduced(p) for p in pieces if p.start < p.stop):
        joined = _merged(kept[-1], piece) if kept else None
        if joined:
            kept[-1] = joined
        else:
            kept.append(piece)
    return kept


def _reduced(piece: Piece) -> Piece:
    """The piece with the shortest period that says the same, and of these the one with the longest cells. Bounded
    pieces are listed where they end within one period.
    """
    if piece.is_runs:
        return piece
    cells = piece.cells
    if cells < piece.values.size or cells == 1:
        piece = listed(piece.own, piece.start, piece.stop, piece.run)
    if piece.values.size == 1:
        return Piece(piece.start, piece.stop, piece.values) if piece.constant else piece
    if cells == piece.values.size:  # its own length: any slope will do
        found = piece.own
        first, rise = int(found[0]), int(found[1] - found[0])
        line = found[-1] == first + rise * (cells - 1) and (np.diff(found) == rise).all()
        if line and (cells > 2 or not rise):  # two values are a line too, but conditions stay without slopes
            base = first - rise * (piece.start // piece.run)
            return Piece(piece.start, piece.stop, np.array([base]), rise, piece.run if rise else 1)
    piece = _shortest(piece)
    return _widest(piece) if cells > piece.values.size else piece


def _shortest(piece: Piece) -> Piece:
    """The rule with the shortest period."""
    values, slope = piece.values, piece.slope
    period = values.size
    for prime in _primes(period):
        while period % prime == 0 and slope % prime == 0:
            part, gain = period // prime, slope // prime
            ends = values[part] == values[0] + gain and values[-1] == values[-1 - part] + gain  # settles most
            if not ends or not np.array_equal(values[part:], values[:-part] + gain if gain else values[:-part]):
                break
            values, slope, period = values[:part], gain, part
    return Piece(piece.start, piece.stop, values, slope, piece.run)


def _widest(piece: Piece) -> Piece:
    """The rule with the longest cells: as long as all places where its values change allow."""
    values = piece.values
    if values.size == 1:
        return Piece(piece.start, piece.stop, values) if piece.constant else piece
    if values[0] != values[1]:  # settles most
        return piece
    changes = np.flatnonzero(np.diff(values)) + 1
    wide = int(np.gcd.reduce(changes, initial=values.size))
    return Piece(piece.start, piece.stop, values[::wide], piece.slope, piece.run * wide)


def _merged(a: Piece, b: Piece) -> Piece | None:
    """Both as one, if one's rule holds on the other; asked where the other is short or both are constant."""
    if a.constant and b.constant:
        return a.within(a.start, b.stop) if a.values[0] == b.values[0] else None
    if a.is_runs or b.is_runs:
        return None
    for rule, other in ((a, b), (b, a)):
        place = (other.start, other.stop)
        near = other.length <= MANY and rule.period < rule.length
        if near and np.array_equal(rule.span(*place), other.span(*place)):
            return rule.within(a.start, b.stop)
    alike = (a.values.size, a.slope, a.run) == (b.values.size, b.slope, b.run)
    same = alike and a.period < min(a.length, b.length)
    return a.within(a.start, b.stop) if same and np.array_equal(a.values, b.values) else None


def _primes(number: int) -> Iterator[int]:
    factor = 2
    while factor * factor <= number:
        if number % factor == 0:
            yield factor
            while number % factor == 0:
                number //= factor
        factor += 1
    if number > 1:
        yield number


def listed(values: Ints, start: int, stop: int, run: int = 1) -> Piece:
    """The values of the cell of `start`, the next one, ..., of `run` indices each."""
    shift = start // run % values.size if values.size else 0
    return Piece(start, stop, np.asarray(np.roll(values, shift) if shift else values, np.int64), 0, run)


def short(period: int) -> int:
    if period > LONGEST:
        raise NoFormError(f"it repeats only after {period} indices")
    return period
