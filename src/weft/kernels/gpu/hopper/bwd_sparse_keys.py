# ruff: noqa: PLR0913, SIM113 - kernels take as many arguments as they need, and Gluon is not all of Python
"""What sparse keys beside a short window add to gradients, after the fused backward of the window (`bwd_fused`).

They add to dQ where it is, and to dK and dV as sums of each program (`reduce_partials`). A program takes every so many
tiles of the queries of a head of keys. Each of two consumers takes its own of them, and keeps dK and dV of two tiles of
keys in registers while they pass. First come the tiles of queries that see keys of the first alone, then those that may
see both (`weft.planning.families.sparse_keys`). A producer warp for each consumer asks for queries, dO and dQ a tile
ahead, by tensor descriptors of (batch row, head, token, 1, dim). dQ goes out from where it came in.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait

from weft.kernels.gpu.hopper.bwd_fused_loads import HeadBoxes
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.channel import Channel, channel
from weft.kernels.gpu.hopper.ops.layouts import (
    WARPS,
    accumulator,
    boxes,
    first_factor,
    flat,
    line,
    matrix,
    sides,
    zeros,
)
from weft.kernels.gpu.hopper.ops.mask import mask_words, masked
from weft.kernels.gpu.hopper.ops.values import LOG2E, opaque
from weft.planning.families import sparse_keys as few

TILES, EDGES, BOUNDS = (gl.constexpr(x) for x in (few.TILES, few.EDGES, few.TILES * few.TILE))
EDGES_AT, BOUNDS_AT = gl.constexpr(few.RANGES), gl.constexpr(few.RANGES + few.EDGES * few.TILES)


@aggregate
class Sizes(HeadBoxes):
    """items: parts of all heads of keys; parts: of a head; length: tokens; kv_heads; share: heads of queries to each of
    these; place, lane: of the first key.
    """

    items: gl.tensor
    parts: gl.tensor
    length: gl.tensor
    kv_heads: gl.tensor
    share: gl.tensor
    place: gl.tensor
    lane: gl.tensor


@aggregate
class SparseKeys:
    """The kernel's arguments, shared memory and channels.

    table: tiles of queries and bounds of keys (`weft.planning.families.sparse_keys`). ds: dS, for dQ. keys: the channel
    of K and V, which have one stage. queries: of each consumer its ring of queries, dO, dQ and their numbers.
    """

    cfg: gl.constexpr
    dq_box: Any
    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    dq: gl.shared_memory_descriptor
    stats: gl.shared_memory_descriptor
    ds: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    queries: Channel
    sizes: Sizes
    table: gl.tensor
    scale: gl.tensor
    Partial: gl.tensor
    keys: Channel
    q_box: Any
    do_box: Any
    k_box: Any
    v_box: Any
    Lse: gl.tensor
    Delta: gl.tensor

    @gluon.jit
    def queries_of(self, consumer_id):
        """The ring of the consumer's queries. By remainders: with places by bits ptxas spills in the loops."""
        STAGES: gl.constexpr = self.cfg.stages
        return Channel(self.queries.full, self.queries.empty, consumer_id * STAGES, STAGES, False)

    @gluon.jit
    def spans(self):
        """Tiles of queries: the first, the first that may see both tiles of keys, the one after the last."""
        return gl.load(self.table), gl.load(self.table + 1), gl.load(self.table + 2)


@gluon.jit
def first_of(begin, mine, every):
    """The first tile from `begin` on that is `mine` of `every`."""
    return begin + (mine + every - begin % every) % every


# ---- producer --------------------------------------------------------------------------------------------------------
@gluon.jit
def load_span(consumer_id: gl.constexpr, s, member, span, state):
    """Ask for a consumer's tiles of queries: from the first, before the end, by how much they rise."""
    TILE: gl.constexpr = state.cfg.rows
    sizes, ring = state.sizes, state.queries_of(consumer_id)
    first, end, every = span
    r = gl.arange(0, TILE, layout=line(1, state.cfg.producer_warps))
    for h in range(0, sizes.share):
        head = (member * sizes.share + h).to(gl.int64)  # of all batch rows
        for i in range(first, end, every):
            at = ring.stage(s)
            ring.acquire(s)
            ring.expect(s, 3 * state.q_box.block_type.nbytes)
            where = sizes.queries_at(member, h, i * TILE)
            ring.copy(s, state.q_box, where, state.q, at)
            ring.copy(s, state.do_box, where, state.do, at)
            ring.copy(s, state.dq_box, where, state.dq, at)
            row = head * sizes.length + gl.minimum(i * TILE + r, sizes.length - 1)
            async_copy.async_copy_global_to_shared(state.stats.index(2 * at), state.Lse + row)
            async_copy.async_copy_global_to_shared(state.stats.index(2 * at + 1), state.Delta + row)
            ring.commit(s)
            s += 1
    return s


@gluon.jit
def load_keys(n, member, state):
    """Ask for all keys and values of a head."""
    TILE: gl.constexpr = state.cfg.rows
    sizes, keys = state.sizes, state.keys
    keys.acquire(n)
    keys.expect(n, 2 * TILES * state.k_box.block_type.nbytes)
    for t in gl.static_range(TILES):
        where = sizes.keys_at(member, sizes.place + t * TILE, sizes.lane)
        keys.copy(n, state.k_box, where, state.k, t)
        keys.copy(n, state.v_box, where, state.v, t)


@gluon.jit
def producer(consumer_id: gl.constexpr, state):
    """A consumer's tiles of queries; the first consumer's producer asks for keys and values too."""
    CONSUMERS: gl.constexpr = state.cfg.consumers
    sizes = state.sizes
    begin, middle, end = state.spans()
    every = CONSUMERS * sizes.parts
    s = 0
    n = 0
    for item in range(gl.program_id(0), sizes.items, gl.num_programs(0)):
        member, mine = item // sizes.parts, CONSUMERS * (item % sizes.parts) + consumer_id
        if consumer_id == 0:
            load_keys(n, member, state)
        n += 1
        s = load_span(consumer_id, s, member, (first_of(begin, mine, every), middle, every), state)
        s = load_span(consumer_id, s, member, (first_of(middle, mine, every), end, every), state)


# ---- consumers -------------------------------------------------------------------------------------------------------
@gluon.jit
def scores(t: gl.constexpr, i, mine, at, numbers, state):
    """(p, ds) of key tile t and tile i of queries, float32. mine: its K and V; at: where the queries are; numbers: of a
    tile's rows and columns.
    """
    TILE: gl.constexpr = state.cfg.rows
    k, v = mine
    table = state.table
    q, do = matrix(state.q.index(at)), matrix(state.do.index(at))
    lse, delta = state.stats.index(2 * at), state.stats.index(2 * at + 1)
    layout: gl.constexpr = accumulator(TILE)
    none = zeros(TILE, TILE)
    x = warpgroup_mma(k, q.permute((1, 0)), none, use_acc=False, is_async=True)
    y = warpgroup_mma(v, do.permute((1, 0)), none, use_acc=False, is_async=True)
    every, until = gl.load(table + EDGES_AT + EDGES * t), gl.load(table + EDGES_AT + EDGES * t + 1)
    cut = (i * TILE < every) | (i * TILE + TILE > until)
    rows, columns = numbers
    words, bit = mask_words(rows * 0, rows * 0 + TILE, columns)
    if cut:  # while products run
        bounds = table + BOUNDS_AT + t * TILE + rows
        words, bit = mask_words(gl.load(bounds) - i * TILE, gl.load(bounds + BOUNDS) - i * TILE, columns)
    x = warpgroup_mma_wait(1, (x,))
    p = gl.exp2(x * (state.scale * LOG2E) - gl.expand_dims(lse.load(gl.SliceLayout(0, layout)) * LOG2E, 0))
    y = warpgroup_mma_wait(0, (y,))
    y = y - gl.expand_dims(delta.load(gl.SliceLayout(0, layout)), 0)
    if cut:
        p = masked(p, words, bit, 0.0)
        y = masked(y, words, bit, 0.0)
    return p, p * y


@aggregate
class Sums:
    """dK and dV of a tile of keys."""

    dk: gl.tensor
    dv: gl.tensor


@gluon.jit
def add(t: gl.constexpr, consumer_id: gl.constexpr, sums, i, at, numbers, state):
    """Sums of key tile t with what it has of tile i of queries, which is at `at`; ds is left for dQ."""
    cfg: gl.constexpr = state.cfg
    here = opaque(t)  # places that are known are kept in registers from before the loop, and spilled
    factor: gl.constexpr = first_factor(cfg.width)
    factor_v: gl.constexpr = first_factor(cfg.width_v)
    q, do = matrix(state.q.index(at)), matrix(state.do.index(at))
    mine = matrix(state.k.index(here)), matrix(state.v.index(here))
    p, ds = scores(t, i, mine, at, numbers, state)
    dv = warpgroup_mma(gl.convert_layout(p.to(state.q.dtype), factor_v), do, sums.dv, is_async=True)
    ds = ds.to(state.q.dtype)
    matrix(state.ds.index(here + consumer_id * TILES)).store(ds)
    dk = warpgroup_mma(gl.convert_layout(ds, factor), q, sums.dk, is_async=True)
    dv, dk = warpgroup_mma_wait(0, (dv, dk))
    return Sums(dk, dv)


@gluon.jit
def add_to_query(consumer_id: gl.constexpr, COUNT: gl.constexpr, at, where, state):
    """Add to dQ of a tile what so many tiles of keys left, and send it."""
    dq = zeros(state.cfg.rows, state.cfg.width)
    layout: gl.constexpr = dq.type.layout
    here = opaque(0)
    fence_async_shared()
    for t in gl.static_range(COUNT):
        of_tile = matrix(state.ds.index(here + consumer_id * TILES + t)).permute((1, 0))
        dq = warpgroup_mma(of_tile, matrix(state.k.index(here + t)), dq, use_acc=t > 0, is_async=True)
    room = state.dq.index(at)
    before = matrix(room).load(layout).to(gl.float32)
    dq = warpgroup_mma_wait(0, (dq,))
    matrix(room).store((dq * state.scale + before).to(state.q.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(state.dq_box, where, room)


@gluon.jit
def begun(s, ring):
    """Wait for tile s; give back the one before, once its dQ was read."""
    at = ring.stage(s)
    ring.wait(s)
    if s > 0:
        tma.store_wait(0)
        ring.release(s - 1)
    return at


@gluon.jit
def walk(COUNT: gl.constexpr, consumer_id: gl.constexpr, s, span, sums, numbers, state):
    """(tiles so far, sums of both tiles of keys) after a consumer's tiles of queries that see so many of these. span:
    the head of keys; which tiles are the consumer's, of how many; the first and the end. numbers: of a tile's rows and
    columns.
    """
    sizes, ring = state.sizes, state.queries_of(consumer_id)
    member, mine, every, begin, end = span
    near, far = sums
    for h in range(0, sizes.share):
        for i in range(first_of(begin, mine, every), end, every):
            s = opaque(s)
            at = begun(s, ring)
            near = add(0, consumer_id, near, i, at, numbers, state)
            if COUNT == 2:
                far = add(1, consumer_id, far, i, at, numbers, state)
            add_to_query(consumer_id, COUNT, at, sizes.queries_at(member, h, i * state.cfg.rows), state)
            s += 1
    return s, near, far


@gluon.jit
def keep(to, sums, numbers):
    """Leave dK and dV of a tile of keys, to be joined with those of other programs."""
    ROWS: gl.constexpr = sums.dk.type.shape[0]
    WIDTH: gl.constexpr = sums.dk.type.shape[1]
    place = gl.expand_dims(numbers[0] * WIDTH, 1) + gl.expand_dims(numbers[1], 0)
    gl.store(to + place, sums.dk)
    gl.store(to + ROWS * WIDTH + place, sums.dv)


@gluon.jit
def consumer(consumer_id: gl.constexpr, state):
    """One warp group: its tiles of queries."""
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.rows
    CONSUMERS: gl.constexpr = cfg.consumers
    SUMS: gl.constexpr = 2 * TILE * cfg.width  # numbers of dK and dV of a tile of keys
    numbers, none = sides(TILE, TILE, accumulator(TILE)), zeros(TILE, cfg.width)
    sizes, keys = state.sizes, state.keys
    begin, middle, end = state.spans()
    every = CONSUMERS * sizes.parts
    s = 0
    n = 0
    for item in range(gl.program_id(0), sizes.items, gl.num_programs(0)):
        member, mine = item // sizes.parts, CONSUMERS * (item % sizes.parts) + consumer_id
        keys.wait(n)
        sums = Sums(none, none), Sums(none, none)
        s, near, far = walk(1, consumer_id, s, (member, mine, every, begin, middle), sums, numbers, state)
        s, near, far = walk(2, consumer_id, s, (member, mine, every, middle, end), (near, far), numbers, state)
        keys.release(n)
        n += 1
        to = state.Partial + (item.to(gl.int64) * CONSUMERS + consumer_id) * (TILES * SUMS)
        keep(to, near, numbers)
        if middle < end:
            keep(to + SUMS, far, numbers)
    tma.store_wait(0)


# ---- the kernel ------------------------------------------------------------------------------------------------------
@gluon.jit
def bwd_sparse_keys(read, rows, Partial, sizes, table, scale, cfg: gl.constexpr):
    """read: descriptors of Q, dO, dQ, K and V, of which dQ is written too. rows: pointers to lse and to what scores
    subtract. Partial: (items, consumers, tiles of keys, 2, rows, dims).
    """
    CONSUMERS: gl.constexpr = cfg.consumers
    STAGES: gl.constexpr = CONSUMERS * cfg.stages
    q, do = boxes(read[0], STAGES), boxes(read[1], STAGES)
    dq, ds = boxes(read[2], STAGES), boxes(read[2], CONSUMERS * TILES)
    k, v = boxes(read[3], TILES), boxes(read[4], TILES)
    stats = gl.allocate_shared_memory(gl.float32, [2 * STAGES, cfg.rows], flat(1))
    queries = channel(STAGES, cfg.fills, 1)
    keys = channel(1, 1, CONSUMERS)
    state = SparseKeys(
        cfg, read[2], q, do, dq, stats, ds, k, v, queries, sizes, table, scale, Partial, keys, read[0], read[1],
        read[3], read[4], rows[0], rows[1],
    )  # fmt: skip
    gl.static_assert(cfg.consumers == 2)
    gl.warp_specialize([
        (consumer, (0, state)), (consumer, (1, state)), (producer, (0, state)), (producer, (1, state)),
    ], [WARPS, cfg.producer_warps, cfg.producer_warps],
       [cfg.consumer_registers, cfg.producer_registers, cfg.producer_registers])  # fmt: skip
