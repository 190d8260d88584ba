# ruff: noqa: PLR0913, RUF005, SIM113 - kernels take as many arguments as they need, and Gluon is not all of Python
"""Blocks, rings of tiles, masks, and the one warp that asks for tiles."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from weft.kernels.gpu.hopper.ops.channel import phase_of
from weft.kernels.gpu.hopper.ops.mask import mask_words, masked


@gluon.jit
def begin(blocks, heads):
    """(head, block) that a program takes first."""
    return gl.program_id(0) % heads, blocks - 1 - gl.program_id(0) // heads


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
def cut(s, j, bounds, columns, TERMS: gl.constexpr):
    """s of tile j of the block, masked where a row's bounds cut it; bounds: (of which term, then of each) see `own`."""
    second, low_0, high_0, cut_0, low_1, high_1, cut_1 = bounds
    low, high, edges = low_0, high_0, cut_0
    if TERMS == 2:
        low = gl.where(second, low_1, low_0)
        high = gl.where(second, high_1, high_0)
        edges = gl.where(second, cut_1, cut_0)
    if (j < (edges & 0xFFFF)) | (j >= (edges >> 16)):
        words, bit = mask_words(low - j * 64, high - j * 64, columns)
        s = masked(s, words, bit, float("-inf"))
    return s


@gluon.jit
def tiles(desc, COUNT: gl.constexpr):
    """Room for so many."""
    return gl.allocate_shared_memory(gl.bfloat16, [COUNT] + desc.block_type.shape, desc.layout)


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


@gluon.jit
def load_keys(k_desc, v_desc, k, v, full, empty, head, first, tiles, i, STAGES: gl.constexpr):
    """Ask for the tiles of one term."""
    for s in range(0, tiles):
        at = i & (STAGES - 1)
        mbarrier.wait(empty.index(at), phase_of(i, STAGES, True) ^ 1)
        mbarrier.expect(full.index(at), 2 * k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, [head, first + s * 64, 0], full.index(at), k.index(at))
        tma.async_copy_global_to_shared(v_desc, [head, first + s * 64, 0], full.index(at), v.index(at))
        i += 1
    return i


@gluon.jit
def produce(asked, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr):
    """Queries, dO and O of each warp group, two blocks ahead at most, but O, which has one place; keys and values,
    STAGES tiles ahead.
    """
    descs, rows, rings, bars, Table, items, blocks, heads = asked
    q_desc, k_desc, v_desc, k_far, v_far, do_desc, o_desc = descs
    q, do, o = rows
    k, v = rings
    q_full, q_empty, o_full, o_empty, full, empty = bars
    n = gl.num_programs(0)
    head, block = begin(blocks, heads)
    i = 0
    t = 0
    for _ in range(gl.program_id(0), items, n):
        at = Table + block * 32
        first = gl.load(at)
        for c in gl.static_range(WIDE):
            place = 2 * c + (t & 1)
            ready = q_full.index(place)
            mbarrier.wait(q_empty.index(place), ((t >> 1) & 1) ^ 1)
            mbarrier.expect(ready, 2 * q_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(do_desc, [head, first + c * 64, 0], ready, do.index(place))
            tma.async_copy_global_to_shared(q_desc, [head, first + c * 64, 0], ready, q.index(place))
            mbarrier.wait(o_empty.index(c), (t & 1) ^ 1)
            mbarrier.expect(o_full.index(c), o_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(o_desc, [head, first + c * 64, 0], o_full.index(c), o.index(c))
        i = load_keys(k_desc, v_desc, k, v, full, empty, head, gl.load(at + 1), gl.load(at + 2), i, STAGES)
        if TERMS == 2:
            i = load_keys(k_far, v_far, k, v, full, empty, head, gl.load(at + 3), gl.load(at + 4), i, STAGES)
        t += 1
        head, block = after(head, block, n, heads)
