"""Boxes of columns on a grid, moved to where all of their tokens exist: kernels then read them without a mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.pattern.bounds import Ints
from weft.planning.tiles import AxisPlan, LoopNest
from weft.planning.tiling.gpu import is_listed


def whole_boxes(nest: LoopNest) -> LoopNest | None:
    """The nest with runs of whole boxes, as many as before; None on a line, or where not all of them are on the grid.

    A run may then begin before its first column and end after its last one, in columns that none of its rows sees. So
    some row must see every column: what lies in one that nobody sees may be anything, and is never read.
    """
    if len(nest.box) == 1 or any(map(is_listed, nest.parts)):
        return None
    parts = []
    for part in nest.parts:
        axes = tuple(moved for axis in part.axes if (moved := _moved(axis)) is not None)
        if len(axes) < len(part.axes):
            return None
        parts.append(replace(part, axes=axes))
    return replace(nest, parts=tuple(parts))


def _moved(axis: AxisPlan) -> AxisPlan | None:
    runs = axis.widths
    widths = -(-runs // axis.block_k) * axis.block_k
    start = np.where(runs > 0, np.minimum(axis.start, _positions(axis)[:, None] - widths), 0)
    if (start < 0).any() or not _is_seen(axis):
        return None
    none = np.zeros_like(start, np.int8)
    return replace(axis, start=start.astype(np.int32), stop=(start + widths).astype(np.int32), left=none, full=none)


def every_key_is_seen(nest: LoopNest) -> bool:
    """Whether some row sees each key of its lane, along each axis."""
    return not any(map(is_listed, nest.parts)) and all(_is_seen(axis) for part in nest.parts for axis in part.axes)


def _positions(axis: AxisPlan) -> Ints:
    """Of each lane."""
    return -((axis.lanes.k_first - axis.n) // axis.lanes.k_step)


def _is_seen(axis: AxisPlan) -> bool:
    """Whether some row of its lane sees each position: no row begins beyond where those before it end."""
    lanes, length = axis.lanes, _positions(axis)
    which, row = np.arange(len(lanes))[:, None], np.arange(int(lanes.rows.max(initial=0)))[None, :]
    low, high = lanes.bounds(axis.relation, axis.n, which, np.minimum(row, lanes.rows[:, None] - 1))
    live = (low < high) & (row < lanes.rows[:, None])
    ends = np.maximum.accumulate(np.where(live, high, 0), axis=1)
    before = np.pad(ends, ((0, 0), (1, 0)))[:, :-1]
    return bool((np.where(live, low, 0) <= before).all() and (ends.max(axis=1, initial=0) >= length).all())
