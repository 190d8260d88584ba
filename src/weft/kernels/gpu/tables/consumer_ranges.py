"""What a forward by warp groups reads of an item beside what every kernel does, so that no group computes it.

They follow an item's other integers (`tables.pack`):

| what | integers |
|---|---|
| place and lane (`weft.planning.tma`) of the first query, then of each part's first key | 2 each |
| for each part and each group of GROUP rows: its range | RANGE |
| where tables hold bounds of rows, for each part: the first column of each row, and the one after its last | 2 a row |

A range has two spans of tiles: those that some row sees, and those that all rows see whole. They count from the run's
first column. Its last integer says whether the first and the last tile fold.

Two tiles fold where every row sees a tile's width of both together: the right of the first, and the left of the last. A
window of a multiple of GROUP columns is such a run. The two then become one tile of weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.pattern.bounds import Ints
from weft.planning.tiles import AxisPlan, LoopNest
from weft.planning.tma import TmaExtent

GROUP, RANGE, FOLDS = 64, 5, 4
MOST = (1 << 15) - 1  # columns of a run, where bounds have half a word
BESIDE = 3  # half tiles in whose time a group begins and ends a block, a guess
FEW = 4  # tiles of a run that may fold, all of which a group holds at a time


def ranges_of(
    nest: LoopNest, items: NDArray[np.int32], reach: tuple[TmaExtent, ...], row_bounds: bool = False,
    whole: bool = False,
) -> Ints:  # fmt: skip
    """(items, integers) of a nest on one axis; items: (first query, queries), then each part's run.

    row_bounds: with the bounds of rows. whole: where a group has fewer than its rows, no tile is seen whole.
    """
    known = items.astype(np.int64)
    first, height = known[:, :2].T
    origins = [nest.q.origin, *(part.k.origin for part in nest.parts)]
    firsts = [first, *(known[:, 2 + 4 * n] for n in range(len(nest.parts)))]
    columns = [x for side, at, base in zip(reach, firsts, origins, strict=True) for x in _place(side, at + base)]
    ends = np.arange(nest.box[0]).reshape(-1, GROUP)[:, [0, -1]]  # bounds rise or fall, so these say what all see
    exists = ends[:, 0] < height[:, None]
    rows = np.minimum(ends, height[:, None, None] - 1)  # (items, groups, 2)
    queries = first[:, None, None] + nest.lanes[0].q_step * rows
    for n, part in enumerate(nest.parts):
        run = known[:, 2 + 4 * n], known[:, 3 + 4 * n]
        share = _range(part.axes[0], queries, run)
        share[:, :, 1] *= exists
        if whole:
            share[:, :, 3] *= ends[:, 1] < height[:, None]
        if n == 0:
            rows = np.minimum(np.arange(nest.box[0]).reshape(-1, GROUP), height[:, None, None] - 1)
            every = first[:, None, None] + nest.lanes[0].q_step * rows
            share[:, :, FOLDS] = _folds(part.axes[0], every, run, share)
        share[:, :, 0] = np.minimum(share[:, :, 0], share[:, :, 1])
        columns += list(share.reshape(len(known), -1).T)
    found = np.stack(columns, axis=1)
    return np.concatenate([found, *_bounds_of_rows(nest, known)], axis=1) if row_bounds else found


def _bounds_of_rows(nest: LoopNest, items: Ints) -> Iterator[Ints]:
    """(items, rows) of each part: the first column that rows see; the one after the last. 0 where there is no row."""
    row, height = np.arange(nest.box[0])[None, None], items[:, 1, None, None]
    rows = np.minimum(row, height - 1)
    queries = items[:, 0, None, None] + nest.lanes[0].q_step * rows
    for n, part in enumerate(nest.parts):
        for bound in _bounds(part.axes[0], queries, (items[:, 2 + 4 * n], items[:, 3 + 4 * n])):
            yield (bound * (row < height))[:, 0]


def time_of(nest: LoopNest, items: NDArray[np.int32], shares: Ints) -> Ints:
    """About how long groups take for each item together, in half tiles; items, shares: see `ranges_of`."""
    at, parts = 2 * (1 + len(nest.parts)), len(nest.parts)
    known = shares[:, at : at + RANGE * parts * (nest.box[0] // GROUP)].reshape(len(items), -1, RANGE)
    tiles: Ints = (known[:, :, 1] - known[:, :, 0] - known[:, :, FOLDS]).sum(1)
    return 2 * tiles + BESIDE * -(-items[:, 1].astype(np.int64) // GROUP)


def is_short(nest: LoopNest, items: NDArray[np.int32], shares: Ints) -> bool:
    """Whether groups see few tiles of the first part, the first and the last of some are one, and bounds fit half a
    word; items, shares: see `ranges_of`.
    """
    runs = items[:, 2 : 2 + 4 * len(nest.parts)].reshape(len(items), -1, 4)
    at, groups = 2 * (1 + len(nest.parts)), nest.box[0] // GROUP
    first = shares[:, at : at + RANGE * groups].reshape(-1, groups, RANGE)
    tiles = first[:, :, 1] - first[:, :, 0]
    few = tiles.max() <= FEW + 1  # one more where runs begin elsewhere
    return bool(few and first[:, :, FOLDS].any() and runs[:, :, 1].max() <= MOST)


def _place(reach: TmaExtent, token: Ints) -> tuple[Ints, Ints]:
    """(place, lane) of tokens that a descriptor reaches; anything of others, where a run is empty."""
    place, lane = np.divmod(token - reach.base, reach.step)
    first_place, first_lane = reach.first
    return place + first_place, lane + first_lane


def _range(axis: AxisPlan, queries: Ints, run: tuple[Ints, Ints]) -> Ints:
    """(items, groups, RANGE) of one part."""
    low, high = _bounds(axis, queries, run)
    tile = axis.block_k
    begin, end = low.min(2) // tile, -(-high.max(2) // tile)
    return np.stack([begin, end, -(-low.max(2) // tile), high.min(2) // tile, 0 * begin], axis=2)


def _folds(axis: AxisPlan, queries: Ints, run: tuple[Ints, Ints], share: Ints) -> NDArray[np.bool_]:
    """(items, groups) of one part; queries: all of them."""
    low, high = _bounds(axis, queries, run)
    begin, end, below, beyond = (share[:, :, i] for i in range(FOLDS))
    between = axis.block_k * (end - begin - 1)[:, :, None]
    few = (end - begin >= 2) & (end - begin <= FEW)
    folds: NDArray[np.bool_] = few & (below < end) & (beyond > begin) & (high - low == between).all(2)
    return folds


def _bounds(axis: AxisPlan, queries: Ints, run: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Columns of their runs, from the first to the one after the last, that queries see."""
    first, count = (x[:, None, None] for x in run)
    low, high = (np.maximum(-((first - x) // axis.lanes.k_step), 0) for x in axis.relation.interval(queries, axis.n))
    return low, np.minimum(high, count)
