"""Sparse keys: keys that many queries see beside a short window, as every 128th or the first ones.

A kernel of their own adds their gradients to those of the fused backward
(docs/decisions/0010-warp-groups-that-specialise.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from weft.acsr.format import Term
from weft.pattern.bounds import Ints
from weft.planning.problem import Problem
from weft.planning.tma import TmaExtent
from weft.target import Gpu

TILE = 64  # queries, and keys
GROUPS = 2  # of warps that compute, each its own tiles of queries
TILES = 2  # of keys that a group has in registers, and so of a launch
REDUCED = 4  # keys of a program that reduces partial sums
RANGES, EDGES = 4, 2  # integers of a table before its bounds: of a launch, of a tile of keys
FAR = 1 << 30  # after every query
# Seconds of a launch with the sums that follow it, and of a program's keys. Then seconds of a tile of queries that sees
# one tile of keys, or two. By rows of an H200 (benchmarks/results/few-keys.csv).
START, ITEM, STEPS = 9.1e-6, 6.6e-6, (2.05e-6, 3.54e-6)


@dataclass(frozen=True, eq=False)
class SparseKeys:
    """Keys base, base + step, ...: each is seen by the queries from `low` to before `high`, one at least."""

    base: int
    step: int
    low: Ints = field(repr=False)
    high: Ints = field(repr=False)

    @property
    def count(self) -> int:
        return self.low.size

    @property
    def tiles(self) -> int:
        return -(-self.count // TILE)

    @property
    def extent(self) -> TmaExtent:
        return TmaExtent(self.base, self.step, 1, self.count)

    def launches(self) -> list[SparseKeys]:
        """As many keys at a time as one launch takes."""
        some = TILES * TILE
        return [
            replace(self, base=self.base + self.step * at, low=self.low[at : at + some], high=self.high[at : at + some])
            for at in range(0, self.count, some)
        ]

    def ranges(self) -> tuple[int, int, int]:
        """Tiles of queries of one launch: (first, first that may see the second tile of keys, one after the last).

        No tile of queries sees the second tile of keys before the first.
        """
        begin, end = int(self.low.min()) // TILE, -(-int(self.high.max()) // TILE)
        if self.tiles < TILES:
            return begin, end, end
        return begin, max(begin, int(self.low[TILE:].min()) // TILE), end

    def table(self) -> NDArray[np.int32]:
        """The integers that the kernel reads of one launch.

        First come the ranges, then for each tile of keys the span of queries that see all of it. The bounds of each key
        follow; those of keys that do not exist are empty.
        """
        low, high = np.zeros((2, TILES * TILE), np.int64)
        low[: self.count], high[: self.count] = self.low, self.high
        every, until = low.reshape(-1, TILE).max(1), high.reshape(-1, TILE).min(1)
        whole = (high > low).reshape(-1, TILE).all(1)
        edges = np.stack([np.where(whole, every, FAR), np.where(whole, until, 0)], axis=1)
        return np.concatenate([self.ranges(), [0], edges.reshape(-1), low, high]).astype(np.int32)


@dataclass(frozen=True)
class Parts:
    """How many programs share the queries of a head of keys, and what a launch takes then."""

    parts: int
    seconds: float


def parts_of(sparse: SparseKeys, problem: Problem, gpu: Gpu) -> Parts:
    """The parts by which a launch takes least."""
    begin, middle, end = sparse.ranges()
    heads, found = problem.batch * problem.kv_heads, []
    for parts in range(1, max(1, min(-(-(end - begin) // GROUPS), 4 * gpu.processors // heads)) + 1):
        steps = [-(-tiles // (GROUPS * parts)) for tiles in (middle - begin, end - middle)]
        walked = problem.group * sum(count * step for count, step in zip(steps, STEPS, strict=True))
        rounds = -(-heads * parts // gpu.processors)
        found.append(Parts(parts, START + rounds * (ITEM + walked)))
    return min(found, key=lambda one: one.seconds)


def seconds(sparse: SparseKeys, problem: Problem, gpu: Gpu) -> float:
    """What all launches take."""
    return sum(parts_of(one, problem, gpu).seconds for one in sparse.launches())


def sparse_keys(term: Term, length: int) -> SparseKeys | None:
    """The keys of a term, where they lie at equal steps and neighbouring queries see each; else None."""
    relation = term.axes[0]
    listed = not (term.rows.is_every and term.keys.is_every) or term.is_ordered
    whole = term.rank == 1 and all((grid.origin, grid.shape) == (0, (length,)) for grid in (term.q, term.k))
    if listed or not whole or relation.rows.step > 1 or relation.diagonal.step > 1:
        return None
    keys = np.arange(relation.keys.phase, length, relation.keys.step)
    low, high = relation.transpose().interval(keys, length)
    (seen,) = np.nonzero(high > low)
    if not seen.size or seen[-1] - seen[0] + 1 != seen.size:
        return None
    return SparseKeys(int(keys[seen[0]]), relation.keys.step, low[seen], high[seen])
