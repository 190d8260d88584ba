# ruff: noqa: PLR0913 - kernels take as many arguments as they need, and Gluon is not all of Python
"""All gradients on a grid in one walk for each block of keys, as `bwd_summed` has them on lines.

A block's keys and tiles of queries are boxes, and a list says which tiles there are (`tables.grid_ranges`). The two
consumers have a part of the box each, so some tiles are seen by one of them alone. These are the first ones of the list
for the first, and the last ones for the second. The other consumer then makes all of dQ.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma, warpgroup_mma_wait
from triton.language import debug_barrier
from triton.language.extra.cuda import gdc_wait

from weft.kernels.gpu.hopper.bwd_loads import STATS, copy_stats, load_pair, load_side, rows_of_stats
from weft.kernels.gpu.hopper.bwd_summed import (
    DS,
    ask_dk,
    ask_dq,
    ask_scores,
    leave_dq,
    leave_ds,
    leave_ones,
    memory_of,
)
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
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
from weft.kernels.gpu.hopper.ops.layouts import accumulator, flat, matrix
from weft.kernels.gpu.hopper.ops.mask import masked
from weft.kernels.gpu.hopper.ops.values import opaque


# ---- producer --------------------------------------------------------------------------------------------------------
@gluon.jit
def load_queries(i, at, heads, stats, rows, state):
    """Ask for a tile as tile i of the ring. at: its coordinates; stats: where those of its head begin; rows: those of a
    tile, and places of the numbers of one.
    """
    r, numbers = rows
    load_pair(i, place_in(heads, at, 0, state), state)
    token = box_tokens(state.scheduler.part(), at, r, state.cfg)
    copy_stats(state.stats.index(state.queries.stage(i)), stats, token, numbers)
    state.queries.commit(i)


@gluon.jit
def grid_producer(state, CHAINED: gl.constexpr):
    """As `bwd_summed.producer`."""
    cfg: gl.constexpr = state.cfg
    r, numbers = rows_of_stats(cfg)
    scheduler = state.scheduler
    i = 0
    t = 0
    number = gl.program_id(0)
    while number < scheduler.blocks:
        member, item = scheduler.places(scheduler.where(number))
        batch, kv_head, head, share = gl.load(member), gl.load(member + 1), gl.load(member + 2), gl.load(member + 3)
        where = place_in((batch, kv_head), rows_at(0, item, cfg), 0, state)
        load_side(t, where, state.values, state.v_box, state.v)  # first, since they are free first
        load_side(t, where, state.keys, state.k_box, state.k)
        if CHAINED and t == 0:
            gdc_wait()  # for what the launch before this one leaves: Stats, and zeros of dQ
        tiles = grid_tiles(scheduler.table, item, cfg)
        for h in range(0, share):
            stats = state.Stats + (batch.to(gl.int64) * state.heads + head + h) * state.length * STATS
            for j in range(0, tiles.count):
                load_queries(i, tiles.place(j, cfg), (batch, head + h), stats, (r, numbers), state)
                i += 1
        t += 1
        number = state.claims.claim(t)


# ---- consumers -------------------------------------------------------------------------------------------------------
@aggregate
class Own:
    """What a consumer holds of a block's memory: its dims of all keys, and what its rows see."""

    k_dims: gl.shared_memory_descriptor
    bounds: gl.shared_memory_descriptor


@aggregate
class Block:
    """A block of keys: batch row and head, a pointer to its integers, its tiles, and how many heads walk these.

    words: the list of them. The first consumer alone sees those before `first`, the second alone those from `last` on.
    No bound of one consumer's rows cuts tiles from `below` to before `beyond`.
    """

    batch: gl.tensor
    kv_head: gl.tensor
    item: gl.tensor
    words: gl.tensor
    tiles: gl.tensor
    share: gl.tensor
    first: gl.tensor
    last: gl.tensor
    below: gl.tensor
    beyond: gl.tensor


@gluon.jit
def block_of(number, consumer_id: gl.constexpr, state):
    """A block as the consumer needs it; beyond the last one that."""
    member, item = state.scheduler.places(state.scheduler.where(number))
    tiles = grid_tiles(state.scheduler.table, item, state.cfg)
    ranges = grid_range(item, 0, state.cfg), grid_range(item, 1, state.cfg)
    first = gl.where(ranges[1].end > 0, ranges[1].begin, tiles.count)
    last = gl.maximum(ranges[0].end, first)
    own = ranges[consumer_id]
    return Block(
        gl.load(member), gl.load(member + 1), item, tiles.words, tiles.count, gl.load(member + 3), first, last,
        own.below, own.beyond,
    )  # fmt: skip


@gluon.jit
def leave_bounds(bounds, item, consumer_id: gl.constexpr, state):
    """Leave what the consumer's rows of a block see in shared memory: registers have no room for it."""
    cfg: gl.constexpr = state.cfg
    table = state.scheduler.table
    r = gl.arange(0, cfg.rows, layout=gl.SliceLayout(1, accumulator(cfg.columns)))
    rows = grid_rows(table, item, consumer_id * cfg.rows + r, cfg)
    cut = grid_cut(table, state.scheduler.part(), grid_tiles(table, item, cfg), rows, cfg)
    for a in gl.static_range(cfg.axes):
        bounds.index(consumer_id * cfg.axes + a).store(cut.seen[a])
    debug_barrier()  # of its warps


@gluon.jit
def ask_dv(i, j, consumer_id: gl.constexpr, own, block, dv, state):
    """As `bwd_summed.ask_dv`. A mask is made while products are, of full tiles too: a branch would wait for these."""
    cfg: gl.constexpr = state.cfg
    layout: gl.constexpr = accumulator(cfg.columns)
    columns = gl.arange(0, cfg.columns, layout=gl.SliceLayout(0, layout))
    word = gl.load(block.words + j)
    state.queries.wait(i)
    x, y = ask_scores(i, consumer_id, state)
    seen = ()
    for a in gl.static_range(cfg.axes):
        seen = seen + (own.bounds.index(consumer_id * cfg.axes + a).load(gl.SliceLayout(1, layout)),)  # noqa: RUF005
    words, bit = grid_words(word, GridCut(block.words, seen, ()), columns, cfg)
    x = warpgroup_mma_wait(2, (x,))
    if (j < block.below) | (j >= block.beyond):
        x = masked(x, words, bit, float("-inf"))
    return leave_ds(i, (x, y), consumer_id, dv, state)


@gluon.jit
def half(i, consumer_id: gl.constexpr):
    """The number of a consumer's half of the dQ of tile i, in rings that have a stage for either."""
    return 2 * i + consumer_id


@gluon.jit
def pass_over(i, count, consumer_id: gl.constexpr, state):
    """Leave dQ of tiles that the other consumer alone sees. Returns the tile after."""
    cfg: gl.constexpr = state.cfg
    OTHER: gl.constexpr = (1 - consumer_id) * cfg.rows
    DIMS: gl.constexpr = cfg.width // cfg.consumers
    none = gl.zeros([cfg.columns, DIMS], gl.float32, accumulator(DIMS))
    keys = matrix(state.k.index(0)).slice(OTHER, cfg.rows, dim=0)
    for _ in range(0, count):
        i = opaque(i)
        state.queries.wait(i)
        state.queries.release(i)
        state.ready.arrive(i)
        state.ready.wait(i)
        ds = state.ds.index(i & (DS - 1)).slice(OTHER, cfg.rows, dim=0).permute((1, 0))
        for part in gl.static_range(cfg.consumers):
            dims = keys.slice(part * DIMS, DIMS, dim=1)
            dq = warpgroup_mma_wait(0, (warpgroup_mma(ds, dims, none, use_acc=False, is_async=True),))
            if part == cfg.consumers - 1:
                state.used.arrive(i)
            leave_dq(half(i, part), dq, part, state)
        i += 1
    return i


@gluon.jit
def add_alone(i, begin, end, consumer_id: gl.constexpr, own, block, sums, state):
    """(the tile after, dK, dV) over tiles that the other consumer does not see, which makes their dQ."""
    dk, dv = sums
    j = begin
    for _ in range(begin, end):
        i, j = opaque(i), opaque(j)
        dv, ds = ask_dv(i, j, consumer_id, own, block, dv, state)
        state.used.arrive(i)
        dk, dv = warpgroup_mma_wait(0, (ask_dk(i, ds, dk, state), dv))
        state.queries.release(i)
        i, j = i + 1, j + 1
    return i, dk, dv


@gluon.jit
def add_tiles(i, begin, end, consumer_id: gl.constexpr, own, block, sums, state):
    """(the tile after, dK, dV) over tiles that both consumers see. dQ of each is left while the next one is made."""
    dk, dv = sums
    j = begin
    for _ in range(0, gl.minimum(end - begin, 1)):  # a branch: a loop of at most one turn
        dv, ds = ask_dv(i, j, consumer_id, own, block, dv, state)
        dk, dv = warpgroup_mma_wait(0, (ask_dk(i, ds, dk, state), dv))
        state.queries.release(i)
        i, j = i + 1, j + 1
        for _ in range(begin + 1, end):
            i, j = opaque(i), opaque(j)
            dv, ds = ask_dv(i, j, consumer_id, own, block, dv, state)
            dq = ask_dq(i - 1, own, state)
            dk = ask_dk(i, ds, dk, state)  # last, so that tensor cores have work while dQ is left
            dv, dq = warpgroup_mma_wait(1, (dv, dq))
            state.used.arrive(i - 1)
            leave_dq(half(i - 1, consumer_id), dq, consumer_id, state)
            dk = warpgroup_mma_wait(0, (dk,))
            state.queries.release(i)
            i, j = i + 1, j + 1
        dq = warpgroup_mma_wait(0, (ask_dq(i - 1, own, state),))
        state.used.arrive(i - 1)
        leave_dq(half(i - 1, consumer_id), dq, consumer_id, state)
    return i, dk, dv


@gluon.jit
def walk(t, i, consumer_id: gl.constexpr, own, block, sums, state):
    """(tiles so far, those that are left to pass over, dK, dV) over block t's tiles of queries of all heads that share
    its keys. Its values are given back as soon as the consumer has read them.
    """
    dk, dv = sums
    first, last, count = opaque(block.first), opaque(block.last), opaque(block.tiles)
    left = count * 0
    for _ in range(0, opaque(block.share)):
        if consumer_id == 0:
            i = pass_over(i, left, consumer_id, state)
            i, dk, dv = add_alone(i, 0, first, consumer_id, own, block, (dk, dv), state)
        else:
            i = pass_over(i, first, consumer_id, state)
        i, dk, dv = add_tiles(i, first, last, consumer_id, own, block, (dk, dv), state)
        if consumer_id == 0:
            left = count - last
        else:
            i, dk, dv = add_alone(i, last, count, consumer_id, own, block, (dk, dv), state)
    state.values.release(t)
    return i, opaque(left), dk, dv


@gluon.jit
def store_sums(sums, block, consumer_id: gl.constexpr, state):
    """Write dK and dV of the consumer's keys."""
    rows = BoxRows(block.batch, block.kv_head, gl.to_tensor(0), state.scheduler.table, block.item, state.cfg)
    store_rows(sums[0] * state.scale, state.DK, rows, consumer_id)
    store_rows(sums[1], state.DV, rows, consumer_id)


@gluon.jit
def grid_consumer(consumer_id: gl.constexpr, state, bounds):
    """dK and dV of one warp group's keys, and its dims of dQ, block after block.

    Results are written before tiles that are left to pass over, while the other consumer computes these.
    """
    cfg: gl.constexpr = state.cfg
    ROWS: gl.constexpr = cfg.rows
    DIMS: gl.constexpr = cfg.width // cfg.consumers
    none = gl.zeros([ROWS, cfg.width], gl.float32, accumulator(cfg.width))
    none_v = gl.zeros([ROWS, cfg.width_v], gl.float32, accumulator(cfg.width_v))
    leave_ones(consumer_id, state)
    own = Own(matrix(state.k.index(0)).slice(consumer_id * DIMS, DIMS, dim=1), bounds)
    i = 0
    t = 0
    number = gl.program_id(0)
    block = block_of(number, consumer_id, state)
    while number < state.scheduler.blocks:
        leave_bounds(bounds, block.item, consumer_id, state)
        state.keys.wait(t)
        state.values.wait(t)
        i, left, dk, dv = walk(t, i, consumer_id, own, block, (none, none_v), state)
        early = gl.minimum(left, 1)
        for _ in range(0, early):  # a branch: a loop of at most one turn
            store_sums((dk, dv), block, consumer_id, state)
        i = pass_over(i, left, consumer_id, state)
        state.keys.release(t)
        t += 1
        number = state.claims.hear(t, 4)
        after = block_of(number, consumer_id, state)  # asked for before results are written
        for _ in range(early, 1):
            store_sums((dk, dv), block, consumer_id, state)
        block = after


# ---- dQ --------------------------------------------------------------------------------------------------------------
@gluon.jit
def grid_adder(consumer_id: gl.constexpr, state):
    """As `bwd_summed.adder`, of one consumer. Where that passes over tiles it is ahead of the other."""
    cfg: gl.constexpr = state.cfg
    DIMS: gl.constexpr = cfg.width // cfg.consumers
    scheduler = state.scheduler
    i = 0
    t = 0
    number = gl.program_id(0)
    while number < scheduler.blocks:
        member, item = scheduler.places(scheduler.where(number))
        batch, head, share = gl.load(member), gl.load(member + 2), gl.load(member + 3)
        tiles = grid_tiles(scheduler.table, item, cfg)
        for h in range(0, share):
            for j in range(0, tiles.count):
                where = place_in((batch, head + h), tiles.place(j, cfg), consumer_id * DIMS, state)
                state.made.wait(half(i, consumer_id))
                # the copy adds, see `compile.adding`
                tma.async_copy_shared_to_global(state.dq_box, where, state.sums.index(consumer_id))
                tma.store_wait(0)  # until it has been read
                state.taken.arrive(half(i, consumer_id))
                i += 1
        t += 1
        number = state.claims.hear(t, 1)


# ---- the kernel ------------------------------------------------------------------------------------------------------
@gluon.jit
def bwd_grid(Stats, read, outputs, scheduler, sizes, CHAINED: gl.constexpr, cfg: gl.constexpr):
    """As `bwd_summed`."""
    state = memory_of(Stats, read, outputs, scheduler, sizes, cfg)
    bounds = gl.allocate_shared_memory(gl.int32, [cfg.consumers * cfg.axes, cfg.rows], flat(1))
    gl.static_assert(cfg.consumers == 2)
    gl.warp_specialize([
        (grid_consumer, (0, state, bounds)), (grid_consumer, (1, state, bounds)), (grid_producer, (state, CHAINED)),
        (grid_adder, (0, state)), (grid_adder, (1, state)),
    ], [4, cfg.producer_warps, 1, 1],
       [cfg.consumer_registers, cfg.producer_registers, cfg.producer_registers, cfg.producer_registers])  # fmt: skip
