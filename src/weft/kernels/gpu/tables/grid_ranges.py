"""What a forward by warp groups reads of an item on a grid: its tiles of keys in an order, and what each group sees.

These integers follow an item's other ones (`tables.pack`):

| what | integers |
|---|---|
| place of the item's list of tiles in the tables, and how many there are | 2 |
| for each group of GROUP rows: its range in that list | RANGE |

A list has a word for each tile: how far it begins from the run's first key, BITS for each axis, the last axis lowest.
Tiles that the first group alone sees come first, and those that the last alone sees come last. What a group sees whole
lies side by side, as far as both allow. So a group walks one span of tiles, and masks those before and after its full
ones. Items that see alike share a list.
"""

from __future__ import annotations

from functools import reduce
from math import prod

import numpy as np

from weft.kernels.gpu.tables.consumer_ranges import BESIDE, GROUP
from weft.kernels.gpu.tables.writer import Words
from weft.pattern.bounds import Ints
from weft.planning.tiles import AxisPlan, LoopNest

RANGE, BITS = 4, 10  # of a group: first tile, the one after the last, the first full one, the one after the last
NONE, EDGE, FULL = 0, 1, 2  # what a group sees of a tile
ORDER = np.array([[8, 7, 6], [0, 5, 4], [1, 2, 3]])  # of tiles, by what the first and the last group see


def with_grid_ranges(nest: LoopNest, items: Words, at: int, whole: bool) -> tuple[Words, Words, Ints]:
    """(items with these integers, lists that follow all items, time of each item) of a nest of one part on a grid.

    items: for each axis first query and queries, then for each axis first key, keys and two more. at: where items are
    in the tables. whole: where a group has fewer than its rows, it sees no tile whole.
    """
    rank, groups = len(nest.box), prod(nest.box) // GROUP
    known, lists_at = items.astype(np.int64), at + len(items) * (items.shape[1] + 2 + RANGE * groups)
    seen = [_axis_seen(nest, axis, known, groups, whole) for axis in range(rank)]
    sizes = [axis.block_k for axis in nest.parts[0].axes]
    lists: list[Ints] = []
    made: dict[tuple[bytes, ...], tuple[Ints, int]] = {}
    found = np.zeros((len(items), 2 + RANGE * groups), np.int64)
    size = 0
    for n in range(len(items)):
        of_axes = [one[n] for one in seen]
        key = tuple(one.tobytes() for one in of_axes)
        if key not in made:
            words, ranges = _list_of(of_axes, sizes)
            made[key] = np.concatenate([[lists_at + size, words.size], ranges.reshape(-1)]), words.size
            lists.append(words)
            size += words.size
        found[n] = made[key][0]
    ranges = found[:, 2:].reshape(len(items), groups, RANGE)
    tiles = ranges[:, :, 1] - ranges[:, :, 0]
    time = 2 * tiles.sum(1) + BESIDE * (tiles > 0).sum(1)  # in half tiles, as `consumer_ranges.time_of`
    return np.concatenate([items, found.astype(np.int32)], axis=1), np.concatenate(lists).astype(np.int32), time


def in_slabs(nest: LoopNest) -> Ints:
    """The order of the tiles of rows of a nest of one part, in which neighbours walk the same tokens.

    Programs of one time then walk a narrow slab of the grid, which moves along the axis of which runs are the smallest
    share. What they read and add to has to stay in the second-level cache.
    """
    axes = nest.parts[0].axes
    share = [float(axis.widths.mean()) / axis.n for axis in axes]
    slots = [nest.slots(axis)[0].size for axis in range(len(axes))]
    order = np.argsort(share, kind="stable")
    return np.arange(prod(slots)).reshape(slots).transpose(order).reshape(-1)


def _axis_seen(nest: LoopNest, number: int, items: Ints, groups: int, whole: bool) -> list[Ints]:
    """Of each item (groups, boxes): what groups see of the boxes of one axis."""
    axis, rank = nest.parts[0].axes[number], len(nest.box)
    start, height = items[:, 2 * number], items[:, 2 * number + 1]
    first, count = items[:, 2 * rank + 4 * number], items[:, 2 * rank + 4 * number + 1]
    corners = np.array(np.unravel_index(np.arange(groups) * GROUP, nest.box))[number]
    ends = np.array(np.unravel_index(np.arange(groups) * GROUP + GROUP - 1, nest.box))[number]
    made: dict[tuple[int, ...], Ints] = {}
    found = []
    for item in np.stack([start, height, first, count], axis=1).tolist():
        if tuple(item) not in made:
            made[tuple(item)] = np.stack([_seen(axis, item, (a, b), whole) for a, b in zip(corners, ends, strict=True)])
        found.append(made[tuple(item)])
    return found


def _seen(axis: AxisPlan, item: list[int], rows: tuple[int, int], whole: bool) -> Ints:
    """What rows of an item, from the first to the last, see of each box of one axis."""
    start, height, first, count = item
    boxes = -(-count // axis.block_k)
    if rows[0] >= height:
        return np.zeros(boxes, np.int64)
    queries = start + np.arange(rows[0], min(rows[1] + 1, height))
    low, high = (x - first for x in axis.relation.interval(queries, axis.n))
    begin = axis.block_k * np.arange(boxes)
    some = (begin + axis.block_k > low.min()) & (begin < high.max())
    every = (begin >= low.max()) & (begin + axis.block_k <= high.min()) & (not whole or rows[1] < height)
    return np.where(every, FULL, np.where(some, EDGE, NONE))


def _list_of(seen: list[Ints], sizes: list[int]) -> tuple[Ints, Ints]:
    """(words of the tiles, (groups, RANGE)) of an item. seen: of each axis (groups, boxes)."""
    of_tiles = np.stack([reduce(np.minimum.outer, rows).reshape(-1) for rows in zip(*seen, strict=True)])
    places = [size * np.arange(one.shape[1]) for size, one in zip(sizes, seen, strict=True)]
    words = reduce(lambda outer, inner: (outer[:, None] << BITS | inner).reshape(-1), places)
    order = np.argsort(_order(of_tiles), kind="stable")
    order = order[of_tiles[:, order].any(0)]
    ranges = np.stack([_range(one[order]) for one in of_tiles])
    return words[order], ranges


def _order(seen: Ints) -> Ints:
    """What tiles are sorted by. seen (groups, tiles). Of more than two groups, neighbours see much alike, and the
    middle of those that see a tile says when it is due.
    """
    if len(seen) <= 2:
        return ORDER[seen[0], seen[-1]]
    some = seen > NONE
    return some.argmax(0) + len(seen) - some[::-1].argmax(0)


def _range(seen: Ints) -> Ints:
    """The tiles that a group sees, as a span, and the longest span of full ones in it."""
    some = np.flatnonzero(seen)
    if not some.size:
        return np.zeros(RANGE, np.int64)
    begin, end = some[0], some[-1] + 1
    turns = np.flatnonzero(np.diff(np.concatenate([[0], seen == FULL, [0]]))).reshape(-1, 2)
    below, beyond = turns[np.argmax(turns[:, 1] - turns[:, 0])] if turns.size else (end, end)
    return np.array([begin, end, below, beyond])
