# ruff: noqa: SIM113 - Gluon is not all of Python
"""A forward on a grid of two or three axes: queries and tiles of keys are boxes, and a list says which tiles there are.

What a tile does is the same as on lines (`fwd_overlapped`).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from weft.kernels.gpu.hopper.fwd_loads import load_box
from weft.kernels.gpu.hopper.fwd_overlapped import add_run, pass_over
from weft.kernels.gpu.hopper.fwd_tile import no_sums
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.epilogue import BoxRows, store_box_rows
from weft.kernels.gpu.hopper.ops.grids import (
    GridTiles,
    grid_cut,
    grid_range,
    grid_rows,
    grid_tiles,
    is_whole,
    place_in,
    rows_at,
    tiles_from,
)
from weft.kernels.gpu.hopper.ops.layouts import matrix


@aggregate
class GridBlock:
    """A block's heads: (batch row, head) of queries and of keys; a pointer to its integers, and its tiles of keys."""

    of_queries: gl.tuple
    of_keys: gl.tuple
    item: gl.tensor
    tiles: GridTiles


@gluon.jit
def grid_block(scheduler, where, cfg: gl.constexpr):
    """That of a block."""
    member, item = scheduler.places(where)
    batch = gl.load(member)
    tiles = grid_tiles(scheduler.table, item, cfg)
    return GridBlock((batch, gl.load(member + 2)), (batch, gl.load(member + 1)), item, tiles)


# ---- producer --------------------------------------------------------------------------------------------------------
@gluon.jit
def load_grid(i, tiles, heads, state):
    """Ask for tiles, as `fwd_loads.load_apart`. Returns the number of the tile after them."""
    for j in range(0, tiles.count):  # words are read again for values: Triton 3.6 carries an older one along
        load_box(i, state.k_box, state.k, state.tiles, place_in(heads, tiles.place(j, state.cfg), 0, state))
        if j > 0:
            where = place_in(heads, tiles.place(j - 1, state.cfg), 0, state)
            load_box(i - 1, state.v_box, state.v, state.values, where)
        i += 1
    if tiles.count > 0:
        where = place_in(heads, tiles.place(tiles.count - 1, state.cfg), 0, state)
        load_box(i - 1, state.v_box, state.v, state.values, where)
    return i


@gluon.jit
def grid_producer(state):
    """As `fwd_loads.producer`."""
    cfg: gl.constexpr = state.cfg
    CONSUMERS: gl.constexpr = cfg.consumers
    scheduler = state.scheduler
    i = 0
    t = 0
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        block = grid_block(scheduler, scheduler.where(number), cfg)
        first = gl.minimum(block.tiles.count, cfg.first_tiles)
        for c in gl.static_range(CONSUMERS):
            queries = state.queries(c)
            at = queries.stage(t)
            queries.acquire(t)
            where = place_in(block.of_queries, rows_at(c, block.item, cfg), 0, state)
            tma.async_copy_global_to_shared(state.q_box, where, queries.full.index(at), state.q.index(at))
            if c == 0:
                i = load_grid(i, tiles_from(block.tiles, 0, first), block.of_keys, state)
        for c in gl.static_range(CONSUMERS):
            state.queries(c).expect(t, state.q_box.block_type.nbytes)
        i = load_grid(i, tiles_from(block.tiles, first, block.tiles.count - first), block.of_keys, state)
        t += 1


# ---- consumers -------------------------------------------------------------------------------------------------------
@gluon.jit
def grid_sums(i, consumer_id, item, t, state, scoring):
    """(tiles so far, sums, keys that each row sees, rows) over the consumer's tiles of block t, as `fwd.sums_of`."""
    cfg: gl.constexpr = state.cfg
    scheduler, queries = state.scheduler, state.queries(consumer_id)
    at = queries.stage(t)
    tiles, seen = grid_tiles(scheduler.table, item, cfg), grid_range(item, consumer_id, cfg)
    rows = grid_rows(scheduler.table, item, scoring.rows + consumer_id * cfg.rows, cfg)
    cut = grid_cut(scheduler.table, scheduler.part(), tiles, rows, cfg)
    queries.wait(t)
    i = pass_over(i, seen.begin, state)
    i, sums = add_run(i, 0, at, seen, cut, no_sums(scoring, cfg), state, scoring)
    i = pass_over(i, tiles.count - seen.end, state)
    return i, sums, cut.keys(cfg), rows


@gluon.jit
def store_grid_block(result, heads, item, consumer_id, state):
    """Write the consumer's rows, those of whole blocks by a descriptor where there is one."""
    cfg: gl.constexpr = state.cfg
    rows = BoxRows(heads[0], heads[1], gl.to_tensor(0), state.scheduler.table, item, cfg)
    if cfg.boxed:
        if is_whole(item, cfg):
            fence_async_shared()
            where = place_in(heads, rows_at(consumer_id, item, cfg), 0, state)
            tma.async_copy_shared_to_global(state.out_box, where, result)
        else:
            store_box_rows(matrix(result), state.Out, rows, consumer_id, cfg.dv)
    else:
        store_box_rows(matrix(result), state.Out, rows, consumer_id, cfg.dv)
