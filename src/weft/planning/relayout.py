"""Relayouts: re-indexings of one axis under which the keys of every row are contiguous.

Queries are taken by their residue modulo q_step, keys modulo k_step: position p of a class is query phase + q_step *
p. A relayout is a view (base, strides), never a copy. Under it a row's live keys are one interval [lo, hi) of
positions, and both ends never decrease from row to row, so a tile of rows is described by its first and last row.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import numpy as np

from weft.pattern.bounds import INF, Ints, Stair
from weft.pattern.relation import NDBool, Relation


def natural_step(relation: Relation) -> int:
    """The smallest query step under which the keys of a class are one residue class."""
    return lcm(relation.rows.step, relation.diagonal.step)


def live_range(relation: Relation, m: int) -> tuple[int, int]:
    """Rows outside the returned [first, last) are dead by a statement about the query alone."""
    first, last = 0, m
    for bound in relation.upper:
        if isinstance(bound, Stair) and bound.in_lo > -INF:
            first = max(first, bound.in_lo)
    for bound in relation.lower:
        if isinstance(bound, Stair) and bound.in_hi < INF:
            last = min(last, bound.in_hi)
    return first, max(first, last)


@dataclass(frozen=True, eq=False)
class Lanes:
    """The residue classes ("lanes") of queries of one axis, and the keys that each may see.

    Row p of lane c is query q_first[c] + q_step * p for 0 <= p < rows[c]; position j is key k_first[c] + k_step * j.
    `live[c]` is False where no key satisfies the congruences of the lane.
    """

    q_first: Ints
    rows: Ints
    q_step: int
    k_first: Ints
    k_step: int
    live: NDBool

    def __len__(self) -> int:
        return int(self.q_first.size)

    @property
    def nbytes(self) -> int:
        return 12 * len(self)

    def bounds(self, relation: Relation, n: int, lanes: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Positions [lo, hi) of the live keys of `rows` of `lanes` (broadcast); lo >= hi where there are none."""
        lo, hi = relation.interval(self.q_first[lanes] + self.q_step * rows, n)
        live = self.live[lanes]
        if not (self.k_step == 1 and live.all()):
            first = self.k_first[lanes]
            lo, hi = (np.maximum(-((first - x) // self.k_step), 0) for x in (lo, hi))
            hi = np.where(live, hi, 0)
        return lo, hi


def lanes_of(relation: Relation, span: tuple[int, int], q_step: int) -> Lanes:
    """The lanes of the queries span[0] <= i < span[1] modulo q_step, a multiple of `natural_step(relation)`."""
    first, last = span
    q_first = np.arange(first, max(first, min(first + q_step, last)), dtype=np.int64)
    live = relation.rows.holds(q_first)
    k_step, k_first, agree = relation.key_classes(q_first)
    return Lanes(q_first, -((q_first - last) // q_step), q_step, k_first, k_step, live & agree)
