"""Affine sparse axes: how many keys a group of queries reads, in closed form.

Queries of one residue class (a lane: queries modulo the relation's step) are cut into groups of g. Under that relayout
a group's keys are one interval, from the bound of its first row to that of its last. In a lane a bound is one clipped
staircase, and sums of staircases over groups are floor sums. The cost of an answer does not depend on the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from weft.errors import RelabelError
from weft.pattern.bounds import INF, Bound, Stair
from weft.pattern.relation import Relation


def floor_sum(count: int, modulus: int, a: int, b: int) -> int:
    """Sum of floor((a t + b) / modulus) over 0 <= t < count, in a logarithmic number of steps; a >= 0."""
    total, shift = 0, b // modulus
    total, b = total + shift * count, b - shift * modulus
    while count > 0:
        total += (a // modulus) * (count * (count - 1) // 2) + (b // modulus) * count
        a, b = a % modulus, b % modulus
        last = a * count + b
        if last < modulus:
            break
        count, modulus, a, b = last // modulus, a, modulus, last % modulus
    return total


@dataclass(frozen=True)
class LaneStair:
    """clip(rise * floor((p + shift) / run) + base, low, high) of a row p of a lane, low <= high."""

    rise: int
    run: int
    shift: int
    base: int
    low: int
    high: int

    @property
    def is_constant(self) -> bool:
        return self.low == self.high

    def __call__(self, p: int) -> int:
        return min(max(self.rise * ((p + self.shift) // self.run) + self.base, self.low), self.high)

    def clipped(self, low: int, high: int) -> LaneStair:
        """The same, cut to [low, high]."""
        lo, hi = (min(max(x, low), high) for x in (self.low, self.high))
        return LaneStair(self.rise, self.run, self.shift, self.base, lo, hi)

    def _above(self, value: int, first: int, g: int) -> int:
        """The first t whose row first + t * g gives more than `value` before clipping."""
        need = -((self.base - value - 1) // self.rise) * self.run
        return max(0, -((first + self.shift - need) // g))

    def summed(self, count: int, first: int, g: int) -> int:
        """Sum over the rows first + t * g, 0 <= t < count."""
        begin = min(count, self._above(self.low, first, g))
        end = min(count, max(begin, self._above(self.high - 1, first, g)))
        inner = self.rise * floor_sum(end - begin, self.run, g, self.shift + first + begin * g)
        return begin * self.low + inner + (end - begin) * self.base + (count - end) * self.high

    def never_above(self, other: LaneStair) -> bool:
        """Whether self(p) <= other(p) for all p >= 0 can be told from the integers."""
        if self.is_constant and self.low <= other.low:
            return True
        if other.is_constant and self.high <= other.high:
            return True
        if self.low > other.low or self.high > other.high or self.rise * other.run != other.rise * self.run:
            return False
        if (self.rise, self.run, self.shift) == (other.rise, other.run, other.shift):
            return self.base <= other.base
        most = self.rise * self.shift + self.base * self.run  # run times the line above the stair, without its slope
        least = other.rise * (other.shift - other.run + 1) + other.base * other.run
        return most * other.run <= least * self.run


def in_lane(stair: Stair, q: tuple[int, int], k: tuple[int, int]) -> LaneStair | None:
    """Positions of keys k[0] + k[1] * j from T(q[0] + q[1] * p) on, as a staircase of p; None if it is not one."""
    (first, step), (phase, apart) = q, k
    low, high = (-((phase - x) // apart) for x in (stair.out_lo, stair.out_hi))
    if stair.is_constant:
        return LaneStair(1, 1, 0, 0, low, high)
    if step % stair.run == 0:
        rise, run, shift = stair.rise * (step // stair.run), 1, 0
        base = stair.rise * ((first + stair.shift) // stair.run) + stair.base
    elif stair.run % step == 0:
        rise, run, shift, base = stair.rise, stair.run // step, (first + stair.shift) // step, stair.base
    else:
        return None
    if rise % apart == 0:
        return LaneStair(rise // apart, run, shift, -((phase - base) // apart), low, high)
    if rise == 1:  # ceil(x / apart) is floor((x + apart - 1) / apart), and floors nest
        return LaneStair(1, run * apart, shift + run * (base - phase + apart - 1), 0, low, high)
    return None


@dataclass(frozen=True)
class Span:
    """What groups of queries of one axis read: m queries, n keys, related by `relation`."""

    relation: Relation
    m: int
    n: int

    @property
    def step(self) -> int:
        """Queries are grouped within one residue class of this step."""
        return lcm(self.relation.rows.step, self.relation.diagonal.step)

    def groups(self, g: int) -> int:
        """Groups of at most g queries, over all lanes that see anything."""
        return sum(-(-rows // g) for rows, _, _ in self._lanes())

    def total(self, g: int) -> int:
        """Keys read by all groups together: the sum of their spans."""
        return sum(self._lane_total(g, rows, lower, upper) for rows, lower, upper in self._lanes())

    def mean(self, g: int) -> float:
        """Keys that a group reads, in the mean: what stands for the length of the axis in a cost."""
        groups = self.groups(g)
        return self.total(g) / groups if groups else 0.0

    @staticmethod
    def _lane_total(g: int, rows: int, lower: LaneStair, upper: LaneStair) -> int:
        count, rest = divmod(rows, g)
        total = upper.summed(count, g - 1, g) - lower.summed(count, 0, g)
        return total + (upper(rows - 1) - lower(count * g) if rest else 0)

    def _lanes(self) -> list[tuple[int, LaneStair, LaneStair]]:
        """(rows, lower bound, upper bound) of every lane with live keys."""
        found = []
        for first in range(min(self.step, self.m)):
            keys = self._keys(first)
            if keys is None:
                continue
            q = first, self.step
            size = -((keys[0] - self.n) // keys[1])
            lower = self._bound(self.relation.lower, q, keys, LaneStair(1, 1, 0, 0, 0, 0), lower=True)
            upper = self._bound(self.relation.upper, q, keys, LaneStair(1, 1, 0, 0, size, size), lower=False)
            lower, upper = lower.clipped(0, size), upper.clipped(0, size)
            if not lower.never_above(upper):
                raise self._no_form("its bounds may cross")
            found.append((-((first - self.m) // self.step), lower, upper))
        return found

    def _keys(self, first: int) -> tuple[int, int] | None:
        """(first key, distance of keys) of a lane, None if it sees none."""
        both = self.relation.keys.meet(self.relation.diagonal.moved(first))
        return None if both is None or first not in self.relation.rows else (both.phase, both.step)

    def _bound(self, bounds: tuple[Bound, ...], q: tuple[int, int], k: tuple[int, int], fixed: LaneStair,
               *, lower: bool) -> LaneStair:  # fmt: skip
        """The tightest of the bounds: at most one of them moves, constants cut it."""
        moving: LaneStair | None = None
        for bound in bounds:
            if not isinstance(bound, Stair) or bound.in_lo > -INF or bound.in_hi < INF:
                raise self._no_form("a bound is a table or holds for some queries only")
            one = in_lane(bound, q, k)
            if one is None or (moving is not None and not one.is_constant):
                raise self._no_form("it has several moving bounds on one side, or one whose steps do not fit its lanes")
            if one.is_constant:
                fixed = max(fixed, one, key=lambda b: b.low) if lower else min(fixed, one, key=lambda b: b.low)
            else:
                moving = one
        if moving is None:
            return fixed
        return moving.clipped(fixed.low, INF) if lower else moving.clipped(-INF, fixed.low)

    def _no_form(self, wrong: str) -> RelabelError:
        axis = "an axis without an end" if self.n == INF else f"an axis of {self.m} queries and {self.n} keys"
        return RelabelError(
            f"the span of {axis}", f"the relation has no closed form here: {wrong}",
            "count the tiles of its plan: weft.plan(...) or `weft plan`",
        )  # fmt: skip


def endless(relation: Relation) -> tuple[LaneStair, LaneStair, int]:
    """(lower bound, upper bound, distance of keys) of the first lane that sees anything, on an axis without an end."""
    lanes = Span(relation, lcm(relation.rows.step, relation.diagonal.step), INF)._lanes()
    if not lanes:
        raise RelabelError("the span of an axis", "no query sees any key", "leave the relation out")
    _, lower, upper = lanes[0]
    return lower, upper, lcm(relation.keys.step, relation.diagonal.step)
