# ruff: noqa: PLR0913 - kernels take as many arguments as they need
# ruff: noqa: SIM113 - Gluon is not all of Python
"""dK and dV of short runs: a producer loads by cp.async, each consumer keeps the gradients of its keys in registers.

A program lives as long as the launch and takes blocks of keys in turn. The producer asks for tiles of queries as far
ahead as there are stages, across blocks. Each consumer has its rows of the block, and passes over tiles that none of
them sees. One clipped line a side; tables as every kernel reads them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from weft.kernels.gpu.hopper.ops.affine import affine_bounds
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.channel import Channel, barriers, channel
from weft.kernels.gpu.hopper.ops.epilogue import Rows, store_rows
from weft.kernels.gpu.hopper.ops.layouts import LANES, accumulator, by_rows, first_factor, sides, tiles, zeros
from weft.kernels.gpu.hopper.ops.loader import copy_rows
from weft.kernels.gpu.hopper.ops.mask import cut_tile
from weft.kernels.gpu.hopper.ops.scheduler import TileScheduler, block_at
from weft.kernels.gpu.hopper.ops.stats import STATS, ones
from weft.kernels.gpu.hopper.ops.values import LOG2E, UNIT, Tensor, opaque


@aggregate
class KeyGradient:
    """The kernel's arguments, shared memory and channels.

    keys: a ring of two blocks for each consumer, with its rows of K and V. queries: the ring of tiles that are walked,
    with Q, dO and what scores subtract. heads, length: of queries.
    """

    cfg: gl.constexpr
    K: Tensor
    V: Tensor
    Q: Tensor
    DO: Tensor
    Stats: gl.tensor
    DK: Tensor
    DV: Tensor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    stats: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    queries: Channel
    scheduler: TileScheduler
    heads: gl.tensor
    length: gl.tensor
    scale: gl.tensor

    @gluon.jit
    def keys(self, consumer_id):
        """The ring of the consumer's keys."""
        return Channel(self.k_full, self.k_empty, 2 * consumer_id, 2, True)


# ---- producer --------------------------------------------------------------------------------------------------------
@gluon.jit
def producer(state, CHAINED: gl.constexpr):
    """Keys and values of each consumer, two blocks ahead at most; queries, dO and their numbers STAGES tiles ahead."""
    cfg: gl.constexpr = state.cfg
    layout: gl.constexpr = by_rows(cfg.width, cfg.producer_warps)
    beside: gl.constexpr = by_rows(STATS, cfg.producer_warps)
    r, d = sides(cfg.columns, cfg.width, layout)
    r_stat, stat = sides(cfg.columns, STATS, beside)
    d, stat = gl.expand_dims(d, 0), gl.expand_dims(stat, 0)
    scheduler = state.scheduler
    origin, pace = scheduler.rows()
    their_origin, step = scheduler.walked_rows()
    i = 0
    t = 0
    where = scheduler.where(gl.program_id(0))
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        block = block_at(scheduler, where)
        where = scheduler.where(number + gl.num_programs(0))
        k_at = state.K.row(block.batch, block.kv_head, origin + block.start)
        v_at = state.V.row(block.batch, block.kv_head, origin + block.start)
        for c in gl.static_range(cfg.consumers):
            keys = state.keys(c)
            at = keys.stage(t)
            row = gl.minimum(r + c * cfg.rows, block.height - 1) * pace
            keys.acquire(t)
            copy_rows(state.k.index(at), state.K, k_at, row, d)
            copy_rows(state.v.index(at), state.V, v_at, row, d)
            # products see these copies without a fence: as in Triton's own loops, and in CUTLASS's kernels of this kind
            keys.commit(t)
        if CHAINED and t == 0:
            gdc_wait()  # for what the launch before this one leaves: Stats
        base = their_origin + block.first
        q_at, do_at = state.Q.row(block.batch, block.head, base), state.DO.row(block.batch, block.head, base)
        stats_at = state.Stats + ((block.batch.to(gl.int64) * state.heads + block.head) * state.length + base) * STATS
        for j in range(0, (block.count + cfg.columns - 1) // cfg.columns):
            at = state.queries.stage(i)
            passed = (j * cfg.columns * step).to(gl.int64)
            last = block.count - 1 - j * cfg.columns
            row, row_stat = gl.minimum(r, last) * step, gl.minimum(r_stat, last) * step
            state.queries.acquire(i)
            copy_rows(state.q.index(at), state.Q, q_at + passed * (state.Q.per_row * UNIT), row, d)
            copy_rows(state.do.index(at), state.DO, do_at + passed * (state.DO.per_row * UNIT), row, d)
            more = gl.expand_dims(row_stat * STATS, 1) + stat
            async_copy.async_copy_global_to_shared(state.stats.index(at), stats_at + passed * STATS + more)
            state.queries.commit(i)
            i += 1
        t += 1


# ---- consumers -------------------------------------------------------------------------------------------------------
@aggregate
class Visit:
    """What a consumer's rows of a block see of its run: bounds of each row, and tiles from begin to before end.

    Bounds cut tiles below one number, and from another on.
    """

    low: gl.tensor
    high: gl.tensor
    begin: gl.tensor
    end: gl.tensor
    below: gl.tensor
    beyond: gl.tensor


@gluon.jit
def visit_of(axis, block, r, consumer_id: gl.constexpr, pace, cfg: gl.constexpr):
    """Of a consumer's rows r. Lines rise or fall, so the first and the last row say it of all."""
    TILE: gl.constexpr = cfg.columns
    start, height, first, count = block
    own: gl.constexpr = consumer_id * cfg.rows
    tiles_of_run = (count + TILE - 1) // TILE
    low, high = axis.positions(start + gl.minimum(r + own, height - 1) * pace, first, count)
    low_0, high_0 = axis.positions(start + gl.minimum(own, height - 1) * pace, first, count)
    low_1, high_1 = axis.positions(start + gl.minimum(own + cfg.rows - 1, height - 1) * pace, first, count)
    end = gl.minimum((gl.maximum(high_0, high_1) + TILE - 1) // TILE, tiles_of_run)
    end = gl.where(height > own, end, 0)
    begin = gl.minimum(gl.minimum(low_0, low_1) // TILE, end)
    below = (gl.maximum(low_0, low_1) + TILE - 1) // TILE
    return Visit(low, high, begin, end, below, gl.minimum(high_0, high_1) // TILE)


@aggregate
class Operands:
    """What all tiles of a consumer's scores take. lse, delta: factors that add these to a product; columns: of a tile;
    scale2: what makes logarithms of weights of scores.
    """

    lse: gl.tensor
    delta: gl.tensor
    columns: gl.tensor
    scale2: gl.tensor


@gluon.jit
def ask_dv(s, mine, walked, visit, operands, dv, cfg: gl.constexpr):
    """Ask for dV of a consumer's keys with tile s of its run. Returns it and ds, float32. mine: K, V; walked: Q, dO and
    their numbers.

    Only then dP is waited for: ptxas moves exponentials behind a wait that follows them, and a product holds them.
    """
    k, v = mine
    q, do, stats = walked
    none = zeros(cfg.rows, cfg.columns)
    x = warpgroup_mma(operands.lse, stats, none, use_acc=False, is_async=True)
    x = warpgroup_mma(k, q.permute((1, 0)), x, is_async=True)
    y = warpgroup_mma(operands.delta, stats, none, use_acc=False, is_async=True)
    y = warpgroup_mma(v, do.permute((1, 0)), y, is_async=True)
    x = warpgroup_mma_wait(2, (x,))
    p = cut_tile(gl.exp2(x * operands.scale2), s, visit, operands.columns, 0.0)
    weights = gl.convert_layout(p.to(do.dtype), first_factor(cfg.width_v))
    dv = warpgroup_mma(weights, do, dv, is_async=True)
    y = warpgroup_mma_wait(1, (y,))
    return dv, cut_tile(p * y, s, visit, operands.columns, 0.0)  # whatever lies in a key that no query sees


@gluon.jit
def consumer(consumer_id: gl.constexpr, state):
    """dK and dV of one warp group's keys, block after block."""
    cfg: gl.constexpr = state.cfg
    ROWS: gl.constexpr = cfg.rows
    TILE: gl.constexpr = cfg.columns
    WIDTH: gl.constexpr = cfg.width
    dtype: gl.constexpr = state.DK.pointer.dtype.element_ty
    factor: gl.constexpr = first_factor(TILE)
    r, columns = sides(ROWS, TILE, accumulator(TILE))
    zero, zero_v = zeros(ROWS, WIDTH), zeros(ROWS, cfg.width_v)
    scheduler, queries = state.scheduler, state.queries
    origin, pace = scheduler.rows()
    axis = affine_bounds(scheduler.part())
    operands = Operands(ones(ROWS, False, factor), ones(ROWS, True, factor), columns, state.scale * LOG2E)
    keys = state.keys(consumer_id)
    i = 0
    t = 0
    programs = gl.num_programs(0)
    block = block_at(scheduler, scheduler.where(gl.program_id(0)))
    where = scheduler.where(gl.program_id(0) + programs)
    for number in range(gl.program_id(0), scheduler.blocks, programs):
        key_at = keys.stage(t)
        batch, kv_head, start = opaque(block.batch), opaque(block.kv_head), opaque(block.start)
        height, first, count = opaque(block.height), opaque(block.first), opaque(block.count)
        block = block_at(scheduler, where)  # the next one, long before it is needed
        where = scheduler.where(number + 2 * programs)
        visit = visit_of(axis, (start, height, first, count), r, consumer_id, pace, cfg)
        mine = state.k.index(key_at), state.v.index(key_at)
        dk = zero
        dv = zero_v
        keys.wait(t)
        i = queries.pass_over(i, visit.begin)
        for s in range(visit.begin, visit.end):
            at = queries.stage(i)
            queries.wait(i)
            q, do = state.q.index(at), state.do.index(at)
            walked = (q, do, state.stats.index(at).permute((1, 0)))
            more_dv, ds = ask_dv(s, mine, walked, visit, operands, dv, cfg)
            more_dk = warpgroup_mma(gl.convert_layout(ds.to(dtype), first_factor(WIDTH)), q, dk, is_async=True)
            dv, dk = warpgroup_mma_wait(0, (more_dv, more_dk))
            queries.release(i)
            i += 1
        keys.release(t)
        i = queries.pass_over(i, (count + TILE - 1) // TILE - visit.end)
        rows = Rows(batch, kv_head, origin + start, height, pace)
        store_rows(dk * state.scale, state.DK, rows, consumer_id)
        store_rows(dv, state.DV, rows, consumer_id)
        t += 1


@gluon.jit
def bwd_dkdv(inputs, outputs, scheduler, sizes, CHAINED: gl.constexpr, cfg: gl.constexpr):
    """dK and dV of one term. inputs: K, V, Q, dO and the pointer Stats; outputs: DK, DV; sizes: (heads of queries,
    queries, scale).
    """
    K, V, Q, DO, Stats = inputs
    dtype: gl.constexpr = K.pointer.dtype.element_ty
    copies: gl.constexpr = LANES * cfg.producer_warps
    k, v = tiles(dtype, 2 * cfg.consumers, cfg.rows, cfg.width), tiles(dtype, 2 * cfg.consumers, cfg.rows, cfg.width_v)
    q, do = tiles(dtype, cfg.stages, cfg.columns, cfg.width), tiles(dtype, cfg.stages, cfg.columns, cfg.width_v)
    stats = tiles(gl.bfloat16, cfg.stages, cfg.columns, STATS)
    k_full, k_empty = barriers(2 * cfg.consumers, copies), barriers(2 * cfg.consumers, 1)
    queries = channel(cfg.stages, copies, cfg.consumers)
    state = KeyGradient(
        cfg, K, V, Q, DO, Stats, outputs[0], outputs[1], k, v, q, do, stats, k_full, k_empty, queries, scheduler,
        sizes[0], sizes[1], sizes[2],
    )  # fmt: skip
    gl.static_assert(cfg.consumers == 2)
    gl.warp_specialize([
        (consumer, (0, state)), (consumer, (1, state)), (producer, (state, CHAINED)),
    ], [4, cfg.producer_warps], [cfg.consumer_registers, cfg.producer_registers])  # fmt: skip
