"""Boxes of columns on a grid, moved to where all of their tokens exist: kernels then read them without a mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool
from weft.planning.device import is_listed
from weft.planning.tiles import AxisPlan, Launch


def whole_boxes(launch: Launch) -> Launch | None:
    """The launch with runs of whole boxes, as many as before; None on a line, or where not all of them are on the grid.

    A run may then begin before its first column and end after its last one, in columns that none of its rows sees. So
    some row must see every column: what lies in one that nobody sees may be anything, and is never read.
    """
    if len(launch.box) == 1 or any(map(is_listed, launch.parts)):
        return None
    parts = []
    for part in launch.parts:
        axes = tuple(map(_moved, part.axes))
        if None in axes:
            return None
        parts.append(replace(part, axes=axes))
    return replace(launch, parts=tuple(parts))


def _moved(axis: AxisPlan) -> AxisPlan | None:
    lanes, runs = axis.lanes, axis.widths
    widths = -(-runs // axis.block_k) * axis.block_k
    length = -((lanes.k_first - axis.n) // lanes.k_step)  # positions of each lane
    start = np.where(runs > 0, np.minimum(axis.start, length[:, None] - widths), 0)
    if (start < 0).any() or not _seen(axis, length).all():
        return None
    none = np.zeros_like(start, np.int8)
    return replace(axis, start=start, stop=start + widths, left=none, full=none)


def _seen(axis: AxisPlan, length: Ints) -> NDBool:
    """Whether some row sees a position, (lanes, positions); True beyond the last one of a lane."""
    count, most = len(axis.lanes), int(length.max(initial=0))
    which, row = np.arange(count)[:, None], np.arange(int(axis.lanes.rows.max(initial=0)))[None, :]
    exists = row < axis.lanes.rows[:, None]
    low, high = axis.lanes.bounds(axis.relation, axis.n, which, np.where(exists, row, 0))
    some = exists & (low < high)
    change = np.zeros((count, most + 1), np.int64)
    lane = np.broadcast_to(which, some.shape)[some]
    np.add.at(change, (lane, np.minimum(low[some], most)), 1)
    np.add.at(change, (lane, np.minimum(high[some], most)), -1)
    seen = np.cumsum(change, axis=1)[:, :most] > 0
    return seen | (np.arange(most) >= length[:, None])
