# ruff: noqa: PLR0913 - kernels take as many arguments as they need, and Gluon is not all of Python
"""All gradients in one walk over a list of whole tiles of queries for each block of keys, as `bwd_summed` has them.

Blocks are half as high as there, so that lists may be of 64 x 64 pairs. A single consumer has all keys of a block, and
two programs are side by side on a processor. No tile has a mask.

The consumer makes dQ of a tile at once. It does so in two parts of its dims, since registers hold one. lse and delta
are numbers of float32. The first is added to scores in bits, and -delta is what dP begins with. Weights have the scale
as a factor, and so have dS and dQ.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from weft.kernels.gpu import constants
from weft.kernels.gpu.hopper.bwd_loads import load_pair, load_side, visit_of
from weft.kernels.gpu.hopper.bwd_summed import Summed, add_tile, leave_part
from weft.kernels.gpu.hopper.ops.blocks import keys_of, run_of, tile_at, tiles_of
from weft.kernels.gpu.hopper.ops.channel import channel, ring
from weft.kernels.gpu.hopper.ops.epilogue import Rows, store_through, store_zeros
from weft.kernels.gpu.hopper.ops.layouts import accumulator, boxes, first_factor, flat, line, matrix, tiles, zeros
from weft.kernels.gpu.hopper.ops.scheduler import claims
from weft.kernels.gpu.hopper.ops.values import LOG2E, opaque

PAIR = gl.constexpr(constants.PAIR)  # numbers of a query, see `constants`
PARTS = gl.constexpr(2)  # of the dims of dQ, each of which is a product of its own


# ---- producer --------------------------------------------------------------------------------------------------------
@gluon.jit
def load_queries(i, j, at, run, rows, state):
    """Ask for tile j of a run as tile i of the ring. at: batch row, head, where the run's stats begin; rows: those of a
    tile, and the step between them.
    """
    queries = state.queries
    stage = queries.stage(i)
    place, first = tile_at(state.scheduler.table, j, run, state.cfg)
    load_pair(i, [at[0], at[1], place, run.lane, 0], state)
    row = (first + rows[0]) * rows[1]
    for n in gl.static_range(PAIR):
        async_copy.async_copy_global_to_shared(state.stats.index(PAIR * stage + n), at[2] + row * PAIR + n)
    queries.commit(i)


@gluon.jit
def producer(state, CHAINED: gl.constexpr):
    """Keys and values of a block; queries, dO and what scores subtract, of all heads that share these keys.

    They are asked for in the order in which their places become free: a block's values after its first tile.
    """
    cfg: gl.constexpr = state.cfg
    r = gl.arange(0, cfg.columns, layout=line(1, cfg.producer_warps))
    scheduler = state.scheduler
    origin, step = scheduler.walked_rows()
    i = 0
    t = 0
    block = 0
    number = gl.program_id(0)
    while number < scheduler.blocks:
        visit = visit_of(number, scheduler)
        where = [visit.batch, visit.kv_head, visit.place, visit.lane, 0]
        n = tiles_of(visit.run.count, cfg.columns)
        if n > 0:
            load_side(t, where, state.keys, state.k_box, state.k)
        if CHAINED and t == 0:
            gdc_wait()  # for what the launch before this one leaves: Stats, and zeros of dQ
        for h in range(0, visit.share):
            at = (visit.batch, visit.head + h, state.Stats + visit.number(h, origin, state) * PAIR)
            for j in range(0, n):
                load_queries(i, j, at, visit.run, (r, step), state)
                if (h | j) == 0:
                    load_side(t, where, state.values, state.v_box, state.v)
                i += 1
        t += gl.minimum(n, 1)
        block += 1
        number = state.claims.claim(block)


# ---- the consumer ----------------------------------------------------------------------------------------------------
@gluon.jit
def ask_dv(i, dv, state):
    """Ask for dV with tile i of the ring, and leave dS. Returns dV and dS.

    dV is asked for before dP is waited for: else ptxas moves the exponentials behind that wait, and tensor cores rest.
    """
    cfg: gl.constexpr = state.cfg
    layout: gl.constexpr = accumulator(cfg.columns)
    of_columns: gl.constexpr = gl.SliceLayout(0, layout)
    at = state.queries.stage(i)
    q, do = matrix(state.q.index(at)), matrix(state.do.index(at))
    none = zeros(cfg.rows, cfg.columns)
    state.queries.wait(i)
    x = warpgroup_mma(matrix(state.k.index(0)), q.permute((1, 0)), none, use_acc=False, is_async=True)
    begun, _ = gl.broadcast(gl.expand_dims(state.stats.index(PAIR * at + 1).load(of_columns), 0), none)
    y = warpgroup_mma(matrix(state.v.index(0)), do.permute((1, 0)), begun, is_async=True)
    less = gl.expand_dims(state.stats.index(PAIR * at).load(of_columns), 0)
    x = warpgroup_mma_wait(1, (x,))
    p = gl.exp2(x * (state.scale * LOG2E) + less)
    dtype: gl.constexpr = state.q.dtype
    dv = warpgroup_mma(gl.convert_layout(p.to(dtype), first_factor(cfg.width_v)), do, dv, is_async=True)
    y = warpgroup_mma_wait(1, (y,))
    ds = (p * y).to(dtype)
    state.ds.index(0).store(ds)
    fence_async_shared()
    state.ready.arrive(i)
    return dv, ds


@gluon.jit
def ask_dq(i, part: gl.constexpr, state):
    """Ask for a part of the dims of the dQ of tile i of the ring."""
    cfg: gl.constexpr = state.cfg
    DIMS: gl.constexpr = cfg.width // PARTS
    none = zeros(cfg.columns, DIMS)
    state.ready.wait(i)
    ds, k = state.ds.index(0).permute((1, 0)), matrix(state.k.index(0))
    return warpgroup_mma(ds, k.slice(part * DIMS, DIMS, dim=1), none, use_acc=False, is_async=True)


@gluon.jit
def walk(t, i, count, sums, state):
    """(tiles so far, dK, dV) over so many tiles of block t."""
    dk, dv = sums
    for _ in range(0, count):
        i = opaque(i)
        dv, ds = ask_dv(i, dv, state)
        dq = ask_dq(i, 0, state)
        q = matrix(state.q.index(state.queries.stage(i)))
        dk = warpgroup_mma(gl.convert_layout(ds, first_factor(state.cfg.width)), q, dk, is_async=True)
        dv, dq = warpgroup_mma_wait(1, (dv, dq))
        leave_part(i, dq, 0, state)
        dk, dq = warpgroup_mma_wait(0, (dk, ask_dq(i, 1, state)))
        state.queries.release(i)
        leave_part(i, dq, 1, state)
        fence_async_shared()
        state.made.arrive(i)
        i += 1
    state.values.release(t)
    state.keys.release(t)
    return i, dk, dv


@gluon.jit
def consumer(state):
    """dK and dV of a block's keys, and dQ of its tiles, block after block."""
    cfg: gl.constexpr = state.cfg
    none, none_v = zeros(cfg.rows, cfg.width), zeros(cfg.rows, cfg.width_v)
    scheduler = state.scheduler
    i = 0
    t = 0
    block = 0
    number = gl.program_id(0)
    while number < scheduler.blocks:
        member, item = scheduler.places(scheduler.where(number))
        batch, kv_head, share = gl.load(member), gl.load(member + 1), gl.load(member + 3)
        start, height = gl.load(item), gl.load(item + 1)
        _, count = keys_of(item, 0)
        n = tiles_of(count, cfg.columns)
        some = gl.minimum(n, 1)
        origin, pace = scheduler.rows()
        rows = Rows(batch, kv_head, origin + start, height, pace)
        for _ in range(0, some):  # a branch: a loop of at most one turn
            state.keys.wait(t)
            state.values.wait(t)
            i, dk, dv = walk(t, i, n * share, (none, none_v), state)
            store_through(state.ds.index(0), dk, state.DK, rows, 0)
            store_through(state.ds.index(0), dv * (1.0 / state.scale), state.DV, rows, 0)
        if some == 0:
            store_zeros(cfg.rows, cfg.width, state.DK, rows, 0)
            store_zeros(cfg.rows, cfg.width_v, state.DV, rows, 0)
        t += some
        block += 1
        number = state.claims.hear(block, 4)


# ---- dQ --------------------------------------------------------------------------------------------------------------
@gluon.jit
def adder(state):
    """Add what the consumer leaves of dQ to memory."""
    cfg: gl.constexpr = state.cfg
    scheduler = state.scheduler
    i = 0
    block = 0
    number = gl.program_id(0)
    while number < scheduler.blocks:
        member, item = scheduler.places(scheduler.where(number))
        batch, head, share = gl.load(member), gl.load(member + 2), gl.load(member + 3)
        run = run_of(item, 0, 1)
        for h in range(0, share):
            for j in range(0, tiles_of(run.count, cfg.columns)):
                place, _ = tile_at(scheduler.table, j, run, cfg)
                add_tile(i, [batch, head + h, place, run.lane], state)
                i += 1
        block += 1
        number = state.claims.hear(block, 1)


# ---- the kernel ------------------------------------------------------------------------------------------------------
@gluon.jit
def bwd_lists(Stats, read, outputs, scheduler, sizes, CHAINED: gl.constexpr, cfg: gl.constexpr):
    """As `bwd_summed`; dQ has the scale."""
    k, v = boxes(read[0], 1), boxes(read[1], 1)
    q, do = boxes(read[2], cfg.stages), boxes(read[3], cfg.stages)
    stats = gl.allocate_shared_memory(gl.float32, [cfg.stages * PAIR, cfg.columns], flat(1))
    ds = tiles(q.dtype, 1, cfg.rows, cfg.columns)
    sums = boxes(outputs[2], PARTS)
    state = Summed(
        cfg, outputs[0], outputs[1], Stats, k, v, q, do, stats, ds, 0, sums, channel(1, 1, 1), channel(1, 1, 1),
        channel(cfg.stages, cfg.fills, 1), ring(1, 1), 0, ring(1, 1), ring(1, 1), scheduler, claims(outputs[3], 2),
        sizes[0], sizes[1], sizes[2], read[0], read[1], read[2], read[3], outputs[2],
    )  # fmt: skip
    gl.static_assert(cfg.consumers == 1)
    gl.warp_specialize([
        (consumer, (state,)), (producer, (state, CHAINED)), (adder, (state,)),
    ], [cfg.producer_warps, 1], [cfg.producer_registers, cfg.producer_registers])  # fmt: skip
