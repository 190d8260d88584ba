# ruff: noqa: PLR0913 - kernels take as many arguments as they need, and Gluon is not all of Python
"""dQ, dK and dV of a short window in one walk over queries: every tensor is read once, every product made once.

Query tile i sees the key tiles i to i + 2, where tile c begins at key c * rows - shift (`families.fused_backward`). A
program walks the queries of a run. Consumer c % 3, of three, keeps dK and dV of key tile c in registers for as long as
it is seen. Gradients of scores stay in shared memory for dQ, which the consumers make in
turns. They do so a step late, when all of these are there. The producer asks for tiles by tensor descriptors of (batch
row, head, token, 1, dim). What a run shares with the one before, two tiles of queries, is computed twice.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait

from weft.kernels.gpu.compile.dedup import COPIES, like_the_group_before, which_group
from weft.kernels.gpu.hopper.bwd_fused_loads import OUTS, Gradients, Run, producer, run_of
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.channel import channel, ring
from weft.kernels.gpu.hopper.ops.layouts import WARPS, accumulator, boxes, first_factor, flat, matrix, sides, zeros
from weft.kernels.gpu.hopper.ops.mask import mask_words, masked
from weft.kernels.gpu.hopper.ops.values import LOG2E, opaque

DS = gl.constexpr(2)  # stages of what dQ is made of
NOTHING, UNNUMBERED = gl.constexpr(-2), gl.constexpr(-1)  # results under way: none; some, in memory of no key tile


# ---- consumers -------------------------------------------------------------------------------------------------------
@aggregate
class Window:
    """Of a key tile: each key's first query, the one after its last, and the queries between which all keys see."""

    low: gl.tensor
    high: gl.tensor
    every: gl.tensor
    until: gl.tensor


@gluon.jit
def window_of(c, r, state):
    """That of key tile c."""
    TILE: gl.constexpr = state.cfg.rows
    length, first = state.sizes.length, c * TILE - state.sizes.shift
    key = first + r
    inside = (key >= 0) & (key < length)
    low = gl.where(inside, key - state.right, 0)
    high = gl.where(inside, gl.minimum(key + state.left + 1, length), 0)
    whole = (first >= 0) & (first + TILE <= length)
    every = gl.where(whole, first + TILE - 1 - state.right, length)
    return Window(low, high, every, gl.where(whole, first + state.left + 1, 0))


@gluon.jit
def cut(x, i, window, columns, TILE: gl.constexpr):
    """x of tile i of queries, 0 where a query does not see the key."""
    if (i * TILE < window.every) | (i * TILE + TILE > window.until):
        words, bit = mask_words(window.low - i * TILE, window.high - i * TILE, columns)
        x = masked(x, words, bit, 0.0)
    return x


@gluon.jit
def ask_dv(i, mine, s, window, columns, dv, more, state):
    """Ask for dV of a consumer's keys with tile i of queries. Returns it and ds, float32. mine: where the keys are in
    their ring; s: which tile of the ring of queries it is; more: whether dV has other tiles.

    Only then dP is waited for: ptxas moves exponentials behind a wait that follows them, and a product holds them.
    """
    TILE: gl.constexpr = state.cfg.rows
    layout: gl.constexpr = accumulator(TILE)
    none = zeros(TILE, TILE)
    slot = state.queries.stage(s)
    q, do = matrix(state.q.index(slot)), matrix(state.do.index(slot))
    lse, delta = state.stats.index(2 * slot), state.stats.index(2 * slot + 1)
    k, v = matrix(state.k.index(mine)), matrix(state.v.index(mine))
    x = warpgroup_mma(k, q.permute((1, 0)), none, use_acc=False, is_async=True)
    y = warpgroup_mma(v, do.permute((1, 0)), none, use_acc=False, is_async=True)
    state.deltas.wait(s)
    x = warpgroup_mma_wait(1, (x,))
    p = gl.exp2(x * (state.scale * LOG2E) - gl.expand_dims(lse.load(gl.SliceLayout(0, layout)), 0))
    p = cut(p, i, window, columns, TILE)
    weights = gl.convert_layout(p.to(state.q.dtype), first_factor(state.cfg.width_v))
    dv = warpgroup_mma(weights, do, dv, use_acc=more, is_async=True)
    y = warpgroup_mma_wait(1, (y,))
    y = y - gl.expand_dims(delta.load(gl.SliceLayout(0, layout)), 0)
    return dv, cut(p * y, i, window, columns, TILE)  # whatever lies in a key that no query sees


@gluon.jit
def send(box, where, to, values):
    """Results, through memory that nothing reads any more."""
    matrix(to).store(values)
    fence_async_shared()
    tma.async_copy_shared_to_global(box, where, to)


@gluon.jit
def given_back(due, keys):
    """Once results were read that are under way: the memory of a key tile, if it has a number. Then none are."""
    if due >= UNNUMBERED:
        tma.store_wait(0)
    if due >= 0:
        keys.give_back(due)
    return NOTHING


@gluon.jit
def wait_for_dq(n, state):
    """Wait until the n-th dQ is made, if there is one."""
    if n >= 0:
        state.ds_used.wait(n)


@aggregate
class QueryTile:
    """A tile whose dQ is made. n: which of all. i: its number. where: its box. place: of its first keys. last: whether
    these are needed no more.
    """

    n: gl.tensor
    i: gl.tensor
    where: gl.tuple
    place: gl.tensor
    last: gl.tensor


@gluon.jit
def query_gradient(G, tile, zero, state):
    """Write one dQ, from what the consumers left."""
    SEEN: gl.constexpr = state.cfg.consumers
    keys = state.keys
    n, i, place = tile.n, tile.i, tile.place
    half = n & (DS - 1)
    state.ds_ready.wait(n)
    dq = zero
    for t in gl.static_range(SEEN):
        at = keys.stage(place + t)
        keys.wait(place + t)
        of_tile = matrix(state.ds.index(half * SEEN + (i + t) % SEEN))
        dq = warpgroup_mma(of_tile.permute((1, 0)), matrix(state.k.index(at)), dq, is_async=True)
    dq = warpgroup_mma_wait(0, (dq,))
    state.ds_used.arrive(n)
    if tile.last:
        keys.release(place)
    dq = (dq * state.scale).to(state.q.dtype)
    send(state.dq_box, tile.where, state.ds.index(half * SEEN + G), dq)


@aggregate
class Step:
    """Where a consumer is: at tile i of queries of a run, whose dQ is made from `begin` on, and at its key tile c.

    The others count query tiles and key tiles of the rings that went before, and say which dQ is next.
    """

    i: gl.tensor
    begin: gl.tensor
    c: gl.tensor
    s: gl.tensor
    place: gl.tensor
    n: gl.tensor


@gluon.jit
def add(G, sums, more, due, step, numbers, state):
    """(dK, dV, due) with what a consumer's key tile has of a query tile, and that left for dQ. more: whether this is
    more of the tile; due: results under way, see `given_back`; numbers: of a tile's rows and columns.
    """
    dk, dv = sums
    i, s, place, n = step.i, step.s, step.place, step.n
    cfg: gl.constexpr = state.cfg
    factor: gl.constexpr = first_factor(cfg.width)
    queries, keys = state.queries, state.keys
    slot, mine = queries.stage(s), keys.stage(place)
    queries.wait(s)
    keys.wait(place)
    q = matrix(state.q.index(slot))
    window = window_of(step.c, numbers[0], state)
    dv, ds = ask_dv(i, mine, s, window, numbers[1], dv, more, state)
    ds = ds.to(state.q.dtype)
    due = given_back(due, keys)
    if i >= step.begin:
        wait_for_dq(n - DS, state)
        matrix(state.ds.index((n & (DS - 1)) * cfg.consumers + G)).store(ds)
        fence_async_shared()
        state.ds_ready.arrive(n)
    dk = warpgroup_mma(gl.convert_layout(ds, factor), q, dk, use_acc=more, is_async=True)
    dv, dk = warpgroup_mma_wait(0, (dv, dk))
    queries.release(s)
    return dk, dv, due


@gluon.jit
def write_keys(G, member, c, mine, dk, dv, state):
    """dK and dV of a key tile that is seen no more: dV through its own memory, whose place is `mine`."""
    sizes = state.sizes
    key = c * state.cfg.rows - sizes.shift
    if (key >= 0) & (key < sizes.length):  # else nothing is written: see `weft.planning.families.fused_backward`
        where = sizes.keys_at(member, key)
        send(state.dk_box, where, state.results.index(G), (dk * state.scale).to(state.q.dtype))
        send(state.dv_box, where, state.v.index(mine), dv.to(state.q.dtype))


@gluon.jit
def end_run(G, run, due, n, base, zero, state):
    """Make a run's last dQ, if it is this consumer's, and give back what results were sent from. Returns `due`."""
    SEEN: gl.constexpr = state.cfg.consumers
    if (n - 1) % SEEN == G:
        wait_for_dq(n - DS, state)  # by another consumer, of key tiles that are given back after the last one
        where = state.sizes.queries_at(run.member, state.sizes.share - 1, (run.end - 1) * state.cfg.rows)
        tile = QueryTile(n - 1, run.end - 1, where, base + run.end - 1 - run.first, gl.to_tensor(True))
        query_gradient(G, tile, zero, state)
        due = gl.where(due < 0, UNNUMBERED, due)
    return given_back(due, state.keys)


@gluon.jit
def consumer(state):
    """One warp group: dK and dV of every third key tile, every third dQ."""
    G = which_group()
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.rows
    SEEN: gl.constexpr = cfg.consumers
    LEAD: gl.constexpr = SEEN - 1
    numbers = sides(TILE, TILE, accumulator(TILE))
    zero, zero_v = zeros(TILE, cfg.width), zeros(TILE, cfg.width_v)
    sizes, keys = state.sizes, state.keys
    share = sizes.share
    s = 0  # query tiles of the ring
    n = 0  # dQ's
    base = 0  # key tiles of the ring before this run
    dk = zero
    dv = zero_v
    due = NOTHING
    for item in range(gl.program_id(0), sizes.items, gl.num_programs(0)):
        run = run_of(item, sizes, LEAD)
        run = Run(opaque(run.member), opaque(run.begin), opaque(run.end), opaque(run.first))
        member, begin, end, first = run.member, run.begin, run.end, run.first
        c = first + (G + SEEN - first % SEEN) % SEEN
        i = first
        h = 0  # of the heads that share keys, walked one after the other
        for _ in range(first * share, end * share):
            s = opaque(s)  # 0.975 of the time, as in `fwd.walk`
            place = base + c - first
            more = (h > 0) | (i > gl.maximum(first, c - LEAD))  # than this of the key tile
            dk, dv, due = add(G, (dk, dv), more, due, Step(i, begin, c, s, place, n), numbers, state)
            before, of_head = gl.where(h == 0, i - 1, i), gl.where(h == 0, share, h) - 1
            if (before >= begin) & ((n - 1) % SEEN == G):
                where = sizes.queries_at(member, of_head, before * TILE)
                query_gradient(G, QueryTile(n - 1, before, where, base + before - first, h == 0), zero, state)
                due = gl.where(due < 0, UNNUMBERED, due)
            n += gl.where(i >= begin, 1, 0)
            s += 1
            h += 1
            if h == share:
                if i == c:
                    if c >= begin:
                        write_keys(G, member, c, keys.stage(place), dk, dv, state)
                        due = keys.stage(place)
                    else:
                        keys.release(place, 2)
                    c += SEEN
                i += 1
                h = 0
        due = end_run(G, run, due, n, base, zero, state)
        base += end - first + LEAD
        if c < end + LEAD:  # a tile of the next run
            wait_for_dq(n - 1, state)
            keys.release(base - LEAD + c - end, 2)


@gluon.jit
def next_consumer(state):
    """`consumer`, of the warp groups after the first one."""
    if COPIES:
        consumer(state)
    else:
        like_the_group_before()


# ---- the kernel ------------------------------------------------------------------------------------------------------
@gluon.jit
def bwd_fused(read, written, rows, sizes, window, scale, cfg: gl.constexpr):
    """read: descriptors of Q, K, V, dO and O; written: of dQ, dK and dV. rows: pointers to lse, to its gradient if it
    has one, and to where what scores subtract is wanted, if it is. window: keys that a query sees before and after its
    own.
    """
    QUERIES: gl.constexpr = cfg.stages
    KEYS: gl.constexpr = cfg.key_stages
    SEEN: gl.constexpr = cfg.consumers
    TILE: gl.constexpr = cfg.rows
    REGISTERS: gl.constexpr = cfg.consumer_registers
    q, do, o = boxes(read[0], QUERIES), boxes(read[3], QUERIES), boxes(read[4], OUTS)
    k, v = boxes(read[1], KEYS), boxes(read[2], KEYS)
    ds, results = boxes(written[0], DS * SEEN), boxes(written[1], SEEN)
    stats = gl.allocate_shared_memory(gl.float32, [2 * QUERIES, TILE], flat(1))
    queries = channel(QUERIES, 1, SEEN)
    keys = channel(KEYS, 1, 2)  # free when dV is written, and when the last dQ is made
    outs_used, deltas = ring(OUTS, 1), ring(QUERIES, 1)
    ds_ready, ds_used = ring(DS, SEEN), ring(DS, 1)
    state = Gradients(
        cfg, written[0], written[1], written[2], q, do, k, v, stats, ds, results, queries, keys, deltas, ds_ready,
        ds_used, sizes, window[0], window[1], scale, read[0], read[1], read[2], read[3], read[4], rows[0], rows[1],
        rows[2], o, outs_used,
    )  # fmt: skip
    gl.static_assert(cfg.consumers == 3)
    gl.warp_specialize([
        (producer, (state,)), (consumer, (state,)), (next_consumer, (state,)), (next_consumer, (state,)),
    ], [WARPS, WARPS, WARPS], [REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
