"""Which pairs of a tile are outside of the mask.

On lines and in blocks they get a value that counts for nothing. On grids a matrix product adds a penalty to their
scores. C is a `weft.kernels.gpu.tile.config.Config`, a tile a `weft.kernels.gpu.ops.tiles.Tile`.
"""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu import constants
from weft.kernels.gpu.ops.bounds import is_out
from weft.kernels.gpu.ops.loads import dot, nothing
from weft.planning.tiling import gpu

PENALTY = tl.constexpr(constants.PENALTY)
FAR, PLACES = tl.constexpr(gpu.FAR), tl.constexpr(gpu.PLACES)


# What masks boxes of a grid by a product: their coordinates on all axes together have PLACES places. axes: of each axis
# its places. begins, ends (rows, places): the bounds of a row on the axis of a place. hot (cols, places): 1 at the
# places of a column.
Penalties = namedtuple("Penalties", "axes begins ends hot")


# ---- pairs on lines and in blocks ------------------------------------------------------------------------------------
@triton.jit
def masked(C: tl.constexpr, KIND: tl.constexpr, rows, tile, values, outside: tl.constexpr):
    """Values (rows, cols) of the pairs of a tile; where the mask forbids a pair, `outside`.

    C.rank is 0 for listed blocks. On grids scores have their penalties, and only lists are left to ask.
    """
    if C.rank == 0:
        values = _mask_block(C, rows, tile, values, outside)
    elif KIND != "full":
        if C.by_side:
            values = _mask_sides(C, tile.visit, values, outside)
        elif C.rank == 1 and KIND == "either":
            values = _mask_edge_if_any(C, tile, values, outside)
        elif C.rank == 1 or C.listed:
            values = _mask_edge(C, tile, values, outside)
    return values


@triton.jit
def replace(values, live, outside: tl.constexpr):
    """The values where pairs are live (rows, cols), or a mask that broadcasts to it."""
    found = ()
    for n in tl.static_range(len(values)):
        found += (tl.where(live, values[n], outside),)
    return found


@triton.jit
def _mask_block(C: tl.constexpr, rows, tile, values, outside: tl.constexpr):
    blocks, column = tile.visit.part, tile.visit.part.column
    # forwards store rows beyond the last one too, as what that is; gradients do not
    row = rows.near if C.direction == "forward" else rows.number
    place = tl.load(blocks.places + tile.visit.j)
    if place >= 0:  # a block of which only some pairs are seen: two words of bits for each row
        low = tl.load(blocks.bits + place * 128 + 2 * row)
        high = tl.load(blocks.bits + place * 128 + 2 * row + 1)
        word = tl.where((column < 32)[None, :], low[:, None], high[:, None])
        values = replace(values, ((word >> (column & 31)[None, :]) & 1) != 0, outside)
    return replace(values, tile.there[None, :], outside)


@triton.jit
def _mask_sides(C: tl.constexpr, visit, values, outside: tl.constexpr):
    """Beside full tiles, which all rows see, one side alone cuts a tile: low bounds before, high ones after."""
    line, j, column = visit.line, visit.j, visit.part.column
    # whether no tile is full is asked here, not once before the loop: Triton's code is worse then
    before = (j < line.left) | (line.left == line.full)
    if C.more:
        before = before & (j < line.boxes)
    if before:
        values = replace(values, column[None, :] >= (visit.low - j * C.cols)[:, None], outside)
    after = (j >= line.full) | (line.left == line.full)
    if C.more:
        after = after & (j < line.boxes)
    if after:
        values = replace(values, column[None, :] < (visit.high - j * C.cols)[:, None], outside)
    return values


@triton.jit
def _mask_edge_if_any(C: tl.constexpr, tile, values, outside: tl.constexpr):
    """`_mask_edge`, left out where the tile is a full one."""
    line, j = tile.visit.line, tile.visit.j
    after = j >= line.full
    if C.more:
        after = after & (j < line.boxes)
    if (j < line.left) | after:
        values = _mask_edge(C, tile, values, outside)
    return values


@triton.jit
def _mask_edge(C: tl.constexpr, tile, values, outside: tl.constexpr):
    """A pair is live if its column lies between the bounds of its row, and no list leaves either out."""
    visit = tile.visit
    if C.listed:
        lists = visit.part.lists
        out = is_out(lists.tables, lists.columns, tile.token)
        kept, columns_kept = lists.rows[:, None] == 0, out[None, :] == 0
        if C.rank == 1:
            live = tile.there[None, :] & (tile.coordinate[None, :] >= visit.low[:, None])
            live &= (tile.coordinate[None, :] < visit.high[:, None]) & kept
            live &= columns_kept
        else:
            live = kept & columns_kept
    else:
        column, begin = visit.part.column, visit.j * C.cols
        low, high = visit.low - begin, visit.high - begin
        live = (column[None, :] >= low[:, None]) & (column[None, :] < high[:, None])
    return replace(values, live, outside)


# ---- pairs on grids --------------------------------------------------------------------------------------------------
@triton.jit
def penalties_of(C: tl.constexpr, part):
    """The Penalties of a part of a grid; () elsewhere."""
    found = ()
    if C.rank > 1:
        place, runs = tl.arange(0, PLACES), part.runs
        begins, ends = tl.full((C.rows, PLACES), -FAR, tl.int32), tl.full((C.rows, PLACES), FAR, tl.int32)
        hot, axes, after, before = tl.zeros((C.cols, PLACES), tl.float32), (), 0, ()
        for a in tl.static_range(C.rank - 1, -1, -1):
            before = (after,) + before  # noqa: RUF005
            after += 1 << runs[a].log
        for a in tl.static_range(C.rank):
            axis, first = runs[a], before[a]
            own = (place >= first) & (place < first + (1 << axis.log))
            begins = tl.where(own[None, :], axis.low[:, None] + (first - place)[None, :], begins)
            ends = tl.where(own[None, :], axis.high[:, None] + (first - place)[None, :], ends)
            hot = tl.where(own[None, :] & (axis.column[:, None] == (place - first)[None, :]), 1.0, hot)
            axes += (own,)
        hot = hot.to(tl.float32 if C.single or C.upcast else tl.bfloat16)
        if C.held:
            none = nothing(C, PLACES, hot.dtype).to(tl.int32)
            begins += none
            ends += none
        found = Penalties(axes, begins, ends, hot)
    return found


@triton.jit
def corner_penalties(C: tl.constexpr, penalties, visit):
    """What a coordinate of a box adds to the scores of a row that does not see it (rows, places); () elsewhere."""
    found = ()
    if C.rank > 1:
        runs, j = visit.part.runs, visit.j
        corner = j[C.rank - 1] << runs[C.rank - 1].log
        for a in tl.static_range(C.rank - 2, -1, -1):
            corner = tl.where(penalties.axes[a], j[a] << runs[a].log, corner)
        seen = (corner[None, :] >= penalties.begins) & (corner[None, :] < penalties.ends)
        found = tl.where(seen, 0.0, PENALTY).to(penalties.hot.dtype)
    return found


@triton.jit
def penalised(C: tl.constexpr, s, penalties):
    """Scores with their penalties. What score functions made of pairs outside of the mask may be anything."""
    return tl.where(penalties < 0, float("-inf"), s) if C.scored else s + penalties


@triton.jit
def penalty(C: tl.constexpr, penalties, corners):
    """The penalties of all pairs of a box (rows, cols)."""
    return dot(C, corners, tl.trans(penalties.hot))
