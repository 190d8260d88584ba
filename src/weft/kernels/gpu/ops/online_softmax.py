"""Online softmax of rows, as functions of Triton. Scores are in units of log2, so that exp2 serves as exp."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from weft.kernels.gpu import constants
from weft.kernels.gpu.ops.loads import dot, scaled, zeros
from weft.kernels.gpu.ops.softmax import online_weights

LOG2E, LN2 = tl.constexpr(constants.LOG2E), tl.constexpr(constants.LN2)


class Softmax(NamedTuple):
    """What rows have seen so far.

    acc: sums of weighted values, chunks (rows, width), or (width,) of one row. row_max, row_sum: the largest score and
    the sum of weights relative to it, (rows,) or one number.
    """

    acc: Any
    row_max: Any
    row_sum: Any


@triton.jit
def no_keys(C: tl.constexpr, chunks):
    """Rows that have seen no key."""
    return Softmax(zeros(C, chunks), tl.full((C.rows,), float("-inf"), tl.float32), tl.zeros((C.rows,), tl.float32))


@triton.jit
def add_tile(C: tl.constexpr, softmax, s, scores, values):
    """With the scores (rows, cols) and the values of more keys, a tile (cols, dv)."""
    p, new, kept = online_weights(C, s, scores, softmax.row_max)
    row_sum = softmax.row_sum * kept + tl.sum(p, 1)
    p = p.to(values[0].dtype)
    acc = ()
    for n in tl.static_range(len(values)):
        acc += (dot(C, p, values[n], softmax.acc[n] * kept[:, None]),)
    return Softmax(acc, new, row_sum)


@triton.jit
def lse_2(softmax):
    """lse in units of log2; -inf for a row without keys."""
    return tl.where(softmax.row_sum == 0, float("-inf"), softmax.row_max + tl.log2(softmax.row_sum))


@triton.jit
def along(x, acc):
    """A number of each row, as it meets the row's sums: (rows, 1), or one number for one row."""
    return x[:, None] if len(acc[0].shape) == 2 else x


@triton.jit
def finish(softmax, sink):
    """(out, lse in units of e). sink: a score of each row that joins the sum and has no value; None for none."""
    acc, row_max, row_sum = softmax.acc, softmax.row_max, softmax.row_sum
    if sink is not None:
        sink_2 = sink * LOG2E
        above = tl.maximum(row_max, sink_2)
        safe = tl.where(above == float("-inf"), 0.0, above)
        alone, less = row_sum == 0, tl.exp2(row_max - safe)
        row_sum, row_max = row_sum * less + tl.where(sink_2 == safe, 1.0, tl.exp2(sink_2 - safe)), safe
        acc = scaled(acc, along(less, acc))
    inverse = tl.where(row_sum == 0, 0.0, 1.0 / row_sum)  # NaN stays NaN
    acc = scaled(acc, along(inverse, acc))
    lse = tl.where(row_sum == 0, float("-inf"), (row_max + tl.log2(row_sum)) * LN2)
    if sink is not None:
        lse = tl.where(row_max == sink_2, sink + tl.log2(row_sum) * LN2, lse)  # with the sink's own digits
        lse = tl.where(alone, sink, lse)
    return acc, lse
