"""How many pairs a relation has, without a pass over its rows.

Rows of one residue modulo a period see bounds that are straight lines, since every stair rises by whole numbers over
it. Between two places where such lines cross, the number of keys of a row is a straight line too. Its first and its
last value tell the sum. So the work is that of the crossings, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from weft.pattern.bounds import INF, Bound, Ints, Stair, Steps

if TYPE_CHECKING:
    from weft.pattern.relation import Relation

CHUNK = 1 << 18  # rows that are looked at together
FEW = 1 << 12  # rows that take no longer than a closed sum
NEAR = (-1, 0, 1, 2)  # beside a crossing: where keys are told apart by a residue, the last one is up to a step away
Line = tuple[Ints, int]  # of each residue the value at the first row; the slope, from one row of a residue to the next


def count(relation: Relation, m: int, n: int) -> int:
    """Number of live pairs with 0 <= i < m and 0 <= k < n."""
    return between(relation, 0, m, n)


def between(relation: Relation, first: int, after: int, n: int) -> int:
    """Those of the rows first <= i < after."""
    if n <= 0 or not is_closed(relation, after - first):
        return sum(_looked_at(relation, i, min(i + CHUNK, after), n) for i in range(first, after, CHUNK))
    return sum(_between(_straight(relation, a), a, b, n) for a, b in pairwise(_edges(relation, first, after)))


def is_closed(relation: Relation, m: int) -> bool:
    """Whether a closed sum takes less than a pass over the rows."""
    if m <= FEW:
        return False
    bounds = relation.lower + relation.upper
    tables = sum(len(bound.breaks) for bound in bounds if isinstance(bound, Steps))
    lines = 3 * len(bounds) + 2
    cuts = 2 * len(NEAR) * lines * lines  # as many as half of the pairs of lines have, and what they take beside rows
    return (tables + 1) * (_period(relation) * cuts + FEW) < m


def _looked_at(relation: Relation, first: int, after: int, n: int) -> int:
    return int(relation.affine_rows(np.arange(first, after, dtype=np.int64), n)[2].sum())


def _edges(relation: Relation, first: int, after: int) -> list[int]:
    """Rows between which every table of steps has one value."""
    tables = [bound.breaks.array for bound in relation.lower + relation.upper if isinstance(bound, Steps)]
    inside = np.unique(np.concatenate([np.zeros(0, np.int64), *tables]))
    return [first, *inside[(inside > first) & (inside < after)].tolist(), after]


def _straight(relation: Relation, row: int) -> Relation:
    """The relation with the value that each table of steps has in a row."""
    from weft.pattern.relation import Relation

    def value(bound: Bound) -> Bound:
        return bound if isinstance(bound, Stair) else Stair.constant(int(bound(np.array([row]))[0]))

    lower, upper = (tuple(map(value, side)) for side in (relation.lower, relation.upper))
    return Relation(lower, upper, relation.rows, relation.keys, relation.diagonal)


def _period(relation: Relation) -> int:
    """Rows after which every bound has risen by a multiple of the distance of keys, and residues come again."""
    step = lcm(relation.keys.step, relation.diagonal.step)
    stairs = [bound for bound in relation.lower + relation.upper if isinstance(bound, Stair)]
    return lcm(step, relation.rows.step, *(bound.run * step for bound in stairs if not bound.is_constant))


def _between(relation: Relation, first: int, after: int, n: int) -> int:
    """Live pairs of the rows first <= i < after of a relation without tables."""
    period = min(_period(relation), after - first)
    begin = first + np.arange(period, dtype=np.int64)
    rows = -(-(after - begin) // period)  # of each residue
    cuts = np.concatenate([np.zeros((1, period), np.int64), rows[None], *_cuts(relation, begin, period, n)])
    cuts = np.sort(np.clip(cuts, 0, rows), axis=0)
    some, last = cuts[:-1], cuts[1:] - 1
    at = [relation.affine_rows(begin + period * np.clip(x, 0, rows - 1), n)[2] for x in (some, last)]
    length = np.maximum(last - some + 1, 0)
    # twice a sum is less than 2**64, since lengths are less than 2**31
    doubled = (at[0] + at[1]).astype(np.uint64) * length.astype(np.uint64)
    return sum(int(x) for x in (doubled // np.uint64(2)).sum(axis=1, dtype=np.uint64))


def _cuts(relation: Relation, begin: Ints, period: int, n: int) -> Iterator[Ints]:
    """(cuts, residues): how many rows of a residue come before a crossing of two lines, or before a threshold."""
    bounds = relation.lower + relation.upper
    lines = [(np.full(begin.size, x, np.int64), 0) for x in (0, n)]
    for bound in bounds:
        assert isinstance(bound, Stair)
        lines += _lines(bound, begin, period)
        for row in (bound.in_lo, bound.in_hi):
            if -INF < row < INF:
                yield -((begin - row) // period)[None]
    for (a, rise), (b, other) in combinations(lines, 2):
        if rise != other:
            crossing = (b - a) // (rise - other)
            yield np.stack([crossing + x for x in NEAR])


def _lines(bound: Stair, begin: Ints, period: int) -> Iterator[Line]:
    """The lines that a stair follows: its own, and those that it is cut at."""
    flat = [x for x in (bound.out_lo, bound.out_hi) if -INF < x < INF]
    yield from ((np.full(begin.size, x, np.int64), 0) for x in flat)
    if not bound.is_constant:
        yield (begin + bound.shift) // bound.run * bound.rise + bound.base, period // bound.run * bound.rise
