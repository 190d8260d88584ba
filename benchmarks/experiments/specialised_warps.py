# ruff: noqa: PLR0913, RUF005, SIM113, SIM102 - kernels take as many arguments as they need, and Gluon is not all of Python
"""Are short runs of tiles faster where warp groups specialise: one loads, the others compute?

    python benchmarks/experiments/specialised_warps.py

Forward and dQ at head dimension 64 in bfloat16 for sm_90, in Gluon; docs/decisions/0010-warp-groups-that-specialise.md
has what came out. Without a Hopper GPU it prints registers, spills and shared memory of what Triton compiles; on one,
each kernel's error and time beside weft's own.

A program of either kernel lives as long as the launch and takes blocks of WIDE x 64 queries in turn. One warp asks for
queries, keys and values through tensor descriptors, as far ahead as there are stages; each of WIDE groups of four warps
has 64 queries of the block and passes over those tiles of 64 keys that none of them sees. One or two terms: a window,
and keys at a step. No row's maximum is taken off, as in the short form of `weft.kernels.triton.forward`, and there is
no second walk for rows that this is not for.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROOT = Path(__file__).parents[2]
D = 64
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
# Of a block's record: first query, (first key, tiles) of two terms; from 8 on six numbers of each warp group.
WORDS = 32


# ---- rings and numbers -----------------------------------------------------------------------------------------------
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
def after(head, block, programs, heads):
    """The block that a program takes next: the last queries first, which see most, heads side by side."""
    head += programs % heads
    block -= programs // heads
    if head >= heads:
        head -= heads
        block -= 1
    return head, gl.maximum(block, 0)


@gluon.jit
def load_keys(k_desc, v_desc, k, v, full, empty, head, first, tiles, i, STAGES: gl.constexpr):
    """Ask for the tiles of one term."""
    for s in range(0, tiles):
        at = i & (STAGES - 1)
        mbarrier.wait(empty.index(at), turn(i, STAGES) ^ 1)
        mbarrier.expect(full.index(at), 2 * k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, [head, first + s * 64, 0], full.index(at), k.index(at))
        tma.async_copy_global_to_shared(v_desc, [head, first + s * 64, 0], full.index(at), v.index(at))
        i += 1
    return i


# ---- masks -----------------------------------------------------------------------------------------------------------
@gluon.jit
def bits_from(x, COLUMNS: gl.constexpr):
    """Of the columns that a thread has of a row, 8 * (k // 2) + k % 2, the bits k of those from x on."""
    x = gl.minimum(gl.maximum(x, 0), COLUMNS)
    count = 2 * (x >> 3) + gl.minimum(x & 7, 2)
    return gl.inline_asm_elementwise("shl.b32 $0, -1, $1;", "=r,r", [count], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def masked(s, low, high, columns, COLUMNS: gl.constexpr):
    """s (64, COLUMNS) where low <= column < high, else -inf; by words of bits, which become predicates seven at a
    time.
    """
    lane = gl.expand_dims(columns & 6, 0)
    bit = gl.expand_dims(1 << (((columns >> 3) << 1) | (columns & 1)), 0)
    low, high = gl.expand_dims(low, 1) - lane, gl.expand_dims(high, 1) - lane
    word = bits_from(low, COLUMNS) & ~bits_from(high, COLUMNS)
    word, bit = gl.broadcast(word, bit)
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; and.b32 t, $2, $3; setp.ne.s32 p, t, 0; selp.f32 $0, $1, 0fFF800000, p; }",
        "=f,f,r,r", [s, word, bit], dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def cut(s, j, bounds, columns, TERMS: gl.constexpr):
    """s of tile j of the block, masked where a row's bounds cut it; bounds: (of which term, then of each) see `own`."""
    second, low_0, high_0, cut_0, low_1, high_1, cut_1 = bounds
    low, high, edges = low_0, high_0, cut_0
    if TERMS == 2:
        low = gl.where(second, low_1, low_0)
        high = gl.where(second, high_1, high_0)
        edges = gl.where(second, cut_1, cut_0)
    if (j < (edges & 0xFFFF)) | (j >= (edges >> 16)):
        s = masked(s, low - j * 64, high - j * 64, columns, 64)
    return s


@gluon.jit
def parts(p):
    """Sums of a row in parts, one of each thread that has a part of it."""
    return gl.sum(gl.sum(gl.reshape(p, [64, 8, 4, 2]), 3), 1)


# ---- one warp that asks ----------------------------------------------------------------------------------------------
@gluon.jit
def produce(asked, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, BACK: gl.constexpr):
    """Queries of each warp group, two blocks ahead at most, and keys and values, STAGES tiles ahead. BACK: dO and O
    too, of which O has one place.
    """
    descs, rows, rings, bars, Table, items, blocks, heads = asked
    q_desc, k_desc, v_desc, k_far, v_far, do_desc, o_desc = descs
    q, do, o = rows
    k, v = rings
    q_full, q_empty, o_full, o_empty, full, empty = bars
    n = gl.num_programs(0)
    head, block = gl.program_id(0) % heads, blocks - 1 - gl.program_id(0) // heads
    i = 0
    t = 0
    for _ in range(gl.program_id(0), items, n):
        at = Table + block * 32
        first = gl.load(at)
        for c in gl.static_range(WIDE):
            place = 2 * c + (t & 1)
            ready = q_full.index(place)
            mbarrier.wait(q_empty.index(place), ((t >> 1) & 1) ^ 1)
            mbarrier.expect(ready, (2 if BACK else 1) * q_desc.block_type.nbytes)
            if BACK:
                tma.async_copy_global_to_shared(do_desc, [head, first + c * 64, 0], ready, do.index(place))
            tma.async_copy_global_to_shared(q_desc, [head, first + c * 64, 0], ready, q.index(place))
            if BACK:
                mbarrier.wait(o_empty.index(c), (t & 1) ^ 1)
                mbarrier.expect(o_full.index(c), o_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(o_desc, [head, first + c * 64, 0], o_full.index(c), o.index(c))
        i = load_keys(k_desc, v_desc, k, v, full, empty, head, gl.load(at + 1), gl.load(at + 2), i, STAGES)
        if TERMS == 2:
            i = load_keys(k_far, v_far, k, v, full, empty, head, gl.load(at + 3), gl.load(at + 4), i, STAGES)
        t += 1
        head, block = after(head, block, n, heads)


@gluon.jit
def own(C: gl.constexpr, Table, Bounds, block, blocks, rows, WIDE: gl.constexpr, TERMS: gl.constexpr):
    """The numbers of a warp group in a block: its first query; of each term the block's tiles, its first and its end
    among them, where bounds cut (tiles below the lower half, or from the upper half on), and each row's bounds.
    """
    at = Table + block * 32
    mine = at + 8 + 6 * C
    size = blocks * (WIDE * 64)
    of_rows = Bounds + block * (WIDE * 64) + C * 64 + rows
    low_0, high_0 = gl.load(of_rows), gl.load(of_rows + size)
    low_1, high_1 = low_0, high_0
    if TERMS == 2:
        low_1, high_1 = gl.load(of_rows + 2 * size), gl.load(of_rows + 3 * size)
    return (
        gl.load(at) + C * 64, gl.load(at + 2), gl.load(at + 4), gl.load(mine), gl.load(mine + 1), gl.load(mine + 2),
        gl.load(mine + 3), gl.load(mine + 4), gl.load(mine + 5), low_0, high_0, low_1, high_1,
    )  # fmt: skip


# ---- warp groups that compute ----------------------------------------------------------------------------------------
@gluon.jit
def attend(C: gl.constexpr, out_desc, told, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr):
    """out and lse of one warp group's queries, block after block."""
    rows, results, rings, bars, Lse, Table, Bounds, items, blocks, heads, length, scale = told
    D: gl.constexpr = 64
    lies: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=lies, k_width=2)
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, lies))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, lies))
    zero = gl.zeros([64, 64], gl.float32, lies)
    k, v = rings
    q_full, q_empty, _, _, full, empty = bars
    result = results.index(C)
    scale2 = scale * 1.4426950408889634
    n = gl.num_programs(0)
    head, block = gl.program_id(0) % heads, blocks - 1 - gl.program_id(0) // heads
    i = 0
    t = 0
    first, n_0, n_1, f_0, l_0, f_1, l_1, cut_0, cut_1, low_0, high_0, low_1, high_1 = own(
        C, Table, Bounds, block, blocks, r, WIDE, TERMS
    )
    for _ in range(gl.program_id(0), items, n):
        place = 2 * C + (t & 1)
        n_0, n_1, f_0, l_0, f_1, l_1 = live(n_0), live(n_1), live(f_0), live(l_0), live(f_1), live(l_1)
        # the next block's, long before they are needed
        head_2, block = after(head, block, n, heads)
        first_2, n_02, n_12, f_02, l_02, f_12, l_12, cut_02, cut_12, low_02, high_02, low_12, high_12 = own(
            C, Table, Bounds, block, blocks, r, WIDE, TERMS
        )
        q = rows.index(place).reshape([64, D])
        acc = zero
        total = parts(zero)
        mbarrier.wait(q_full.index(place), (t >> 1) & 1)
        i = skip(f_0, i, full, empty, STAGES)
        m_0 = l_0 - f_0
        for s in range(0, m_0 + l_1 - f_1):
            if TERMS == 2:
                if s == m_0:
                    i = skip(n_0 - l_0 + f_1, i, full, empty, STAGES)
            j = gl.where(s >= m_0, s - m_0 + f_1, s + f_0)
            at = i & (STAGES - 1)
            mbarrier.wait(full.index(at), turn(i, STAGES))
            x = warpgroup_mma(q, k.index(at).reshape([64, D]).permute((1, 0)), zero, use_acc=False, is_async=True)
            x = warpgroup_mma_wait(0, (x,))
            x = cut(x, j, (s >= m_0, low_0, high_0, cut_0, low_1, high_1, cut_1), columns, TERMS)
            p = gl.exp2(x * scale2)
            total += parts(p)
            weights = gl.convert_layout(p.to(gl.bfloat16), factor)
            y = warpgroup_mma(weights, v.index(at).reshape([64, D]), acc, is_async=True)
            acc = warpgroup_mma_wait(0, (y,))
            mbarrier.arrive(empty.index(at), count=1)
            i += 1
        mbarrier.arrive(q_empty.index(place), count=1)
        i = skip(gl.where(l_1 > f_1, n_1 - l_1, n_0 - l_0 + n_1), i, full, empty, STAGES)
        whole = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, lies))
        tma.store_wait(0)  # for the result of the block before
        result.reshape([64, D]).store((acc * gl.expand_dims(1.0 / whole, 1)).to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [head, first, 0], result)
        gl.store(Lse + head * length + first + r, gl.log2(whole) * 0.6931471805599453)
        first, n_0, n_1, f_0, l_0, f_1, l_1 = first_2, n_02, n_12, f_02, l_02, f_12, l_12
        cut_0, cut_1, low_0, high_0, low_1, high_1 = cut_02, cut_12, low_02, high_02, low_12, high_12
        head = head_2
        t += 1
    tma.store_wait(0)


@gluon.jit
def gradient(C: gl.constexpr, dq_desc, told, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr):
    """dQ of one warp group's queries, and what weft's dK and dV take of them (`weft.kernels.triton.backward.STATS`)."""
    rows, results, rings, bars, Lse, Stats, Table, Bounds, items, blocks, heads, length, scale = told
    D: gl.constexpr = 64
    lies: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=lies, k_width=2)
    beside: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, lies))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, lies))
    stat_rows = gl.arange(0, 64, layout=gl.SliceLayout(1, beside))
    stat = gl.expand_dims(gl.arange(0, 16, layout=gl.SliceLayout(0, beside)), 0)
    zero = gl.zeros([64, 64], gl.float32, lies)
    q_rows, do_rows, o_rows = rows
    k, v = rings
    q_full, q_empty, o_full, o_empty, full, empty = bars
    o, result = o_rows.index(C).reshape([64, D]), results.index(C)
    scale2 = scale * 1.4426950408889634
    n = gl.num_programs(0)
    head, block = gl.program_id(0) % heads, blocks - 1 - gl.program_id(0) // heads
    i = 0
    t = 0
    first, n_0, n_1, f_0, l_0, f_1, l_1, cut_0, cut_1, low_0, high_0, low_1, high_1 = own(
        C, Table, Bounds, block, blocks, r, WIDE, TERMS
    )
    lse = gl.load(Lse + head * length + first + r)
    for _ in range(gl.program_id(0), items, n):
        place = 2 * C + (t & 1)
        n_0, n_1, f_0, l_0, f_1, l_1 = live(n_0), live(n_1), live(f_0), live(l_0), live(f_1), live(l_1)
        head_2, block = after(head, block, n, heads)
        first_2, n_02, n_12, f_02, l_02, f_12, l_12, cut_02, cut_12, low_02, high_02, low_12, high_12 = own(
            C, Table, Bounds, block, blocks, r, WIDE, TERMS
        )
        lse_2 = gl.load(Lse + head_2 * length + first_2 + r)
        q = q_rows.index(place).reshape([64, D])
        do = do_rows.index(place).reshape([64, D])
        acc = zero
        mbarrier.wait(q_full.index(place), (t >> 1) & 1)
        mbarrier.wait(o_full.index(C), t & 1)
        delta = gl.sum(do.load(lies).to(gl.float32) * o.load(lies).to(gl.float32), 1)
        mbarrier.arrive(o_empty.index(C), count=1)
        lse = gl.where(lse == float("-inf"), 0.0, lse)
        # lse and delta as sums of three numbers of bfloat16
        of_lse = gl.convert_layout(-lse / scale, gl.SliceLayout(1, beside))
        of_delta = gl.convert_layout(-delta, gl.SliceLayout(1, beside))
        stats = gl.zeros([64, 16], gl.float32, beside)
        for part in gl.static_range(3):
            upper, upper_delta = of_lse.to(gl.bfloat16).to(gl.float32), of_delta.to(gl.bfloat16).to(gl.float32)
            stats = gl.where(stat == part, gl.expand_dims(upper, 1), stats)
            stats = gl.where(stat == part + 8, gl.expand_dims(upper_delta, 1), stats)
            of_lse, of_delta = of_lse - upper, of_delta - upper_delta
        to = Stats + (head * length + first).to(gl.int64) * 16
        gl.store(to + gl.expand_dims(stat_rows * 16, 1) + stat, stats.to(gl.bfloat16))
        lse2 = lse * 1.4426950408889634
        i = skip(f_0, i, full, empty, STAGES)
        m_0 = l_0 - f_0
        for s in range(0, m_0 + l_1 - f_1):
            if TERMS == 2:
                if s == m_0:
                    i = skip(n_0 - l_0 + f_1, i, full, empty, STAGES)
            j = gl.where(s >= m_0, s - m_0 + f_1, s + f_0)
            at = i & (STAGES - 1)
            mbarrier.wait(full.index(at), turn(i, STAGES))
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
        i = skip(gl.where(l_1 > f_1, n_1 - l_1, n_0 - l_0 + n_1), i, full, empty, STAGES)
        tma.store_wait(0)
        result.reshape([64, D]).store((acc * scale).to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(dq_desc, [head, first, 0], result)
        first, n_0, n_1, f_0, l_0, f_1, l_1 = first_2, n_02, n_12, f_02, l_02, f_12, l_12
        cut_0, cut_1, low_0, high_0, low_1, high_1 = cut_02, cut_12, low_02, high_02, low_12, high_12
        head, lse = head_2, lse_2
        t += 1
    tma.store_wait(0)


@gluon.jit
def produce_keys(asked, WIDE: gl.constexpr, STAGES: gl.constexpr, TILE: gl.constexpr):
    """Keys and values of each warp group, two blocks ahead at most; queries, dO and their numbers STAGES tiles ahead."""
    descs, rows, rings, bars, Table, items, blocks, heads = asked
    k_desc, v_desc, q_desc, do_desc, stats_desc = descs
    k, v = rows
    q, do, stats = rings
    k_full, k_empty, full, empty = bars
    n = gl.num_programs(0)
    head, block = gl.program_id(0) % heads, blocks - 1 - gl.program_id(0) // heads
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
    head, block = gl.program_id(0) % heads, blocks - 1 - gl.program_id(0) // heads
    i = 0
    t = 0
    first, n_0, _, f_0, l_0, _, _, cut_0, _, low, high, _, _ = own(C, Table, Bounds, block, blocks, r, WIDE, 1)
    for _ in range(gl.program_id(0), items, n):
        place = 2 * C + (t & 1)
        n_0, f_0, l_0 = live(n_0), live(f_0), live(l_0)
        head_2, block = after(head, block, n, heads)
        first_2, n_02, _, f_02, l_02, _, _, cut_02, _, low_2, high_2, _, _ = own(
            C, Table, Bounds, block, blocks, r, WIDE, 1
        )
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
        first, n_0, f_0, l_0, cut_0, low, high = first_2, n_02, f_02, l_02, cut_02, low_2, high_2
        head = head_2
        t += 1
    tma.store_wait(0)


# ---- kernels ---------------------------------------------------------------------------------------------------------
@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """So many, each with so many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for x in gl.static_range(COUNT):
        mbarrier.init(made.index(x), count=ARRIVALS)
    return made


@gluon.jit
def tiles(desc, COUNT: gl.constexpr):
    """Room for so many."""
    return gl.allocate_shared_memory(gl.bfloat16, [COUNT] + desc.block_type.shape, desc.layout)


@gluon.jit
def forward(
    q_desc, k_desc, v_desc, k_far, v_far, out_desc, Lse, Table, Bounds, items, blocks, heads, length, scale,
    WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """k_far, v_far: the keys of the second term, at their step. items: blocks of all heads; length: tokens."""
    q, results, k, v = tiles(q_desc, 2 * WIDE), tiles(q_desc, WIDE), tiles(k_desc, STAGES), tiles(v_desc, STAGES)
    q_full, q_empty = barriers(2 * WIDE, 1), barriers(2 * WIDE, 1)
    full, empty = barriers(STAGES, 1), barriers(STAGES, WIDE)
    descs = (q_desc, k_desc, v_desc, k_far, v_far, q_desc, q_desc)
    bars = (q_full, q_empty, q_full, q_empty, full, empty)
    told = (q, results, (k, v), bars, Lse, Table, Bounds, items, blocks, heads, length, scale)
    asked = (descs, (q, q, q), (k, v), bars, Table, items, blocks, heads)
    if WIDE == 3:
        gl.warp_specialize([
            (attend, (0, out_desc, told, WIDE, STAGES, TERMS)), (attend, (1, out_desc, told, WIDE, STAGES, TERMS)),
            (attend, (2, out_desc, told, WIDE, STAGES, TERMS)), (produce, (asked, WIDE, STAGES, TERMS, False)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (attend, (0, out_desc, told, WIDE, STAGES, TERMS)), (attend, (1, out_desc, told, WIDE, STAGES, TERMS)),
            (attend, (2, out_desc, told, WIDE, STAGES, TERMS)), (attend, (3, out_desc, told, WIDE, STAGES, TERMS)),
            (produce, (asked, WIDE, STAGES, TERMS, False)),
        ], [4, 4, 4, 1], [REGISTERS, REGISTERS, REGISTERS, 24])  # fmt: skip


@gluon.jit
def backward(
    q_desc, k_desc, v_desc, k_far, v_far, do_desc, o_desc, dq_desc, Lse, Stats, Table, Bounds, items, blocks, heads,
    length, scale, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """As `forward`, for dQ."""
    q, do, o, results = tiles(q_desc, 2 * WIDE), tiles(q_desc, 2 * WIDE), tiles(q_desc, WIDE), tiles(q_desc, WIDE)
    k, v = tiles(k_desc, STAGES), tiles(v_desc, STAGES)
    bars = (
        barriers(2 * WIDE, 1), barriers(2 * WIDE, 1), barriers(WIDE, 1), barriers(WIDE, 1), barriers(STAGES, 1),
        barriers(STAGES, WIDE),
    )  # fmt: skip
    told = ((q, do, o), results, (k, v), bars, Lse, Stats, Table, Bounds, items, blocks, heads, length, scale)
    descs = (q_desc, k_desc, v_desc, k_far, v_far, do_desc, o_desc)
    asked = (descs, (q, do, o), (k, v), bars, Table, items, blocks, heads)
    if WIDE == 2:
        gl.warp_specialize([
            (gradient, (0, dq_desc, told, WIDE, STAGES, TERMS)), (gradient, (1, dq_desc, told, WIDE, STAGES, TERMS)),
            (produce, (asked, WIDE, STAGES, TERMS, True)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (gradient, (0, dq_desc, told, WIDE, STAGES, TERMS)), (gradient, (1, dq_desc, told, WIDE, STAGES, TERMS)),
            (gradient, (2, dq_desc, told, WIDE, STAGES, TERMS)), (produce, (asked, WIDE, STAGES, TERMS, True)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])  # fmt: skip


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


# ---- patterns as tables ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Term:
    """Of each query the keys first + step * j for low <= j < high."""

    low: np.ndarray
    high: np.ndarray
    first: int = 0
    step: int = 1


def window(n: int, left: int, right: int) -> list[Term]:
    i = np.arange(n)
    return [Term(np.maximum(i - left, 0), np.minimum(i + right + 1, n))]


def strided(n: int, step: int) -> list[Term]:
    """A causal window of `step`, and every step-th key before it."""
    i = np.arange(n)
    far = Term(0 * i, np.where(i >= 2 * step - 1, (i - 2 * step + 1) // step + 1, 0), step - 1, step)
    return [*window(n, step - 1, 0), far]


def tables(terms: list[Term], n: int, wide: int, tile: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """(blocks, WORDS) records and (4, blocks, wide * 64) bounds of rows, from the block's first key on."""
    size = 64 * wide
    blocks = -(-n // size)
    records, bounds = np.zeros((blocks, WORDS), np.int32), np.zeros((4, blocks, size), np.int32)
    for b in range(blocks):
        first = records[b, 0] = min(b * size, n - size)
        for t, term in enumerate(terms):
            low, high = term.low[first : first + size], term.high[first : first + size]
            start = int(low[high > low].min(initial=n))
            stop = max(start, int(high[high > low].max(initial=0)))
            records[b, 1 + 2 * t : 3 + 2 * t] = start, -(-(stop - start) // tile)
            bounds[2 * t, b], bounds[2 * t + 1, b] = low - start, high - start
            for c in range(wide):
                of = slice(64 * c, 64 * c + 64)
                mine = 8 + 6 * c
                places = [mine + 2 * t, mine + 2 * t + 1, mine + 4 + t]
                records[b, places] = _edges(low[of] - start, high[of] - start, tile)
    return records, bounds


def _edges(low: np.ndarray, high: np.ndarray, tile: int) -> tuple[int, int, int]:
    """(first tile, end, tiles that low bounds cut below | those that high bounds cut from << 16) of 64 rows."""
    sees = high > low
    if not sees.any():
        return 0, 0, 0
    end = -(-int(high[sees].max()) // tile)
    return int(low[sees].min()) // tile, end, -(-int(low.max()) // tile) | max(0, int(high.min()) // tile) << 16


# ---- compiling -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Form:
    """wide: warp groups. registers: of a thread of each but the first; most: before they specialise. tile: of queries,
    where keys stay.
    """

    wide: int
    stages: int
    registers: int
    most: int
    tile: int = 64

    def __str__(self) -> str:
        return f"{self.wide} warp groups, {self.stages} stages" + f" of {self.tile}" * (self.tile != 64)

    def constants(self, kernel, terms: int) -> dict[str, int]:
        found = {"WIDE": self.wide, "STAGES": self.stages, "REGISTERS": self.registers}
        return found | ({"TILE": self.tile} if "TILE" in kernel.arg_names else {"TERMS": terms})

    def box(self, name: str) -> list[int]:
        """Of a descriptor."""
        return [1, self.tile if name in ("q_desc", "do_desc", "stats_desc") else 64, 16 if name == "stats_desc" else D]


FORMS = [
    (forward, Form(4, 8, 112, 96)), (forward, Form(3, 8, 160, 128)), (backward, Form(3, 4, 160, 128)),
    (backward, Form(2, 8, 232, 168)), (backward_keys, Form(2, 4, 232, 168)), (backward_keys, Form(3, 8, 160, 128, 32)),
]  # fmt: skip
KINDS = {"Lse": "*fp32", "Stats": "*bf16", "Table": "*i32", "Bounds": "*i32", "scale": "fp32"}


def is_box(name: str) -> bool:
    return name.endswith(("desc", "far"))


def layout_of(box: list[int]):
    return gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)


def compiled(kernel, form: Form, terms: int):
    """The kernel for sm_90; needs no GPU."""
    constants, names = form.constants(kernel, terms), kernel.arg_names
    boxes = {name: form.box(name) for name in names if is_box(name)}
    kinds = {name: KINDS.get(name, "i32") for name in names} | dict.fromkeys(constants, "constexpr")
    kinds |= {name: f"tensordesc<bf16{box},{layout_of(box)!r}>" for name, box in boxes.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if kinds[name][0] == "*"}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(kernel, kinds, values, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "maxnreg": form.most})


# ---- running ---------------------------------------------------------------------------------------------------------
def launched(kernel, tensors, terms: list[Term], form: Form, programs: int):
    """What launches a kernel; tensors: (heads, tokens, D), or numbers of rows, by the names of its arguments."""
    heads, n, _ = tensors["q_desc"].shape
    records, bounds = (torch.from_numpy(x).to(tensors["q_desc"].device) for x in tables(terms, n, form.wide, form.tile))
    far = terms[-1]
    given = dict(tensors)
    for name, of in (("k_far", "k_desc"), ("v_far", "v_desc")):
        given[name] = given[of][:, far.first :: far.step]
    for name in filter(is_box, given):
        x, box = given[name], form.box(name)
        given[name] = TensorDescriptor(x, list(x.shape), list(x.stride()), box, layout_of(box))
    numbers = {"items": heads * len(records), "blocks": len(records), "heads": heads, "length": n, "scale": D**-0.5}
    given |= {"Table": records, "Bounds": bounds, **numbers}
    values = [given[name] for name in kernel.arg_names if name in given]
    return lambda: kernel[(programs,)](*values, **form.constants(kernel, len(terms)), num_warps=4, maxnreg=form.most)


CASES = {  # a workload or a pattern, and sizes -> terms of queries, terms of keys where there is one of them
    "window_pm256 @ 4,12,16384,64": (window(16384, 256, 256), window(16384, 256, 256)),
    "causal() & window(left=127) @ 1,16,16384,64": (window(16384, 127, 0), window(16384, 0, 127)),
    "strided_l128_s128 @ 1,16,16384,64": (strided(16384, 128), None),
}
WAYS = {"forward": forward, "dq": backward, "dkdv": backward_keys}


def compare() -> None:
    """Errors and times beside weft's own kernels on the GPU at hand."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
    from prediction.problems import Case

    from weft.kernels.triton import measure
    from weft.planning.attention_plan import plan_attention
    from weft.target import GPUS

    for text, (queries, keys) in CASES.items():
        case = Case.of(text)
        plan = plan_attention(case.make(), case.problem, GPUS["h200"])
        subject = measure.Subject.of(plan)
        for direction, kernel in WAYS.items():
            terms = keys if kernel is backward_keys else queries
            if terms is None:
                continue
            own = subject.call(direction, plan)
            meant = [x.flatten(0, 1).float() for x in own()]
            calls, said = [own], ["weft"]
            for form in (form for of, form in FORMS if of is kernel):
                call, results = _call(kernel, subject, terms, form)
                errors = [float((x.float() - y).norm() / y.norm()) for x, y in zip(results, meant, strict=False)]
                calls.append(call)
                said.append(f"{form}, off by {' and '.join(f'{x:.0e}' for x in errors)}")
            times = measure.timings_of(calls, rounds=6)
            for what, time in zip(said, times, strict=True):
                over = time.seconds / times[0].seconds
                print(f"{text:45s}{direction:9s}{time.seconds * 1e6:8.1f} us {over:6.3f}  {what}", flush=True)


def _call(kernel, subject, terms: list[Term], form: Form):
    """(what launches a kernel, what it writes), launched once."""
    names = {"q_desc": "q", "k_desc": "k", "v_desc": "v", "o_desc": "out", "do_desc": "d_out"}
    given = {name: getattr(subject, of).flatten(0, 1) for name, of in names.items()}
    lse, stats = subject.lse.flatten(0, 1), subject.made[-1].flatten(0, 1)
    if kernel is forward:
        given |= {"out_desc": torch.empty_like(given["q_desc"]), "Lse": torch.empty_like(lse)}
    elif kernel is backward:
        given |= {"dq_desc": torch.empty_like(given["q_desc"]), "Lse": lse, "Stats": torch.empty_like(stats)}
    else:
        given |= {"dk_desc": torch.empty_like(given["k_desc"]), "dv_desc": torch.empty_like(given["v_desc"])}
        given |= {"stats_desc": stats}
    launch = launched(kernel, given, terms, form, torch.cuda.get_device_properties(0).multi_processor_count)
    launch()
    written = [given[name] for name in ("out_desc", "dq_desc", "dk_desc", "dv_desc") if name in given]
    return lambda: [launch()], written


def report() -> None:
    """Registers, spills and shared memory of each form."""
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    from tests.triton.resources import resources

    print("triton", triton.__version__)
    for kernel, form in FORMS:
        for terms in (1, 2) if "TERMS" in kernel.arg_names else (1,):
            built = compiled(kernel, form, terms)
            found = resources(built, "sm_90")
            print(f"{built.name:14s}{form!s:32s}{terms} terms: {found.registers} registers, {found.spilled} bytes spilled, "
                  f"{built.metadata.shared / 1024:.1f} KiB")  # fmt: skip


if __name__ == "__main__":
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9:
        compare()
    else:
        report()
