# ruff: noqa: PLR0913, SIM113 - kernels take as many arguments as they need, and Gluon is not all of Python
"""dQ, dK or dV of wide heads: registers hold one of them, so each has a launch.

A program lives as long as the launch and takes blocks of rows in turn: of queries for dQ, else of keys. It walks tiles
of the other side. Each of two consumers has half of a block's rows, and keeps their gradient in registers. From there
it is written, since shared memory is full.

Scores and their gradients subtract lse and delta of queries. Where queries are walked these numbers are added by
products, whose first factor, ones, is made of constants. Where queries stay a row's numbers are computed before its
tiles, and left in memory for the launches that follow.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from weft.kernels.gpu import constants
from weft.kernels.gpu.hopper.bwd_loads import STATS, load_side, load_stats, rows_of_stats, visit_of
from weft.kernels.gpu.hopper.bwd_summed import block_of
from weft.kernels.gpu.hopper.fwd_loads import load_box
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import tiles_of
from weft.kernels.gpu.hopper.ops.channel import Channel, channel
from weft.kernels.gpu.hopper.ops.epilogue import Rows, store_columns
from weft.kernels.gpu.hopper.ops.layouts import accumulator, boxes, by_rows, first_factor, matrix, tiles
from weft.kernels.gpu.hopper.ops.mask import mask_words, masked
from weft.kernels.gpu.hopper.ops.scheduler import TileScheduler
from weft.kernels.gpu.hopper.ops.values import LOG2E, UNIT, Tensor, opaque

LOW = gl.constexpr(constants.LOW)
PARTS = gl.constexpr(3)  # of STATS, bfloat16 numbers whose sum is lse, or delta


@aggregate
class Apart:
    """The kernel's arguments, shared memory and channels.

    grad: DQ, DK or DV. rows: what is read and written of a block's queries beside, where these stay. own_s, own_g: a
    block's factors of scores and of their gradients: K and V, or Q and dO; of dV there is no own_g. s, g: rings of the
    other side's. stats: beside g, where queries are walked.
    """

    cfg: gl.constexpr
    grad: Tensor
    Stats: gl.tensor
    rows: Any
    own_s: gl.shared_memory_descriptor
    own_g: gl.shared_memory_descriptor
    s: gl.shared_memory_descriptor
    g: gl.shared_memory_descriptor
    stats: gl.shared_memory_descriptor
    of_own_s: Channel
    of_own_g: Channel
    of_s: Channel
    of_g: Channel
    scheduler: TileScheduler
    heads: gl.tensor
    length: gl.tensor
    scale: gl.tensor
    own_s_box: Any
    own_g_box: Any
    s_box: Any
    g_box: Any


# ---- producer --------------------------------------------------------------------------------------------------------
@gluon.jit
def producer(state, CHAINED: gl.constexpr):
    """A block's rows; then tiles of the other side, and where these are queries their stats, of all heads that share
    the block's keys.
    """
    cfg: gl.constexpr = state.cfg
    OF_QUERIES: gl.constexpr = cfg.makes == "dq"
    of_g = state.of_g
    r, numbers = rows_of_stats(cfg)
    scheduler = state.scheduler
    origin, step = scheduler.walked_rows()
    i = 0
    t = 0
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        visit = visit_of(number, scheduler)
        batch, run = visit.batch, visit.run
        own, walked, share = visit.kv_head, visit.head, visit.share
        if OF_QUERIES:
            own, walked, share = walked, own, gl.to_tensor(1)
        where = [batch, own, visit.place, visit.lane, 0]
        load_side(t, where, state.of_own_s, state.own_s_box, state.own_s)
        if cfg.makes != "dv":
            load_side(t, where, state.of_own_g, state.own_g_box, state.own_g)
        if CHAINED and t == 0:
            gdc_wait()  # for what the launch before this one leaves: Stats
        for h in range(0, share):
            row = visit.number(h, origin, state)
            for j in range(0, tiles_of(run.count, cfg.columns)):
                where = [batch, walked + h, run.place + j * cfg.columns, run.lane, 0]
                load_box(i, state.s_box, state.s, state.of_s, where)
                load_box(i, state.g_box, state.g, of_g, where)
                if not OF_QUERIES:
                    to, at = state.stats.index(of_g.stage(i)), state.Stats + row * STATS
                    load_stats(to, at, j * cfg.columns, run.count, (r, numbers, step))
                    of_g.commit(i)
                i += 1
        t += 1


# ---- numbers of queries that stay ------------------------------------------------------------------------------------
@gluon.jit
def in_parts(x, column, FIRST: gl.constexpr, stats):
    """stats (rows, STATS) with x in the columns from FIRST on, as numbers of bfloat16 whose sum it is."""
    for n in gl.static_range(PARTS):
        part = x.to(gl.bfloat16).to(gl.float32)
        stats = gl.where(column == FIRST + n, gl.expand_dims(part, 1), stats)
        x = x - part
    return stats


@gluon.jit
def delta_of(consumer_id: gl.constexpr, block, head, first, state):
    """Sums of dO times out, of each of the consumer's queries. first: the block's first."""
    ROWS: gl.constexpr = state.cfg.rows
    layout: gl.constexpr = by_rows(state.cfg.width_v, 4)
    out = state.rows[1]
    _, pace = state.scheduler.rows()
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout)) + consumer_id * ROWS
    d = gl.expand_dims(gl.arange(0, state.cfg.width_v, layout=gl.SliceLayout(0, layout)), 0)
    step = gl.minimum(r, block.height - 1) * pace
    o = gl.load(out.row(block.batch, head, first) + (gl.expand_dims(step * (out.per_row * UNIT), 1) + d))
    do = matrix(state.own_g.index(0)).slice(consumer_id * ROWS, ROWS, dim=0).load(layout)
    return gl.sum(o.to(gl.float32) * do.to(gl.float32), 1)


@gluon.jit
def numbers_of(consumer_id: gl.constexpr, block, head, state):
    """(-lse in bits, -delta) of the consumer's queries, left in memory too."""
    ROWS: gl.constexpr = state.cfg.rows
    of_rows: gl.constexpr = gl.SliceLayout(1, by_rows(STATS, 4))
    origin, pace = state.scheduler.rows()
    delta = gl.convert_layout(delta_of(consumer_id, block, head, origin + block.start, state), of_rows)
    r = gl.arange(0, ROWS, layout=of_rows) + consumer_id * ROWS
    valid = r < block.height
    token = origin + block.start + gl.minimum(r, block.height - 1) * pace
    number = (block.batch.to(gl.int64) * state.heads + head) * state.length + token
    return leave_numbers(number, valid, delta, state)


@gluon.jit
def leave_numbers(number, valid, delta, state):
    """(-lse in bits, -delta) of a consumer's queries, left in memory too. number: of each query among all; valid: which
    exist.
    """
    cfg: gl.constexpr = state.cfg
    ROWS: gl.constexpr = cfg.rows
    layout: gl.constexpr = by_rows(STATS, 4)
    of_x: gl.constexpr = gl.SliceLayout(1, accumulator(cfg.columns))
    _, _, lse_at, dlse_at, delta_at = state.rows
    lse = gl.load(lse_at + number)
    none = lse == float("-inf")
    if cfg.axes:
        none = lse < LOW * state.scale
    if cfg.lse_gradient:
        delta -= gl.where(none, 0.0, gl.load(dlse_at + number))
    if cfg.with_delta:
        gl.store(delta_at + number, delta, mask=valid)
    lse = gl.where(none, 0.0, lse)
    column = gl.expand_dims(gl.arange(0, STATS, layout=gl.SliceLayout(0, layout)), 0)
    stats = in_parts(-lse / state.scale, column, 0, gl.zeros([ROWS, STATS], gl.float32, layout))
    stats = in_parts(-delta, column, STATS // 2, stats)
    at = state.Stats + (gl.expand_dims(number * STATS, 1) + column)
    gl.store(at, stats.to(gl.bfloat16), mask=gl.expand_dims(valid, 1))
    return gl.convert_layout(-lse * LOG2E, of_x), gl.convert_layout(-delta, of_x)


# ---- consumers -------------------------------------------------------------------------------------------------------
@gluon.jit
def ones(cfg: gl.constexpr, LATER: gl.constexpr):
    """The first factor of a product that adds the numbers of lse, or LATER of delta."""
    layout: gl.constexpr = first_factor(cfg.columns)
    stat = gl.expand_dims(gl.arange(0, STATS, layout=gl.SliceLayout(0, layout)), 0)
    every = gl.expand_dims(gl.arange(0, cfg.rows, layout=gl.SliceLayout(1, layout)), 1) >= 0
    return gl.where(((stat >= STATS // 2) == LATER) & every, 1.0, 0.0).to(gl.bfloat16)


@gluon.jit
def add_tile(i, j, consumer_id: gl.constexpr, grad, block, numbers, state):
    """The gradient with tile i of the rings, which is tile j of its run. numbers: of queries that stay."""
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.columns
    OF_QUERIES: gl.constexpr = cfg.makes == "dq"
    dtype: gl.constexpr = state.s.dtype
    of_s, of_g = state.of_s, state.of_g
    at = of_g.stage(i)
    s, g = matrix(state.s.index(of_s.stage(i))), matrix(state.g.index(at))
    none = gl.zeros([cfg.rows, TILE], gl.float32, accumulator(TILE))
    mine = opaque(0)  # so that no descriptors are made before all tiles, and spilled
    own_s = matrix(state.own_s.index(mine)).slice(consumer_id * cfg.rows, cfg.rows, dim=0)
    of_s.wait(i)
    x = warpgroup_mma(own_s, s.permute((1, 0)), none, use_acc=False, is_async=True)
    of_g.wait(i)
    if not OF_QUERIES:
        stats = state.stats.index(at).permute((1, 0))
        x = warpgroup_mma(ones(cfg, False), stats, x, is_async=True)
    if cfg.makes == "dv":
        x = warpgroup_mma_wait(0, (x,))
        of_s.release(i)
    else:
        own_g = matrix(state.own_g.index(mine)).slice(consumer_id * cfg.rows, cfg.rows, dim=0)
        if OF_QUERIES:
            y = warpgroup_mma(own_g, g.permute((1, 0)), none, use_acc=False, is_async=True)
            x = warpgroup_mma_wait(1, (x,))
        else:
            y = warpgroup_mma(ones(cfg, True), stats, none, use_acc=False, is_async=True)
            y = warpgroup_mma(own_g, g.permute((1, 0)), y, is_async=True)
            x = warpgroup_mma_wait(2, (x,))
    if (j < block.below) | (j >= block.beyond):
        columns = gl.arange(0, TILE, layout=gl.SliceLayout(0, accumulator(TILE)))
        words, bit = mask_words(block.low - j * TILE, block.high - j * TILE, columns)
        x = masked(x, words, bit, float("-inf"))
    x = x * (state.scale * LOG2E)
    if OF_QUERIES:
        x += gl.expand_dims(numbers[0], 1)
    p = gl.exp2(x)
    if cfg.makes == "dv":
        weights = gl.convert_layout(p.to(dtype), first_factor(cfg.width_v))
        grad = warpgroup_mma_wait(0, (warpgroup_mma(weights, g, grad, is_async=True),))
        of_g.release(i)
    else:
        y = warpgroup_mma_wait(0, (y,))
        of_g.release(i)
        if OF_QUERIES:
            y += gl.expand_dims(numbers[1], 1)
        weights = gl.convert_layout((p * y).to(dtype), first_factor(cfg.width))
        grad = warpgroup_mma_wait(0, (warpgroup_mma(weights, s, grad, is_async=True),))
        of_s.release(i)
    return grad


@gluon.jit
def consumer(consumer_id: gl.constexpr, state):
    """The gradient of one warp group's rows, block after block."""
    cfg: gl.constexpr = state.cfg
    ROWS: gl.constexpr = cfg.rows
    OF_QUERIES: gl.constexpr = cfg.makes == "dq"
    WIDTH: gl.constexpr = cfg.width_v if cfg.makes == "dv" else cfg.width
    DIMS: gl.constexpr = cfg.dv if cfg.makes == "dv" else cfg.d
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, accumulator(cfg.columns)))
    scheduler, of_own_s, of_own_g = state.scheduler, state.of_own_s, state.of_own_g
    i = 0
    t = 0
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        block = block_of(number, consumer_id, r, state)
        head, n, numbers = block.kv_head, block.tiles * block.share, 0
        of_own_s.wait(t)
        if cfg.makes != "dv":
            of_own_g.wait(t)
        if OF_QUERIES:
            member, _ = scheduler.places(scheduler.where(number))
            head, n = gl.load(member + 2), block.tiles
            numbers = numbers_of(consumer_id, block, head, state)
        grad = gl.zeros([ROWS, WIDTH], gl.float32, accumulator(WIDTH))
        j = 0
        for _ in range(0, n):
            grad = add_tile(i, j, consumer_id, grad, block, numbers, state)
            i = opaque(i) + 1
            j = opaque(gl.where(j + 1 == block.tiles, 0, j + 1))
        of_own_s.release(t)
        if cfg.makes != "dv":
            of_own_g.release(t)
            grad = grad * state.scale
        origin, pace = scheduler.rows()
        # the step is hidden, so that no address is made before all blocks, and held
        rows = Rows(block.batch, head, origin + block.start, block.height, opaque(pace))
        store_columns(grad.to(state.s.dtype), state.grad, rows, consumer_id, 0, DIMS)
        t += 1


# ---- the kernel ------------------------------------------------------------------------------------------------------
@gluon.jit
def bwd_apart(rows, read, grad, scheduler, sizes, CHAINED: gl.constexpr, cfg: gl.constexpr):
    """grad: DQ, DK or DV. rows: the pointer Stats; with DQ also Out and the pointers Lse, DLse and Delta. read:
    descriptors of the side that stays and of the other one: K, V, Q and dO, with DQ Q, dO, K and V; sizes: (heads of
    queries, queries, scale).
    """
    CONSUMERS: gl.constexpr = cfg.consumers
    own_s = boxes(read[0], 1)
    own_g = own_s if cfg.makes == "dv" else boxes(read[1], 1)
    s, g = boxes(read[2], cfg.query_stages), boxes(read[3], cfg.stages)
    stats = s if cfg.makes == "dq" else tiles(gl.bfloat16, cfg.stages, cfg.columns, STATS)
    fills: gl.constexpr = 1 if cfg.makes == "dq" else cfg.fills
    state = Apart(
        cfg, grad, rows[0], rows, own_s, own_g, s, g, stats, channel(1, 1, CONSUMERS), channel(1, 1, CONSUMERS),
        channel(cfg.query_stages, 1, CONSUMERS), channel(cfg.stages, fills, CONSUMERS), scheduler, sizes[0], sizes[1],
        sizes[2], read[0], read[1], read[2], read[3],
    )  # fmt: skip
    gl.static_assert(cfg.consumers == 2)
    gl.warp_specialize([
        (consumer, (0, state)), (consumer, (1, state)), (producer, (state, CHAINED)),
    ], [4, cfg.producer_warps], [cfg.consumer_registers, cfg.producer_registers])  # fmt: skip
