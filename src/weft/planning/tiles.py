"""TilePlan: for each tile of queries the runs of key tiles that it visits.

A plan is a list of loop nests. A nest has one query relayout, cut into boxes; its parts are the terms of the Acsr that
it serves. Everything is a product over axes, so the tables are as long as the axes are, not as their product. On one
axis a tile of rows visits the keys [start, stop) in tiles of block_k. First come `left` tiles with an edge in them,
then `full` tiles in which every pair is live, then the rest. A box of keys needs no mask iff it is full on every axis.

Blocks of the remainder are a loop nest of their own, BLOCK queries a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product as cartesian
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.acsr.format import BLOCK, Acsr, Grid
from weft.acsr.relayout import Lanes
from weft.pattern.bounds import Ints
from weft.pattern.listed import EVERY, Listed
from weft.pattern.relation import NDBool, Relation
from weft.planning.tiling import Tiling

Table32: TypeAlias = NDArray[np.int32]
Table: TypeAlias = NDArray[np.int32] | NDArray[np.int8]
TileIndex: TypeAlias = tuple[tuple[int, int], ...]  # for each axis (lane, tile of rows)


@dataclass(frozen=True, eq=False)
class AxisPlan:
    """One axis of one part: four integers, of 32 bits or fewer, for each lane and tile of rows: (lanes, tiles) each."""

    relation: Relation
    n: int
    block_q: int
    block_k: int
    lanes: Lanes
    start: Table
    stop: Table
    left: Table
    full: Table

    @property
    def nbytes(self) -> int:
        return sum(_held(table) for table in (self.start, self.stop, self.left, self.full)) + self.lanes.nbytes

    @cached_property
    def alike(self) -> bool:
        """Whether every table says the same of all tiles of a lane."""
        return not any(table.strides[1] for table in (self.start, self.stop, self.left, self.full))

    @property
    def widths(self) -> Ints:
        """Keys visited by each tile of rows."""
        return self.stop.astype(np.int64) - self.start

    @property
    def unmasked(self) -> Ints:
        """Full tiles of each tile of rows, but for one that ends early, which needs a mask."""
        return np.minimum(self.full, np.maximum(self.widths // self.block_k - self.left, 0))

    def steps(self, most: int) -> int:
        """Pieces of at most `most` keys over all tiles."""
        if self.alike:
            return int((-(-self.widths[:, :1] // most) * -(-self.lanes.rows[:, None] // self.block_q)).sum())
        return int((-(-self.widths // most)).sum())

    @property
    def heights(self) -> Ints:
        """Rows of each tile: block_q, less in the last tile of a lane, 0 beyond it."""
        return tile_heights(self.lanes.rows, self.block_q, self.start.shape[1])

    def row_bounds(self, lane: int, tile: int) -> tuple[Ints, Ints]:
        """Positions [lo, hi) of the live keys of the rows of one tile."""
        stop = min((tile + 1) * self.block_q, int(self.lanes.rows[lane]))
        rows = np.arange(tile * self.block_q, stop, dtype=np.int64)
        return self.lanes.bounds(self.relation, self.n, np.full(rows.shape, lane), rows)

    def pairs(self) -> tuple[int, int]:
        """(row, key) pairs visited over all tiles of this axis, and those in full tiles."""
        some = slice(1 if self.alike else None)
        heights = self.lanes.rows[:, None] if self.alike else self.heights
        widths, left, full = (x[:, some] for x in (self.widths, self.left, self.full))
        inner = np.minimum(full.astype(np.int64) * self.block_k, widths - left.astype(np.int64) * self.block_k)
        return int((heights * widths).sum()), int((heights * np.maximum(inner, 0)).sum())


@dataclass(frozen=True, eq=False)
class Part:
    """One term of the Acsr, as one loop nest walks it.

    rows, keys: tokens that the term leaves out. No tile with one of them is full, and masks are cut by `cut`.
    """

    term: int
    k: Grid
    axes: tuple[AxisPlan, ...]
    rows: Listed = EVERY
    keys: Listed = EVERY

    def cut(self, live: NDBool, queries: Ints, keys: Ints) -> NDBool:
        """The mask (queries, keys) without the tokens that are left out; queries and keys are token indices."""
        if not self.rows.is_every:
            live = live & self.rows.holds(queries)[:, None]
        return live if self.keys.is_every else live & self.keys.holds(keys)

    @cached_property
    def visited(self) -> int:
        """Pairs computed, live or not."""
        return prod(axis.pairs()[0] for axis in self.axes)

    @cached_property
    def unmasked(self) -> int:
        """Pairs in boxes that are full on every axis."""
        return prod(axis.pairs()[1] for axis in self.axes)


@dataclass(frozen=True, eq=False)
class LoopNest:
    """One query relayout: tokens of grid q, by lanes on every axis, in boxes of `box` rows; and the parts it serves."""

    q: Grid
    box: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tables of axes, of the lists of tokens left out, and of orders of tokens."""
        orders = {id(grid.order): 4 * grid.size for grid in (self.q, *(p.k for p in self.parts)) if grid.order}
        tables = sum(sum(axis.nbytes for axis in p.axes) + p.rows.nbytes + p.keys.nbytes for p in self.parts)
        return tables + sum(orders.values())

    @cached_property
    def grid(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each axis the (lane, tile of rows) that exist."""
        return tuple(
            tuple((lane, tile) for lane, rows in enumerate(counts) for tile in range(-(-rows // block)))
            for counts, block in zip((lanes.rows.tolist() for lanes in self.lanes), self.box, strict=True)
        )

    @property
    def is_ordered(self) -> bool:
        """Whether its queries, or the keys of a part, are taken in another order than they come."""
        return any(grid.order is not None for grid in (self.q, *(part.k for part in self.parts)))

    @property
    def lanes(self) -> tuple[Lanes, ...]:
        """The lanes of queries of each axis; all parts have the same."""
        return tuple(axis.lanes for axis in self.parts[0].axes)

    @property
    def tiles(self) -> int:
        """Number of query tiles."""
        return prod(int((-(-lanes.rows // block)).sum()) for lanes, block in zip(self.lanes, self.box, strict=True))

    def rows(self, m: int) -> NDBool:
        """Which of the m rows are visited."""
        visited = np.ones(1, np.bool_)
        for lanes, size in zip(self.lanes, self.q.shape, strict=True):
            visited = np.outer(visited, lanes.visited(size)).reshape(-1)
        found = np.zeros(m, np.bool_)
        found[self.q.tokens(np.arange(self.q.size))] = visited
        return found

    def work(self) -> Ints:
        """Pairs visited by each query tile, in the order of `walk_tiles`: exact, and known before anything runs."""
        total = np.zeros(self.tiles, np.int64)
        for part in self.parts:
            share = np.ones(1, np.int64)
            for axis in part.axes:
                exists = axis.heights > 0
                share = np.outer(share, (axis.heights * axis.widths)[exists]).reshape(-1)
            total += share
        return total

    def slots(self, axis: int) -> tuple[Ints, Ints]:
        """(lane, tile of rows) of all tiles of one axis, in the order of `walk_tiles`."""
        lane, tile = np.nonzero(self.parts[0].axes[axis].heights > 0)
        return lane, tile

    def walk_tiles(self) -> Iterator[TileIndex]:
        """Every query tile: for each axis (lane, tile of rows)."""
        return cartesian(*self.grid)

    def tile_queries(self, tile: TileIndex) -> Ints:
        """The tokens of one query tile, in the order of its rows."""
        tokens = np.zeros(1, np.int64)
        for (lane, index), lanes, block, size in zip(tile, self.lanes, self.box, self.q.shape, strict=True):
            rows = np.arange(index * block, min((index + 1) * block, int(lanes.rows[lane])))
            tokens = (tokens[:, None] * size + lanes.query_at(np.asarray(lane), rows)).reshape(-1)
        return self.q.tokens(tokens)


@dataclass(frozen=True, eq=False)
class BlockNest:
    """The remainder: tile i is block row `rows[i]`, and visits blocks first[i] to first[i + 1] of the remainder."""

    rows: Table32
    first: Table32

    @property
    def tiles(self) -> int:
        return int(self.rows.size)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.first.nbytes


@dataclass(frozen=True, eq=False)
class TilePlan:
    """How one Acsr is computed: loop nests, whose outputs are merged by lse where they share rows.

    tiling: of all kernels on a GPU. of_blocks: that of the remainder, None where its blocks do not fit into the card.
    """

    acsr: Acsr
    nests: tuple[LoopNest, ...]
    blocks: BlockNest | None
    report: tuple[str, ...] = ()
    tiling: Tiling | None = None
    of_blocks: Tiling | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of plan tables."""
        return sum(nest.nbytes for nest in self.nests) + (self.blocks.nbytes if self.blocks else 0)

    @cached_property
    def visited(self) -> int:
        """Pairs computed, live or not."""
        return sum(part.visited for nest in self.nests for part in nest.parts) + self._block_pairs

    @property
    def _block_pairs(self) -> int:
        return len(self.acsr.remainder) * BLOCK * BLOCK

    @property
    def tiles(self) -> int:
        """Query tiles of all nests."""
        return sum(nest.tiles for nest in self.nests) + (self.blocks.tiles if self.blocks else 0)

    def __str__(self) -> str:
        live = self.acsr.nnz / max(1, self.visited)
        lines = [f"TilePlan {self.acsr.m} x {self.acsr.n}: {self.tiles} query tiles, {self.visited} pairs visited "
                 f"({live:.1%} live), {self.nbytes} bytes of tables"]  # fmt: skip
        lines += [f"  nest {i}: {describe(nest)}" for i, nest in enumerate(self.nests)]
        if self.blocks:
            lines.append(f"  blocks: {self.blocks.tiles} query tiles, {len(self.acsr.remainder)} blocks of {BLOCK}")
        return "\n".join(lines)


def describe(nest: LoopNest) -> str:
    """One line on a nest."""
    box = "x".join(map(str, nest.box))
    steps = [lanes.q_step for lanes in nest.lanes]
    classes = "" if set(steps) == {1} else f", queries modulo {'x'.join(map(str, steps))}"
    if nest.lanes[0].queries is not None:
        classes = f", {nest.lanes[0].queries.size} listed queries"
    if nest.q.order is not None:
        classes = f", {nest.q.size} queries in another order"
    parts = "; ".join(
        f"term {part.term}: {part.visited} pairs, {part.unmasked / max(1, part.visited):.0%} without mask"
        for part in nest.parts
    )
    return f"{nest.tiles} tiles of {box} queries{classes}; {parts}"


# ---- making ------------------------------------------------------------------------------------------------------
def tile_heights(rows: Ints, block: int, tiles: int) -> Ints:
    """Rows of each tile, (lanes, tiles): `block`, and what is left in the last one of a lane."""
    return np.clip(rows[:, None] - block * np.arange(tiles, dtype=np.int64), 0, block)


class TileBounds(NamedTuple):
    """Positions of the keys of every tile of rows of one axis: those of some row are [start, stop), those of all rows
    [inner_start, inner_stop). (lanes, tiles) each, or one column for all tiles.
    """

    start: Ints
    stop: Ints
    inner_start: Ints
    inner_stop: Ints


def tile_bounds(relation: Relation, n: int, lanes: Lanes, block_q: int) -> TileBounds:
    """From the first and last row of every tile; bounds are monotone, so these two rows are enough.

    A row may see nothing by a statement about the query alone, or by a list. It does not widen what its tile visits,
    since nobody may see those keys.
    """
    tiles = -(-int(lanes.rows.max(initial=0)) // block_q)
    which = np.arange(len(lanes))[:, None]
    if _rows_alike(relation, n, lanes, block_q):  # then a lane is like one tile
        first, last = np.zeros((1, 1), np.int64), lanes.rows[:, None] - 1
        exists = np.ones((1, 1), np.bool_)
    else:
        first = np.arange(tiles, dtype=np.int64)[None, :] * block_q
        exists = first < lanes.rows[:, None]
        last = np.minimum(first + block_q, lanes.rows[:, None]) - 1
    first = np.minimum(first, last)
    start, inner_stop = lanes.bounds(relation, n, which, first)
    inner_start, stop = lanes.bounds(relation, n, which, last)
    seeing = lanes.seeing(relation, n, first, last)
    if seeing is not None:
        begins, ends, some = seeing
        start, stop = lanes.bounds(relation, n, which, begins)[0], lanes.bounds(relation, n, which, ends)[1]
        exists = exists & some
    return TileBounds(start, np.where(exists, np.maximum(stop, start), start), inner_start, inner_stop)


def axis_plan(
    relation: Relation, n: int, lanes: Lanes, block_q: int, block_k: int, bounds: TileBounds | None = None
) -> AxisPlan:  # fmt: skip
    """Runs of one axis; bounds: those of its tiles of `block_q` rows, if somebody has them."""
    if bounds is None:
        bounds = tile_bounds(relation, n, lanes, block_q)
    start, stop, inner_start, inner_stop = bounds
    tiles = -(-int(lanes.rows.max(initial=0)) // block_q)
    count = -((start - stop) // block_k)
    left = np.clip(-((start - inner_start) // block_k), 0, count)
    inside = np.where(inner_stop >= stop, count - left, (inner_stop - start) // block_k - left)
    # Where the first row is dead (hi <= lo), nothing is common to all rows.
    full = np.where(inner_stop <= inner_start, 0, np.clip(inside, 0, count - left))
    if lanes.out[1].size:
        before, full = lanes.longest_whole(
            start + left * block_k, np.minimum(start + (left + full) * block_k, stop), block_k
        )
        left = left + before
    if lanes.out[0].size:
        full = np.where(lanes.tiles_cut(block_q, tiles), 0, full)
    shape = len(lanes), tiles
    tables = (_compact(np.where(stop > start, x, 0), shape) for x in (start, stop, left, full))
    return AxisPlan(relation, n, block_q, block_k, lanes, *tables)


def _rows_alike(relation: Relation, n: int, lanes: Lanes, block_q: int) -> bool:
    """Whether all rows of every lane have the same positions: by monotony, if the first and the last have."""
    counts = -(-lanes.rows // block_q)
    if not len(lanes) or (counts != counts[0]).any():
        return False
    which = np.arange(len(lanes))
    first, last = (lanes.bounds(relation, n, which, row) for row in (np.zeros_like(lanes.rows), lanes.rows - 1))
    return all(bool((a == b).all()) for a, b in zip(first, last, strict=True))


def _compact(table: Ints, shape: tuple[int, ...]) -> Table:
    """The table broadcast to `shape`, in few bytes.

    It has one column where all tiles say the same (global columns), and one row where all lanes do (a dilated window).
    An entry has one byte where that is enough.
    """
    if table.shape[1] > 1 and (table == table[:, :1]).all():
        table = table[:, :1]
    if table.shape[0] > 1 and (table == table[:1]).all():
        table = table[:1]
    small = int(table.max(initial=0)) < 1 << 7
    return np.broadcast_to(table.astype(np.int8 if small else np.int32), shape)


def _held(table: Table) -> int:
    """Bytes that a table holds: repeated columns count once."""
    return table.itemsize * prod(size for size, stride in zip(table.shape, table.strides, strict=True) if stride)


def block_nest(acsr: Acsr) -> BlockNest | None:
    """The nest of the remainder, None if there is none."""
    if not len(acsr.remainder):
        return None
    rows, first = _firsts(acsr.remainder.rows)
    return BlockNest(rows.astype(np.int32), np.append(first, len(acsr.remainder)).astype(np.int32))


def _firsts(ordered: Table32) -> tuple[Table32, Ints]:
    """The distinct entries of an ordered table, and where each begins."""
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    return ordered[first], first


@dataclass(frozen=True)
class Visit:
    """One box of keys that one query tile visits: what an interpreter or a verifier sees of a plan.

    queries, keys: token indices. mask: (queries, keys), None where the plan says that every pair is live.
    """

    queries: Ints
    keys: Ints
    mask: NDBool | None


def walk(plan: TilePlan) -> Iterator[list[Visit]]:
    """Every query tile of a plan with its visits, exactly as a kernel would walk them. Slow; for meaning, not for
    speed.
    """
    for nest in plan.nests:
        for tile in nest.walk_tiles():
            queries = nest.tile_queries(tile)
            yield [visit for part in nest.parts for visit in _visits(part, tile, queries)]
    if plan.blocks is not None:
        yield from _walk_blocks(plan)


def _visits(part: Part, tile: TileIndex, queries: Ints) -> Iterator[Visit]:
    axes = [_axis_visits(axis, which, index) for axis, (which, index) in zip(part.axes, tile, strict=True)]
    for boxes in cartesian(*axes):
        keys, mask = np.zeros(1, np.int64), np.ones((1, 1), np.bool_)
        for (positions, axis_mask, _), size in zip(boxes, part.k.shape, strict=True):
            keys = (keys[:, None] * size + positions).reshape(-1)
            mask = (mask[:, None, :, None] & axis_mask[None, :, None, :]).reshape(
                mask.shape[0] * axis_mask.shape[0], mask.shape[1] * axis_mask.shape[1]
            )
        is_full = all(full for _, _, full in boxes)
        keys = part.k.tokens(keys)
        yield Visit(queries, keys, None if is_full else part.cut(mask, queries, keys))


def _axis_visits(axis: AxisPlan, lane: int, tile: int) -> list[tuple[Ints, NDBool, bool]]:
    """(coordinates of the keys, live pairs by the row bounds, whether the plan calls it full) of each key tile."""
    lo, hi = axis.row_bounds(lane, tile)
    start, stop, left, full = (int(x[lane, tile]) for x in (axis.start, axis.stop, axis.left, axis.full))
    found = []
    for index, at in enumerate(range(start, stop, axis.block_k)):
        positions = np.arange(at, min(at + axis.block_k, stop), dtype=np.int64)
        mask = (positions >= lo[:, None]) & (positions < hi[:, None])
        keys = axis.lanes.key_at(np.asarray(lane), positions)
        found.append((keys, mask, left <= index < left + full))
    return found


def _walk_blocks(plan: TilePlan) -> Iterator[list[Visit]]:
    assert plan.blocks is not None
    remainder, m, n = plan.acsr.remainder, plan.acsr.m, plan.acsr.n
    for row, first, last in zip(plan.blocks.rows, plan.blocks.first, plan.blocks.first[1:], strict=False):
        queries = np.arange(BLOCK * int(row), min(BLOCK * (int(row) + 1), m), dtype=np.int64)
        visits = []
        for i in range(int(first), int(last)):
            column = BLOCK * int(remainder.cols[i])
            keys = np.arange(column, min(column + BLOCK, n), dtype=np.int64)
            visits.append(Visit(queries, keys, remainder.mask(i, m, n)))
        yield visits
