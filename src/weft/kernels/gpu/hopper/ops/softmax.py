"""Softmax: sums of weights in parts, logarithms, and what sinks add."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from weft.kernels.gpu.hopper.ops.layouts import EIGHT as FEWEST
from weft.kernels.gpu.hopper.ops.layouts import row_sums

EIGHT = gl.constexpr(FEWEST)


@gluon.jit
def in_parts(p):
    """Sums of each row in parts, one for each thread that has a part of the row."""
    ROWS: gl.constexpr = p.type.shape[0]
    COLUMNS: gl.constexpr = p.type.shape[1]
    return gl.sum(gl.sum(gl.reshape(p, [ROWS, COLUMNS // 8, 4, 2]), 3), 1)


@gluon.jit
def no_row_sums(ROWS: gl.constexpr):
    """Sums (rows, 8) of no weights, for `add_row_sums`."""
    return gl.zeros([ROWS, EIGHT], gl.float32, row_sums())


@gluon.jit
def add_row_sums(sums, weights):
    """Sums (rows, 8), each column with all of a row's weights as products take them: these times ones.

    Single warps multiply, with both factors in registers: four instructions for 64 columns, where additions take 64.
    """
    COLUMNS: gl.constexpr = weights.type.shape[1]
    layout: gl.constexpr = row_sums()
    first: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    second: gl.constexpr = gl.DotOperandLayout(1, layout, 2)
    ones = gl.full([COLUMNS, EIGHT], 1.0, weights.dtype, second)
    return mma_v2(gl.convert_layout(weights, first), ones, sums)


@gluon.jit
def fast_log2(x):
    """NVIDIA's own instruction, right to 2^-22 where x is normal, as sums within their range are."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def fast_inverse(x):
    """1 / x, as `fast_log2`."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def with_sink(alone, sink, largest):
    """(what sums and their weights are multiplied by, what the sink adds to these, what is taken off scores).

    sink, largest: in bits; the latter was taken off scores before. alone: there is no key.
    """
    above = gl.maximum(largest, sink)
    above = gl.where(above == float("-inf"), 0.0, above)  # neither keys nor a sink
    more = gl.where(sink == above, 1.0, gl.exp2(sink - above))  # an fma would leave its rounding error
    return gl.where(alone, 0.0, gl.exp2(largest - above)), more, above
