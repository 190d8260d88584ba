"""Relayouts: re-indexings of one axis under which the keys of every row are contiguous.

Queries are taken by their residue modulo q_step, keys modulo k_step: position p of a class is query phase + q_step * p.
Listed queries or keys are gathered through a table; every other relayout is a view (base, strides), never a copy. Under
it a row's live keys are one interval [lo, hi) of positions. Both ends never decrease from row to row, so a tile of rows
is described by its first and last row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

import numpy as np

from weft.acsr.format import Grid
from weft.pattern.bounds import INF, Ints, IntTable, Stair
from weft.pattern.listed import EVERY, ByClass, Listed
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


NONE_OUT = (np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, eq=False)
class Lanes:
    """The residue classes ("lanes") of queries of one axis, and the keys that each may see.

    Row p of lane c has index q_first[c] + q_step * p for 0 <= p < rows[c]; position j has index k_first[c] + k_step *
    j. An index is a query (a key), or a place in the table `queries` (`keys`) where a term has only listed ones. The
    relayout is then a gather. `live[c]` is False where no key satisfies the congruences of the lane. No full tile may
    have one of the queries out[0] or of the keys out[1]; if `alone`, on the only axis, such queries see nothing.
    """

    q_first: Ints
    rows: Ints
    q_step: int
    k_first: Ints
    k_step: int
    live: NDBool
    queries: Ints | None = None
    keys: ByClass | None = None
    out: tuple[Ints, Ints] = NONE_OUT
    alone: bool = True

    def __len__(self) -> int:
        return int(self.q_first.size)

    @property
    def nbytes(self) -> int:
        """Three 32-bit integers for each lane, and the tables."""
        queries = 0 if self.queries is None else self.queries.size
        return 12 * len(self) + 4 * (queries + (0 if self.keys is None else self.keys.tokens.size))

    def visited(self, size: int) -> NDBool:
        """Which of the `size` queries of the axis are in some lane."""
        places = np.zeros(size if self.queries is None else self.queries.size, np.bool_)
        for first, rows in zip(self.q_first.tolist(), self.rows.tolist(), strict=True):
            places[first : first + self.q_step * rows : self.q_step] = True
        if self.queries is None:
            return places
        found = np.zeros(size, np.bool_)
        found[self.queries[places]] = True
        return found

    def every_row(self) -> tuple[Ints, Ints]:
        """(lane, row) of all rows, lane by lane."""
        lanes = np.repeat(np.arange(len(self)), self.rows)
        return lanes, np.arange(lanes.size) - np.repeat(np.cumsum(self.rows) - self.rows, self.rows)

    def query_at(self, lanes: Ints, rows: Ints) -> Ints:
        """The queries of `rows` of `lanes` (broadcast)."""
        index = self.q_first[lanes] + self.q_step * rows
        return index if self.queries is None else self.queries[index]

    def key_at(self, lanes: Ints, positions: Ints) -> Ints:
        """The keys at `positions` of `lanes` (broadcast)."""
        index = self.k_first[lanes] + self.k_step * positions
        return index if self.keys is None else self.keys.tokens[index]

    def bounds(self, relation: Relation, n: int, lanes: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Positions [lo, hi) of the live keys of `rows` of `lanes` (broadcast); lo >= hi where there are none."""
        queries = self.query_at(lanes, rows)
        lo, hi = relation.interval(queries, n)
        live = self.live[lanes]
        first = self.k_first[lanes]
        if self.keys is not None:
            phase = relation.key_classes(queries)[1]
            lo, hi = (self.keys.rank(phase, x) - first for x in (lo, hi))
            return np.where(live, lo, 0), np.where(live, hi, 0)
        if not (self.k_step == 1 and live.all()):
            lo, hi = (np.maximum(-((first - x) // self.k_step), 0) for x in (lo, hi))
            hi = np.where(live, hi, 0)
        return lo, hi

    def seeing(self, relation: Relation, n: int, first: Ints, last: Ints) -> tuple[Ints, Ints, NDBool] | None:
        """The first and the last row of each tile that may see something, and whether there are some. A row may see
        nothing by a statement about the query, or by a list. None where nothing says so of any row. first, last: of all
        rows, (lanes, tiles).
        """
        begin, end = live_range(relation, INF)
        stated = self.queries is None and (begin > 0 or end < INF)
        blind = self._blind(relation, n)
        if blind is None and not stated:
            return None
        begins, ends, base, step = first, last, self.q_first[:, None], self.q_step
        if stated:
            before, after = (-((base - query) // step) for query in (begin, end))
            begins, ends = np.maximum(first, before), np.minimum(last, after - 1)
        if blind is not None:
            phase = base % step
            begins = (blind.past(phase, base + step * begins) - base) // step
            ends = (blind.ahead(phase, base + step * ends) - base) // step
        some = begins <= ends
        return np.where(some, begins, first), np.where(some, ends, last), some

    def _blind(self, relation: Relation, n: int) -> ByClass | None:
        """Indices of queries that see nothing: of listed ones by their bounds, else those that are left out; None where
        lists say nothing.
        """
        if self.queries is None:
            return ByClass.of(self.out[0], self.q_step) if self.alone and self.out[0].size else None
        lanes, rows = self.every_row()
        lo, hi = self.bounds(relation, n, lanes, rows)
        return ByClass.of((self.q_first[lanes] + rows)[lo >= hi], 1)  # listed one by one, lane by lane

    def tiles_cut(self, block: int, tiles: int) -> NDBool:
        """Which tiles of `block` rows, (lanes, tiles), have a query that is left out."""
        first = np.arange(tiles, dtype=np.int64)[None, :] * block
        rows = [np.minimum(x, self.rows[:, None] - 1) for x in (first, first + block - 1)]
        lo, hi = (self.query_at(np.arange(len(self))[:, None], x) for x in rows)
        return ByClass.of(self.out[0], self.q_step).count(lo % self.q_step, lo, hi + 1) > 0

    def longest_whole(self, start: Ints, stop: Ints, block: int) -> tuple[Ints, Ints]:
        """(key tiles skipped, key tiles): of the tiles of `block` positions from start to stop, (lanes, tiles). Skipped
        are those before the first or after the last key left out, whichever are more.
        """
        base, step = self.k_first[:, None], self.k_step
        lo, hi = base + step * start, base + step * stop
        classes, phase, count = ByClass.of(self.out[1], step), base % step, -((start - stop) // block)
        first, last = classes.first(phase, lo, hi), classes.last(phase, lo, hi)
        before = np.where(first < hi, (first - lo) // (step * block), count)
        skipped = np.where(first < hi, (last - lo) // (step * block) + 1, 0)
        after = np.where(first < hi, count - skipped, 0)
        return np.where(after > before, skipped, 0), np.maximum(before, after)

    def only(self, which: NDBool) -> Lanes:
        """Some of the lanes."""
        q_first, rows, k_first = (x[which] for x in (self.q_first, self.rows, self.k_first))
        return replace(self, q_first=q_first, rows=rows, k_first=k_first, live=self.live[which])


def lanes_of(
    relation: Relation, span: tuple[int, int], q_step: int, rows: Listed = EVERY, keys: Listed = EVERY
) -> Lanes:
    """The lanes of the queries span[0] <= i < span[1] modulo q_step, a multiple of `natural_step(relation)`.

    rows, keys: only these, if they are `kept`; what is left out stays in the lanes, and is masked.
    """
    first, last = span
    queries = None
    if rows.kept:
        queries = ByClass.of(rows.within(first, last).tokens.array, q_step).tokens
        q_first = np.flatnonzero(np.diff(queries % q_step, prepend=-1))
        heads, counts, q_step = queries[q_first], np.diff(q_first, append=queries.size), 1
    else:
        heads = q_first = np.arange(first, max(first, min(first + q_step, last)), dtype=np.int64)
        counts = -((q_first - last) // q_step)
    live = relation.rows.holds(heads)
    k_step, k_first, agree = relation.key_classes(heads)
    listed = None
    if keys.kept:
        listed = ByClass.of(keys.tokens.array, k_step)
        k_first, k_step = listed.rank(k_first, np.zeros_like(k_first)), 1
    out = rows.left_out, keys.left_out
    return Lanes(q_first, counts, q_step, k_first, k_step, live & agree, queries, listed, out)


# ---- sets of tokens on an axis -----------------------------------------------------------------------------------
def on_axis(listed: Listed, grid: Grid, axis: int) -> Listed:
    """A set of tokens as coordinates of one axis. On a grid it is told on the first axis. There a coordinate is left
    out (never taken for full) if any token with it is.
    """
    if len(grid.shape) == 1 or listed.is_every:
        return listed.moved(-grid.origin)
    coordinates = np.unique(grid.coordinates(listed.tokens.array)[1][0])
    return EVERY if axis else Listed(IntTable(coordinates), kept=False)


def left_out(listed: Listed) -> Listed:
    """The set without what it keeps: what a part leaves out and a kernel masks."""
    return EVERY if listed.kept else listed
