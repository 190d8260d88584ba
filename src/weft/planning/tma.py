"""What tensor descriptors reach: the tokens that tiles of a line may read, as places and lanes, or a whole grid.

A tile is read whole, and may end up to 63 places beyond the last one of its run. So every place that a descriptor
reaches belongs to some run. A key that no query sees may hold anything, and is never read. Beyond its places a
descriptor reads zeros.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from weft.pattern.bounds import Ints
from weft.planning.boxes import every_key_is_seen
from weft.planning.tiles import LoopNest


class TmaExtent(NamedTuple):
    """Tokens base + step * place + lane for so many places and lanes.

    Descriptors begin at token 0, so that they need no byte offset. They count places and lanes from there; `first` is
    the place and lane of `base`. No tile lies before it.
    """

    base: int
    step: int
    lanes: int
    places: int

    @property
    def first(self) -> tuple[int, int]:
        """Place and lane of `base`, counted from token 0."""
        return divmod(self.base, self.step)


class GridExtent(NamedTuple):
    """All tokens of a grid of two or three axes, from token 0 on in order. box: of a tile of them."""

    shape: tuple[int, ...]
    box: tuple[int, ...]


Extent: TypeAlias = TmaExtent | GridExtent
AXES, LONGEST = (2, 3), 1 << 10  # axes of grids that descriptors reach, and tokens of one (`tables.grid_ranges`)


def grid_extents(nest: LoopNest) -> tuple[GridExtent, ...] | None:
    """The extents of the queries and of the keys of a nest on a grid. None where tokens are not all of it in order, or
    where some are keys that no query sees. Beyond the grid descriptors read zeros.
    """
    sides = (nest.q, *(part.k for part in nest.parts))
    steps = [step for axis in nest.parts[0].axes for step in (axis.lanes.q_step, axis.lanes.k_step)]
    known = all(len(x.shape) in AXES and max(x.shape) <= LONGEST and not (x.origin or x.order) for x in sides)
    if not known or len(nest.parts) > 1 or set(steps) != {1} or not every_key_is_seen(nest):
        return None
    boxes = (nest.box, *(tuple(axis.block_k for axis in part.axes) for part in nest.parts))
    return tuple(GridExtent(side.shape, box) for side, box in zip(sides, boxes, strict=True))


def extents(nest: LoopNest) -> tuple[TmaExtent, ...] | None:
    """The extents of the queries and of each term's keys, of a nest on one axis.

    None where tokens are no such places, or some of them are keys that no query sees.
    """
    lane, tile = nest.slots(0)
    lanes = nest.lanes[0]
    height = np.minimum(nest.box[0], lanes.rows[lane] - nest.box[0] * tile)
    first = lanes.q_first[lane] + lanes.q_step * nest.box[0] * tile
    found = [_extent(first, height, nest.q.origin, lanes.q_step, nest.q.shape[0])]
    for part in nest.parts:
        axis = part.axes[0]
        first = axis.lanes.k_first[lane] + axis.lanes.k_step * axis.start[lane, tile].astype(np.int64)
        widths = axis.widths[lane, tile].astype(np.int64)
        found.append(_extent(first, widths, part.k.origin, axis.lanes.k_step, part.k.shape[0]))
    return None if None in found else tuple(one for one in found if one is not None)


def _extent(first: Ints, count: Ints, origin: int, step: int, length: int) -> TmaExtent | None:
    """Of runs of `count` tokens from `first` on; origin, step, length: of their grid."""
    first, count = first[count > 0], count[count > 0]
    if not first.size:
        return TmaExtent(origin, step, 1, 1)
    places, lane = np.divmod(first, step)
    low, high = int(places.min()), int((places + count).max())
    known = np.unique(lane)
    lanes, base = (1, low * step + int(known[0])) if known.size == 1 else (step, low * step)
    if known.size != lanes or base + (high - low - 1) * step + lanes > length:
        return None
    whole = all(_is_whole(places[lane == one], count[lane == one], low, high) for one in known)
    return TmaExtent(origin + base, step, lanes, high - low) if whole else None


def _is_whole(first: Ints, count: Ints, low: int, high: int) -> bool:
    """Whether runs leave no place out between low and high."""
    order = np.argsort(first, kind="stable")
    ends = np.maximum.accumulate((first + count)[order])
    return bool(first.min() == low and ends[-1] == high and (first[order][1:] <= ends[:-1]).all())
