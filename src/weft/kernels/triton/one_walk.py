# ruff: noqa: PLR0913 - kernels take as many arguments as they need, and Gluon is not all of Python
"""dQ, dK and dV of a short window in one walk over queries, on Hopper: every tensor is read once, every product made
once. Functions of Gluon, inlined into an emitted kernel (docs/decisions/0010-warp-groups-that-specialise.md).

Query tile i sees the key tiles i to i + 2, where tile c begins at key 64 c - shift (`fused_backward`). A program
walks the queries of a run; each of three warp groups keeps dK and dV of one key tile in registers for as long as it is
seen, of tile c the group c % 3. What scores take is left in shared memory for dQ, which the groups make in turns, a
step late: all of it is there by then. Four warps ask for tiles by tensor descriptors of (batch row, head, token, 1,
channel). What a run shares with the one before, two tiles of queries, is computed twice. Head dimension 64, bfloat16.
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

from weft.kernels.gpu.compile.dedup import COPIES, like_the_group_before, which_group
from weft.kernels.triton.groups import LOG2E, TILE, barriers, live, masked, seen
from weft.kernels.triton.query_blocks import matrix, room_of_boxes
from weft.planning.families import fused_backward as short

GROUPS = gl.constexpr(short.SEEN)  # that compute, a key tile each
LEAD = gl.constexpr(short.SEEN - 1)
KEYS, QUERIES = gl.constexpr(5), gl.constexpr(3)  # tiles under way; of O two
COMPUTES = gl.constexpr(160)  # registers of a thread that computes; who loads has what they leave of 4 x 128


# ---- where things are ------------------------------------------------------------------------------------------------
@gluon.jit
def over(i, COUNT: gl.constexpr):
    """How often a ring was full before its i-th tile, as barriers count: 0 or 1."""
    return (i // COUNT) & 1


@gluon.jit
def run_of(item, sizes):
    """(batch row and head of keys, first key tile that is written, the one after the last, first tile) of a run."""
    begin = (item % sizes[1]) * sizes[2]
    return item // sizes[1], begin, gl.minimum(begin + sizes[2], sizes[3]), gl.maximum(begin - LEAD, 0)


@gluon.jit
def of_queries(member, h, first, sizes):
    """Where a box of queries is; h: which of the heads that share keys."""
    return [member // sizes[6], (member % sizes[6]) * sizes[7] + h, first, 0, 0]


@gluon.jit
def of_keys(member, first, sizes):
    """Where a box of keys is."""
    return [member // sizes[6], member % sizes[6], first, 0, 0]


# ---- loading ---------------------------------------------------------------------------------------------------------
@gluon.jit
def of_rows(Rows, head, i, length, r):
    """The numbers of the 64 queries of a tile; head: of all batch rows."""
    row = i * TILE + r
    return gl.load(Rows + head.to(gl.int64) * length + row, mask=row < length, other=0.0)


@gluon.jit
def logs(Lse, head, i, length, r):
    """Their lse in bits."""
    lse = of_rows(Lse, head, i, length, r)
    return gl.where(lse == float("-inf"), 0.0, lse) * LOG2E


@gluon.jit
def subtract(s, tile, tiles, stats, bars, LSE_GRADIENT: gl.constexpr, WITH_DELTA: gl.constexpr):
    """Leave the sums of dO * O of query tile s, less what lse's gradient left there, a quarter at a time for lack of
    registers. tile: (Delta, its head of all batch rows, its number, queries), for who wants them too.
    """
    do, o = tiles
    q_full, o_empty, d_full = bars
    Delta, head, i, length = tile
    lies: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    at = s % QUERIES
    mbarrier.wait(q_full.index(at), over(s, QUERIES))
    for quarter in gl.static_range(4):
        x = matrix(do.index(at)).slice(16 * quarter, 16).load(lies).to(gl.float32)
        y = matrix(o.index(s & 1)).slice(16 * quarter, 16).load(lies).to(gl.float32)
        delta = gl.sum(x * y, 1)
        left = stats.index(2 * at + 1).slice(16 * quarter, 16)
        if LSE_GRADIENT:
            delta -= left.load(gl.SliceLayout(1, lies))
        left.store(delta)
        if WITH_DELTA:
            row = i * TILE + 16 * quarter + gl.arange(0, 16, layout=gl.SliceLayout(1, lies))
            gl.store(Delta + head.to(gl.int64) * length + row, delta, mask=row < length)
    mbarrier.arrive(o_empty.index(s & 1), count=1)
    mbarrier.arrive(d_full.index(at), count=1)


@gluon.jit
def fetch(asked, LSE_GRADIENT: gl.constexpr, WITH_DELTA: gl.constexpr):
    """Ask for tiles, and then find what scores subtract of the tile before."""
    boxes, rows, rings, stats, bars, sizes = asked
    Lse, DLse, Delta = rows
    q_box, k_box, v_box, do_box, o_box = boxes
    q, do, k, v, o = rings
    q_full, q_empty, k_full, k_empty, o_empty, d_full = bars
    r = gl.arange(0, 64, layout=gl.BlockedLayout([1], [32], [4], [0]))
    shift, length, share = sizes[4], sizes[5], sizes[7]
    s = 0
    n = 0
    asked_for = (0, 0)  # last: the head of all batch rows, and its tile
    for item in range(gl.program_id(0), sizes[0], gl.num_programs(0)):
        member, _, end, first = run_of(item, sizes)
        lse = logs(Lse, member * share, first, length, r)
        for i in range(first, end):
            for h in range(0, share):
                at = s % QUERIES
                where = of_queries(member, h, i * TILE, sizes)
                mbarrier.wait(q_empty.index(at), over(s, QUERIES) ^ 1)
                mbarrier.wait(o_empty.index(s & 1), ((s >> 1) & 1) ^ 1)
                mbarrier.expect(q_full.index(at), 3 * q_box.block_type.nbytes)
                tma.async_copy_global_to_shared(q_box, where, q_full.index(at), q.index(at))
                tma.async_copy_global_to_shared(do_box, where, q_full.index(at), do.index(at))
                tma.async_copy_global_to_shared(o_box, where, q_full.index(at), o.index(s & 1))
                stats.index(2 * at).store(lse)
                head = member * share + h
                if LSE_GRADIENT:
                    stats.index(2 * at + 1).store(of_rows(DLse, head, i, length, r))
                last = h + 1 == share
                lse = logs(Lse, gl.where(last, head - h, head + 1), i + gl.where(last, 1, 0), length, r)
                if s > 0:
                    tile = Delta, asked_for[0], asked_for[1], length
                    subtract(s - 1, tile, (do, o), stats, (q_full, o_empty, d_full), LSE_GRADIENT, WITH_DELTA)
                asked_for = (head, i)
                since = gl.where(i == first, i, i + LEAD)
                for c in range(gl.where(h == 0, since, i + GROUPS), i + GROUPS):
                    at = n % KEYS
                    where = of_keys(member, c * TILE - shift, sizes)
                    mbarrier.wait(k_empty.index(at), over(n, KEYS) ^ 1)
                    mbarrier.expect(k_full.index(at), 2 * k_box.block_type.nbytes)
                    tma.async_copy_global_to_shared(k_box, where, k_full.index(at), k.index(at))
                    tma.async_copy_global_to_shared(v_box, where, k_full.index(at), v.index(at))
                    n += 1
                s += 1
    if s > 0:
        tile = Delta, asked_for[0], asked_for[1], length
        subtract(s - 1, tile, (do, o), stats, (q_full, o_empty, d_full), LSE_GRADIENT, WITH_DELTA)


# ---- computing -------------------------------------------------------------------------------------------------------
@gluon.jit
def bounds_of(c, r, sizes, window):
    """Of key tile c: (each key's first query, the one after its last, of the tile the first from which all see, and
    the last before which all do).
    """
    left, right = window
    length, first = sizes[5], c * TILE - sizes[4]
    key = first + r
    inside = (key >= 0) & (key < length)
    low = gl.where(inside, key - right, 0)
    high = gl.where(inside, gl.minimum(key + left + 1, length), 0)
    whole = (first >= 0) & (first + TILE <= length)
    return low, high, gl.where(whole, first + TILE - 1 - right, length), gl.where(whole, first + left + 1, 0)


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
    if (i * TILE < every) | (i * TILE + TILE > until):
        words, bit = seen(low - i * TILE, high - i * TILE, columns)
        p = masked(p, words, bit, 0.0)
        y = masked(y, words, bit, 0.0)  # whatever lies in a key that no query sees
    return p, p * y


@gluon.jit
def send(box, where, to, values):
    """Results, through memory that nothing reads any more."""
    matrix(to).store(values)
    fence_async_shared()
    tma.async_copy_shared_to_global(box, where, to)


@gluon.jit
def given_back(due, k_empty):
    """Once results were read that are on their way: the memory of a tile, if it has a number. Then none are: -2."""
    if due >= -1:
        tma.store_wait(0)
    if due >= 0:
        mbarrier.arrive(k_empty.index(due), count=1)
    return -2


@gluon.jit
def made(n, s_empty):
    """Wait for the n-th dQ, if there is one."""
    if n >= 0:
        mbarrier.wait(s_empty.index(n & 1), (n >> 1) & 1)


@gluon.jit
def query_gradient(G, of_query, told, zero):
    """Write one dQ, from what the groups left. of_query: which of all, its tile, its box, the place of its first keys,
    whether these are needed no more.
    """
    written, rings, _, scores, _, bars, _, _, scale = told
    k, k_full, k_empty, s_full, s_empty = rings[2], bars[2], bars[3], bars[5], bars[6]
    n, i, where, place, last = of_query
    half = n & 1
    mbarrier.wait(s_full.index(half), (n >> 1) & 1)
    dq = zero
    for t in gl.static_range(GROUPS):
        at = (place + t) % KEYS
        mbarrier.wait(k_full.index(at), over(place + t, KEYS))
        of_tile = matrix(scores.index(half * GROUPS + (i + t) % GROUPS))
        dq = warpgroup_mma(of_tile.permute((1, 0)), matrix(k.index(at)), dq, is_async=True)
    dq = warpgroup_mma_wait(0, (dq,))
    mbarrier.arrive(s_empty.index(half), count=1)
    if last:
        mbarrier.arrive(k_empty.index(place % KEYS), count=1)
    send(written[0], where, scores.index(half * GROUPS + G), (dq * scale).to(gl.bfloat16))


@gluon.jit
def add(G, sums, at, told, sides):
    """(dK, dV, due) with what a group's key tile has of query tile i, and that left for dQ. sums: they, whether this is
    more of the tile, and what is due; at: (i, first tile whose dQ is made, key tile, how many query tiles and key
    tiles went before, which dQ); sides: (rows, columns) of a tile.
    """
    dk, dv, more, due = sums
    i, begin, c, s, place, n = at
    _, rings, stats, scores, _, bars, sizes, window, scale = told
    q, do, k, v = rings
    q_full, q_empty, k_full, k_empty, d_full, s_full, s_empty = bars
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=dk.type.layout, k_width=2)
    slot, mine = s % QUERIES, place % KEYS
    mbarrier.wait(q_full.index(slot), over(s, QUERIES))
    mbarrier.wait(k_full.index(mine), over(place, KEYS))
    walked = matrix(q.index(slot)), matrix(do.index(slot))
    numbers = stats.index(2 * slot), stats.index(2 * slot + 1), d_full.index(slot), over(s, QUERIES)
    bounds = bounds_of(c, sides[0], sizes, window)
    p, ds = pair(i, (matrix(k.index(mine)), matrix(v.index(mine))), walked, numbers, bounds, sides[1], scale * LOG2E)
    dv = warpgroup_mma(gl.convert_layout(p.to(gl.bfloat16), factor), walked[1], dv, use_acc=more, is_async=True)
    ds = ds.to(gl.bfloat16)
    due = given_back(due, k_empty)
    if i >= begin:
        made(n - 2, s_empty)
        matrix(scores.index((n & 1) * GROUPS + G)).store(ds)
        fence_async_shared()
        mbarrier.arrive(s_full.index(n & 1), count=1)
    dk = warpgroup_mma(gl.convert_layout(ds, factor), walked[0], dk, use_acc=more, is_async=True)
    dv, dk = warpgroup_mma_wait(0, (dv, dk))
    mbarrier.arrive(q_empty.index(slot), count=1)
    return dk, dv, due


@gluon.jit
def write_keys(G, member, c, mine, dk, dv, told):
    """dK and dV of a key tile that is seen no more: dV through its own memory, whose place is `mine`."""
    written, rings, _, _, results, _, sizes, _, scale = told
    key = c * TILE - sizes[4]
    if (key >= 0) & (key < sizes[5]):  # else nothing is written: see `weft.planning.families.fused_backward`
        where = of_keys(member, key, sizes)
        send(written[1], where, results.index(G), (dk * scale).to(gl.bfloat16))
        send(written[2], where, rings[3].index(mine), dv.to(gl.bfloat16))


@gluon.jit
def compute(told):
    """One warp group: dK and dV of every third key tile, every third dQ."""
    G = which_group()
    bars, sizes = told[5], told[6]
    k_empty, s_empty = bars[3], bars[6]
    lies: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    sides = gl.arange(0, 64, layout=gl.SliceLayout(1, lies)), gl.arange(0, 64, layout=gl.SliceLayout(0, lies))
    zero = gl.zeros([64, 64], gl.float32, lies)
    share = sizes[7]
    s = 0  # query tiles of the ring
    n = 0  # dQ's
    base = 0  # key tiles of the ring before this run
    dk = zero
    dv = zero
    due = -2  # results on their way, see `given_back`
    for item in range(gl.program_id(0), sizes[0], gl.num_programs(0)):
        member, begin, end, first = run_of(item, sizes)
        member, begin, end, first = live(member), live(begin), live(end), live(first)
        c = first + (G + GROUPS - first % GROUPS) % GROUPS
        i = first
        h = 0  # of the heads that share keys, walked one after the other
        for _ in range(first * share, end * share):
            s = live(s)  # 0.975 of the time, as in `group_queries.walk`
            place = base + c - first
            more = (h > 0) | (i > gl.maximum(first, c - LEAD))  # than this of the key tile
            dk, dv, due = add(G, (dk, dv, more, due), (i, begin, c, s, place, n), told, sides)
            before, of_head = gl.where(h == 0, i - 1, i), gl.where(h == 0, share, h) - 1
            if (before >= begin) & ((n - 1) % GROUPS == G):
                where = of_queries(member, of_head, before * TILE, sizes)
                of_query = n - 1, before, where, base + before - first, h == 0
                query_gradient(G, of_query, told, zero)
                due = gl.where(due < 0, -1, due)
            n += gl.where(i >= begin, 1, 0)
            s += 1
            h += 1
            if h == share:
                if i == c:
                    if c >= begin:
                        write_keys(G, member, c, place % KEYS, dk, dv, told)
                        due = place % KEYS
                    else:
                        mbarrier.arrive(k_empty.index(place % KEYS), count=2)
                    c += GROUPS
                i += 1
                h = 0
        if (n - 1) % GROUPS == G:
            made(n - 2, s_empty)  # by another group, of key tiles that are given back after the last one
            where = of_queries(member, share - 1, (end - 1) * TILE, sizes)
            of_query = n - 1, end - 1, where, base + end - 1 - first, True
            query_gradient(G, of_query, told, zero)
            due = gl.where(due < 0, -1, due)
        due = given_back(due, k_empty)
        base += end - first + LEAD
        if c < end + LEAD:  # a tile of the next run
            made(n - 1, s_empty)
            mbarrier.arrive(k_empty.index((base - LEAD + c - end) % KEYS), count=2)


@gluon.jit
def like_before(told):
    """`compute`, of the groups after the first one."""
    if COPIES:
        compute(told)
    else:
        like_the_group_before()


@gluon.jit
def gradients(
    boxes, rows, written, sizes, window, scale, LSE_GRADIENT: gl.constexpr, WITH_DELTA: gl.constexpr
):  # fmt: skip
    """boxes: descriptors of Q, K, V, dO and O; written: of dQ, dK and dV. rows: pointers to lse, to its gradient if it
    has one, and to where what scores subtract is wanted, if it is. sizes: (items, runs of a head, key tiles of a
    run, of a head, shift, tokens, heads of keys, heads of queries to each); window: keys that a query sees before and
    after its own.
    """
    q, do, o = room_of_boxes(boxes[0], QUERIES), room_of_boxes(boxes[3], QUERIES), room_of_boxes(boxes[4], 2)
    k, v = room_of_boxes(boxes[1], KEYS), room_of_boxes(boxes[2], KEYS)
    scores, results = room_of_boxes(written[0], 2 * GROUPS), room_of_boxes(written[1], GROUPS)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    stats = gl.allocate_shared_memory(gl.float32, [2 * QUERIES, 64], flat)
    q_full, q_empty = barriers(QUERIES, 1), barriers(QUERIES, GROUPS)
    k_full, k_empty = barriers(KEYS, 1), barriers(KEYS, 2)  # by who wrote dV, and by who made the last dQ
    o_empty, d_full = barriers(2, 1), barriers(QUERIES, 1)
    s_full, s_empty = barriers(2, GROUPS), barriers(2, 1)
    asked = (boxes, rows, (q, do, k, v, o), stats, (q_full, q_empty, k_full, k_empty, o_empty, d_full), sizes)
    bars = (q_full, q_empty, k_full, k_empty, d_full, s_full, s_empty)
    told = (written, (q, do, k, v), stats, scores, results, bars, sizes, window, scale)
    gl.static_assert(GROUPS == 3)
    gl.warp_specialize([
        (fetch, (asked, LSE_GRADIENT, WITH_DELTA)), (compute, (told,)), (like_before, (told,)), (like_before, (told,)),
    ], [4, 4, 4], [COMPUTES, COMPUTES, COMPUTES])  # fmt: skip
