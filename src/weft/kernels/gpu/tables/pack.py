"""A plan as kernels read it: one vector of 32-bit integers for each wave of nests.

| what | holds |
|---|---|
| header | origin of the query grid, place of the list of queries or of their order |
| | for each axis: the logarithm of the box, the step of queries, the grid's length |
| parts | for each part PART integers, and for each axis `axis_words` |
| bounds | records of `ops.bounds.BOUND` integers, and the tables of step functions |
| | on grids: the two bounds of every coordinate |
| items | for each tile and axis: first query, queries |
| | for each part and axis: first key, keys, tiles before the full ones, full tiles |
| | of warp groups more: see `weft.kernels.gpu.tables.consumer_ranges` |
| members | for each head and nest of the wave HEAD integers: which head, and where the nest's tables are |
| blocks | of warp groups, (item, member) of each: see `weft.kernels.gpu.tables.tile_scheduler` |

Where tokens are listed, the first query and key of an item are places in the list.

A kernel reaches everything that it needs in two loads that wait for each other (three, where nests are packed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np

from weft.acsr.bits import BACKWARDS
from weft.acsr.format import BLOCK
from weft.errors import UnsupportedKernel
from weft.kernels.gpu.tables.consumer_ranges import is_short, ranges_of, time_of
from weft.kernels.gpu.tables.grid_ranges import in_slabs, with_grid_ranges
from weft.kernels.gpu.tables.writer import Words, Writer, reciprocal
from weft.pattern.bounds import Bound, Ints, IntTable, Stair, Steps
from weft.pattern.relation import NDBool
from weft.planning.affine_bounds import as_lines, unbounded
from weft.planning.boxes import whole_boxes
from weft.planning.families.hopper import CONFIGS, SUMS, has_row_bounds
from weft.planning.tiles import AxisPlan, BlockNest, LoopNest, Part, TilePlan
from weft.planning.tiling import Tiling
from weft.planning.tiling.gpu import FAR, Run, is_formula, is_listed, is_narrow, more_run
from weft.planning.tma import Extent, GridExtent, extents, grid_extents
from weft.planning.work import rows_apart

Slots = tuple[Ints, Ints]  # (lane, tile) of all tiles of one axis
# Integers of a part: origin of the key grid, and place of the list of keys or of their order. Then come the places of
# queries and of keys that are left out, one bit a token. A place is 0 for none.
PART = 4
# Integers of a part's axis: step of keys, log2 of the box, length of the grid. On a grid follow the place of the bounds
# of every coordinate, and the reciprocal of the step. A single axis may be long, so two lower and two upper staircases
# follow there, or the places and lengths of two lists.
AXIS, BOUNDS = 6, 32
# Integers of a member: batch row, key/value head, (first) query head, number of query heads. Then come the place of the
# nest's tables, its items, and the four numbers of `Place`.
HEAD = 10
NO_LOWER = (1, 1, 0, 0, 0, 0, -FAR, FAR)  # staircases that say nothing: never above 0, never below FAR
NO_UPPER = (1, 1, 0, 0, FAR, FAR, -FAR, FAR)


@dataclass(frozen=True)
class Place:
    """Where a nest keeps what: integers of an item, number of parts, and where parts and items begin."""

    record: int
    parts: int
    parts_at: int
    items_at: int


class Kind(NamedTuple):
    """What of a nest its code depends on."""

    rank: int
    tiling: Tiling
    formula: bool
    listed: bool
    split: bool
    ordered: bool = False
    boxes: tuple[tuple[int, ...], ...] = ()
    one_across: bool = False


@dataclass(frozen=True, eq=False)
class NestTables:
    """One nest. words: everything but the members and blocks. rank: axes (0: the remainder). work: tiles visited by
    each item, or of a forward by warp groups `consumer_ranges.time_of`.

    split: a tile may be several items, each with some of its columns. span: tokens from the first to the last row or
    column of a tile, at most. more: see `tiling.gpu.more_run`. whole: see `planning.boxes`. lines: see
    `planning.affine_bounds`. ordered: tokens are taken in the order of a list. reach: of a forward by warp groups what
    descriptors reach, see `planning.tma`. short: and whether its runs are, see `tables.consumer_ranges`. one_across: on
    such a grid no item has two tiles along the last axis.
    """

    words: Words
    rank: int
    tiling: Tiling
    place: Place
    work: Ints
    formula: bool = True
    listed: bool = False
    split: bool = False
    span: int = BLOCK
    more: bool = False
    whole: bool = False
    lines: bool = False
    reach: tuple[Extent, ...] | None = None
    short: bool = False
    ordered: bool = False
    one_across: bool = False

    @property
    def several(self) -> bool:
        """Whether kernels walk one part after the other."""
        return self.place.parts > 1 and not self.more

    @property
    def items(self) -> int:
        return int(self.work.size)

    @property
    def kind(self) -> Kind:
        """Nests of one kind run the same code."""
        boxes = tuple(one.box for one in self.reach or () if isinstance(one, GridExtent))
        return Kind(self.rank, self.tiling, self.formula, self.listed, self.split, self.ordered, boxes, self.one_across)

    @property
    def skewed(self) -> bool:
        """Whether some tile has far more to do than most: all heads then begin with it."""
        return bool(self.work.size) and int(self.work[0]) > 4 * float(self.work.mean())


def axis_words(rank: int) -> int:
    """Integers of one axis of a part."""
    return AXIS if rank > 1 else AXIS + BOUNDS


# ---- terms ---------------------------------------------------------------------------------------------------------
class Shares(NamedTuple):
    """Items: tiles of rows in their order, which share of its tiles of columns each has, and of how many."""

    order: Ints
    share: Ints
    of: Ints


def nest_tables(nest: LoopNest, tiling: Tiling, m: int, most: int | None) -> list[tuple[NestTables, NDBool]]:
    """(tables, which of m rows are visited) of one nest, whose boxes have that many tokens.

    Items visit about `most` tiles or fewer. Some tiles of rows would visit more. Where these have few of all rows,
    their other shares are tables of their own, and the first tables add the sums that those leave.
    """
    slots = [nest.slots(axis) for axis in range(len(nest.box))]
    work, rows = nest_work(nest, slots), nest.rows(m)
    order = in_slabs(nest) if len(nest.box) > 1 and tiling in SUMS else schedule(work)
    of, share = _pieces(work[order], most)
    shares = Shares(np.repeat(order, of), share, np.repeat(of, of))
    later = share > 0
    if not later.any():
        return [(_tables(nest, tiling, work, shares, False), rows)]
    some = rows_apart(nest, m, work, most or 0)
    if some is None:
        return [(_tables(nest, tiling, work, shares, True), rows)]
    first, others = (Shares(*(x[which] for x in shares)) for which in (~later, later))
    return [(_tables(nest, tiling, work, first, False), rows), (_tables(nest, tiling, work, others, True), some)]


def _tables(nest: LoopNest, tiling: Tiling, work: Ints, shares: Shares, split: bool) -> NestTables:
    """split: several items may have rows in common."""
    rank, more, order = len(nest.box), more_run(nest), shares.order
    whole = whole_boxes(nest)
    nest = whole or nest
    slots = [nest.slots(axis) for axis in range(rank)]
    if more is not None:
        first, second = nest.parts[:2]  # which stands for all others
        nest = replace(nest, parts=(first, replace(second, axes=(unbounded(second.axes[0]),))))
    chosen = np.indices([lane.size for lane, _ in slots]).reshape(rank, -1)[:, order]
    both = [(axis, m) for part in nest.parts for axis, m in zip(part.axes, nest.q.shape, strict=True)]
    formula, listed = rank > 1 or all(is_formula(axis, m) for axis, m in both), any(map(is_listed, nest.parts))
    lines = as_lines(nest) if formula and rank == 1 else None
    nest = lines or nest
    out, lists = Writer(), Writer()
    rest_at = 2 + 3 * rank + (PART + axis_words(rank) * rank) * len(nest.parts)  # header and parts come before lists
    ordered = nest.is_ordered  # an order says where a grid begins
    out.put([0 if ordered else nest.q.origin, _queries_at(nest, lists, rest_at)])
    logs = [_log2(size) if rank > 1 else 0 for size in nest.box]  # of boxes on grids, which are powers of two
    out.put([x for a in range(rank) for x in (logs[a], nest.lanes[a].q_step, nest.q.shape[a])])
    parts_at = out.size
    for part in nest.parts:
        if ordered:
            out.put([0, rest_at + lists.put_order(part.k), 0, 0])
        else:
            out.put([part.k.origin, *_lists_at(part, lists, rest_at)])
        for a, axis in enumerate(part.axes):
            bounds_at = rest_at + lists.put(_bounds_of(axis, nest.q.shape[a])) if rank > 1 else 0
            out.put([axis.lanes.k_step, _log2(axis.block_k), part.k.shape[a], bounds_at])
            out.put_words(np.array(reciprocal(axis.lanes.k_step), np.uint32).view(np.int32))
            if rank == 1:
                rows = nest.q.shape[a]
                out.put(_formulas(axis) if formula else _lists(axis, rows, (lists, rest_at), (slots[a], chosen[a])))
    words = np.concatenate([out.all(), lists.all()])
    items = _items(nest, slots, chosen)
    if more is not None:
        _put_more(items, nest.parts[1], more, chosen[0])
    if (shares.of > 1).any():
        _cut(items, nest, shares.share, shares.of)
    groups = tiling is not None and tiling.groups and tiling != CONFIGS["dkdv"]
    reach = extents(nest) if groups and rank == 1 else None
    grid = grid_extents(nest) if groups and rank > 1 else None
    short, work, beside = False, work[order] // shares.of, np.zeros(0, np.int32)
    across = nest.parts[0].axes[-1]
    one_across = grid is not None and int(across.widths.max(initial=0)) <= across.block_k
    if grid is not None:
        items, beside, work = with_grid_ranges(nest, items, words.size, tiling in SUMS)
    if reach is not None:
        shares_of = ranges_of(nest, items, reach, has_row_bounds(tiling), tiling in SUMS)
        short, work = is_short(nest, items, shares_of), time_of(nest, items, shares_of)
        items = np.concatenate([items, shares_of.astype(np.int32)], axis=1)
    place = Place(items.shape[1], len(nest.parts), parts_at, words.size)
    words = checked(np.concatenate([words, items.reshape(-1), beside]))
    return NestTables(
        words, rank, tiling, place, work, formula, listed, split, _span(nest), more is not None, whole is not None,
        lines is not None, reach or grid, short, ordered, one_across,
    )  # fmt: skip


def _put_more(items: Words, part: Part, more: Run, order: Ints) -> None:
    """The run of full tiles of every item, as the second part's, in place."""
    first, count = (x[order] for x in more)
    tiles = count // part.axes[0].block_k
    items[:, 6:10] = np.stack([np.where(count > 0, first - part.k.origin, 0), count, 0 * tiles, tiles], axis=1)


def _pieces(work: Ints, most: int | None) -> tuple[Ints, Ints]:
    """(items of each tile, which of them each item is)"""
    pieces = np.ones_like(work) if most is None else np.maximum(-(-work // most), 1)
    return pieces, np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)


def _cut(items: Words, nest: LoopNest, piece: Ints, pieces: Ints) -> None:
    """Leave each item its share of the boxes along the first axis of every part, in place."""
    rank = len(nest.box)
    for number, part in enumerate(nest.parts):
        at, axis = 2 * rank + 4 * rank * number, part.axes[0]
        first, count, left, full = (items[:, at + i].astype(np.int64) for i in range(4))
        boxes = -(-count // axis.block_k)
        begin, end = boxes * piece // pieces, boxes * (piece + 1) // pieces
        items[:, at] = first + axis.lanes.k_step * axis.block_k * begin
        items[:, at + 1] = np.maximum(np.minimum(count, end * axis.block_k) - begin * axis.block_k, 0)
        items[:, at + 2] = np.clip(left - begin, 0, end - begin)
        items[:, at + 3] = np.clip(left + full - begin, 0, end - begin) - items[:, at + 2]


def _span(nest: LoopNest) -> int:
    found = [1]
    for part in nest.parts:
        rows = columns = 0
        for axis, m, n in zip(part.axes, nest.q.shape, part.k.shape, strict=True):
            rows = rows * m + (axis.block_q - 1) * axis.lanes.q_step
            columns = columns * n + (axis.block_k - 1) * axis.lanes.k_step
        found += [rows + 1, columns + 1]
    return max(found)


def _queries_at(nest: LoopNest, lists: Writer, base: int) -> int:
    if nest.is_ordered:
        return base + lists.put_order(nest.q)
    queries = nest.lanes[0].queries
    return 0 if queries is None else base + lists.put(queries)


def _lists_at(part: Part, lists: Writer, base: int) -> tuple[int, int, int]:
    """Places of the list of keys and of the bits of queries and keys left out."""
    keys = part.axes[0].lanes.keys
    found = [0 if keys is None else base + lists.put(keys.tokens)]
    out = (part.rows, part.keys)
    found += [0 if one.is_every else base + lists.put_words(_bits(one.left_out)) + 1 for one in out]
    return found[0], found[1], found[2]


def _bits(tokens: Ints) -> Words:
    """How many words hold the bits of all tokens up to the last one listed; those words; a word of 0 after them."""
    count = int(tokens.max(initial=-1)) // 32 + 1
    bits = np.zeros((count + 1) * 32, np.uint8)
    bits[tokens] = 1
    return np.concatenate([np.array([count], np.int32), np.packbits(bits, bitorder="little").view(np.int32)])


def _log2(size: int) -> int:
    assert size & (size - 1) == 0, "boxes of the Triton backend are powers of two"
    return size.bit_length() - 1


def nest_work(nest: LoopNest, slots: list[Slots]) -> Ints:
    """Key tiles that each tile of queries visits, in the order of `LoopNest.walk_tiles`."""
    total = np.zeros(prod(lane.size for lane, _ in slots), np.int64)
    for part in nest.parts:
        share = np.ones(1, np.int64)
        for axis, slot in zip(part.axes, slots, strict=True):
            share = np.outer(share, -(-axis.widths[slot] // axis.block_k)).reshape(-1)
        total += share
    return total


def schedule(work: Ints) -> Ints:
    """The order in which tiles start: those with far more to do than the others first, longest first.

    The rest stay neighbours, since neighbours read the same keys. They go in the direction in which work falls more
    often than it rises, so the last to finish are short.
    """
    heavy = work > 2 * work.mean() if work.size else work > 0
    first = np.flatnonzero(heavy)
    rest = np.flatnonzero(~heavy)
    change = np.diff(work[rest])
    if (change > 0).sum() > (change < 0).sum():
        rest = rest[::-1]
    return np.concatenate([first[np.argsort(-work[first], kind="stable")], rest])


def _items(nest: LoopNest, slots: list[Slots], chosen: Ints) -> Words:
    columns = []
    for (lane, tile), lanes, block, which in zip(slots, nest.lanes, nest.box, chosen, strict=True):
        first = lanes.q_first[lane] + lanes.q_step * block * tile
        height = np.minimum(block, lanes.rows[lane] - block * tile)
        columns += [first[which], height[which]]
    for part in nest.parts:
        for axis, slot, which in zip(part.axes, slots, chosen, strict=True):
            columns += [x[which] for x in _runs(axis, slot)]
    return np.stack(columns, axis=1).astype(np.int32)


def _runs(axis: AxisPlan, slot: Slots) -> tuple[Ints, ...]:
    """(first key, keys, tiles before the full ones, full tiles) of every tile of one axis."""
    count = axis.widths[slot]
    first = axis.lanes.k_first[slot[0]] + axis.lanes.k_step * axis.start[slot].astype(np.int64)
    return np.where(count > 0, first, 0), count, axis.left[slot].astype(np.int64), axis.unmasked[slot]


# ---- bounds --------------------------------------------------------------------------------------------------------
def _bounds_of(axis: AxisPlan, m: int) -> Ints:
    """(first live coordinate of keys, the one after the last) for every coordinate of queries, from 0 to m."""
    return np.stack(axis.relation.interval(np.arange(m), axis.n), axis=1)


def _formulas(axis: AxisPlan) -> list[tuple[int, ...]]:
    """Two staircases on either side."""
    found = []
    for bounds, nothing in ((axis.relation.lower, NO_LOWER), (axis.relation.upper, NO_UPPER)):
        stairs = [_stair(bound) for bound in bounds if isinstance(bound, Stair)]
        found += stairs + [nothing] * (2 - len(stairs))
    return found


def _stair(b: Stair) -> tuple[int, ...]:
    if b.is_constant:
        return 1, 1, 0, 0, b.out_lo, b.out_hi, -FAR, FAR
    return b.rise, b.run, b.shift, b.base, b.out_lo, b.out_hi, b.in_lo, b.in_hi


def _lists(axis: AxisPlan, m: int, listed: tuple[Writer, int], where: tuple[Slots, Ints]) -> list[int]:
    """(place, length) of the lists of lower and upper bounds of m rows, filled up to the length of formulas."""
    both = ([_in_words(x, m, axis.n) for x in bounds] for bounds in (axis.relation.lower, axis.relation.upper))
    found = [x for bounds in both for x in _bounds(*listed, bounds, (axis, *where))]
    return found + [0] * (BOUNDS - len(found))


def _in_words(bound: Bound, m: int, n: int) -> Bound:
    """A bound that is computed in 32 bits: as steps, up to m rows and n keys, where a staircase would overflow."""
    if not isinstance(bound, Stair) or bound.is_constant or is_narrow(bound, m):
        return bound
    values = np.clip(bound(np.arange(m)), 0, n)
    breaks = 1 + np.flatnonzero(np.diff(values))
    return Steps(IntTable(breaks), IntTable(values[np.concatenate([[0], breaks])]))


def _bounds(out: Writer, base: int, bounds: Sequence[Bound], where: tuple[AxisPlan, Slots, Ints]) -> tuple[int, int]:
    """Writes a list of bounds; returns (where it is, how long it is)."""
    records = []
    for bound in bounds:
        if isinstance(bound, Stair):
            records.append([0, *_stair(bound), 0, 0, 0])
        else:
            breaks, values = bound.breaks.array, bound.values.array
            places = [base + out.put(x) for x in (breaks, values, _spans(breaks, *where))]
            records.append([1, *places, *(0,) * 8])
    return base + out.put(records), len(records)


def _spans(breaks: Ints, axis: AxisPlan, slot: Slots, chosen: Ints) -> Ints:
    """Breaks up to the first and up to the last query of every item: what a step function is looked up with."""
    (lane, tile), lanes, block = slot, axis.lanes, axis.block_q
    ends = block * tile, np.minimum(block * (tile + 1), lanes.rows[lane]) - 1
    found = [np.searchsorted(breaks, lanes.query_at(lane, row), side="right") for row in ends]
    return np.stack(found, axis=1)[chosen]


# ---- the remainder ------------------------------------------------------------------------------------------
def block_tables(plan: TilePlan) -> NestTables:
    """The remainder: its items are (row of blocks, first, last).

    Tables say where seen columns begin and end, and which rows see some. Then come columns, places of bits, and bits of
    rows as two words. They do not say where columns of each block begin: kernels would spill twice as much
    (benchmarks/notes).
    """
    blocks, remainder, tiling = plan.blocks, plan.acsr.remainder, plan.of_blocks
    assert isinstance(blocks, BlockNest)
    assert tiling is not None, "AttentionPlan.check_room comes before"
    count = np.diff(blocks.first).astype(np.int64)
    order = schedule(count)
    words = BACKWARDS[remainder.bits].reshape(-1).view(np.int32)  # of (partial blocks, BLOCK, BLOCK / 8)
    out = Writer()
    seen = remainder.spans(plan.acsr.n) + BLOCK * remainder.cols[:, None]
    seeing = remainder.heights(plan.acsr.m) + BLOCK * remainder.rows[:, None]
    ends = [x for begin, end in (seen.T, seeing.T) for x in (begin.min(), end.max())]
    header = out.put([0, 0, 0, *ends])  # places of columns, bit indices and bits: written below
    items_at = out.put(np.stack([blocks.rows[order], blocks.first[:-1][order], blocks.first[1:][order]], axis=1))
    places = [out.put(x) for x in (remainder.cols, remainder.bit_index)]
    data = np.concatenate([out.all(), words])
    data[header : header + 3] = [*places, out.size]
    return NestTables(checked(data), 0, tiling, Place(3, 1, 0, items_at), count[order])


def checked(words: Words) -> Words:
    if words.size >= FAR:
        raise UnsupportedKernel(
            "attention on a GPU", f"its plan takes {words.size} integers", "use a shorter or more regular sequence"
        )
    return words
