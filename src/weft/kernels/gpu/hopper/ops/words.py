"""Words of two numbers of 16 bits: how a loop carries what products take, without taking it apart."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.layouts import first_factor


@gluon.jit
def in_words(p, dtype: gl.constexpr):
    """Numbers (rows, columns), rounded, as words (rows, columns / 2)."""
    ROWS: gl.constexpr = p.type.shape[0]
    COLUMNS: gl.constexpr = p.type.shape[1]
    even, odd = gl.split(gl.reshape(p, [ROWS, COLUMNS // 2, 2]))
    if dtype == gl.bfloat16:
        words = gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1
        )
    else:
        words = gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1
        )
    return words


@gluon.jit
def halves(words, dtype: gl.constexpr):
    """The numbers of `in_words`."""
    ROWS: gl.constexpr = words.type.shape[0]
    COLUMNS: gl.constexpr = 2 * words.type.shape[1]
    even, odd = words.to(gl.int16).to(dtype, bitcast=True), (words >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.reshape(gl.join(even, odd), [ROWS, COLUMNS])


@gluon.jit
def factor_of(words, dtype: gl.constexpr, WIDTH: gl.constexpr):
    """The first factor of a product with so many columns, of `in_words`."""
    return gl.convert_layout(halves(words, dtype), first_factor(WIDTH))
