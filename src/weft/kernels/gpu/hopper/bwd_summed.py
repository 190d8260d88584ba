# ruff: noqa: PLR0913 - kernels take as many arguments as they need, and Gluon is not all of Python
"""All gradients in one walk over queries for each block of keys: dQ is added in memory, in no fixed order.

A program lives as long as the launch and takes blocks of keys in turn. The producer asks by tensor descriptors for the
keys of a block and for its tiles of queries. A tile is (keys, queries), so that both weights and dS are first factors
in registers. Each of two consumers has half of a block's keys, and keeps their dK and dV in registers. Of a list of
tiles (`Config.listed`) a single consumer has all keys of a block, and two programs are side by side.

dQ of a tile is a sum over all keys of a block. So each consumer leaves its dS, (rows of keys, queries), in shared
memory. Once both have, each multiplies all of dS with its half of the head dimension's columns of K. It does so a tile
later, so that it seldom waits for the other. The product goes to shared memory too, and a warp of its own has it added
to dQ in float32 by reducing copies (`weft.kernels.gpu.compile.adding`). Two kernels make seven products of a tile; this
one makes five.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language import debug_barrier

from weft.kernels.gpu.hopper.bwd_summed_loads import PAIR, PARTS, Summed, adder, producer, walked
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import range_of, row_bounds
from weft.kernels.gpu.hopper.ops.channel import channel, ring
from weft.kernels.gpu.hopper.ops.epilogue import BoxRows, Rows, store_through, store_zeros
from weft.kernels.gpu.hopper.ops.grids import grid_cut, grid_range, grid_rows, grid_words
from weft.kernels.gpu.hopper.ops.layouts import (
    accumulator,
    boxes,
    by_rows,
    exchanged,
    first_factor,
    flat,
    matrix,
    tiles,
)
from weft.kernels.gpu.hopper.ops.mask import mask_words, masked
from weft.kernels.gpu.hopper.ops.values import LOG2E, opaque

LANES = gl.constexpr(32)


# ---- consumers -------------------------------------------------------------------------------------------------------
@aggregate
class Own:
    """What a consumer holds of a block's memory: its rows of K and V, and all keys."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    every: gl.shared_memory_descriptor


@aggregate
class Bounds:
    """Positions of a run that each row sees, from low to before high."""

    low: gl.tensor
    high: gl.tensor


@aggregate
class Block:
    """A block of keys: batch row and head, its first row and how many it has.

    It walks so many tiles of queries of each of the heads that share it. Of one consumer it has bounds of rows, and the
    tiles that none cuts. cut: these Bounds, on a grid a GridCut; item: a pointer to its integers.
    """

    batch: gl.tensor
    kv_head: gl.tensor
    start: gl.tensor
    height: gl.tensor
    tiles: gl.tensor
    share: gl.tensor
    cut: Any
    below: gl.tensor
    beyond: gl.tensor
    item: gl.tensor


@gluon.jit
def block_of(number, consumer_id: gl.constexpr, r, state):
    """A block as the consumer needs it; beyond the last one that. r: rows of a consumer."""
    cfg: gl.constexpr = state.cfg
    member, item = state.scheduler.places(state.scheduler.where(number))
    batch, kv_head, share = gl.load(member), gl.load(member + 1), gl.load(member + 3)
    start, height = gl.load(item), gl.load(item + 1)
    run, n = walked(item, state)
    if cfg.axes:
        rows = grid_rows(state.scheduler.table, item, consumer_id * cfg.rows + r, cfg)
        cut = grid_cut(state.scheduler.table, state.scheduler.part(), run, rows, cfg)
        seen = grid_range(item, consumer_id, cfg)
    else:
        low, high = row_bounds(item, consumer_id * cfg.rows + r, 0, cfg)
        cut, seen = Bounds(low, high), range_of(item, consumer_id, 0, cfg.consumers, 1)
    return Block(batch, kv_head, start, height, n, share, cut, seen.below, seen.beyond, item)


@gluon.jit
def own_of(t, consumer_id: gl.constexpr, state):
    """What the consumer holds of the memory of block t."""
    cfg: gl.constexpr = state.cfg
    ROWS: gl.constexpr = cfg.rows
    k, v = matrix(state.k.index(state.keys.stage(t))), matrix(state.v.index(0))
    mine_k, mine_v = k.slice(consumer_id * ROWS, ROWS, dim=0), v.slice(consumer_id * ROWS, ROWS, dim=0)
    return Own(mine_k, mine_v, k)


@gluon.jit
def await_room(i, state):
    """Wait until nobody reads the dS that lies where that of tile i of the ring comes: its dQ was left. Only before the
    consumer leaves dQ of the tile in between, and of a consumer that has no partner not at all.
    """
    if state.cfg.consumers == 2 and i >= 2:
        state.made.wait(i - 2)


@gluon.jit
def ask_dv(i, j, consumer_id: gl.constexpr, own, block, dv, state, AWAIT: gl.constexpr):
    """Ask for dV with tile i of the ring, which is tile j of its run, and leave dS. Returns dV and dS. Weights and dS
    have the scale of scores as a factor. AWAIT: dQ of the tile before is to be left yet.

    dV is asked for before dP is waited for: else ptxas moves the exponentials behind that wait, and tensor cores rest.
    """
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.columns
    layout: gl.constexpr = accumulator(TILE)
    of_columns: gl.constexpr = gl.SliceLayout(0, layout)
    at = state.queries.stage(i)
    q, do = matrix(state.q.index(at)), matrix(state.do.index(at))
    none = gl.zeros([cfg.rows, TILE], gl.float32, layout)
    state.queries.wait(i)
    x = warpgroup_mma(own.k, q.permute((1, 0)), none, use_acc=False, is_async=True)
    # dP begins with -delta of each query
    begun, _ = gl.broadcast(gl.expand_dims(state.stats.index(PAIR * at + 1).load(of_columns), 0), none)
    y = warpgroup_mma(own.v, do.permute((1, 0)), begun, is_async=True)
    less = gl.expand_dims(state.stats.index(PAIR * at).load(of_columns), 0)
    if cfg.axes:  # masks of all tiles, while products are made: a branch here would wait for these
        columns = gl.arange(0, TILE, layout=of_columns)
        words, bit = grid_words(gl.load(block.cut.words + j), block.cut, columns, cfg)
    x = warpgroup_mma_wait(1, (x,))
    if not cfg.listed and ((j < block.below) | (j >= block.beyond)):
        if not cfg.axes:
            columns = gl.arange(0, TILE, layout=of_columns)
            words, bit = mask_words(block.cut.low - j * TILE, block.cut.high - j * TILE, columns)
        x = masked(x, words, bit, float("-inf"))
    p = gl.exp2(x * (state.scale * LOG2E) + less)
    dtype: gl.constexpr = state.q.dtype
    dv = warpgroup_mma(gl.convert_layout(p.to(dtype), first_factor(cfg.width_v)), do, dv, is_async=True)
    y = warpgroup_mma_wait(1, (y,))
    ds = (p * y).to(dtype)
    if AWAIT:
        await_room(i, state)
    state.ds.index(i & (cfg.consumers - 1)).slice(consumer_id * cfg.rows, cfg.rows, dim=0).store(ds)
    fence_async_shared()
    state.ready.arrive(i)
    return dv, ds


@gluon.jit
def ask_dk(i, ds, dk, state):
    """Ask for dK with tile i of the ring."""
    q = matrix(state.q.index(state.queries.stage(i)))
    return warpgroup_mma(gl.convert_layout(ds, first_factor(state.cfg.width)), q, dk, is_async=True)


@gluon.jit
def ask_dq(i, part: gl.constexpr, own, state):
    """Ask for a part of the dims of the dQ of tile i of the ring, once all consumers have left what it takes."""
    cfg: gl.constexpr = state.cfg
    DIMS: gl.constexpr = cfg.width // PARTS
    none = gl.zeros([cfg.columns, DIMS], gl.float32, accumulator(DIMS))
    state.ready.wait(i)
    ds = state.ds.index(i & (cfg.consumers - 1)).permute((1, 0))
    return warpgroup_mma(ds, own.every.slice(part * DIMS, DIMS, dim=1), none, use_acc=False, is_async=True)


@gluon.jit
def odd_rows_exchanged(x):
    """x (rows, columns) with the halves of each 32 columns of odd rows exchanged: see `layouts.exchanged`."""
    ROWS: gl.constexpr = x.type.shape[0]
    COLUMNS: gl.constexpr = x.type.shape[1]
    parts = gl.permute(gl.reshape(x, [ROWS, COLUMNS // 32, 2, 16]), (0, 1, 3, 2))
    low, high = gl.split(parts)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, gl.SliceLayout(2, low.type.layout)))
    odd = gl.expand_dims(gl.expand_dims(row & 1, 1), 2) != 0
    parts = gl.join(gl.where(odd, high, low), gl.where(odd, low, high))
    return gl.convert_layout(gl.reshape(gl.permute(parts, (0, 1, 3, 2)), [ROWS, COLUMNS]), x.type.layout)


@gluon.jit
def leave_dq(i, dq, part: gl.constexpr, state):
    """Leave a part of the dQ of tile i of the ring for who adds it to memory; the consumer's last."""
    leave_part(i, dq, part, state)
    fence_async_shared()
    state.made.arrive(i)


@gluon.jit
def leave_part(i, dq, part: gl.constexpr, state):
    """Leave a part of the dQ of tile i of the ring in shared memory."""
    ROWS: gl.constexpr = dq.type.shape[0]
    COLUMNS: gl.constexpr = dq.type.shape[1]
    dq = odd_rows_exchanged(dq)
    state.taken.wait_before(i)
    state.sums.index(part)._reinterpret(gl.float32, [ROWS, COLUMNS], exchanged(ROWS, COLUMNS)).store(dq)


@gluon.jit
def walk(t, i, consumer_id: gl.constexpr, own, block, sums, state):
    """(the last tile, dK, dV) over block t's tiles of queries of all heads that share its keys. i: the first tile. dQ
    of the last tile is left to do. Values are given back as soon as nothing reads them.
    """
    n = block.tiles
    dk, dv = sums
    dv, ds = ask_dv(i, 0, consumer_id, own, block, dv, state, False)
    dk, dv = warpgroup_mma_wait(0, (ask_dk(i, ds, dk, state), dv))
    state.queries.release(i)
    j = 0
    for _ in range(1, n * block.share):
        i = opaque(i) + 1
        j = opaque(gl.where(j + 1 == n, 0, j + 1))
        own = own_of(opaque(t), consumer_id, state)  # else its addresses take 16 registers
        dv, ds = ask_dv(i, j, consumer_id, own, block, dv, state, True)
        dq = ask_dq(i - 1, consumer_id, own, state)
        dk = ask_dk(i, ds, dk, state)  # last, so that tensor cores have work while dQ is left
        dv, dq = warpgroup_mma_wait(1, (dv, dq))
        leave_dq(i - 1, dq, consumer_id, state)
        dk = warpgroup_mma_wait(0, (dk,))
        state.queries.release(i)
    state.values.release(t)
    return i, dk, dv


@gluon.jit
def walk_alone(t, i, own, block, sums, state):
    """As `walk`, of a consumer that has all of a block's keys: it makes dQ of each tile at once."""
    dk, dv = sums
    for _ in range(0, block.tiles * block.share):
        i = opaque(i)
        dv, ds = ask_dv(i, 0, 0, own, block, dv, state, False)
        dq = ask_dq(i, 0, own, state)
        dk = ask_dk(i, ds, dk, state)
        dv, dq = warpgroup_mma_wait(1, (dv, dq))
        leave_part(i, dq, 0, state)
        dk, dq = warpgroup_mma_wait(0, (dk, ask_dq(i, 1, own, state)))
        state.queries.release(i)
        leave_dq(i, dq, 1, state)
        i += 1
    state.values.release(t)
    state.keys.release(t)
    return i, dk, dv


@gluon.jit
def rows_of(block, state):
    """Where a block's keys are."""
    if state.cfg.axes:
        rows = BoxRows(block.batch, block.kv_head, gl.to_tensor(0), state.scheduler.table, block.item, state.cfg)
    else:
        origin, pace = state.scheduler.rows()
        rows = Rows(block.batch, block.kv_head, origin + block.start, block.height, pace)
    return rows


@gluon.jit
def store(i, dk, dv, consumer_id: gl.constexpr, block, state):
    """Write dK and dV of the consumer's keys, through where it would leave dS of tile i of the ring."""
    cfg: gl.constexpr = state.cfg
    await_room(i, state)
    room = state.ds.index(i & (cfg.consumers - 1)).slice(consumer_id * cfg.rows, cfg.rows, dim=0)
    store_through(room, dk, state.DK, rows_of(block, state), consumer_id)
    store_through(room, dv * (1.0 / state.scale), state.DV, rows_of(block, state), consumer_id)


@gluon.jit
def clear_rows(side, height, consumer_id: gl.constexpr):
    """Zero the consumer's rows of a side that a block does not have.

    Tokens after the last document lie there, and may hold NaN, which a weight of 0 would not remove.
    """
    ROWS: gl.constexpr = side.shape[0]
    WIDTH: gl.constexpr = side.shape[1]
    layout: gl.constexpr = by_rows(WIDTH, 4)
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout)) + consumer_id * ROWS
    x = side.load(layout)
    side.store(gl.where(gl.expand_dims(r < height, 1), x, gl.zeros_like(x)))


@gluon.jit
def consumer(consumer_id: gl.constexpr, state):
    """dK and dV of one warp group's keys, and its dims of dQ, block after block."""
    cfg: gl.constexpr = state.cfg
    ROWS: gl.constexpr = cfg.rows
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, accumulator(cfg.columns)))
    none = gl.zeros([ROWS, cfg.width], gl.float32, accumulator(cfg.width))
    none_v = gl.zeros([ROWS, cfg.width_v], gl.float32, accumulator(cfg.width_v))
    scheduler = state.scheduler
    i = 0
    t = 0
    block = block_of(gl.program_id(0), consumer_id, r, state)
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        some = gl.minimum(block.tiles, 1)
        for _ in range(0, some):  # a branch: a loop of at most one turn
            own = own_of(t, consumer_id, state)
            state.keys.wait(t)
            state.values.wait(t)
            if cfg.counted and block.height < cfg.consumers * ROWS:
                clear_rows(own.k, block.height, consumer_id)
                clear_rows(own.v, block.height, consumer_id)
                fence_async_shared()
                debug_barrier()  # of its warps; `ready` keeps the other consumer from the keys until then
            if cfg.consumers == 1:
                i, dk, dv = walk_alone(t, i, own, block, (none, none_v), state)
                store(i, dk, dv, consumer_id, block, state)
            else:
                i, dk, dv = walk(t, i, consumer_id, own, block, (none, none_v), state)
                dq = ask_dq(i, consumer_id, own, state)
                store(i + 1, dk, dv, consumer_id, block, state)  # meanwhile
                dq = warpgroup_mma_wait(0, (dq,))
                state.keys.release(t)
                leave_dq(i, dq, consumer_id, state)
                i += 1
        if some == 0:
            store_zeros(ROWS, cfg.width, state.DK, rows_of(block, state), consumer_id)
            store_zeros(ROWS, cfg.width_v, state.DV, rows_of(block, state), consumer_id)
        t += some
        block = block_of(opaque(number) + gl.num_programs(0), consumer_id, r, state)


# ---- the kernel ------------------------------------------------------------------------------------------------------
@gluon.jit
def bwd_summed(Stats, read, outputs, scheduler, sizes, CHAINED: gl.constexpr, cfg: gl.constexpr):
    """dK and dV, and what is added to dQ before the scale. read: descriptors of K, V, Q and dO; outputs: DK and DV, and
    the descriptor of DQ;
    sizes: (heads of queries, queries, scale).
    """
    CONSUMERS: gl.constexpr = cfg.consumers
    k, v = boxes(read[0], cfg.key_stages), boxes(read[1], 1)
    q, do = boxes(read[2], cfg.stages), boxes(read[3], cfg.stages)
    stats = gl.allocate_shared_memory(gl.float32, [cfg.stages * PAIR, cfg.columns], flat(1))
    ds = tiles(q.dtype, CONSUMERS, CONSUMERS * cfg.rows, cfg.columns)
    sums = boxes(outputs[2], PARTS)
    fills: gl.constexpr = 1 + LANES * cfg.producer_warps  # of what comes by descriptors, and of each thread
    state = Summed(
        cfg, outputs[0], outputs[1], Stats, k, v, q, do, stats, ds, sums, channel(cfg.key_stages, 1, CONSUMERS),
        channel(1, 1, CONSUMERS), channel(cfg.stages, fills, CONSUMERS), ring(CONSUMERS, CONSUMERS),
        ring(1, CONSUMERS), ring(1, 1), scheduler, sizes[0], sizes[1], sizes[2], read[0], read[1], read[2], read[3],
        outputs[2],
    )  # fmt: skip
    if cfg.consumers == 1:
        gl.warp_specialize([
            (consumer, (0, state)), (producer, (state, CHAINED)), (adder, (state,)),
        ], [cfg.producer_warps, 1], [cfg.producer_registers, cfg.producer_registers])  # fmt: skip
    else:
        gl.static_assert(cfg.consumers == 2)
        gl.warp_specialize([
            (consumer, (0, state)), (consumer, (1, state)), (producer, (state, CHAINED)), (adder, (state,)),
        ], [4, cfg.producer_warps, 1],
           [cfg.consumer_registers, cfg.producer_registers, cfg.producer_registers])  # fmt: skip
