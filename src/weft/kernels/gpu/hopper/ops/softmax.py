"""Softmax: sums of weights in parts, logarithms, and what sinks add."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def in_parts(p):
    """Sums of each row in parts, one for each thread that has a part of the row."""
    ROWS: gl.constexpr = p.type.shape[0]
    COLUMNS: gl.constexpr = p.type.shape[1]
    return gl.sum(gl.sum(gl.reshape(p, [ROWS, COLUMNS // 8, 4, 2]), 3), 1)


@gluon.jit
def largest_in_parts(p):
    """The largest number of each part of a row, as `in_parts` has these; p is not negative. As the bits of an integer,
    which are in the same order, and of which an instruction compares three.
    """
    ROWS: gl.constexpr = p.type.shape[0]
    COLUMNS: gl.constexpr = p.type.shape[1]
    bits = gl.reshape(p.to(gl.int32, bitcast=True), [ROWS, COLUMNS // 8, 4, 2])
    return gl.max(gl.max(bits, 3), 1)


@gluon.jit
def largest_rounded(total, largest, dtype: gl.constexpr):
    """Sums of weights, in parts, with each part's largest one as products take it. largest: see `largest_in_parts`."""
    weight = largest.to(gl.float32, bitcast=True)
    return total + (weight.to(dtype).to(gl.float32) - weight)


@gluon.jit
def fast_log2(x):
    """NVIDIA's own instruction, right to 2^-22 where x is normal, as sums within their range are."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def fast_inverse(x):
    """1 / x, as `fast_log2`."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def online(x, largest, scale2):
    """(weights of scores x, what sums before them are multiplied by, the largest score so far, in bits, which is taken
    off). largest: that before; scale2: what makes bits of scores.
    """
    new = gl.maximum(largest, gl.max(x, 1) * scale2)
    safe = gl.where(new == float("-inf"), 0.0, new)  # of rows that have seen no key yet
    return gl.exp2(x * scale2 - gl.expand_dims(safe, 1)), gl.exp2(largest - safe), new


@gluon.jit
def times_rows(x, factor):
    """x (rows, columns) times a number for each row."""
    return x * gl.expand_dims(gl.convert_layout(factor, gl.SliceLayout(1, x.type.layout)), 1)


@gluon.jit
def with_sink(alone, sink, largest):
    """(what sums and their weights are multiplied by, what the sink adds to these, what is taken off scores).

    sink, largest: in bits; the latter was taken off scores before. alone: there is no key.
    """
    above = gl.maximum(largest, sink)
    above = gl.where(above == float("-inf"), 0.0, above)  # neither keys nor a sink
    more = gl.where(sink == above, 1.0, gl.exp2(sink - above))  # an fma would leave its rounding error
    return gl.where(alone, 0.0, gl.exp2(largest - above)), more, above
