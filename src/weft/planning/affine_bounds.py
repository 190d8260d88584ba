"""Bounds on a single axis as one clipped line a side, where that says the same of all rows: kernels then read less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.acsr.stairs import one_line
from weft.planning.tiles import AxisPlan, LoopNest
from weft.planning.tiling.gpu import tiles_on_line


def as_lines(nest: LoopNest) -> LoopNest | None:
    """A nest on one axis with a line for every bound, None where one is not enough.

    A bound may say something of rows that the nest does not have, or that see nothing; that is left out. Where every
    tile is full all bounds are left out, since kernels never ask for them.
    """
    parts = []
    for part in nest.parts:
        axis = _straight(part.axes[0])
        if axis is None:
            return None
        parts.append(replace(part, axes=(axis,)))
    return replace(nest, parts=tuple(parts))


def unbounded(axis: AxisPlan) -> AxisPlan:
    """An axis without bounds, as one needs none whose tiles are all full."""
    return replace(axis, relation=replace(axis.relation, lower=(), upper=()))


def _straight(axis: AxisPlan) -> AxisPlan | None:
    tiles, full = tiles_on_line(axis)
    if (tiles == full).all():
        return unbounded(axis)
    lower, upper = one_line(axis.relation.lower, True), one_line(axis.relation.upper, False)
    if lower is None or upper is None:
        return None
    found = replace(axis, relation=replace(axis.relation, lower=lower.line, upper=upper.line))
    alike = max(lower.begin, upper.begin), min(lower.end, upper.end)
    return found if found.relation == axis.relation or _agree(axis, found, alike) else None


def _agree(axis: AxisPlan, other: AxisPlan, alike: tuple[int, int]) -> bool:
    """Whether both bound the rows of all tiles with a column alike; alike: the rows [begin, end) where they do."""
    lane, tile = np.nonzero((axis.heights > 0) & (axis.widths > 0))
    if axis.lanes.queries is None:  # rows of a tile rise: the others are asked one by one
        ends = np.stack([tile * axis.block_q, np.minimum((tile + 1) * axis.block_q, axis.lanes.rows[lane]) - 1])
        first, last = axis.lanes.query_at(lane, ends)
        beyond = (first < alike[0]) | (last >= alike[1])
        lane, tile = lane[beyond], tile[beyond]
    row = axis.block_q * tile[:, None] + np.arange(axis.block_q)
    rows = axis.lanes.query_at(lane[:, None], np.minimum(row, axis.lanes.rows[lane, None] - 1))
    first, second = (one.relation.interval(rows, one.n) for one in (axis, other))
    return all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))
