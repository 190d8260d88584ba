# ruff: noqa: PLR0913, SIM113 - kernels take as many arguments as they need, and Gluon is not all of Python
"""What few keys beside a short window add to gradients, on Hopper, after the window's one walk: to dQ where it is, and
to dK and dV as sums of each program. Functions of Gluon, inlined into an emitted kernel
(docs/decisions/0010-warp-groups-that-specialise.md).

A program takes every so many tiles of the queries of a head of keys; each of two warp groups takes its own of them, and
keeps dK and dV of two tiles of keys in registers while they pass. First come the tiles of queries that see keys of the
first alone, then those that may see both (`families.sparse_keys`). A warp for each group asks for queries, dO and dQ
by tensor descriptors of (batch row, head, token, 1, channel), a tile ahead; dQ goes out from where it came in. Head
dimension 64, bfloat16.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from weft.kernels.gpu.hopper.ops.channel import barriers
from weft.kernels.gpu.hopper.ops.layouts import boxes as room_of_boxes
from weft.kernels.gpu.hopper.ops.layouts import matrix
from weft.kernels.gpu.hopper.ops.mask import mask_words as seen
from weft.kernels.gpu.hopper.ops.mask import masked
from weft.kernels.gpu.hopper.ops.values import LOG2E
from weft.kernels.gpu.hopper.ops.values import opaque as live
from weft.planning.families import sparse_keys as few

TILE = gl.constexpr(64)
GROUPS, TILES, EDGES, BOUNDS = (gl.constexpr(x) for x in (few.GROUPS, few.TILES, few.EDGES, few.TILES * few.TILE))
EDGES_AT, BOUNDS_AT = gl.constexpr(few.RANGES), gl.constexpr(few.RANGES + few.EDGES * few.TILES)
STAGES = gl.constexpr(2)  # tiles of queries of a group under way
COMPUTES, LOADS = gl.constexpr(240), gl.constexpr(24)  # registers of a thread that computes and of one that loads
COPIES = gl.constexpr(33)  # arrivals at a tile of queries: the boxes, and a warp's copies of numbers


# ---- where things are ------------------------------------------------------------------------------------------------
@gluon.jit
def over(s):
    """How often a group's ring was full before its tile s, as barriers count: 0 or 1."""
    return (s // STAGES) & 1


@gluon.jit
def slot(s, G: gl.constexpr):
    """Where tile s of a group is."""
    return G * STAGES + s % STAGES


@gluon.jit
def first_of(begin, mine, every):
    """The first tile from `begin` on that is `mine` of `every`."""
    return begin + (mine + every - begin % every) % every


@gluon.jit
def of_queries(member, h, i, sizes):
    """Where a box of queries is; h: which of the heads that share keys."""
    return [member // sizes[3], (member % sizes[3]) * sizes[4] + h, i * TILE, 0, 0]


# ---- loading ---------------------------------------------------------------------------------------------------------
@gluon.jit
def ask(G: gl.constexpr, s, member, span, asked):
    """Ask for the tiles of queries of a span: (first, end, by how much they rise)."""
    boxes, rows, rings, stats, bars, sizes = asked
    q, do, dq = rings
    full, empty = bars
    first, end, every = span
    r = gl.arange(0, 64, layout=gl.BlockedLayout([1], [32], [1], [0]))
    for h in range(0, sizes[4]):
        head = (member * sizes[4] + h).to(gl.int64)  # of all batch rows
        for i in range(first, end, every):
            at = slot(s, G)
            mbarrier.wait(empty.index(at), over(s) ^ 1)
            mbarrier.expect(full.index(at), 3 * boxes[0].block_type.nbytes)
            where = of_queries(member, h, i, sizes)
            tma.async_copy_global_to_shared(boxes[0], where, full.index(at), q.index(at))
            tma.async_copy_global_to_shared(boxes[1], where, full.index(at), do.index(at))
            tma.async_copy_global_to_shared(boxes[2], where, full.index(at), dq.index(at))
            row = head * sizes[2] + gl.minimum(i * TILE + r, sizes[2] - 1)
            async_copy.async_copy_global_to_shared(stats.index(2 * at), rows[0] + row)
            async_copy.async_copy_global_to_shared(stats.index(2 * at + 1), rows[1] + row)
            async_copy.mbarrier_arrive(full.index(at), increment_count=False)
            s += 1
    return s


@gluon.jit
def fetch(G: gl.constexpr, asked, keys, Table):
    """A group's tiles of queries; the first group's warp asks for keys and values too."""
    boxes, _, _, _, _, sizes = asked
    k, v, k_full, k_empty = keys
    begin, middle, end = gl.load(Table), gl.load(Table + 1), gl.load(Table + 2)
    every = GROUPS * sizes[1]
    s = 0
    n = 0
    for item in range(gl.program_id(0), sizes[0], gl.num_programs(0)):
        member, mine = item // sizes[1], GROUPS * (item % sizes[1]) + G
        if G == 0:
            mbarrier.wait(k_empty.index(0), (n & 1) ^ 1)
            mbarrier.expect(k_full.index(0), 2 * TILES * boxes[3].block_type.nbytes)
            for t in gl.static_range(TILES):
                where = [member // sizes[3], member % sizes[3], sizes[5] + t * TILE, sizes[6], 0]
                tma.async_copy_global_to_shared(boxes[3], where, k_full.index(0), k.index(t))
                tma.async_copy_global_to_shared(boxes[4], where, k_full.index(0), v.index(t))
        n += 1
        s = ask(G, s, member, (first_of(begin, mine, every), middle, every), asked)
        s = ask(G, s, member, (first_of(middle, mine, every), end, every), asked)


# ---- computing -------------------------------------------------------------------------------------------------------
@gluon.jit
def pair(t: gl.constexpr, i, mine, walked, numbers, Table, sides, scale2):
    """(p, ds) of key tile t and tile i of queries, float32."""
    k, v = mine
    queries, outs = walked
    lse, delta = numbers
    lies: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    none = gl.zeros([64, 64], gl.float32, lies)
    x = warpgroup_mma(k, queries.permute((1, 0)), none, use_acc=False, is_async=True)
    y = warpgroup_mma(v, outs.permute((1, 0)), none, use_acc=False, is_async=True)
    every, until = gl.load(Table + EDGES_AT + EDGES * t), gl.load(Table + EDGES_AT + EDGES * t + 1)
    cut = (i * TILE < every) | (i * TILE + TILE > until)
    words, bit = seen(sides[0] * 0, sides[0] * 0 + TILE, sides[1])
    if cut:  # while products run
        at = Table + BOUNDS_AT + t * TILE + sides[0]
        words, bit = seen(gl.load(at) - i * TILE, gl.load(at + BOUNDS) - i * TILE, sides[1])
    x = warpgroup_mma_wait(1, (x,))
    p = gl.exp2(x * scale2 - gl.expand_dims(lse.load(gl.SliceLayout(0, lies)) * LOG2E, 0))
    y = warpgroup_mma_wait(0, (y,))
    y = y - gl.expand_dims(delta.load(gl.SliceLayout(0, lies)), 0)
    if cut:
        p = masked(p, words, bit, 0.0)
        y = masked(y, words, bit, 0.0)
    return p, p * y


@gluon.jit
def add(t: gl.constexpr, G: gl.constexpr, sums, i, at, told, sides):
    """(dK, dV) of key tile t with what it has of tile i of queries, which is at `at`; ds is left for dQ."""
    dk, dv = sums
    _, rings, stats, scores, keys, _, _, Table, scale = told
    q, do, _ = rings
    k, v = keys
    here = live(t)  # places that are known are kept in registers from before the loop, and spilled
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=dk.type.layout, k_width=2)
    walked = matrix(q.index(at)), matrix(do.index(at))
    numbers = stats.index(2 * at), stats.index(2 * at + 1)
    mine = matrix(k.index(here)), matrix(v.index(here))
    p, ds = pair(t, i, mine, walked, numbers, Table, sides, scale * LOG2E)
    dv = warpgroup_mma(gl.convert_layout(p.to(gl.bfloat16), factor), walked[1], dv, is_async=True)
    ds = ds.to(gl.bfloat16)
    matrix(scores.index(here + G * TILES)).store(ds)
    dk = warpgroup_mma(gl.convert_layout(ds, factor), walked[0], dk, is_async=True)
    dv, dk = warpgroup_mma_wait(0, (dv, dk))
    return dk, dv


@gluon.jit
def add_to_query(G: gl.constexpr, COUNT: gl.constexpr, at, where, told, zero):
    """Add to dQ of a tile what so many tiles of keys left, and send it."""
    dq_box, rings, _, scores, keys, _, _, _, scale = told
    here = live(0)
    fence_async_shared()
    of_tile = matrix(scores.index(here + G * TILES)).permute((1, 0))
    dq = warpgroup_mma(of_tile, matrix(keys[0].index(here)), zero, use_acc=False, is_async=True)
    if COUNT == 2:
        of_tile = matrix(scores.index(here + G * TILES + 1)).permute((1, 0))
        dq = warpgroup_mma(of_tile, matrix(keys[0].index(here + 1)), dq, is_async=True)
    room = rings[2].index(at)
    before = matrix(room).load(zero.type.layout).to(gl.float32)
    dq = warpgroup_mma_wait(0, (dq,))
    matrix(room).store((dq * scale + before).to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(dq_box, where, room)


@gluon.jit
def begun(s, G: gl.constexpr, bars):
    """Wait for tile s; give back the one before, once its dQ was read."""
    full, empty = bars
    at = slot(s, G)
    mbarrier.wait(full.index(at), over(s))
    if s > 0:
        tma.store_wait(0)
        mbarrier.arrive(empty.index(slot(s - 1, G)), count=1)
    return at


@gluon.jit
def keep(to, sums, sides):
    """Leave dK and dV of a tile of keys, to be joined with those of other programs."""
    place = gl.expand_dims(sides[0] * 64, 1) + gl.expand_dims(sides[1], 0)
    gl.store(to + place, sums[0])
    gl.store(to + 4096 + place, sums[1])


@gluon.jit
def compute(G: gl.constexpr, told, Partial, k_bars):
    """One warp group: its tiles of queries."""
    bars, sizes, Table = told[5], told[6], told[7]
    k_full, k_empty = k_bars
    lies: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    sides = gl.arange(0, 64, layout=gl.SliceLayout(1, lies)), gl.arange(0, 64, layout=gl.SliceLayout(0, lies))
    zero = gl.zeros([64, 64], gl.float32, lies)
    begin, middle, end = gl.load(Table), gl.load(Table + 1), gl.load(Table + 2)
    every = GROUPS * sizes[1]
    s = 0
    n = 0
    for item in range(gl.program_id(0), sizes[0], gl.num_programs(0)):
        member, mine = item // sizes[1], GROUPS * (item % sizes[1]) + G
        mbarrier.wait(k_full.index(0), n & 1)
        n += 1
        dk = zero
        dv = zero
        for h in range(0, sizes[4]):
            for i in range(first_of(begin, mine, every), middle, every):
                s = live(s)
                at = begun(s, G, bars)
                dk, dv = add(0, G, (dk, dv), i, at, told, sides)
                add_to_query(G, 1, at, of_queries(member, h, i, sizes), told, zero)
                s += 1
        dk_more = zero
        dv_more = zero
        for h in range(0, sizes[4]):
            for i in range(first_of(middle, mine, every), end, every):
                s = live(s)
                at = begun(s, G, bars)
                dk, dv = add(0, G, (dk, dv), i, at, told, sides)
                dk_more, dv_more = add(1, G, (dk_more, dv_more), i, at, told, sides)
                add_to_query(G, 2, at, of_queries(member, h, i, sizes), told, zero)
                s += 1
        mbarrier.arrive(k_empty.index(0), count=1)
        to = Partial + (item.to(gl.int64) * GROUPS + G) * (TILES * 8192)
        keep(to, (dk, dv), sides)
        if middle < end:
            keep(to + 8192, (dk_more, dv_more), sides)
    tma.store_wait(0)


@gluon.jit
def add_gradients(boxes, rows, Partial, sizes, Table, scale):
    """boxes: descriptors of Q, dO, dQ, K and V. rows: pointers to lse and to what scores subtract. sizes: (items, parts
    of a head of keys, tokens, heads of keys, heads of queries to each, place and lane of the first key). Table: see
    `weft.planning.families.sparse_keys`. Partial: (items, groups, tiles of keys, 2, 64, 64).
    """
    q, do = room_of_boxes(boxes[0], GROUPS * STAGES), room_of_boxes(boxes[1], GROUPS * STAGES)
    dq, scores = room_of_boxes(boxes[2], GROUPS * STAGES), room_of_boxes(boxes[2], GROUPS * TILES)
    k, v = room_of_boxes(boxes[3], TILES), room_of_boxes(boxes[4], TILES)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    stats = gl.allocate_shared_memory(gl.float32, [2 * GROUPS * STAGES, 64], flat)
    bars = barriers(GROUPS * STAGES, COPIES), barriers(GROUPS * STAGES, 1)
    k_full, k_empty = barriers(1, 1), barriers(1, GROUPS)
    rings = (q, do, dq)
    asked, keys = (boxes, rows, rings, stats, bars, sizes), (k, v, k_full, k_empty)
    told, k_bars = (boxes[2], rings, stats, scores, (k, v), bars, sizes, Table, scale), (k_full, k_empty)
    gl.static_assert(GROUPS == 2)
    gl.warp_specialize([
        (compute, (0, told, Partial, k_bars)), (compute, (1, told, Partial, k_bars)),
        (fetch, (0, asked, keys, Table)), (fetch, (1, asked, keys, Table)),
    ], [4, 1, 1], [COMPUTES, LOADS, LOADS])  # fmt: skip
