"""Bounds on a single axis as one clipped line a side, where that says the same of all rows: kernels then read less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft.pattern.bounds import INF, Bound, Stair
from weft.planning.device import tiles_on_line
from weft.planning.tiles import AxisPlan, Launch


def as_lines(launch: Launch) -> Launch | None:
    """A launch on one axis with a line for every bound, None where one is not enough.

    What a bound says of rows that the launch does not have, or that see nothing there, is left out; and all of it where
    every tile is full, since kernels then never ask.
    """
    parts = []
    for part in launch.parts:
        axis = _straight(part.axes[0])
        if axis is None:
            return None
        parts.append(replace(part, axes=(axis,)))
    return replace(launch, parts=tuple(parts))


def unbounded(axis: AxisPlan) -> AxisPlan:
    """An axis without bounds, as one needs none whose tiles are all full."""
    return replace(axis, relation=replace(axis.relation, lower=(), upper=()))


def _straight(axis: AxisPlan) -> AxisPlan | None:
    tiles, full = tiles_on_line(axis)
    if (tiles == full).all():
        return unbounded(axis)
    lower, upper = _merged(axis.relation.lower, True), _merged(axis.relation.upper, False)
    if lower is None or upper is None:
        return None
    found = replace(axis, relation=replace(axis.relation, lower=lower, upper=upper))
    return found if found.relation == axis.relation or _agree(axis, found) else None


def _merged(bounds: Sequence[Bound], lower: bool) -> tuple[Stair, ...] | None:
    """One line clipped by all constants, thresholds left out; None where there are more lines, or steps."""
    stairs = [bound for bound in bounds if isinstance(bound, Stair)]
    constants = [stair.out_lo for stair in stairs if stair.is_constant]
    lines = [stair for stair in stairs if not (stair.is_constant or stair.is_threshold)]
    if len(stairs) < len(bounds) or len(lines) > 1 or any(line.run > 1 for line in lines):
        return None
    if not lines:
        return (Stair.constant(max(constants) if lower else min(constants)),) if constants else ()
    low, high = lines[0].out_lo, lines[0].out_hi
    if lower:
        low = max([low, *constants])
        high = max(low, high)
    else:
        high = min([high, *constants])
        low = min(low, high)
    return (replace(lines[0], out_lo=low, out_hi=high, in_lo=-INF, in_hi=INF),)


def _agree(axis: AxisPlan, other: AxisPlan) -> bool:
    """Whether both bound the rows of all tiles with a column alike."""
    lane, tile = np.nonzero((axis.heights > 0) & (axis.widths > 0))
    row = axis.block_q * tile[:, None] + np.arange(axis.block_q)
    rows = axis.lanes.query_at(lane[:, None], np.minimum(row, axis.lanes.rows[lane, None] - 1))
    first, second = (one.relation.interval(rows, one.n) for one in (axis, other))
    return all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))
