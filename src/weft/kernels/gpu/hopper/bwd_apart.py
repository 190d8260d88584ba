# ruff: noqa: PLR0913, SIM113 - kernels take as many arguments as they need, and Gluon is not all of Python
"""dK, or dV, of wide heads: registers hold one of them, so each has a launch.

A program lives as long as the launch and takes blocks of keys in turn, as those of `bwd_summed` do. Each of two
consumers has half of a block's keys, and keeps their gradient in registers. What scores subtract is added by products
whose first factor, ones, is made of constants. Results lie where keys lay until they have left.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from weft.kernels.gpu import constants
from weft.kernels.gpu.hopper.bwd_summed import LANES, block_of
from weft.kernels.gpu.hopper.bwd_summed_loads import load_side
from weft.kernels.gpu.hopper.fwd_loads import load_box
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import keys_of, place_of, run_of, tiles_of
from weft.kernels.gpu.hopper.ops.channel import Channel, channel
from weft.kernels.gpu.hopper.ops.epilogue import Rows, store_box_rows
from weft.kernels.gpu.hopper.ops.layouts import accumulator, boxes, by_rows, first_factor, matrix, tiles
from weft.kernels.gpu.hopper.ops.mask import mask_words, masked
from weft.kernels.gpu.hopper.ops.scheduler import PART, TileScheduler
from weft.kernels.gpu.hopper.ops.values import LOG2E, Tensor, opaque

STATS = gl.constexpr(constants.STATS)  # numbers of a query that its scores subtract


@aggregate
class Apart:
    """The kernel's arguments, shared memory and channels.

    grad: DK or DV. k, v: a block's; of dV there is no v. q, do: rings of tiles that are walked; stats: beside do.
    """

    cfg: gl.constexpr
    grad: Tensor
    Stats: gl.tensor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    stats: gl.shared_memory_descriptor
    keys: Channel
    values: Channel
    queries: Channel
    douts: Channel
    scheduler: TileScheduler
    heads: gl.tensor
    length: gl.tensor
    scale: gl.tensor
    k_box: Any
    v_box: Any
    q_box: Any
    do_box: Any


# ---- producer --------------------------------------------------------------------------------------------------------
@gluon.jit
def load_stats(to, at, first, run, rows, COUNTED: gl.constexpr):
    """Ask for what a tile's scores and their gradients subtract. rows: those of a tile, places of the
    numbers of one, and the step between rows."""
    r, numbers, step = rows
    row = (first + gl.minimum(r, run.count - 1 - first)) * step
    if COUNTED:  # places are tokens, and a run may begin before the first
        row = gl.maximum(row, -run.place)
    async_copy.async_copy_global_to_shared(to, at + (gl.expand_dims(row * STATS, 1) + numbers))


@gluon.jit
def producer(state, CHAINED: gl.constexpr):
    """Keys of a block, for dK their values, and tiles of queries, dO and stats of all heads that share them."""
    cfg: gl.constexpr = state.cfg
    douts = state.douts
    layout: gl.constexpr = by_rows(STATS, cfg.producer_warps)
    r = gl.arange(0, cfg.columns, layout=gl.SliceLayout(1, layout))
    numbers = gl.expand_dims(gl.arange(0, STATS, layout=gl.SliceLayout(0, layout)), 0)
    scheduler = state.scheduler
    here = scheduler.part()
    origin, step = gl.load(here), gl.load(here + PART)
    i = 0
    t = 0
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        member, item = scheduler.places(scheduler.where(number))
        batch, kv_head, head, share = gl.load(member), gl.load(member + 1), gl.load(member + 2), gl.load(member + 3)
        place, lane = place_of(item, 0, 1)
        run = run_of(item, 0, 1)
        first, _ = keys_of(item, 0)
        where = [batch, kv_head, place, lane, 0]
        load_side(t, where, state.keys, state.k_box, state.k)
        if cfg.makes == "dk":
            load_side(t, where, state.values, state.v_box, state.v)
        if CHAINED and t == 0:
            gdc_wait()  # for what the launch before this one leaves: Stats
        for h in range(0, share):
            row = (batch.to(gl.int64) * state.heads + head + h) * state.length + origin + first
            for j in range(0, tiles_of(run.count, cfg.columns)):
                where = [batch, head + h, run.place + j * cfg.columns, run.lane, 0]
                load_box(i, state.q_box, state.q, state.queries, where)
                load_box(i, state.do_box, state.do, douts, where)
                to, at = state.stats.index(douts.stage(i)), state.Stats + row * STATS
                load_stats(to, at, j * cfg.columns, run, (r, numbers, step), cfg.counted)
                douts.commit(i)
                i += 1
        t += 1


# ---- consumers -------------------------------------------------------------------------------------------------------
@gluon.jit
def ones(cfg: gl.constexpr, LATER: gl.constexpr):
    """The first factor of a product that adds the numbers of lse, or LATER of delta."""
    layout: gl.constexpr = first_factor(cfg.columns)
    stat = gl.expand_dims(gl.arange(0, STATS, layout=gl.SliceLayout(0, layout)), 0)
    every = gl.expand_dims(gl.arange(0, cfg.rows, layout=gl.SliceLayout(1, layout)), 1) >= 0
    return gl.where(((stat >= STATS // 2) == LATER) & every, 1.0, 0.0).to(gl.bfloat16)


@gluon.jit
def add_tile(i, j, consumer_id: gl.constexpr, grad, block, state):
    """The gradient with tile i of the rings, which is tile j of its run."""
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.columns
    dtype: gl.constexpr = state.q.dtype
    queries, douts = state.queries, state.douts
    at = douts.stage(i)
    q, do = matrix(state.q.index(queries.stage(i))), matrix(state.do.index(at))
    stats = state.stats.index(at).permute((1, 0))
    none = gl.zeros([cfg.rows, TILE], gl.float32, accumulator(TILE))
    mine = opaque(0)  # so that no descriptors are made before all tiles, and spilled
    k = matrix(state.k.index(mine)).slice(consumer_id * cfg.rows, cfg.rows, dim=0)
    queries.wait(i)
    x = warpgroup_mma(k, q.permute((1, 0)), none, use_acc=False, is_async=True)
    douts.wait(i)
    x = warpgroup_mma(ones(cfg, False), stats, x, is_async=True)
    if cfg.makes == "dk":
        y = warpgroup_mma(ones(cfg, True), stats, none, use_acc=False, is_async=True)
        v = matrix(state.v.index(mine)).slice(consumer_id * cfg.rows, cfg.rows, dim=0)
        y = warpgroup_mma(v, do.permute((1, 0)), y, is_async=True)
        x = warpgroup_mma_wait(2, (x,))
    else:
        x = warpgroup_mma_wait(0, (x,))
        queries.release(i)
    if (j < block.below) | (j >= block.beyond):
        columns = gl.arange(0, TILE, layout=gl.SliceLayout(0, accumulator(TILE)))
        words, bit = mask_words(block.cut.low - j * TILE, block.cut.high - j * TILE, columns)
        x = masked(x, words, bit, float("-inf"))
    p = gl.exp2(x * (state.scale * LOG2E))
    if cfg.makes == "dk":
        y = warpgroup_mma_wait(0, (y,))
        douts.release(i)
        weights = gl.convert_layout((p * y).to(dtype), first_factor(cfg.width))
        grad = warpgroup_mma_wait(0, (warpgroup_mma(weights, q, grad, is_async=True),))
        queries.release(i)
    else:
        weights = gl.convert_layout(p.to(dtype), first_factor(cfg.width_v))
        grad = warpgroup_mma_wait(0, (warpgroup_mma(weights, do, grad, is_async=True),))
        douts.release(i)
    return grad


@gluon.jit
def consumer(consumer_id: gl.constexpr, state):
    """The gradient of one warp group's keys, block after block."""
    cfg: gl.constexpr = state.cfg
    ROWS: gl.constexpr = cfg.rows
    IS_DK: gl.constexpr = cfg.makes == "dk"
    WIDTH: gl.constexpr = cfg.width if IS_DK else cfg.width_v
    DIMS: gl.constexpr = cfg.d if IS_DK else cfg.dv
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, accumulator(cfg.columns)))
    scheduler, keys, values = state.scheduler, state.keys, state.values
    k = matrix(state.k.index(0)).slice(consumer_id * ROWS, ROWS, dim=0)
    i = 0
    t = 0
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        block = block_of(number, consumer_id, r, state)
        keys.wait(t)
        if IS_DK:
            values.wait(t)
        grad = gl.zeros([ROWS, WIDTH], gl.float32, accumulator(WIDTH))
        j = 0
        for _ in range(0, block.tiles * block.share):
            grad = add_tile(i, j, consumer_id, grad, block, state)
            i = opaque(i) + 1
            j = opaque(gl.where(j + 1 == block.tiles, 0, j + 1))
        if IS_DK:
            values.release(t)
            grad = grad * state.scale
        origin, pace = scheduler.rows()
        k.store(grad.to(state.k.dtype))
        rows = Rows(block.batch, block.kv_head, origin + block.start, block.height, pace)
        store_box_rows(k, state.grad, rows, consumer_id, DIMS)
        fence_async_shared()  # between results and the keys that come there
        keys.release(t)
        t += 1


# ---- the kernel ------------------------------------------------------------------------------------------------------
@gluon.jit
def bwd_apart(Stats, read, grad, scheduler, sizes, CHAINED: gl.constexpr, cfg: gl.constexpr):
    """grad: DK or DV. read: descriptors of K, V, Q and dO; sizes: (heads of queries, queries, scale)."""
    CONSUMERS: gl.constexpr = cfg.consumers
    k = boxes(read[0], 1)
    v = boxes(read[1], 1) if cfg.makes == "dk" else k
    q, do = boxes(read[2], cfg.query_stages), boxes(read[3], cfg.stages)
    stats = tiles(gl.bfloat16, cfg.stages, cfg.columns, STATS)
    fills: gl.constexpr = 1 + LANES * cfg.producer_warps  # of what comes by descriptors, and of each thread
    state = Apart(
        cfg, grad, Stats, k, v, q, do, stats, channel(1, 1, CONSUMERS), channel(1, 1, CONSUMERS),
        channel(cfg.query_stages, 1, CONSUMERS), channel(cfg.stages, fills, CONSUMERS), scheduler, sizes[0], sizes[1],
        sizes[2], read[0], read[1], read[2], read[3],
    )  # fmt: skip
    gl.static_assert(cfg.consumers == 2)
    gl.warp_specialize([
        (consumer, (0, state)), (consumer, (1, state)), (producer, (state, CHAINED)),
    ], [4, cfg.producer_warps], [cfg.consumer_registers, cfg.producer_registers])  # fmt: skip
