# ruff: noqa: PLR0913, SIM102 - kernels take as many arguments as they need, and Gluon is not all of Python
"""All gradients in one walk over queries for each block of keys: dQ is added in memory, in no fixed order.

A program lives as long as the launch and claims blocks of keys (`ops.scheduler.Claims`). The producer asks by tensor
descriptors for the keys of a block and for its tiles of queries. A tile is (keys, queries), so that both weights and dS
are first factors in registers. Each of two consumers has half of a block's keys, and keeps their dK and dV in
registers.

dQ of a tile is a sum over all keys of a block. So each consumer leaves its dS, (rows of keys, queries), in shared
memory. Once both have, each multiplies all of dS with its half of the head dimension's columns of K. It does so a tile
later, so that it seldom waits. That product is left in shared memory too, and a warp of its own has it added to dQ in
float32 by reducing copies (`weft.kernels.gpu.compile.adding`). So a tile has five products; two kernels make seven.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language import debug_barrier
from triton.language.extra.cuda import gdc_wait

from weft.kernels.gpu.hopper.bwd_loads import STATS, load_pair, load_side, load_stats, rows_of_stats, visit_of
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import begin_of, keys_of, range_of, row_bounds, run_of, tiles_of, turned
from weft.kernels.gpu.hopper.ops.channel import Channel, Ring, channel, ring
from weft.kernels.gpu.hopper.ops.epilogue import Rows, store_rows
from weft.kernels.gpu.hopper.ops.layouts import (
    accumulator,
    boxes,
    by_rows,
    exchanged,
    first_factor,
    matrix,
    odd_rows_exchanged,
    tiles,
)
from weft.kernels.gpu.hopper.ops.mask import mask_words, masked
from weft.kernels.gpu.hopper.ops.scheduler import Claims, TileScheduler, claims
from weft.kernels.gpu.hopper.ops.stats import ones
from weft.kernels.gpu.hopper.ops.values import LOG2E, Tensor, opaque

DS = gl.constexpr(2)  # tiles of what dQ is made of


@aggregate
class Summed:
    """The kernel's arguments, shared memory and channels.

    k, v: a block's. q, do, stats: the ring of tiles that are walked. ds: dS of two tiles. ones: factors that add lse
    and delta to products, of each consumer; `stats` has them as sums of bfloat16 numbers, see `constants.STATS`. sums:
    the dQ of a tile, in parts of its dims, as many as there are consumers.

    keys, values: the channels of k and of v; queries: that of q, do and stats. ready: all consumers left dS of a tile;
    used: all have read it. made: dQ of a tile was left; taken: copies have read it. heads, length: of queries.
    `bwd_lists` has one consumer, dS of one tile, two parts of dQ, two numbers of each query for `stats`, and neither
    `ones` nor `used`.
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
    ones: Any
    sums: gl.shared_memory_descriptor
    keys: Channel
    values: Channel
    queries: Channel
    ready: Ring
    used: Any
    made: Ring
    taken: Ring
    scheduler: TileScheduler
    claims: Claims
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
def load_queries(i, j, at, run, rows, state):
    """Ask for tile j of a run as tile i of the ring. at: batch row, head, where the run's stats begin; rows: those of a
    tile, places of the numbers of one, and the step between rows.
    """
    first = j * state.cfg.columns
    load_pair(i, [at[0], at[1], run.place + first, run.lane, 0], state)
    load_stats(state.stats.index(state.queries.stage(i)), at[2], first, run.count, rows)
    state.queries.commit(i)


@gluon.jit
def producer(state, CHAINED: gl.constexpr):
    """Keys and values of a block; queries, dO and what scores subtract, of all heads that share these keys."""
    cfg: gl.constexpr = state.cfg
    r, numbers = rows_of_stats(cfg)
    scheduler, keys = state.scheduler, state.keys
    origin, step = scheduler.walked_rows()
    i = 0
    t = 0
    number = gl.program_id(0)
    while number < scheduler.blocks:
        visit = visit_of(number, scheduler)
        run = visit.run
        where = [visit.batch, visit.kv_head, visit.place, visit.lane, 0]
        load_side(t, where, state.values, state.v_box, state.v)  # first, since they are free first
        load_side(t, where, keys, state.k_box, state.k)
        if CHAINED and t == 0:
            gdc_wait()  # for what the launch before this one leaves: Stats, and zeros of dQ
        n = tiles_of(run.count, cfg.columns)
        begin = begin_of(visit.start, visit.first, run.count, cfg.columns)
        for h in range(0, visit.share):
            at = (visit.batch, visit.head + h, state.Stats + visit.number(h, origin, state) * STATS)
            for j in range(0, n):
                load_queries(i, turned(begin + j, n), at, run, (r, numbers, step), state)
                i += 1
        t += 1
        number = state.claims.claim(t)


# ---- consumers -------------------------------------------------------------------------------------------------------
@aggregate
class Own:
    """What a consumer holds for a block: its dims of all keys, and bounds of its rows.

    It also holds which tiles no bound cuts, and how many queries a head's run has.
    """

    k_dims: gl.shared_memory_descriptor
    low: gl.tensor
    high: gl.tensor
    below: gl.tensor
    beyond: gl.tensor
    count: gl.tensor


@aggregate
class Block:
    """A block of keys: batch row and head, its first row and how many it has.

    It walks `count` queries, in so many tiles from tile `begin` on, of each of the heads that share it. Of one
    consumer it has bounds of rows, and the tiles that none cuts.
    """

    batch: gl.tensor
    kv_head: gl.tensor
    start: gl.tensor
    height: gl.tensor
    count: gl.tensor
    tiles: gl.tensor
    begin: gl.tensor
    share: gl.tensor
    low: gl.tensor
    high: gl.tensor
    below: gl.tensor
    beyond: gl.tensor


@gluon.jit
def block_of(number, consumer_id: gl.constexpr, r, state):
    """A block as the consumer needs it; beyond the last one that. r: rows of a consumer."""
    cfg: gl.constexpr = state.cfg
    member, item = state.scheduler.places(state.scheduler.where(number))
    batch, kv_head, share = gl.load(member), gl.load(member + 1), gl.load(member + 3)
    start, height = gl.load(item), gl.load(item + 1)
    first, count = keys_of(item, 0)
    low, high = row_bounds(item, consumer_id * cfg.rows + r, 0, cfg)
    seen = range_of(item, consumer_id, 0, cfg.consumers, 1)
    n = tiles_of(count, cfg.columns)
    begin = begin_of(start, first, count, cfg.columns)
    return Block(batch, kv_head, start, height, count, n, begin, share, low, high, seen.below, seen.beyond)


@gluon.jit
def clear_rows(a, b, height):
    """Zero rows of two tiles from a height on: tokens of others, or of no document, lie there. They may hold NaN, which
    a weight of 0 would not remove.
    """
    ROWS: gl.constexpr = a.shape[0]
    WIDTH: gl.constexpr = a.shape[1]
    layout: gl.constexpr = by_rows(WIDTH, 4)
    there = gl.expand_dims(gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout)) < height, 1)
    x = a.load(layout)
    a.store(gl.where(there, x, gl.zeros_like(x)))
    x = b.load(layout)
    b.store(gl.where(there, x, gl.zeros_like(x)))
    fence_async_shared()
    debug_barrier()  # of the consumer's warps


@gluon.jit
def own_rows(i, side, consumer_id: gl.constexpr, cfg: gl.constexpr):
    """A consumer's rows of K or of V, for tile i of the ring.

    They are where they were. But ptxas makes descriptors of places that no tile changes before all tiles, and spills
    them: i >> 30 is 0, which it does not know.
    """
    return matrix(side.index(i >> 30)).slice(consumer_id * cfg.rows, cfg.rows, dim=0)


@gluon.jit
def ask_scores(i, consumer_id: gl.constexpr, state):
    """Ask for S and dP of tile i of the ring, (rows of keys, queries), less lse and delta: two products each."""
    cfg: gl.constexpr = state.cfg
    at = state.queries.stage(i)
    none = gl.zeros([cfg.rows, cfg.columns], gl.float32, accumulator(cfg.columns))
    stats = state.stats.index(at).permute((1, 0))
    k, v = own_rows(i, state.k, consumer_id, cfg), own_rows(i, state.v, consumer_id, cfg)
    x = warpgroup_mma(state.ones.index(2 * consumer_id), stats, none, use_acc=False, is_async=True)
    x = warpgroup_mma(k, matrix(state.q.index(at)).permute((1, 0)), x, is_async=True)
    y = warpgroup_mma(state.ones.index(2 * consumer_id + 1), stats, none, use_acc=False, is_async=True)
    y = warpgroup_mma(v, matrix(state.do.index(at)).permute((1, 0)), y, is_async=True)
    return x, y


@gluon.jit
def leave_ds(i, scores, consumer_id: gl.constexpr, dv, state):
    """Ask for dV with tile i of the ring, and leave dS. scores: S, and dP, which is not there yet. Returns dV and dS.

    dV is asked for before dP is waited for: else ptxas moves the exponentials behind that wait, and tensor cores rest.
    """
    cfg: gl.constexpr = state.cfg
    x, y = scores
    p = gl.exp2(x * (state.scale * LOG2E))
    dtype: gl.constexpr = state.q.dtype
    weights = gl.convert_layout(p.to(dtype), first_factor(cfg.width_v))
    dv = warpgroup_mma(weights, matrix(state.do.index(state.queries.stage(i))), dv, is_async=True)
    y = warpgroup_mma_wait(1, (y,))
    ds = (p * y).to(dtype)
    state.used.wait_before(i)
    state.ds.index(i & (DS - 1)).slice(consumer_id * cfg.rows, cfg.rows, dim=0).store(ds)
    fence_async_shared()
    state.ready.arrive(i)
    return dv, ds


@gluon.jit
def ask_dv(i, j, consumer_id: gl.constexpr, own, dv, state):
    """Ask for dV with tile i of the ring, which is tile j of its run, and leave dS. Returns dV and dS."""
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.columns
    at = state.queries.stage(i)
    state.queries.wait(i)
    if cfg.counted:
        if (j + 1) * TILE > own.count:  # both consumers do, and write the same
            clear_rows(matrix(state.q.index(at)), matrix(state.do.index(at)), own.count - j * TILE)
    x, y = ask_scores(i, consumer_id, state)
    x = warpgroup_mma_wait(2, (x,))
    if (j < own.below) | (j >= own.beyond):
        columns = gl.arange(0, TILE, layout=gl.SliceLayout(0, accumulator(TILE)))
        words, bit = mask_words(own.low - j * TILE, own.high - j * TILE, columns)
        x = masked(x, words, bit, float("-inf"))
    return leave_ds(i, (x, y), consumer_id, dv, state)


@gluon.jit
def ask_dk(i, ds, dk, state):
    """Ask for dK with tile i of the ring."""
    q = matrix(state.q.index(state.queries.stage(i)))
    return warpgroup_mma(gl.convert_layout(ds, first_factor(state.cfg.width)), q, dk, is_async=True)


@gluon.jit
def ask_dq(i, own, state):
    """Ask for a consumer's dims of the dQ of tile i of the ring, once all consumers have left what it takes."""
    DIMS: gl.constexpr = own.k_dims.shape[1]
    none = gl.zeros([state.cfg.columns, DIMS], gl.float32, accumulator(DIMS))
    state.ready.wait(i)
    ds = state.ds.index(i & (DS - 1)).permute((1, 0))
    return warpgroup_mma(ds, own.k_dims, none, use_acc=False, is_async=True)


@gluon.jit
def leave_part(i, dq, part: gl.constexpr, state):
    """Leave a part of the dQ of tile i of the ring in shared memory."""
    ROWS: gl.constexpr = dq.type.shape[0]
    DIMS: gl.constexpr = dq.type.shape[1]
    dq = odd_rows_exchanged(dq)
    state.taken.wait_before(i)
    state.sums.index(part)._reinterpret(gl.float32, [ROWS, DIMS], exchanged(ROWS, DIMS)).store(dq)


@gluon.jit
def leave_dq(i, dq, consumer_id: gl.constexpr, state):
    """Leave the consumer's part of the dQ of tile i of the ring for who adds it to memory."""
    leave_part(i, dq, consumer_id, state)
    fence_async_shared()
    state.made.arrive(i)


@gluon.jit
def walk(t, i, block, consumer_id: gl.constexpr, own, sums, state):
    """(tiles so far, dK, dV) over block t's tiles of queries, of all heads that share its keys."""
    n, j = block.tiles, block.begin
    dk, dv = sums
    for _ in range(0, gl.minimum(n, 1)):  # a branch: a loop of at most one turn
        dv, ds = ask_dv(i, j, consumer_id, own, dv, state)
        dk, dv = warpgroup_mma_wait(0, (ask_dk(i, ds, dk, state), dv))
        state.queries.release(i)
        for _ in range(1, n * block.share):
            i = opaque(i) + 1
            j = opaque(gl.where(j + 1 == n, 0, j + 1))
            dv, ds = ask_dv(i, j, consumer_id, own, dv, state)
            dq = ask_dq(i - 1, own, state)
            dk = ask_dk(i, ds, dk, state)  # last, so that tensor cores have work while dQ is left
            dv, dq = warpgroup_mma_wait(1, (dv, dq))
            state.used.arrive(i - 1)
            leave_dq(i - 1, dq, consumer_id, state)
            dk = warpgroup_mma_wait(0, (dk,))
            state.queries.release(i)
        state.values.release(t)
        dq = warpgroup_mma_wait(0, (ask_dq(i, own, state),))
        state.used.arrive(i)
        leave_dq(i, dq, consumer_id, state)
        i += 1
    if n == 0:
        state.values.release(t)
    return i, dk, dv


@gluon.jit
def leave_ones(consumer_id: gl.constexpr, state):
    """Leave in shared memory what adds the numbers of lse, or of delta, to a product, for the consumer alone."""
    cfg: gl.constexpr = state.cfg
    layout: gl.constexpr = by_rows(STATS, 4)
    state.ones.index(2 * consumer_id).store(ones(cfg.rows, False, layout))
    state.ones.index(2 * consumer_id + 1).store(ones(cfg.rows, True, layout))
    fence_async_shared()
    debug_barrier()  # of its warps


@gluon.jit
def consumer(consumer_id: gl.constexpr, state):
    """dK and dV of one warp group's keys, and its dims of dQ, block after block."""
    cfg: gl.constexpr = state.cfg
    ROWS: gl.constexpr = cfg.rows
    DIMS: gl.constexpr = cfg.width // cfg.consumers
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, accumulator(cfg.columns)))
    none = gl.zeros([ROWS, cfg.width], gl.float32, accumulator(cfg.width))
    none_v = gl.zeros([ROWS, cfg.width_v], gl.float32, accumulator(cfg.width_v))
    leave_ones(consumer_id, state)
    scheduler, keys = state.scheduler, state.keys
    columns = matrix(state.k.index(0)).slice(consumer_id * DIMS, DIMS, dim=1)
    i = 0
    t = 0
    number = gl.program_id(0)
    block = block_of(number, consumer_id, r, state)
    while number < scheduler.blocks:
        own = Own(columns, block.low, block.high, block.below, block.beyond, block.count)
        keys.wait(t)
        state.values.wait(t)
        if cfg.counted:
            if block.height < cfg.consumers * ROWS:  # `ready` keeps the other consumer from the keys until then
                k, v = own_rows(i, state.k, consumer_id, cfg), own_rows(i, state.v, consumer_id, cfg)
                clear_rows(k, v, block.height - consumer_id * ROWS)
        i, dk, dv = walk(t, i, block, consumer_id, own, (none, none_v), state)
        keys.release(t)
        t += 1
        number = state.claims.hear(t, 4)
        after = block_of(number, consumer_id, r, state)  # asked for before results are written
        origin, pace = scheduler.rows()
        rows = Rows(block.batch, block.kv_head, origin + block.start, block.height, pace)
        store_rows(dk * state.scale, state.DK, rows, consumer_id)
        store_rows(dv, state.DV, rows, consumer_id)
        block = after


# ---- dQ --------------------------------------------------------------------------------------------------------------
@gluon.jit
def add_tile(i, where, state):
    """Have the dQ of tile i of the ring added to memory, once all parts of it were left. where: its box."""
    PARTS: gl.constexpr = state.sums.shape[0]
    DIMS: gl.constexpr = state.cfg.width // PARTS
    state.made.wait(i)
    for part in gl.static_range(PARTS):
        box = [where[0], where[1], where[2], where[3], part * DIMS]
        tma.async_copy_shared_to_global(state.dq_box, box, state.sums.index(part))  # it adds, see `compile.adding`
    tma.store_wait(0)  # until it has been read
    state.taken.arrive(i)


@gluon.jit
def adder(state):
    """Add what the consumers leave of dQ to memory. Rows that do not exist are not written."""
    cfg: gl.constexpr = state.cfg
    scheduler = state.scheduler
    i = 0
    t = 0
    number = gl.program_id(0)
    while number < scheduler.blocks:
        member, item = scheduler.places(scheduler.where(number))
        batch, head, share = gl.load(member), gl.load(member + 2), gl.load(member + 3)
        run = run_of(item, 0, 1)
        n = tiles_of(run.count, cfg.columns)
        first, _ = keys_of(item, 0)
        begin = begin_of(gl.load(item), first, run.count, cfg.columns)
        for h in range(0, share):
            for j in range(0, n):
                place = run.place + turned(begin + j, n) * cfg.columns
                add_tile(i, [batch, head + h, place, run.lane], state)
                i += 1
        t += 1
        number = state.claims.hear(t, 1)


# ---- the kernel ------------------------------------------------------------------------------------------------------
@gluon.jit
def memory_of(Stats, read, outputs, scheduler, sizes, cfg: gl.constexpr):
    """The arguments of a kernel, with its shared memory and channels."""
    CONSUMERS: gl.constexpr = cfg.consumers
    k, v = boxes(read[0], 1), boxes(read[1], 1)
    q, do = boxes(read[2], cfg.stages), boxes(read[3], cfg.stages)
    stats = tiles(gl.bfloat16, cfg.stages, cfg.columns, STATS)
    ds = tiles(q.dtype, DS, CONSUMERS * cfg.rows, cfg.columns)
    of_ones = tiles(gl.bfloat16, 2 * CONSUMERS, cfg.rows, STATS)
    sums = boxes(outputs[2], CONSUMERS)
    ADDERS: gl.constexpr = CONSUMERS if cfg.axes else 1  # on grids each consumer has one of its own
    return Summed(
        cfg, outputs[0], outputs[1], Stats, k, v, q, do, stats, ds, of_ones, sums, channel(1, 1, CONSUMERS),
        channel(1, 1, CONSUMERS), channel(cfg.stages, cfg.fills, CONSUMERS), ring(DS, CONSUMERS), ring(DS, CONSUMERS),
        ring(ADDERS, CONSUMERS // ADDERS), ring(ADDERS, 1), scheduler, claims(outputs[3], CONSUMERS + ADDERS),
        sizes[0], sizes[1], sizes[2], read[0], read[1], read[2], read[3], outputs[2],
    )  # fmt: skip


@gluon.jit
def bwd_summed(Stats, read, outputs, scheduler, sizes, CHAINED: gl.constexpr, cfg: gl.constexpr):
    """dK and dV, and what is added to dQ before the scale. read: descriptors of K, V, Q and dO; outputs: DK and DV, the
    descriptor of DQ, and the counter of claims; sizes: (heads of queries, queries, scale).
    """
    state = memory_of(Stats, read, outputs, scheduler, sizes, cfg)
    gl.static_assert(cfg.consumers == 2)
    gl.warp_specialize([
        (consumer, (0, state)), (consumer, (1, state)), (producer, (state, CHAINED)), (adder, (state,)),
    ], [4, cfg.producer_warps, 1],
       [cfg.consumer_registers, cfg.producer_registers, cfg.producer_registers])  # fmt: skip
