"""What a forward by warp groups reads of an item beside what every kernel does, so that no group computes it.

After an item's other integers (`weft.kernels.triton.tables`): place and lane (`weft.planning.reach`) of its first query
and of each part's first key; then for each part and each group of GROUP rows SHARE integers: the first tile of columns
that some row sees and the one after the last, and the tiles that all rows see whole, from the first to the one after
the last. Tiles count from the run's first column.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.pattern.bounds import Ints
from weft.planning.reach import Reach
from weft.planning.tiles import AxisPlan, Launch

GROUP, SHARE = 64, 4


def shares_of(launch: Launch, items: NDArray[np.int32], reach: tuple[Reach, ...]) -> Ints:
    """(items, integers) of a launch on one axis; items: (first query, queries), then each part's run."""
    known = items.astype(np.int64)
    first, height = known[:, :2].T
    origins = [launch.q.origin, *(part.k.origin for part in launch.parts)]
    firsts = [first, *(known[:, 2 + 4 * n] for n in range(len(launch.parts)))]
    columns = [x for side, at, base in zip(reach, firsts, origins, strict=True) for x in _place(side, at + base)]
    ends = np.arange(launch.box[0]).reshape(-1, GROUP)[:, [0, -1]]  # bounds rise or fall, so these say what all see
    exists = ends[:, 0] < height[:, None]
    rows = np.minimum(ends, height[:, None, None] - 1)  # (items, groups, 2)
    queries = first[:, None, None] + launch.lanes[0].q_step * rows
    for n, part in enumerate(launch.parts):
        run = known[:, 2 + 4 * n], known[:, 3 + 4 * n]
        share = _share(part.axes[0], queries, run)
        share[:, :, 1] *= exists
        share[:, :, 0] = np.minimum(share[:, :, 0], share[:, :, 1])
        columns += list(share.reshape(len(known), -1).T)
    return np.stack(columns, axis=1)


def _place(reach: Reach, token: Ints) -> tuple[Ints, Ints]:
    """(place, lane) of tokens that a descriptor reaches; anything of others, where a run is empty."""
    place, lane = np.divmod(token - reach.base, reach.step)
    return place, lane


def _share(axis: AxisPlan, queries: Ints, run: tuple[Ints, Ints]) -> Ints:
    """(items, groups, SHARE) of one part."""
    first, count = (x[:, None, None] for x in run)
    low, high = (np.maximum(-((first - x) // axis.lanes.k_step), 0) for x in axis.relation.interval(queries, axis.n))
    high, tile = np.minimum(high, count), axis.block_k
    begin, end = low.min(2) // tile, -(-high.max(2) // tile)
    return np.stack([begin, end, -(-low.max(2) // tile), high.min(2) // tile], axis=2)
