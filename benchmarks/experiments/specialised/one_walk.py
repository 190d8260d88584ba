# ruff: noqa: PLR0913 - kernels take as many arguments as they need, and Gluon is not all of Python
"""dQ, dK and dV of a short window in one walk: every tensor is read once, every product made once.

A query tile i sees the key tiles i to i + GROUPS - 1, where tile c begins at key 64 c - shift. So a program walks
queries, and each of GROUPS warp groups keeps dK and dV of one key tile in registers for as long as it is seen: of tile
c the group c % GROUPS. What scores take is left in shared memory for dQ, which the groups make in turns. When a tile is
seen no more, its dK and dV go out through its own memory. Runs of tiles are cut so that each processor has
one; what a run shares with the next is computed twice.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from specialised.pieces import tiles
from weft.kernels.triton.groups import barriers, live, masked, seen

LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def matrix(tile):
    """As products read it."""
    return tile.reshape([64, 64])


@gluon.jit
def over(i, COUNT: gl.constexpr):
    """How often a ring was full before its i-th tile, as barriers count: 0 or 1."""
    return (i // COUNT) & 1


@gluon.jit
def run_of(item, sizes):
    """(head, first key tile, the one after the last, first query tile) of a run."""
    runs, per, count, lead, _, _, _ = sizes
    begin = (item % runs) * per
    return item // runs, begin, gl.minimum(begin + per, count), gl.maximum(begin - lead, 0)


@gluon.jit
def logs(Lse, head, i, length, r):
    """lse in bits of the 64 queries of a tile."""
    row = i * 64 + r
    lse = gl.load(Lse + head * length + row, mask=row < length, other=0.0)
    return gl.where(lse == float("-inf"), 0.0, lse) * LOG2E


@gluon.jit
def subtract(s, do, o, stats, bars, QUERIES: gl.constexpr):
    """Leave the sums of dO * O of query tile s, a quarter at a time for lack of registers."""
    q_full, o_empty, d_full = bars
    lies: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    at = s % QUERIES
    mbarrier.wait(q_full.index(at), over(s, QUERIES))
    for quarter in gl.static_range(4):
        x = matrix(do.index(at)).slice(16 * quarter, 16).load(lies).to(gl.float32)
        y = matrix(o.index(s & 1)).slice(16 * quarter, 16).load(lies).to(gl.float32)
        stats.index(2 * at + 1).slice(16 * quarter, 16).store(gl.sum(x * y, 1))
    mbarrier.arrive(o_empty.index(s & 1), count=1)
    mbarrier.arrive(d_full.index(at), count=1)


@gluon.jit
def fetch(asked, GROUPS: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr):
    """Four warps that ask for tiles, and then find what scores subtract of the tile before."""
    descs, Lse, rings, stats, bars, sizes, items = asked
    q_desc, k_desc, v_desc, do_desc, o_desc = descs
    q, do, k, v, o = rings
    q_full, q_empty, k_full, k_empty, o_empty, d_full = bars
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    r = gl.arange(0, 64, layout=flat)
    _, _, _, lead, shift, length, share = sizes
    s = 0
    n = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        head, begin, end, first = run_of(item, sizes)
        lse = logs(Lse, head * share, first, length, r)
        for i in range(first, end):
            for h in range(0, share):
                at = s % QUERIES
                rows = [head * share + h, i * 64, 0]
                mbarrier.wait(q_empty.index(at), over(s, QUERIES) ^ 1)
                mbarrier.wait(o_empty.index(s & 1), ((s >> 1) & 1) ^ 1)
                mbarrier.expect(q_full.index(at), 3 * q_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(q_desc, rows, q_full.index(at), q.index(at))
                tma.async_copy_global_to_shared(do_desc, rows, q_full.index(at), do.index(at))
                tma.async_copy_global_to_shared(o_desc, rows, q_full.index(at), o.index(s & 1))
                stats.index(2 * at).store(lse)
                over_head = gl.where(h + 1 < share, 0, 1)
                lse = logs(Lse, head * share + gl.where(h + 1 < share, h + 1, 0), i + over_head, length, r)
                if s > 0:
                    subtract(s - 1, do, o, stats, (q_full, o_empty, d_full), QUERIES)
                since = gl.where(i == first, i, i + lead)
                for c in range(gl.where(h == 0, since, i + GROUPS), i + GROUPS):
                    at = n % KEYS
                    mbarrier.wait(k_empty.index(at), over(n, KEYS) ^ 1)
                    mbarrier.expect(k_full.index(at), 2 * k_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(k_desc, [head, c * 64 - shift, 0], k_full.index(at), k.index(at))
                    tma.async_copy_global_to_shared(v_desc, [head, c * 64 - shift, 0], k_full.index(at), v.index(at))
                    n += 1
                s += 1
    if s > 0:
        subtract(s - 1, do, o, stats, (q_full, o_empty, d_full), QUERIES)


@gluon.jit
def bounds_of(c, r, sizes, window):
    """Of key tile c: (each key's first query, the one after its last, of the tile the first from which all see, and
    the last before which all do).
    """
    _, _, _, _, shift, length, _ = sizes
    left, right = window
    first = c * 64 - shift
    key = first + r
    inside = (key >= 0) & (key < length)
    low = gl.where(inside, key - right, 0)
    high = gl.where(inside, gl.minimum(key + left + 1, length), 0)
    whole = (first >= 0) & (first + 64 <= length)
    return low, high, gl.where(whole, first + 63 - right, length), gl.where(whole, first + left + 1, 0)


@gluon.jit
def pair(i, mine, walked, of_rows, bounds, columns, scale2):
    """(p, ds) of a group's keys and tile i of queries, float32."""
    k, v = mine
    queries, outs = walked
    lse, delta, ready, turn = of_rows
    low, high, every, until = bounds
    lies: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    none = gl.zeros([64, 64], gl.float32, lies)
    x = warpgroup_mma(k, queries.permute((1, 0)), none, use_acc=False, is_async=True)
    y = warpgroup_mma(v, outs.permute((1, 0)), none, use_acc=False, is_async=True)
    mbarrier.wait(ready, turn)
    x = warpgroup_mma_wait(1, (x,))
    p = gl.exp2(x * scale2 - gl.expand_dims(lse.load(gl.SliceLayout(0, lies)), 0))
    y = warpgroup_mma_wait(0, (y,))
    y = y - gl.expand_dims(delta.load(gl.SliceLayout(0, lies)), 0)
    if (i * 64 < every) | (i * 64 + 64 > until):
        words, bit = seen(low - i * 64, high - i * 64, columns)
        p = masked(p, words, bit, 0.0)
        y = masked(y, words, bit, 0.0)  # whatever lies in a key that no query sees
    return p, p * y


@gluon.jit
def send(desc, head, row, to, values):
    """Results, through memory that nothing reads any more."""
    to.store(values)
    fence_async_shared()
    tma.async_copy_shared_to_global(desc, [head, row, 0], to.reshape([1, 64, 64]))


@gluon.jit
def given_back(due, k_empty):
    """Once results were read that are on their way: the memory of a tile, if it has a number. Then none are: -2."""
    if due >= -1:
        tma.store_wait(0)
    if due >= 0:
        mbarrier.arrive(k_empty.index(due), count=1)
    return -2


@gluon.jit
def query_gradient(n, i, place, k, scores, bars, zero, GROUPS: gl.constexpr, KEYS: gl.constexpr):
    """dQ, the n-th, of query tile i, which sees the tiles of keys from `place` on."""
    k_full, s_full, s_empty = bars
    half = n & 1
    mbarrier.wait(s_full.index(half), (n >> 1) & 1)
    dq = zero
    for t in gl.static_range(GROUPS):
        mbarrier.wait(k_full.index((place + t) % KEYS), over(place + t, KEYS))
        of_tile = scores.index(half * GROUPS + (i + t) % GROUPS)
        dq = warpgroup_mma(of_tile.permute((1, 0)), matrix(k.index((place + t) % KEYS)), dq, is_async=True)
    dq = warpgroup_mma_wait(0, (dq,))
    mbarrier.arrive(s_empty.index(half), count=1)
    return dq


@gluon.jit
def write_dq(
    desc, of_query, G: gl.constexpr, k, scores, bars, zero, scale, GROUPS: gl.constexpr, KEYS: gl.constexpr
):
    """One dQ, from what the groups left. of_query: which one of all, head, tile, the place of its first keys, whether
    these are needed no more.
    """
    k_full, k_empty, s_full, s_empty = bars
    n, head, i, place, last = of_query
    dq = query_gradient(n, i, place, k, scores, (k_full, s_full, s_empty), zero, GROUPS, KEYS)
    if last:
        mbarrier.arrive(k_empty.index(place % KEYS), count=1)
    send(desc, head, i * 64, scores.index((n & 1) * GROUPS + G), (dq * scale).to(gl.bfloat16))


@gluon.jit
def made(n, s_empty):
    """Wait for the n-th dQ, if there is one."""
    if n >= 0:
        mbarrier.wait(s_empty.index(n & 1), (n >> 1) & 1)


@gluon.jit
def gradients(
    G: gl.constexpr, told, GROUPS: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr
):
    """One warp group: dK and dV of every GROUPS-th key tile, every GROUPS-th dQ."""
    descs, rings, stats, scores, results, bars, sizes, items, window, scale = told
    dq_desc, dk_desc, dv_desc = descs
    q, do, k, v = rings
    q_full, q_empty, k_full, k_empty, d_full, s_full, s_empty = bars
    lies: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=lies, k_width=2)
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, lies))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, lies))
    zero = gl.zeros([64, 64], gl.float32, lies)
    _, _, _, lead, shift, length, share = sizes
    scale2 = scale * LOG2E
    s = 0  # query tiles of the ring
    n = 0  # dQ's
    base = 0  # key tiles of the ring before this run
    dk = zero
    dv = zero
    due = -2  # results on their way, see `given_back`
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        head, begin, end, first = run_of(item, sizes)
        head, begin, end, first = live(head), live(begin), live(end), live(first)
        c = first + (G + GROUPS - first % GROUPS) % GROUPS
        i = first
        h = 0  # of the heads that share keys, walked one after the other
        for _ in range(first * share, end * share):
            at = s % QUERIES
            place = base + c - first
            mine = place % KEYS
            mbarrier.wait(q_full.index(at), over(s, QUERIES))
            mbarrier.wait(k_full.index(mine), over(place, KEYS))
            walked = matrix(q.index(at)), matrix(do.index(at))
            of_rows = stats.index(2 * at), stats.index(2 * at + 1), d_full.index(at), over(s, QUERIES)
            of_keys = matrix(k.index(mine)), matrix(v.index(mine))
            bounds = bounds_of(c, r, sizes, window)
            p, ds = pair(i, of_keys, walked, of_rows, bounds, columns, scale2)
            more = (h > 0) | (i > gl.maximum(first, c - lead))  # than this of the tile of keys
            weights = gl.convert_layout(p.to(gl.bfloat16), factor)
            dv = warpgroup_mma(weights, walked[1], dv, use_acc=more, is_async=True)
            ds = ds.to(gl.bfloat16)
            due = given_back(due, k_empty)
            if i >= begin:
                made(n - 2, s_empty)
                scores.index((n & 1) * GROUPS + G).store(ds)
                fence_async_shared()
                mbarrier.arrive(s_full.index(n & 1), count=1)
            dk = warpgroup_mma(gl.convert_layout(ds, factor), walked[0], dk, use_acc=more, is_async=True)
            dv, dk = warpgroup_mma_wait(0, (dv, dk))
            mbarrier.arrive(q_empty.index(at), count=1)
            # dQ a step late: what it is made of is there by then
            before, head_before = gl.where(h == 0, i - 1, i), gl.where(h == 0, share, h) - 1
            if (before >= begin) & ((n - 1) % GROUPS == G):
                of_query = n - 1, head * share + head_before, before, base + before - first, h == 0
                write_dq(dq_desc, of_query, G, k, scores, (k_full, k_empty, s_full, s_empty), zero, scale, GROUPS, KEYS)
                due = gl.where(due < 0, -1, due)
            n += gl.where(i >= begin, 1, 0)
            s += 1
            h += 1
            if h == share:
                if i == c:
                    if c >= begin:
                        key = c * 64 - shift
                        if (key >= 0) & (key < length):
                            send(dk_desc, head, key, results.index(G), (dk * scale).to(gl.bfloat16))
                            send(dv_desc, head, key, matrix(v.index(mine)), dv.to(gl.bfloat16))
                        due = mine
                    else:
                        mbarrier.arrive(k_empty.index(mine), count=2)
                    c += GROUPS
                i += 1
                h = 0
        if (n - 1) % GROUPS == G:
            of_query = n - 1, head * share + share - 1, end - 1, base + end - 1 - first, True
            write_dq(dq_desc, of_query, G, k, scores, (k_full, k_empty, s_full, s_empty), zero, scale, GROUPS, KEYS)
            due = gl.where(due < 0, -1, due)
        due = given_back(due, k_empty)
        base += end - first + lead
        if c < end + lead:  # a tile of the next run
            made(n - 1, s_empty)
            mbarrier.arrive(k_empty.index((base - lead + c - end) % KEYS), count=2)


@gluon.jit
def one_walk(
    q_desc, k_desc, v_desc, do_desc, o_desc, dq_desc, dk_desc, dv_desc, Lse, items, runs, per, count, shift,
    length, share, left, right, scale, GROUPS: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr,
    REGISTERS: gl.constexpr, LOADS: gl.constexpr,
):  # fmt: skip
    """count: key tiles of a head, of which a run has `per`; share: heads of queries to each."""
    q, do, k, v = tiles(q_desc, QUERIES), tiles(do_desc, QUERIES), tiles(k_desc, KEYS), tiles(v_desc, KEYS)
    o = tiles(o_desc, 2)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    scores = gl.allocate_shared_memory(gl.bfloat16, [2 * GROUPS, 64, 64], square)
    results = gl.allocate_shared_memory(gl.bfloat16, [GROUPS, 64, 64], square)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    stats = gl.allocate_shared_memory(gl.float32, [2 * QUERIES, 64], flat)
    q_full, q_empty = barriers(QUERIES, 1), barriers(QUERIES, GROUPS)
    k_full, k_empty = barriers(KEYS, 1), barriers(KEYS, 2)
    o_empty, d_full = barriers(2, 1), barriers(QUERIES, 1)
    s_full, s_empty = barriers(2, GROUPS), barriers(2, 1)
    sizes = (runs, per, count, GROUPS - 1, shift, length, share)
    descs = (q_desc, k_desc, v_desc, do_desc, o_desc)
    bars = (q_full, q_empty, k_full, k_empty, o_empty, d_full)
    asked = (descs, Lse, (q, do, k, v, o), stats, bars, sizes, items)
    bars = (q_full, q_empty, k_full, k_empty, d_full, s_full, s_empty)
    written = (dq_desc, dk_desc, dv_desc)
    told = (written, (q, do, k, v), stats, scores, results, bars, sizes, items, (left, right), scale)
    gl.static_assert(GROUPS == 3)
    gl.warp_specialize([
        (gradients, (0, told, GROUPS, KEYS, QUERIES)), (gradients, (1, told, GROUPS, KEYS, QUERIES)),
        (gradients, (2, told, GROUPS, KEYS, QUERIES)), (fetch, (asked, GROUPS, KEYS, QUERIES)),
    ], [4, 4, 4], [REGISTERS, REGISTERS, LOADS])  # fmt: skip
