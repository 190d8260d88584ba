# ruff: noqa: PLR0913, SIM113 - kernels take as many arguments as they need, and Gluon is not all of Python
"""Gradients on grids at narrow heads, in two launches: dQ by boxes of queries, then dK and dV by boxes of keys.

A program lives as long as the launch and takes boxes of rows in turn. Its one consumer keeps their gradients in
registers while it walks tiles of the other side. A list says which tiles there are, as in `fwd_grid`. The next box is
in shared memory before one ends. Small neighbourhoods walk few tiles, so programs often wait for memory: three are side
by side on a processor, and none waits for another's tiles.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from weft.kernels.gpu.hopper.bwd_apart import leave_numbers, ones
from weft.kernels.gpu.hopper.bwd_loads import STATS, copy_stats, rows_of_stats
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.channel import Channel, channel
from weft.kernels.gpu.hopper.ops.epilogue import BoxRows, store_rows
from weft.kernels.gpu.hopper.ops.grids import (
    GridCut,
    box_tokens,
    grid_cut,
    grid_range,
    grid_rows,
    grid_tiles,
    grid_words,
    place_in,
    rows_at,
)
from weft.kernels.gpu.hopper.ops.layouts import accumulator, boxes, by_rows, first_factor, matrix, sides, tiles, zeros
from weft.kernels.gpu.hopper.ops.mask import masked
from weft.kernels.gpu.hopper.ops.scheduler import TileScheduler
from weft.kernels.gpu.hopper.ops.values import LOG2E, UNIT, opaque

OWN = gl.constexpr(2)  # blocks of rows in shared memory


@aggregate
class Boxes:
    """The kernel's arguments, shared memory and channels.

    grads: DQ, or DK and DV. rows: what is read and written of a block's queries beside, where these stay. own_s, own_g:
    a ring of a block's factors of scores and of their gradients: K and V, or Q and dO. s, g: rings of the other side's.
    stats: beside them, where queries are walked.
    """

    cfg: gl.constexpr
    grads: Any
    Stats: gl.tensor
    rows: Any
    own_s: gl.shared_memory_descriptor
    own_g: gl.shared_memory_descriptor
    s: gl.shared_memory_descriptor
    g: gl.shared_memory_descriptor
    stats: gl.shared_memory_descriptor
    own: Channel
    walked: Channel
    scheduler: TileScheduler
    heads: gl.tensor
    length: gl.tensor
    scale: gl.tensor
    own_s_box: Any
    own_g_box: Any
    s_box: Any
    g_box: Any


@aggregate
class Heads:
    """Of a block: its batch row, the head of its rows, and the heads of what it walks: the first, and how many."""

    batch: gl.tensor
    own: gl.tensor
    walked: gl.tensor
    share: gl.tensor


@gluon.jit
def heads_of(member, cfg: gl.constexpr):
    """Those of a member, whose integers it points to."""
    batch, kv_head, head = gl.load(member), gl.load(member + 1), gl.load(member + 2)
    if cfg.makes == "dq":
        found = Heads(batch, head, kv_head, gl.to_tensor(1))
    else:
        found = Heads(batch, kv_head, head, gl.load(member + 3))
    return found


# ---- producer --------------------------------------------------------------------------------------------------------
@gluon.jit
def load_both(i, channel, where, sides, memory):
    """Ask for the two boxes that are tile i of a ring. sides: their descriptors."""
    at = channel.stage(i)
    channel.acquire(i)
    channel.expect(i, sides[0].block_type.nbytes + sides[1].block_type.nbytes)
    channel.copy(i, sides[0], where, memory[0], at)
    channel.copy(i, sides[1], where, memory[1], at)


@gluon.jit
def producer(state, CHAINED: gl.constexpr):
    """Rows, two blocks ahead at most; then tiles of the other side. Where these are queries, they are of all heads that
    share the block's keys, and come with their stats.
    """
    cfg: gl.constexpr = state.cfg
    r, numbers = rows_of_stats(cfg)
    scheduler, walked = state.scheduler, state.walked
    i = 0
    t = 0
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        member, item = scheduler.places(scheduler.where(number))
        heads, listed = heads_of(member, cfg), grid_tiles(scheduler.table, item, cfg)
        where = place_in((heads.batch, heads.own), rows_at(0, item, cfg), 0, state)
        load_both(t, state.own, where, (state.own_s_box, state.own_g_box), (state.own_s, state.own_g))
        if CHAINED and t == 0:
            gdc_wait()  # for what the launch before this one leaves: Stats
        for h in range(0, heads.share):
            head = heads.walked + h
            stats_at = state.Stats + (heads.batch.to(gl.int64) * state.heads + head) * state.length * STATS
            for j in range(0, listed.count):
                at = listed.place(j, cfg)
                where = place_in((heads.batch, head), at, 0, state)
                load_both(i, walked, where, (state.s_box, state.g_box), (state.s, state.g))
                if cfg.makes != "dq":
                    row = box_tokens(scheduler.part(), at, r, cfg)
                    copy_stats(state.stats.index(walked.stage(i)), stats_at, row, numbers)
                    walked.commit(i)
                i += 1
        t += 1


# ---- numbers of queries that stay ------------------------------------------------------------------------------------
@gluon.jit
def out_of(item, heads, state):
    """A box of out, which is on the way while the consumer waits for other tensors."""
    cfg: gl.constexpr = state.cfg
    out = state.rows[1]
    r, d = sides(cfg.rows, cfg.width_v, by_rows(cfg.width_v, 4))
    token = grid_rows(state.scheduler.table, item, r, cfg).token.to(gl.int64)
    first = out.row(heads.batch, heads.own, gl.to_tensor(0))
    return gl.load(first + (gl.expand_dims(token * (out.per_row * UNIT), 1) + gl.expand_dims(d, 0)))


@gluon.jit
def numbers_of(item, heads, out, own_g, state):
    """(-lse in bits, -delta) of a box of queries, left in memory too. own_g: their dO."""
    cfg: gl.constexpr = state.cfg
    of_rows: gl.constexpr = gl.SliceLayout(1, by_rows(STATS, 4))
    delta = gl.sum(out.to(gl.float32) * own_g.load(out.type.layout).to(gl.float32), 1)
    r = gl.arange(0, cfg.rows, layout=of_rows)
    rows = grid_rows(state.scheduler.table, item, r, cfg)
    number = (heads.batch.to(gl.int64) * state.heads + heads.own) * state.length + rows.token
    return leave_numbers(number, rows.valid, gl.convert_layout(delta, of_rows), state)


# ---- consumers -------------------------------------------------------------------------------------------------------
@aggregate
class Held:
    """What a consumer has of a block: its rows' factors, tiles that it sees whole, and what rows see."""

    s: gl.shared_memory_descriptor
    g: gl.shared_memory_descriptor
    below: gl.tensor
    beyond: gl.tensor
    cut: GridCut


@gluon.jit
def cut_scores(x, j, word, held, cfg: gl.constexpr):
    """Scores of tile j of a list, -inf where a row does not see the other side's. word: what the list says of it, read
    before scores are waited for.
    """
    if (j < held.below) | (j >= held.beyond):
        columns = gl.arange(0, cfg.columns, layout=gl.SliceLayout(0, accumulator(cfg.columns)))
        words, bit = grid_words(word, held.cut, columns, cfg)
        x = masked(x, words, bit, float("-inf"))
    return x


@gluon.jit
def add_keys(i, j, grads, held, numbers, state):
    """dQ with tile i of the ring, which is tile j of its list. numbers: see `numbers_of`."""
    cfg: gl.constexpr = state.cfg
    at = state.walked.stage(i)
    s, g = matrix(state.s.index(at)), matrix(state.g.index(at))
    none = zeros(cfg.rows, cfg.columns)
    word = gl.load(held.cut.words + j)
    state.walked.wait(i)
    x = warpgroup_mma(held.s, s.permute((1, 0)), none, use_acc=False, is_async=True)
    y = warpgroup_mma(held.g, g.permute((1, 0)), none, use_acc=False, is_async=True)
    x = cut_scores(warpgroup_mma_wait(1, (x,)), j, word, held, cfg)
    p = gl.exp2(x * (state.scale * LOG2E) + gl.expand_dims(numbers[0], 1))
    y = warpgroup_mma_wait(0, (y,)) + gl.expand_dims(numbers[1], 1)
    weights = gl.convert_layout((p * y).to(state.s.dtype), first_factor(cfg.width))
    dq = warpgroup_mma_wait(0, (warpgroup_mma(weights, s, grads[0], is_async=True),))
    state.walked.release(i)
    return (dq,)


@gluon.jit
def add_queries(i, j, grads, held, state):
    """dK and dV with tile i of the ring, which is tile j of its list.

    dV is asked for before dP is waited for: else ptxas moves the exponentials behind that wait, and tensor cores rest.
    """
    cfg: gl.constexpr = state.cfg
    at = state.walked.stage(i)
    s, g, stats = matrix(state.s.index(at)), matrix(state.g.index(at)), state.stats.index(at).permute((1, 0))
    none = zeros(cfg.rows, cfg.columns)
    word = gl.load(held.cut.words + j)
    state.walked.wait(i)
    x = warpgroup_mma(ones(cfg, False), stats, none, use_acc=False, is_async=True)
    x = warpgroup_mma(held.s, s.permute((1, 0)), x, is_async=True)
    y = warpgroup_mma(ones(cfg, True), stats, none, use_acc=False, is_async=True)
    y = warpgroup_mma(held.g, g.permute((1, 0)), y, is_async=True)
    x = cut_scores(warpgroup_mma_wait(2, (x,)), j, word, held, cfg)
    p = gl.exp2(x * (state.scale * LOG2E))
    dtype: gl.constexpr = state.s.dtype
    dv = warpgroup_mma(gl.convert_layout(p.to(dtype), first_factor(cfg.width_v)), g, grads[1], is_async=True)
    y = warpgroup_mma_wait(1, (y,))
    dk = warpgroup_mma(gl.convert_layout((p * y).to(dtype), first_factor(cfg.width)), s, grads[0], is_async=True)
    dv, dk = warpgroup_mma_wait(0, (dv, dk))
    state.walked.release(i)
    return dk, dv


@gluon.jit
def walk(i, seen, count, grads, held, numbers, state):
    """(tiles so far, gradients) with those tiles of one head that a consumer sees, of so many."""
    i = state.walked.pass_over(i, seen.begin)
    for j in range(seen.begin, seen.end):
        if state.cfg.makes == "dq":
            grads = add_keys(i, j, grads, held, numbers, state)
        else:
            grads = add_queries(i, j, grads, held, state)
        i = opaque(i) + 1
    return state.walked.pass_over(i, count - seen.end), grads


@gluon.jit
def consumer(state):
    """The gradients of one box of rows after another."""
    cfg: gl.constexpr = state.cfg
    OF_QUERIES: gl.constexpr = cfg.makes == "dq"
    r = gl.arange(0, cfg.rows, layout=gl.SliceLayout(1, accumulator(cfg.columns)))
    scheduler, own = state.scheduler, state.own
    i = 0
    t = 0
    where = scheduler.where(gl.program_id(0))
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        member, item = scheduler.places(where)
        where = scheduler.where(number + gl.num_programs(0))  # the next one, before it is needed
        heads, at = heads_of(member, cfg), own.stage(t)
        listed, seen = grid_tiles(scheduler.table, item, cfg), grid_range(item, 0, cfg)
        cut = grid_cut(scheduler.table, scheduler.part(), listed, grid_rows(scheduler.table, item, r, cfg), cfg)
        held = Held(matrix(state.own_s.index(at)), matrix(state.own_g.index(at)), seen.below, seen.beyond, cut)
        grads, numbers = (zeros(cfg.rows, cfg.width),), ()
        if OF_QUERIES:
            out = out_of(item, heads, state)
            own.wait(t)
            numbers = numbers_of(item, heads, out, held.g, state)
        else:
            grads = (grads[0], zeros(cfg.rows, cfg.width_v))
            own.wait(t)
        for _ in range(0, heads.share):
            i, grads = walk(i, seen, listed.count, grads, held, numbers, state)
        own.release(t)
        placed = BoxRows(heads.batch, heads.own, gl.to_tensor(0), scheduler.table, item, cfg)
        store_rows(grads[0] * state.scale, state.grads[0], placed, 0)
        if not OF_QUERIES:
            store_rows(grads[1], state.grads[1], placed, 0)
        t += 1


# ---- the kernel ------------------------------------------------------------------------------------------------------
@gluon.jit
def bwd_boxes(rows, read, grads, scheduler, sizes, CHAINED: gl.constexpr, cfg: gl.constexpr):
    """grads: DQ, or DK and DV. rows: the pointer Stats; with DQ also Out and the pointers Lse, DLse and Delta. read:
    descriptors of the side that stays and of the other one: K, V, Q and dO, with DQ Q, dO, K and V; sizes: (heads of
    queries, queries, scale).
    """
    own_s, own_g = boxes(read[0], OWN), boxes(read[1], OWN)
    s, g = boxes(read[2], cfg.stages), boxes(read[3], cfg.stages)
    stats = s if cfg.makes == "dq" else tiles(gl.bfloat16, cfg.stages, cfg.columns, STATS)
    fills: gl.constexpr = 1 if cfg.makes == "dq" else cfg.fills
    state = Boxes(
        cfg, grads, rows[0], rows, own_s, own_g, s, g, stats, channel(OWN, 1, 1), channel(cfg.stages, fills, 1),
        scheduler, sizes[0], sizes[1], sizes[2], read[0], read[1], read[2], read[3],
    )  # fmt: skip
    gl.static_assert(cfg.consumers == 1)
    gl.warp_specialize([
        (consumer, (state,)), (producer, (state, CHAINED)),
    ], [cfg.producer_warps], [cfg.producer_registers])  # fmt: skip
