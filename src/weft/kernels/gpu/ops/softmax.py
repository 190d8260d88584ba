"""Softmax over the tiles of a walk: by the online form, or without a maximum. Pointwise, but for sums of rows."""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu import constants
from weft.kernels.gpu.ops.loads import zeros
from weft.kernels.gpu.ops.scores import exponent

NOTHING = tl.constexpr(constants.NOTHING)
SHARERS = tl.constexpr(4)  # threads that share a row of a product; each has two of every eight columns


# What a row (rows,) has summed: acc (rows, dv) in chunks, weights times values; largest: its largest score in units of
# log2, unless nothing is subtracted; total: of weights (rows,), or of each thread's (rows, SHARERS); top: each thread's
# largest weight (rows, SHARERS), as the bits of an integer, where its rounding counts. ahead: what products of the next
# tile begin with (rows, cols), where it is read a tile ahead.
Sums = namedtuple("Sums", "acc largest total top ahead")


@triton.jit
def no_sums(C: tl.constexpr, ONLINE: tl.constexpr):
    """Sums of no keys."""
    total = tl.zeros((C.rows, SHARERS), tl.float32) if C.partial else tl.zeros((C.rows,), tl.float32)
    largest = tl.full((C.rows,), float("-inf"), tl.float32) if ONLINE else ()
    top = tl.zeros((C.rows, SHARERS), tl.int32) if C.rounds and not ONLINE else ()
    return Sums(zeros(C, C.dv), largest, total, top, ())


@triton.jit
def with_top(C: tl.constexpr, top, p):
    """top with weights (rows, cols) of another tile. Bits of numbers that are not negative have the same order, and an
    instruction compares three integers.
    """
    parts = tl.reshape(p.to(tl.int32, bitcast=True), (C.rows, C.cols // (2 * SHARERS), SHARERS, 2))
    return tl.maximum(top, tl.max(tl.max(parts, 3), 1))


@triton.jit
def rounding_of(top, dtype: tl.constexpr):
    """What the largest weights of each row's threads gain together when they are rounded (rows,)."""
    weight = top.to(tl.float32, bitcast=True)
    return tl.sum(weight.to(dtype).to(tl.float32) - weight, 1)


@triton.jit
def row_sum(C: tl.constexpr, p):
    """The sum of weights (rows, cols): (rows,), or its parts (rows, SHARERS), which threads have without asking each
    other.
    """
    if C.partial:
        total = tl.sum(tl.sum(tl.reshape(p, (C.rows, C.cols // (2 * SHARERS), SHARERS, 2)), 3), 1)
    else:
        total = tl.sum(p, 1)
    return total


@triton.jit
def weights(C: tl.constexpr, s, scores):
    """Weights of scores from which nothing is subtracted, so that no tile waits for a maximum."""
    return tl.exp2(exponent(C, s, scores))


@triton.jit
def online_weights(C: tl.constexpr, s, scores, largest):
    """(weights, the largest scores so far, what is kept of earlier sums).

    Both are in units of log2 and rounded once: where the largest stays, exactly 1 is kept.
    """
    new = tl.maximum(largest, tl.max(s, 1) * scores.log2_scale if C.linear else tl.max(s, 1))
    unseen = new < NOTHING if C.rank > 1 else new == float("-inf")
    safe = tl.where(unseen, 0.0, new)  # of rows that have seen no key yet
    return tl.exp2(exponent(C, s, scores) - safe[:, None]), new, tl.exp2(largest - safe)
