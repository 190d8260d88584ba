"""lse and delta = rowsum(dO * O) of the rows of a tile, and how they are left for the kernel of dK and dV."""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu import constants
from weft.kernels.gpu.ops.bounds import in_three

PENALTY, LOG2E = tl.constexpr(constants.PENALTY), tl.constexpr(constants.LOG2E)
STATS, PAIR = tl.constexpr(constants.STATS), tl.constexpr(constants.PAIR)


# Tensors (batch, heads, length) of float32 with a number for each query. dlse: the gradient of lse, or None. stats: lse
# and delta, as sums of three numbers of bfloat16 or in float32. delta and stats are None where nothing reads them.
Numbers = namedtuple("Numbers", "lse dlse delta stats")

# Of the rows of a tile (rows,): where their numbers lie, lse, and its gradient, or lse again if it has none.
Loaded = namedtuple("Loaded", "row lse dlse")

# Of the rows of a tile (rows,): where their numbers lie, lse, which is 0 in rows without keys, and delta.
RowNumbers = namedtuple("RowNumbers", "row lse delta")


@triton.jit
def load_numbers(C: tl.constexpr, numbers, row):
    """The numbers of rows; row (rows,): where they lie."""
    lse = tl.load(numbers.lse + row)
    dlse = lse
    if C.lse_gradient:
        dlse = tl.load(numbers.dlse + row)
    return Loaded(row, lse, dlse)


@triton.jit
def delta_of(C: tl.constexpr, loaded, out, dout):
    """delta (rows,), less the gradient of lse if it has one. out, dout: tiles (rows, dv)."""
    delta = _row_sum(C, out[0], dout[0])
    for n in tl.static_range(1, len(out)):
        delta += _row_sum(C, out[n], dout[n])
    if C.lse_gradient:
        # of a row that sees no key it may be NaN, as that of logaddexp is
        delta -= tl.where(loaded.lse == float("-inf"), 0.0, loaded.dlse)
    return delta


@triton.jit
def _row_sum(C: tl.constexpr, out, dout):
    product = out.to(tl.float32) * dout.to(tl.float32)
    if C.rank == 0 or C.direction == "delta":
        product = tl.where(out == 0, 0.0, product)  # of a row that sees no key dO may be anything
    return tl.sum(product, 1)


@triton.jit
def lse_without_keys(C: tl.constexpr, lse, scale):
    """lse, or 0 in a row that sees no key, where it is -inf, or its sink, which may be as low as numbers go.

    On a grid the pairs of such a row get penalties, which must stay far below lse. On lines and in blocks they are
    masked after they are weighed, so lse may be any number. The kernel of delta leaves lse for all of them.
    """
    if C.rank > 1 or C.direction == "delta":
        none = lse < (scale * (PENALTY / 10) if C.linear else PENALTY / 10)
    else:
        none = lse == float("-inf")
    return tl.where(none, 0.0, lse)


@triton.jit
def leave_delta(C: tl.constexpr, numbers, row, delta, valid):
    """Store delta for the kernel of dK and dV, or for the gradient of sinks."""
    if C.leaves_delta:
        tl.store(numbers.delta + row, delta, mask=valid)


@triton.jit
def leave_stats(C: tl.constexpr, numbers, found, valid, scale):
    """Store -lse / scale and -delta as the kernel of dK and dV subtracts them: as a part of its products."""
    if C.stats32:
        at = numbers.stats + found.row * PAIR
        tl.store(at, tl.log2(scale) - found.lse * LOG2E, mask=valid)
        tl.store(at + 1, -found.delta, mask=valid)
    elif C.folded:
        of_lse, of_delta = in_three(-found.lse / scale), in_three(-found.delta)
        column = tl.arange(0, STATS)[None, :]
        stats = tl.zeros((C.rows, STATS), tl.float32)
        for n in tl.static_range(3):
            stats = tl.where(column == n, of_lse[n][:, None], stats)
            stats = tl.where(column == n + 8, of_delta[n][:, None], stats)
        tl.store(numbers.stats + found.row[:, None] * STATS + column, stats.to(tl.bfloat16), mask=valid[:, None])
