"""All gradients in one walk: the kernel's arguments and channels, what loads, and what adds to dQ: see `bwd_summed`."""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language.extra.cuda import gdc_wait

from weft.kernels.gpu import constants
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import keys_of, place_of, run_of, tile_at, tiles_of
from weft.kernels.gpu.hopper.ops.channel import Channel, Ring
from weft.kernels.gpu.hopper.ops.grids import box_tokens, grid_tiles, place_in, rows_at
from weft.kernels.gpu.hopper.ops.layouts import line
from weft.kernels.gpu.hopper.ops.scheduler import PART, TileScheduler
from weft.kernels.gpu.hopper.ops.values import Tensor

PAIR = gl.constexpr(constants.PAIR)  # numbers of a query, see `constants`
PARTS = gl.constexpr(2)  # of the dims of dQ, each of which is a product of its own


@aggregate
class Summed:
    """The kernel's arguments, shared memory and channels.

    k: two blocks'; v: one block's. q, do, stats: the ring of tiles that are walked; stats has the two numbers of a
    tile's queries one after the other. ds: dS of a tile, or of two where two consumers share it. sums: the dQ of a
    tile, PARTS of its dims.

    keys, values: the channels of k and of v; queries: that of q, do and stats. ready: both consumers left dS of a
    tile. made: both left dQ of a tile, for which they read that dS; taken: the adder's copies have read it. heads,
    length: of queries.
    """

    cfg: gl.constexpr
    DK: Tensor
    DV: Tensor
    Stats: gl.tensor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    stats: gl.shared_memory_descriptor
    ds: gl.shared_memory_descriptor
    sums: gl.shared_memory_descriptor
    keys: Channel
    values: Channel
    queries: Channel
    ready: Ring
    made: Ring
    taken: Ring
    scheduler: TileScheduler
    heads: gl.tensor
    length: gl.tensor
    scale: gl.tensor
    k_box: Any
    v_box: Any
    q_box: Any
    do_box: Any
    dq_box: Any


# ---- producer --------------------------------------------------------------------------------------------------------
@gluon.jit
def walked(item, state):
    """(a block's run of queries, how many tiles it is); on a grid its tiles."""
    cfg: gl.constexpr = state.cfg
    if cfg.axes:
        run = grid_tiles(state.scheduler.table, item, cfg)
        count = run.count
    else:
        run = run_of(item, 0, 1)
        count = tiles_of(run.count, cfg.columns)
    return run, count


@gluon.jit
def tile_where(run, j, heads, dim, state):
    """Where descriptors have tile j of a run, from a dim on. heads: batch row, and head of queries."""
    if state.cfg.axes:
        where = place_in(heads, run.place(j, state.cfg), dim, state)
    else:
        place, _ = tile_at(state.scheduler.table, j, run, state.cfg)
        where = [heads[0], heads[1], place, run.lane, dim]
    return where


@gluon.jit
def rows_of_tile(run, j, rows, state):
    """How far queries of tile j are from the run's first one, on a grid from token 0. Those that do not exist stand for
    others. rows: those of a tile, and the step between them.
    """
    cfg: gl.constexpr = state.cfg
    r, step = rows
    if cfg.axes:
        row = box_tokens(state.scheduler.part(), run.place(j, cfg), r, cfg)
    else:
        _, first = tile_at(state.scheduler.table, j, run, cfg)
        if not cfg.listed:  # tiles of a list are whole
            r = gl.minimum(r, run.count - 1 - first)
        row = (first + r) * step
        if cfg.counted:  # places are tokens, and a run may begin before the first
            row = gl.maximum(row, -run.place)
    return row


@gluon.jit
def load_queries(i, j, at, run, rows, state):
    """Ask for tile j of a run as tile i of the ring. at: batch row, head, where the run's stats begin; rows: see
    `rows_of_tile`.
    """
    queries = state.queries
    stage = queries.stage(i)
    queries.acquire(i)
    queries.expect(i, state.q_box.block_type.nbytes + state.do_box.block_type.nbytes)
    where = tile_where(run, j, at, 0, state)
    tma.async_copy_global_to_shared(state.q_box, where, queries.full.index(stage), state.q.index(stage))
    tma.async_copy_global_to_shared(state.do_box, where, queries.full.index(stage), state.do.index(stage))
    row = rows_of_tile(run, j, rows, state)
    for n in gl.static_range(PAIR):
        async_copy.async_copy_global_to_shared(state.stats.index(PAIR * stage + n), at[2] + row * PAIR + n)
    queries.commit(i)


@gluon.jit
def load_side(t, where, side, box, to):
    """Ask for the keys of block t, or for their values, once their place is not read any more."""
    side.acquire(t)
    side.expect(t, box.block_type.nbytes)
    stage = side.stage(t)
    tma.async_copy_global_to_shared(box, where, side.full.index(stage), to.index(stage))


@gluon.jit
def producer(state, CHAINED: gl.constexpr):
    """Keys and values of a block; queries, dO and what scores subtract, of all heads that share these keys.

    They are asked for in the order in which their places become free. A block's keys come while the block before is
    walked, its values after its first tile.
    """
    cfg: gl.constexpr = state.cfg
    r = gl.arange(0, cfg.columns, layout=line(1, cfg.producer_warps))
    scheduler = state.scheduler
    here = scheduler.part()
    origin, step = gl.load(here), gl.load(here + PART)
    i = 0
    t = 0
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        member, item = scheduler.places(scheduler.where(number))
        batch, kv_head, head, share = gl.load(member), gl.load(member + 1), gl.load(member + 2), gl.load(member + 3)
        run, n = walked(item, state)
        if cfg.axes:
            first = 0
            where = place_in((batch, kv_head), rows_at(0, item, cfg), 0, state)
        else:
            place, lane = place_of(item, 0, 1)
            first, _ = keys_of(item, 0)  # of queries here: what an item walks is called keys wherever it is read
            where = [batch, kv_head, place, lane, 0]
        if n > 0:
            load_side(t, where, state.keys, state.k_box, state.k)
        if CHAINED and t == 0:
            gdc_wait()  # for what the launch before this one leaves: Stats, and zeros of dQ
        for h in range(0, share):
            row = (batch.to(gl.int64) * state.heads + head + h) * state.length + origin + first
            at = (batch, head + h, state.Stats + row * PAIR)
            for j in range(0, n):
                load_queries(i, j, at, run, (r, step), state)
                if (h | j) == 0:
                    load_side(t, where, state.values, state.v_box, state.v)
                i += 1
        t += gl.minimum(n, 1)


# ---- dQ --------------------------------------------------------------------------------------------------------------
@gluon.jit
def adder(state):
    """Add what the consumers leave of dQ to memory. Rows that do not exist are not written."""
    cfg: gl.constexpr = state.cfg
    DIMS: gl.constexpr = cfg.width // PARTS
    scheduler = state.scheduler
    i = 0
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        member, item = scheduler.places(scheduler.where(number))
        batch, head, share = gl.load(member), gl.load(member + 2), gl.load(member + 3)
        run, n = walked(item, state)
        for h in range(0, share):
            for j in range(0, n):
                state.made.wait(i)
                for part in gl.static_range(PARTS):
                    where = tile_where(run, j, (batch, head + h), part * DIMS, state)
                    # the copy adds, see `compile.adding`
                    tma.async_copy_shared_to_global(state.dq_box, where, state.sums.index(part))
                tma.store_wait(0)  # until it has been read
                state.taken.arrive(i)
                i += 1
