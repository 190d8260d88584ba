# ruff: noqa: PLR0913, SIM113 - kernels take as many arguments as they need, and Gluon is not all of Python
"""dK and dV: warp groups that have keys."""

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

from specialised.pieces import after, begin, masked, own, tiles
from weft.kernels.triton.groups import barriers, live, skip, turn


@gluon.jit
def produce_keys(asked, WIDE: gl.constexpr, STAGES: gl.constexpr, TILE: gl.constexpr):
    """Keys and values of each group, two blocks ahead at most; queries, dO and their numbers STAGES tiles ahead."""
    descs, rows, rings, bars, Table, items, blocks, heads = asked
    k_desc, v_desc, q_desc, do_desc, stats_desc = descs
    k, v = rows
    q, do, stats = rings
    k_full, k_empty, full, empty = bars
    n = gl.num_programs(0)
    head, block = begin(blocks, heads)
    i = 0
    t = 0
    for _ in range(gl.program_id(0), items, n):
        record = Table + block * 32
        mine, first, count = gl.load(record), gl.load(record + 1), gl.load(record + 2)
        for c in gl.static_range(WIDE):
            place = 2 * c + (t & 1)
            ready = k_full.index(place)
            mbarrier.wait(k_empty.index(place), ((t >> 1) & 1) ^ 1)
            mbarrier.expect(ready, 2 * k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(k_desc, [head, mine + c * 64, 0], ready, k.index(place))
            tma.async_copy_global_to_shared(v_desc, [head, mine + c * 64, 0], ready, v.index(place))
        for s in range(0, count):
            at = i & (STAGES - 1)
            ready = full.index(at)
            mbarrier.wait(empty.index(at), turn(i, STAGES) ^ 1)
            mbarrier.expect(ready, 2 * q_desc.block_type.nbytes + stats_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(stats_desc, [head, first + s * TILE, 0], ready, stats.index(at))
            tma.async_copy_global_to_shared(q_desc, [head, first + s * TILE, 0], ready, q.index(at))
            tma.async_copy_global_to_shared(do_desc, [head, first + s * TILE, 0], ready, do.index(at))
            i += 1
        t += 1
        head, block = after(head, block, n, heads)


@gluon.jit
def gradients(C: gl.constexpr, descs, told, WIDE: gl.constexpr, STAGES: gl.constexpr, TILE: gl.constexpr):
    """dK and dV of one warp group's keys, over tiles of TILE queries."""
    D: gl.constexpr = 64
    dk_desc, dv_desc = descs
    rows, results, rings, bars, Table, Bounds, items, blocks, heads, scale = told
    pairs: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE, 16])
    lies: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=lies, k_width=2)
    of_stats: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=pairs, k_width=2)
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, pairs))
    columns = gl.arange(0, TILE, layout=gl.SliceLayout(0, pairs))
    none = gl.zeros([64, TILE], gl.float32, pairs)
    zero = gl.zeros([64, D], gl.float32, lies)
    # what adds the numbers of lse, or of delta, to a product
    stat = gl.expand_dims(gl.arange(0, 16, layout=gl.SliceLayout(0, of_stats)), 0)
    every = gl.expand_dims(gl.arange(0, 64, layout=gl.SliceLayout(1, of_stats)), 1) >= 0
    of_lse = gl.where((stat < 8) & every, 1.0, 0.0).to(gl.bfloat16)
    of_delta = gl.where((stat >= 8) & every, 1.0, 0.0).to(gl.bfloat16)
    k_rows, v_rows = rows
    dk_rows, dv_rows = results
    q, do, stats = rings
    k_full, k_empty, full, empty = bars
    dk_result, dv_result = dk_rows.index(C), dv_rows.index(C)
    scale2 = scale * 1.4426950408889634
    n = gl.num_programs(0)
    head, block = begin(blocks, heads)
    i = 0
    t = 0
    mine = own(C, Table, Bounds, block, blocks, r, WIDE, 1)
    for _ in range(gl.program_id(0), items, n):
        place = 2 * C + (t & 1)
        first, n_0, _, f_0, l_0, _, _, cut_0, _, low, high, _, _ = mine
        n_0, f_0, l_0 = live(n_0), live(f_0), live(l_0)
        head_2, block = after(head, block, n, heads)
        mine = own(C, Table, Bounds, block, blocks, r, WIDE, 1)
        k, v = k_rows.index(place).reshape([64, D]), v_rows.index(place).reshape([64, D])
        dk = zero
        dv = zero
        mbarrier.wait(k_full.index(place), (t >> 1) & 1)
        i = skip(f_0, i, full, empty, STAGES)
        for s in range(f_0, l_0):
            at = i & (STAGES - 1)
            mbarrier.wait(full.index(at), turn(i, STAGES))
            queries, outs = q.index(at).reshape([TILE, D]), do.index(at).reshape([TILE, D])
            numbers = stats.index(at).reshape([TILE, 16]).permute((1, 0))
            x = warpgroup_mma(of_lse, numbers, none, use_acc=False, is_async=True)
            x = warpgroup_mma(k, queries.permute((1, 0)), x, is_async=True)
            y = warpgroup_mma(of_delta, numbers, none, use_acc=False, is_async=True)
            y = warpgroup_mma(v, outs.permute((1, 0)), y, is_async=True)
            x = warpgroup_mma_wait(2, (x,))
            if (s < (cut_0 & 0xFFFF)) | (s >= (cut_0 >> 16)):
                x = masked(x, low - s * TILE, high - s * TILE, columns, TILE)
            p = gl.exp2(x * scale2)
            y = warpgroup_mma_wait(0, (y,))
            ds = gl.convert_layout((p * y).to(gl.bfloat16), factor)
            weights = gl.convert_layout(p.to(gl.bfloat16), factor)
            more_dv = warpgroup_mma(weights, outs, dv, is_async=True)
            more_dk = warpgroup_mma(ds, queries, dk, is_async=True)
            dv, dk = warpgroup_mma_wait(0, (more_dv, more_dk))
            mbarrier.arrive(empty.index(at), count=1)
            i += 1
        mbarrier.arrive(k_empty.index(place), count=1)
        i = skip(n_0 - l_0, i, full, empty, STAGES)
        tma.store_wait(0)
        dk_result.reshape([64, D]).store((dk * scale).to(gl.bfloat16))
        dv_result.reshape([64, D]).store(dv.to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(dk_desc, [head, first, 0], dk_result)
        tma.async_copy_shared_to_global(dv_desc, [head, first, 0], dv_result)
        head = head_2
        t += 1
    tma.store_wait(0)


@gluon.jit
def backward_keys(
    k_desc, v_desc, q_desc, do_desc, stats_desc, dk_desc, dv_desc, Table, Bounds, items, blocks, heads, scale,
    WIDE: gl.constexpr, STAGES: gl.constexpr, TILE: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """dK and dV of one term, from the numbers of rows that `backward` leaves."""
    k, v, dk, dv = tiles(k_desc, 2 * WIDE), tiles(v_desc, 2 * WIDE), tiles(k_desc, WIDE), tiles(v_desc, WIDE)
    rings = (tiles(q_desc, STAGES), tiles(do_desc, STAGES), tiles(stats_desc, STAGES))
    bars = (barriers(2 * WIDE, 1), barriers(2 * WIDE, 1), barriers(STAGES, 1), barriers(STAGES, WIDE))
    descs = (dk_desc, dv_desc)
    told = ((k, v), (dk, dv), rings, bars, Table, Bounds, items, blocks, heads, scale)
    asked = ((k_desc, v_desc, q_desc, do_desc, stats_desc), (k, v), rings, bars, Table, items, blocks, heads)
    if WIDE == 2:
        gl.warp_specialize([
            (gradients, (0, descs, told, WIDE, STAGES, TILE)), (gradients, (1, descs, told, WIDE, STAGES, TILE)),
            (produce_keys, (asked, WIDE, STAGES, TILE)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (gradients, (0, descs, told, WIDE, STAGES, TILE)), (gradients, (1, descs, told, WIDE, STAGES, TILE)),
            (gradients, (2, descs, told, WIDE, STAGES, TILE)), (produce_keys, (asked, WIDE, STAGES, TILE)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])  # fmt: skip
