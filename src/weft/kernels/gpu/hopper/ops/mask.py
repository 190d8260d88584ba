"""Masks of tiles as words of bits: a thread has the columns of a row that it holds in one word.

A thread has columns 8 * (k // 2) + k % 2 of a row of an accumulator, counted from an even column. Bit k of its word
stands for the k-th of these. The assembler makes predicates of a word seven at a time, which takes fewer instructions
than comparisons.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.aggregate import aggregate


@aggregate
class Cut:
    """Positions of a run that rows see, from low to before high; they cut tiles below one, and from another on."""

    low: gl.tensor
    high: gl.tensor
    below: gl.tensor
    beyond: gl.tensor


@gluon.jit
def _bits_from(x, COLUMNS: gl.constexpr):
    """The bits of columns from x on."""
    x = gl.minimum(gl.maximum(x, 0), COLUMNS)
    count = 2 * (x >> 3) + gl.minimum(x & 7, 2)
    return gl.inline_asm_elementwise("shl.b32 $0, -1, $1;", "=r,r", [count], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def mask_words(low, high, columns):
    """(words, bits) to be and-ed: where low <= column < high of each row. columns: those of a tile."""
    COLUMNS: gl.constexpr = columns.type.shape[0]
    lane = gl.expand_dims(columns & 6, 0)
    bit = gl.expand_dims(1 << (((columns >> 3) << 1) | (columns & 1)), 0)
    low, high = gl.expand_dims(low, 1) - lane, gl.expand_dims(high, 1) - lane
    return gl.broadcast(_bits_from(low, COLUMNS) & ~_bits_from(high, COLUMNS), bit)


@gluon.jit
def masked(x, words, bit, other):
    """x where its bit is set, else another number."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; and.b32 t, $2, $3; setp.ne.s32 p, t, 0; selp.f32 $0, $1, $4, p; }",
        "=f,f,r,r,f", [x, words, bit, other], dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def cut_tile(x, j, cut, columns, OTHER: gl.constexpr):
    """x of tile j of a run, and another number where a row does not see the column. cut: a Cut, or what has its fields;
    columns: those of a tile.
    """
    TILE: gl.constexpr = columns.type.shape[0]
    if (j < cut.below) | (j >= cut.beyond):
        words, bit = mask_words(cut.low - j * TILE, cut.high - j * TILE, columns)
        x = masked(x, words, bit, OTHER)
    return x
