# ruff: noqa: PLR0913, SIM113 - kernels take as many arguments as they need, and Gluon is not all of Python
"""dK and dV by warp groups that specialise, for short runs on Hopper: one loads, the others compute. Functions of
Gluon, inlined into an emitted kernel (docs/decisions/0010-warp-groups-that-specialise.md).

A program lives as long as the launch and takes blocks of WIDE x 64 keys in turn. Four warps ask for tiles, as far ahead
as there are stages, across blocks; each of WIDE groups of four more has 64 keys of the block, and passes over those
tiles that none of them sees. Head dimension 64, 16 bits, one clipped line a side; tables as every kernel reads them.

tensors: (pointer, strides of batch, head and row in 16 bytes). tables: (Tables, record, parts_at, items_at, heads_at,
blocks_at, blocks), see `weft.kernels.gpu.tables.pack`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from weft.kernels.gpu import constants
from weft.kernels.gpu.ops.bounds import positions
from weft.kernels.gpu.tables import pack

UNIT, TILE = gl.constexpr(8), gl.constexpr(64)  # elements in 16 bytes; queries of a tile
STATS, MEMBER, PART = (gl.constexpr(x) for x in (constants.STATS, pack.HEAD, pack.PART))
LOG2E = gl.constexpr(1.4426950408889634)
# Of a part's numbers those that `bounds` takes: step, length, the step's reciprocal, and two clipped lines.
LINES = pack.PART + pack.AXIS
OF_BOUNDS = gl.constexpr((*(pack.PART + n for n in (0, 2, 4, 5)), *(LINES + n for n in (0, 3, 4, 5, 16, 19, 20, 21))))
# Registers of a thread that computes and of one that loads; the first group has what the others leave of 3 x 168.
COMPUTES, LOADS = gl.constexpr(224), gl.constexpr(56)
LOADERS = gl.constexpr(4)  # warps that load


@gluon.jit
def live(x):
    """x, of which nothing is known: Triton 3.6 drops a carried scalar that only bounds a loop, and keeps its first."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def turn(i, STAGES: gl.constexpr):
    """How often the ring was full before tile i, as its barriers count: 0 or 1."""
    return ((i & STAGES) != 0).to(gl.int32)


@gluon.jit
def skip(count, i, full, empty, STAGES: gl.constexpr):
    """Pass over tiles that others see: waited for too, because who arrives early is counted for the tile before."""
    for _ in range(0, count):
        mbarrier.wait(full.index(i & (STAGES - 1)), turn(i, STAGES))
        mbarrier.arrive(empty.index(i & (STAGES - 1)), count=1)
        i += 1
    return i


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """So many, each with so many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for x in gl.static_range(COUNT):
        mbarrier.init(made.index(x), count=ARRIVALS)
    return made


@gluon.jit
def room(dtype: gl.constexpr, COUNT: gl.constexpr, WIDTH: gl.constexpr):
    """For so many tiles of 64 rows, as products read them."""
    lies: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, WIDTH], dtype)
    return gl.allocate_shared_memory(dtype, [COUNT, 64, WIDTH], lies)


# ---- where things are ------------------------------------------------------------------------------------------------
@gluon.jit
def block_at(number, tables):
    """(item, member) of a program's block, or beyond the last one of that; see `tables.tile_scheduler`."""
    at = tables[0] + tables[5] + 2 * gl.minimum(number, tables[6] - 1)
    return gl.load(at), gl.load(at + 1)


@gluon.jit
def places_of(tables, where):
    """Where the numbers of a block's member and of its item are."""
    Tables, record, _, items_at, heads_at, _, _ = tables
    item, member = where
    return Tables + heads_at + MEMBER * member, Tables + items_at + record * item


@gluon.jit
def numbers(tables, where):
    """Of a block, see `places_of`: (batch row, head of keys, of queries, first row, rows, first query,
    queries).
    """
    member, mine = places_of(tables, where)
    return (
        gl.load(member), gl.load(member + 1), gl.load(member + 2), gl.load(mine), gl.load(mine + 1), gl.load(mine + 2),
        gl.load(mine + 3),
    )  # fmt: skip


@gluon.jit
def head_of(tensor, batch, head, row):
    """Where a row of a head begins."""
    pointer, per_batch, per_head, per_row = tensor
    return pointer + (batch.to(gl.int64) * per_batch + head.to(gl.int64) * per_head + row.to(gl.int64) * per_row) * UNIT


@gluon.jit
def axis_of(here):
    """The numbers of `bounds`, read once."""
    return (
        gl.load(here + OF_BOUNDS[0]), gl.load(here + OF_BOUNDS[1]), gl.load(here + OF_BOUNDS[2]),
        gl.load(here + OF_BOUNDS[3]), gl.load(here + OF_BOUNDS[4]), gl.load(here + OF_BOUNDS[5]),
        gl.load(here + OF_BOUNDS[6]), gl.load(here + OF_BOUNDS[7]), gl.load(here + OF_BOUNDS[8]),
        gl.load(here + OF_BOUNDS[9]), gl.load(here + OF_BOUNDS[10]), gl.load(here + OF_BOUNDS[11]),
    )  # fmt: skip


@gluon.jit
def bounds(axis, i, first, count):
    """Positions among the walked from `first` on that rows i see, the first and the one after the last; as `lines` of
    `weft.kernels.gpu.ops.bounds`, whose numbers were read before.
    """
    step, length, inverse, digits, rise, base, least, most, rise_to, base_to, least_to, most_to = axis
    low = gl.maximum(gl.minimum(gl.maximum(i * rise + base, least), most), 0)
    high = gl.minimum(gl.minimum(gl.maximum(i * rise_to + base_to, least_to), most_to), length)
    low = positions(low, first, step, inverse, digits)
    return low, gl.minimum(positions(high, first, step, inverse, digits), count)


# ---- loading ---------------------------------------------------------------------------------------------------------
@gluon.jit
def copy(to, at, rows, tensor, d):
    """Ask for rows (64,) from `at` on."""
    async_copy.async_copy_global_to_shared(to, at + (gl.expand_dims(rows * (tensor[3] * UNIT), 1) + d))


@gluon.jit
def load(asked, WIDE: gl.constexpr, STAGES: gl.constexpr, CHAINED: gl.constexpr):
    """Keys and values of each group, two blocks ahead at most; queries, dO and their numbers STAGES tiles ahead."""
    keys, walked, rows, rings, bars, tables, numbers_of = asked
    K, V = keys
    Q, DO, Stats = walked
    k, v = rows
    q, do, stats = rings
    k_full, k_empty, full, empty = bars
    all_heads, their_length, _ = numbers_of
    lies: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [LOADERS, 1], [1, 0])
    beside: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [LOADERS, 1], [1, 0])
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, lies))
    d = gl.expand_dims(gl.arange(0, 64, layout=gl.SliceLayout(0, lies)), 0)
    r_stat = gl.arange(0, 64, layout=gl.SliceLayout(1, beside))
    stat = gl.expand_dims(gl.arange(0, STATS, layout=gl.SliceLayout(0, beside)), 0)
    Tables, parts_at = tables[0], tables[2]
    here = Tables + parts_at
    origin, pace = gl.load(Tables), gl.load(Tables + 3)
    their_origin, step = gl.load(here), gl.load(here + PART)
    i = 0
    t = 0
    where = block_at(gl.program_id(0), tables)
    for number in range(gl.program_id(0), tables[6], gl.num_programs(0)):
        batch, kv_head, head, start, height, first, count = numbers(tables, where)
        where = block_at(number + gl.num_programs(0), tables)
        k_at, v_at = head_of(K, batch, kv_head, origin + start), head_of(V, batch, kv_head, origin + start)
        for c in gl.static_range(WIDE):
            place = 2 * c + (t & 1)
            row = gl.minimum(r + c * 64, height - 1) * pace
            mbarrier.wait(k_empty.index(place), ((t >> 1) & 1) ^ 1)
            copy(k.index(place), k_at, row, K, d)
            copy(v.index(place), v_at, row, V, d)
            # products see these copies without a fence: as in Triton's own loops, and in CUTLASS's kernels of this kind
            async_copy.mbarrier_arrive(k_full.index(place), increment_count=False)
        if CHAINED and t == 0:
            gdc_wait()  # for what the launch before this one leaves: Stats
        base = their_origin + first
        q_at, do_at = head_of(Q, batch, head, base), head_of(DO, batch, head, base)
        stats_at = Stats + ((batch.to(gl.int64) * all_heads + head) * their_length + base) * STATS
        for j in range(0, (count + TILE - 1) // TILE):
            at = i & (STAGES - 1)
            passed = (j * TILE * step).to(gl.int64)
            last = count - 1 - j * TILE
            row, row_stat = gl.minimum(r, last) * step, gl.minimum(r_stat, last) * step
            mbarrier.wait(empty.index(at), turn(i, STAGES) ^ 1)
            copy(q.index(at), q_at + passed * (Q[3] * UNIT), row, Q, d)
            copy(do.index(at), do_at + passed * (DO[3] * UNIT), row, DO, d)
            more = gl.expand_dims(row_stat * STATS, 1) + stat
            async_copy.async_copy_global_to_shared(stats.index(at), stats_at + passed * STATS + more)
            async_copy.mbarrier_arrive(full.index(at), increment_count=False)
            i += 1
        t += 1


# ---- computing -------------------------------------------------------------------------------------------------------
@gluon.jit
def bits_from(x):
    """Of the columns that a thread has of a row, 8 * (k // 2) + k % 2, the bits k of those from x on."""
    x = gl.minimum(gl.maximum(x, 0), TILE)
    count = 2 * (x >> 3) + gl.minimum(x & 7, 2)
    return gl.inline_asm_elementwise("shl.b32 $0, -1, $1;", "=r,r", [count], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def seen(low, high, columns):
    """(words, bits) to be and-ed: where low <= column < high. Predicates are made of words seven at a time."""
    lane = gl.expand_dims(columns & 6, 0)
    bit = gl.expand_dims(1 << (((columns >> 3) << 1) | (columns & 1)), 0)
    low, high = gl.expand_dims(low, 1) - lane, gl.expand_dims(high, 1) - lane
    return gl.broadcast(bits_from(low) & ~bits_from(high), bit)


@gluon.jit
def masked(x, words, bit, other):
    """x where it is seen, else another number."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; and.b32 t, $2, $3; setp.ne.s32 p, t, 0; selp.f32 $0, $1, $4, p; }",
        "=f,f,r,r,f", [x, words, bit, other], dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def in_parts(p):
    """Sums of a row in parts, one of each thread that has a part of it."""
    return gl.sum(gl.sum(gl.reshape(p, [64, 8, 4, 2]), 3), 1)


@gluon.jit
def keep(sums, tensor, place, C: gl.constexpr):
    """Write one group's rows of a gradient; place: (batch row, head, first row, rows, step)."""
    batch, head, first, height, pace = place
    lies: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, lies)) + C * 64
    d = gl.expand_dims(gl.arange(0, 64, layout=gl.SliceLayout(0, lies)), 0)
    at = head_of(tensor, batch, head, first) + (gl.expand_dims(r * pace * (tensor[3] * UNIT), 1) + d)
    sums = gl.convert_layout(sums.to(tensor[0].dtype.element_ty), lies)
    gl.store(at, sums, mask=gl.expand_dims(r < height, 1))


@gluon.jit
def share_of(axis, first_row, r, pace, height, first, count):
    """Of a group's 64 rows r of a block: (each row's bounds, the first tile that any of them sees and the one after the
    last, tiles below and from which bounds cut). Lines rise or fall, so that of all rows the first and the last say it.
    """
    tiles = (count + TILE - 1) // TILE
    low, high = bounds(axis, first_row + gl.minimum(r[0] + r[1], height - 1) * pace, first, count)
    low_0, high_0 = bounds(axis, first_row + gl.minimum(r[1], height - 1) * pace, first, count)
    low_1, high_1 = bounds(axis, first_row + gl.minimum(r[1] + 63, height - 1) * pace, first, count)
    end = gl.minimum((gl.maximum(high_0, high_1) + TILE - 1) // TILE, tiles)
    end = gl.where(height > r[1], end, 0)
    begin = gl.minimum(gl.minimum(low_0, low_1) // TILE, end)
    below = (gl.maximum(low_0, low_1) + TILE - 1) // TILE
    return low, high, begin, end, below, gl.minimum(high_0, high_1) // TILE


@gluon.jit
def pair(s, mine, walked, ones, bounds_of, columns, scale2):
    """(p, ds) of a group's keys and tile s of queries, float32. mine: K, V; walked: Q, dO, their numbers; ones: what
    adds the numbers of lse and of delta to a product; bounds_of: see `share_of`.
    """
    k, v = mine
    queries, outs, numbers_of = walked
    low, high, below, beyond = bounds_of
    none = gl.zeros([64, 64], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
    x = warpgroup_mma(ones[0], numbers_of, none, use_acc=False, is_async=True)
    x = warpgroup_mma(k, queries.permute((1, 0)), x, is_async=True)
    y = warpgroup_mma(ones[1], numbers_of, none, use_acc=False, is_async=True)
    y = warpgroup_mma(v, outs.permute((1, 0)), y, is_async=True)
    x = warpgroup_mma_wait(2, (x,))
    p = gl.exp2(x * scale2)
    y = warpgroup_mma_wait(0, (y,))
    if (s < below) | (s >= beyond):
        words, bit = seen(low - s * TILE, high - s * TILE, columns)
        p = masked(p, words, bit, 0.0)
        y = masked(y, words, bit, 0.0)  # whatever lies in a key that no query sees
    return p, p * y


@gluon.jit
def gradients(C: gl.constexpr, told, STAGES: gl.constexpr):
    """dK and dV of one warp group's keys, block after block."""
    written, rows, rings, bars, tables, scale = told
    DK, DV = written
    dtype: gl.constexpr = DK[0].dtype.element_ty
    lies: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=lies, k_width=2)
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, lies))
    columns = gl.arange(0, TILE, layout=gl.SliceLayout(0, lies))
    zero = gl.zeros([64, 64], gl.float32, lies)
    # what adds the numbers of lse, or of delta, to a product
    stat = gl.expand_dims(gl.arange(0, STATS, layout=gl.SliceLayout(0, factor)), 0)
    every = gl.expand_dims(gl.arange(0, 64, layout=gl.SliceLayout(1, factor)), 1) >= 0
    of_lse, of_delta = (stat < 8) & every, (stat >= 8) & every
    ones = (gl.where(of_lse, 1.0, 0.0).to(gl.bfloat16), gl.where(of_delta, 1.0, 0.0).to(gl.bfloat16))
    k_rows, v_rows = rows
    q, do, stats = rings
    k_full, k_empty, full, empty = bars
    Tables, parts_at = tables[0], tables[2]
    here = Tables + parts_at
    origin, pace = gl.load(Tables), gl.load(Tables + 3)
    axis = axis_of(here)
    scale2 = scale * LOG2E
    i = 0
    t = 0
    programs = gl.num_programs(0)
    mine = numbers(tables, block_at(gl.program_id(0), tables))
    where = block_at(gl.program_id(0) + programs, tables)
    for number in range(gl.program_id(0), tables[6], programs):
        place = 2 * C + (t & 1)
        batch, kv_head, _, start, height, first, count = mine
        batch, kv_head, start = live(batch), live(kv_head), live(start)
        height, first, count = live(height), live(first), live(count)
        mine = numbers(tables, where)  # the next block's, long before they are needed
        where = block_at(number + 2 * programs, tables)
        low, high, begin, end, below, beyond = share_of(axis, start, (r, C * 64), pace, height, first, count)
        mine_of = (k_rows.index(place), v_rows.index(place))
        dk = zero
        dv = zero
        mbarrier.wait(k_full.index(place), (t >> 1) & 1)
        i = skip(begin, i, full, empty, STAGES)
        for s in range(begin, end):
            at = i & (STAGES - 1)
            mbarrier.wait(full.index(at), turn(i, STAGES))
            queries, outs = q.index(at), do.index(at)
            walked = (queries, outs, stats.index(at).permute((1, 0)))
            p, ds = pair(s, mine_of, walked, ones, (low, high, below, beyond), columns, scale2)
            ds = gl.convert_layout(ds.to(dtype), factor)
            weights = gl.convert_layout(p.to(dtype), factor)
            more_dv = warpgroup_mma(weights, outs, dv, is_async=True)
            more_dk = warpgroup_mma(ds, queries, dk, is_async=True)
            dv, dk = warpgroup_mma_wait(0, (more_dv, more_dk))
            mbarrier.arrive(empty.index(at), count=1)
            i += 1
        mbarrier.arrive(k_empty.index(place), count=1)
        i = skip((count + TILE - 1) // TILE - end, i, full, empty, STAGES)
        block = (batch, kv_head, origin + start, height, pace)
        keep(dk * scale, DK, block, C)
        keep(dv, DV, block, C)
        t += 1


@gluon.jit
def key_gradients(
    keys, walked, written, tables, numbers_of, WIDE: gl.constexpr, STAGES: gl.constexpr, CHAINED: gl.constexpr,
):  # fmt: skip
    """dK and dV of one term. keys: K, V; walked: Q, dO and the pointer Stats; written: DK, DV; numbers_of: (heads of
    queries, queries, scale).
    """
    dtype: gl.constexpr = keys[0][0].dtype.element_ty
    rows = room(dtype, 2 * WIDE, 64), room(dtype, 2 * WIDE, 64)
    rings = room(dtype, STAGES, 64), room(dtype, STAGES, 64), room(gl.bfloat16, STAGES, STATS)
    bars = (
        barriers(2 * WIDE, 32 * LOADERS),
        barriers(2 * WIDE, 1),
        barriers(STAGES, 32 * LOADERS),
        barriers(STAGES, WIDE),
    )
    told = (written, rows, rings, bars, tables, numbers_of[2])
    asked = (keys, walked, rows, rings, bars, tables, numbers_of)
    gl.static_assert(WIDE == 2)
    gl.warp_specialize([
        (gradients, (0, told, STAGES)), (gradients, (1, told, STAGES)), (load, (asked, WIDE, STAGES, CHAINED)),
    ], [4, LOADERS], [COMPUTES, LOADS])  # fmt: skip
