# ruff: noqa: PLR0913, SIM113, SIM102 - kernels take as many arguments as they need, and Gluon is not all of Python
"""dQ: warp groups that have queries, and what dK and dV take of these."""

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

from specialised.pieces import after, begin, cut, own, produce, tiles
from weft.kernels.gpu.hopper.ops.channel import Channel, barriers, phase_of
from weft.kernels.gpu.hopper.ops.values import opaque


@gluon.jit
def leave_stats(Stats, row, lse, delta, scale):
    """What weft's dK and dV take of 64 rows from `row` on: lse and delta as sums of three numbers of bfloat16
    (`weft.kernels.gpu.constants.STATS`); both along one axis of any layout.
    """
    beside: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, beside))
    stat = gl.expand_dims(gl.arange(0, 16, layout=gl.SliceLayout(0, beside)), 0)
    of_lse = gl.convert_layout(-lse / scale, gl.SliceLayout(1, beside))
    of_delta = gl.convert_layout(-delta, gl.SliceLayout(1, beside))
    stats = gl.zeros([64, 16], gl.float32, beside)
    for part in gl.static_range(3):
        upper, upper_delta = of_lse.to(gl.bfloat16).to(gl.float32), of_delta.to(gl.bfloat16).to(gl.float32)
        stats = gl.where(stat == part, gl.expand_dims(upper, 1), stats)
        stats = gl.where(stat == part + 8, gl.expand_dims(upper_delta, 1), stats)
        of_lse, of_delta = of_lse - upper, of_delta - upper_delta
    gl.store(Stats + row.to(gl.int64) * 16 + gl.expand_dims(rows * 16, 1) + stat, stats.to(gl.bfloat16))


@gluon.jit
def number(told, WIDE: gl.constexpr):
    """What queries subtract, for all groups, block after block: one of four warps that walks no keys."""
    do_rows, o_rows, deltas, bars, Lse, Stats, Table, items, blocks, heads, length, scale = told
    q_full, q_empty, o_full, o_empty, d_full, d_empty = bars
    lies: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    of_rows: gl.constexpr = gl.SliceLayout(1, lies)
    r = gl.arange(0, 64, layout=of_rows)
    n = gl.num_programs(0)
    head, block = begin(blocks, heads)
    t = 0
    for _ in range(gl.program_id(0), items, n):
        first = gl.load(Table + block * 32)
        for c in gl.static_range(WIDE):
            place = 2 * c + (t & 1)
            row = head * length + first + c * 64
            lse = gl.load(Lse + row + r)
            mbarrier.wait(q_full.index(place), (t >> 1) & 1)
            mbarrier.wait(o_full.index(c), t & 1)
            do, o = do_rows.index(place).reshape([64, 64]).load(lies), o_rows.index(c).reshape([64, 64]).load(lies)
            delta = gl.sum(do.to(gl.float32) * o.to(gl.float32), 1)
            mbarrier.arrive(o_empty.index(c), count=1)
            mbarrier.arrive(q_empty.index(place), count=1)
            mbarrier.wait(d_empty.index(place), ((t >> 1) & 1) ^ 1)
            deltas.index(place).store(delta)
            mbarrier.arrive(d_full.index(place), count=1)
            leave_stats(Stats, row, gl.where(lse == float("-inf"), 0.0, lse), delta, scale)
        t += 1
        head, block = after(head, block, n, heads)


@gluon.jit
def gradient(
    C: gl.constexpr, dq_desc, told, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, APART: gl.constexpr
):
    """dQ of one warp group's queries. APART: `number` finds what they subtract, in the place of O here."""
    rows, results, rings, bars, Lse, Stats, Table, Bounds, items, blocks, heads, length, scale = told
    D: gl.constexpr = 64
    lies: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=lies, k_width=2)
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, lies))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, lies))
    zero = gl.zeros([64, 64], gl.float32, lies)
    q_rows, do_rows, o_rows = rows
    k, v = rings
    q_full, q_empty, o_full, o_empty, full, empty = bars
    result = results.index(C)
    scale2 = scale * 1.4426950408889634
    n = gl.num_programs(0)
    head, block = begin(blocks, heads)
    i = 0
    t = 0
    mine = own(C, Table, Bounds, block, blocks, r, WIDE, TERMS)
    lse = gl.load(Lse + head * length + mine[0] + r)
    for _ in range(gl.program_id(0), items, n):
        place = 2 * C + (t & 1)
        first, n_0, n_1, f_0, l_0, f_1, l_1, cut_0, cut_1, low_0, high_0, low_1, high_1 = mine
        n_0, n_1, f_0, l_0, f_1, l_1 = opaque(n_0), opaque(n_1), opaque(f_0), opaque(l_0), opaque(f_1), opaque(l_1)
        head_2, block = after(head, block, n, heads)
        mine = own(C, Table, Bounds, block, blocks, r, WIDE, TERMS)
        lse_2 = gl.load(Lse + head_2 * length + mine[0] + r)
        q = q_rows.index(place).reshape([64, D])
        do = do_rows.index(place).reshape([64, D])
        acc = zero
        mbarrier.wait(q_full.index(place), (t >> 1) & 1)
        lse = gl.where(lse == float("-inf"), 0.0, lse)
        if APART:
            mbarrier.wait(o_full.index(place), (t >> 1) & 1)
            delta = o_rows.index(place).load(gl.SliceLayout(1, lies))
            mbarrier.arrive(o_empty.index(place), count=1)
        else:
            mbarrier.wait(o_full.index(C), t & 1)
            o = o_rows.index(C).reshape([64, D])
            delta = gl.sum(do.load(lies).to(gl.float32) * o.load(lies).to(gl.float32), 1)
            mbarrier.arrive(o_empty.index(C), count=1)
            leave_stats(Stats, head * length + first, lse, delta, scale)
        lse2 = lse * 1.4426950408889634
        i = Channel(full, empty, 0, STAGES, True).pass_over(i, f_0)
        m_0 = l_0 - f_0
        for s in range(0, m_0 + l_1 - f_1):
            if TERMS == 2:
                if s == m_0:
                    i = Channel(full, empty, 0, STAGES, True).pass_over(i, n_0 - l_0 + f_1)
            j = gl.where(s >= m_0, s - m_0 + f_1, s + f_0)
            at = i & (STAGES - 1)
            mbarrier.wait(full.index(at), phase_of(i, STAGES, True))
            keys = k.index(at).reshape([64, D])
            x = warpgroup_mma(q, keys.permute((1, 0)), zero, use_acc=False, is_async=True)
            y = warpgroup_mma(do, v.index(at).reshape([64, D]).permute((1, 0)), zero, use_acc=False, is_async=True)
            x = warpgroup_mma_wait(1, (x,))
            x = cut(x, j, (s >= m_0, low_0, high_0, cut_0, low_1, high_1, cut_1), columns, TERMS)
            p = gl.exp2(x * scale2 - gl.expand_dims(lse2, 1))
            y = warpgroup_mma_wait(0, (y,))
            ds = gl.convert_layout((p * (y - gl.expand_dims(delta, 1))).to(gl.bfloat16), factor)
            z = warpgroup_mma(ds, keys, acc, is_async=True)
            acc = warpgroup_mma_wait(0, (z,))
            mbarrier.arrive(empty.index(at), count=1)
            i += 1
        mbarrier.arrive(q_empty.index(place), count=1)
        i = Channel(full, empty, 0, STAGES, True).pass_over(i, gl.where(l_1 > f_1, n_1 - l_1, n_0 - l_0 + n_1))
        tma.store_wait(0)
        result.reshape([64, D]).store((acc * scale).to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(dq_desc, [head, first, 0], result)
        head, lse = head_2, lse_2
        t += 1
    tma.store_wait(0)


@gluon.jit
def backward(
    q_desc, k_desc, v_desc, k_far, v_far, do_desc, o_desc, dq_desc, Lse, Stats, Table, Bounds, items, blocks, heads,
    length, scale, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, REGISTERS: gl.constexpr,
    APART: gl.constexpr,
):  # fmt: skip
    """dQ of one or two terms. Table, Bounds: see `specialised_warps.tables`."""
    q, do, o, results = tiles(q_desc, 2 * WIDE), tiles(q_desc, 2 * WIDE), tiles(q_desc, WIDE), tiles(q_desc, WIDE)
    k, v = tiles(k_desc, STAGES), tiles(v_desc, STAGES)
    q_full, q_empty = barriers(2 * WIDE, 1), barriers(2 * WIDE, 2 if APART else 1)
    o_full, o_empty = barriers(WIDE, 1), barriers(WIDE, 1)
    full, empty = barriers(STAGES, 1), barriers(STAGES, WIDE)
    bars = (q_full, q_empty, o_full, o_empty, full, empty)
    descs = (q_desc, k_desc, v_desc, k_far, v_far, do_desc, o_desc)
    asked = (descs, (q, do, o), (k, v), bars, Table, items, blocks, heads)
    if APART:
        gl.static_assert(WIDE == 2)
        flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        deltas = gl.allocate_shared_memory(gl.float32, [2 * WIDE, 64], flat)
        d_full, d_empty = barriers(2 * WIDE, 1), barriers(2 * WIDE, 1)
        mine = (q_full, q_empty, d_full, d_empty, full, empty)
        told = ((q, do, deltas), results, (k, v), mine, Lse, Stats, Table, Bounds, items, blocks, heads, length, scale)
        theirs = (q_full, q_empty, o_full, o_empty, d_full, d_empty)
        numbered = (do, o, deltas, theirs, Lse, Stats, Table, items, blocks, heads, length, scale)
        gl.warp_specialize([
            (gradient, (0, dq_desc, told, WIDE, STAGES, TERMS, True)),
            (gradient, (1, dq_desc, told, WIDE, STAGES, TERMS, True)),
            (number, (numbered, WIDE)), (produce, (asked, WIDE, STAGES, TERMS)),
        ], [4, 4, 1], [REGISTERS, 96, 24])  # fmt: skip
    else:
        told = ((q, do, o), results, (k, v), bars, Lse, Stats, Table, Bounds, items, blocks, heads, length, scale)
        if WIDE == 2:
            gl.warp_specialize([
                (gradient, (0, dq_desc, told, WIDE, STAGES, TERMS, False)),
                (gradient, (1, dq_desc, told, WIDE, STAGES, TERMS, False)),
                (produce, (asked, WIDE, STAGES, TERMS)),
            ], [4, 1], [REGISTERS, 24])  # fmt: skip
        else:
            gl.warp_specialize([
                (gradient, (0, dq_desc, told, WIDE, STAGES, TERMS, False)),
                (gradient, (1, dq_desc, told, WIDE, STAGES, TERMS, False)),
                (gradient, (2, dq_desc, told, WIDE, STAGES, TERMS, False)),
                (produce, (asked, WIDE, STAGES, TERMS)),
            ], [4, 4, 1], [REGISTERS, REGISTERS, 24])  # fmt: skip
