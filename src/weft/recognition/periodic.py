"""One rule f(x) = values[x % P] + slope * (x // P) on an interval: the piece that Lines are made of.

A piece is kept with the shortest period that says it, and adjacent pieces of one rule are joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.pattern.bounds import INF, Ints

LONGEST = 1 << 21  # values that a piece may list
MANY = 4096  # pieces of one function, or values that are compared to join two of them


class NoFormError(Exception):
    """Internal: an expression has no closed form; the text says which and why."""


class BeyondTableError(NoFormError):
    """Internal: a function is asked at an index that it does not have."""


@dataclass(frozen=True, eq=False)
class Piece:
    """f(x) = values[x % P] + slope * (x // P) for start <= x < stop, P = len(values)."""

    start: int
    stop: int
    values: Ints
    slope: int = 0

    def at(self, x: Ints) -> Ints:
        """The rule at any x, inside the piece or not."""
        period = self.values.size
        if period == 1:
            return self.values[0] + self.slope * x if self.slope else np.full(x.shape, self.values[0])
        turns, place = np.divmod(x, period)
        found = self.values[place]
        return found + self.slope * turns if self.slope else found

    @property
    def length(self) -> int:
        """Indices in the piece; INF or more where it is open."""
        return self.stop - self.start

    @property
    def first(self) -> int:
        """f(start) of a piece that begins somewhere."""
        return int(self.span(self.start, self.start + 1)[0])

    @property
    def last(self) -> int:
        """f(stop - 1) of a piece that ends somewhere."""
        return int(self.span(self.stop - 1, self.stop)[0])

    @property
    def extent(self) -> tuple[int, int]:
        """(least, largest) that its values cannot go beyond."""
        low, high = int(self.values.min()), int(self.values.max())
        if not self.slope:
            return low, high
        ends = (self.start, self.stop - (self.stop < INF))
        turns = [end if abs(end) >= INF else end // self.values.size for end in ends]
        gains = [max(-INF, min(INF, turn * self.slope)) for turn in turns]
        return max(-INF, low + min(gains)), min(INF, high + max(gains))

    @property
    def rises(self) -> bool:
        """Whether it never decreases."""
        period = self.values.size
        if period == 1:
            return self.slope >= 0 or self.length == 1
        start = self.start if self.start > -INF else min(self.stop, INF // 2) - period - 1
        return bool((np.diff(self.span(start, min(self.stop, start + period + 1))) >= 0).all())

    @property
    def constant(self) -> bool:
        return self.values.size == 1 and not self.slope

    def span(self, start: int, stop: int) -> Ints:
        """The rule at start, start + 1, ... before stop: `at` without a division for each index."""
        if stop - start > LONGEST:
            raise NoFormError("its values follow no short rule")
        period = self.values.size
        first = start // period
        turns = np.arange(first, -(-stop // period), dtype=np.int64)
        whole = self.values + self.slope * turns[:, None] if turns.size > 1 or self.slope else self.values
        return whole.reshape(-1)[start - first * period : stop - first * period]

    def spread(self, period: int) -> Ints:
        """Its values over a multiple of its period."""
        return self.values if period == self.values.size else self.span(0, period)

    def within(self, start: int, stop: int) -> Piece:
        return Piece(start, stop, self.values, self.slope)


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
    """The piece with the shortest period that says the same. Bounded pieces are listed where they end within one."""
    if piece.length < piece.values.size:
        piece = listed(piece.span(piece.start, piece.stop), piece.start)
    values, slope = piece.values, piece.slope
    period = values.size
    if period == 1:
        alone = slope and piece.length == 1
        return Piece(piece.start, piece.stop, np.array([piece.first])) if alone else piece
    if piece.length == period:  # its own length: any slope will do
        found = piece.span(piece.start, piece.stop)
        first, rise = int(found[0]), int(found[1] - found[0])
        line = found[-1] == first + rise * (period - 1) and (np.diff(found) == rise).all()
        if line and (period > 2 or not rise):  # two values are a line too, but conditions stay without slopes
            return Piece(piece.start, piece.stop, np.array([first - rise * piece.start]), rise)
    for prime in _primes(period):
        while period % prime == 0 and slope % prime == 0:
            part, gain = period // prime, slope // prime
            ends = values[part] == values[0] + gain and values[-1] == values[-1 - part] + gain  # settles most
            if not ends or not np.array_equal(values[part:], values[:-part] + gain if gain else values[:-part]):
                break
            values, slope, period = values[:part], gain, part
    return Piece(piece.start, piece.stop, values, slope)


def _merged(a: Piece, b: Piece) -> Piece | None:
    """Both as one, if one's rule holds on the other; asked where the other is short or both are constant."""
    if a.constant and b.constant:
        return a.within(a.start, b.stop) if a.values[0] == b.values[0] else None
    for rule, other in ((a, b), (b, a)):
        place = (other.start, other.stop)
        near = other.length <= MANY and rule.values.size < rule.length
        if near and np.array_equal(rule.span(*place), other.span(*place)):
            return rule.within(a.start, b.stop)
    same = a.values.size == b.values.size and a.slope == b.slope and a.values.size < min(a.length, b.length)
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


def listed(values: Ints, start: int) -> Piece:
    """The values of start, start + 1, ..."""
    rolled = np.roll(values, start % values.size) if values.size else values
    return Piece(start, start + values.size, np.asarray(rolled, np.int64))


def short(period: int) -> int:
    if period > LONGEST:
        raise NoFormError(f"it repeats only after {period} indices")
    return period
