"""Tables of lists of whole blocks, as kernels by warp groups walk them."""

from __future__ import annotations

import numpy as np

from weft.acsr.format import BLOCK
from weft.kernels.gpu.tables.consumer_ranges import BESIDE
from weft.kernels.gpu.tables.pack import PART, NestTables, Place, checked, schedule
from weft.kernels.gpu.tables.writer import Writer
from weft.planning.tiles import TilePlan
from weft.planning.tma import TmaExtent


def list_tables(plan: TilePlan) -> NestTables:
    """Lists of whole blocks, as kernels by warp groups walk them: where a run has its first place, it has its list."""
    blocks, tiling = plan.blocks, plan.of_blocks
    assert blocks is not None and tiling is not None, "it is a plan of a list"
    count = np.diff(blocks.first).astype(np.int64)
    order = schedule(count)
    out = Writer()
    out.put([0, 0, 0, 1, plan.acsr.m])
    parts_at = out.put([0] * PART + [1])
    lists = out.put(plan.acsr.remainder.cols) + blocks.first[:-1][order].astype(np.int64)
    first, tiles, none = BLOCK * blocks.rows[order].astype(np.int64), count[order], np.zeros_like(order)
    run, boxes, seen = (none, BLOCK * tiles, none, tiles), (first, none, lists, none), (none, tiles, none, tiles, none)
    bounds = (*(none,) * BLOCK, *(BLOCK * tiles,) * BLOCK)
    items = np.stack([first, none + BLOCK, *run, *boxes, *seen, *bounds], axis=1)
    items_at = out.put(items)
    reach = tuple(TmaExtent(0, 1, 1, length) for length in (plan.acsr.m, plan.acsr.n))
    place = Place(items.shape[1], 1, parts_at, items_at)
    return NestTables(checked(out.all()), 0, tiling, place, 2 * tiles + BESIDE, reach=reach)
