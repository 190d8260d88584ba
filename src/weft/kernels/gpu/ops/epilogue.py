"""What becomes of the sums of a forward's rows: the output, and lse. Pointwise in rows and columns."""

from collections import namedtuple

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from weft.kernels.gpu import constants
from weft.kernels.gpu.ops.loads import scaled
from weft.kernels.gpu.ops.scores import LOG2E

LN2 = tl.constexpr(constants.LN2)


# Finished sums of rows. top (rows,): what was subtracted from their scores in units of log2. total (rows,): the sum of
# weights, and weight (rows,): what the sums of values acc (rows, dv) are divided by.
Rest = namedtuple("Rest", "acc top total weight")


@triton.jit
def with_sink(rest, sink, ONLINE: tl.constexpr):
    """The sink joins the sum, and has no value; sink: its score. ONLINE: the largest score may be -inf."""
    sink = sink * LOG2E
    above = tl.maximum(rest.top, sink)
    if ONLINE:
        above = tl.where(above == float("-inf"), 0.0, above)  # neither keys nor a sink
    less = tl.where(rest.total == 0, 0.0, tl.exp2(rest.top - above))
    more = tl.where(sink == above, 1.0, tl.exp2(sink - above))  # an fma would leave its rounding error
    return Rest(scaled(rest.acc, less[:, None]), above, rest.total * less + more, rest.weight * less + more)


@triton.jit
def output(rest):
    """Sums of values over sums of weights; 0 in rows without keys, and NaN stays NaN."""
    return scaled(rest.acc, tl.where(rest.total == 0, 0.0, 1.0 / rest.weight)[:, None])


@triton.jit
def lse_of(rest, ONLINE: tl.constexpr, FAST: tl.constexpr):
    """The logarithm of the sum of exponentials. ONLINE: something was subtracted. FAST: by NVIDIA's instruction."""
    log = _log2(rest.total, FAST)
    if ONLINE:
        log = rest.top + log
    return tl.where(rest.total == 0, float("-inf"), log * LN2)


@triton.jit
def above_sink(rest, lse, sink, FAST: tl.constexpr):
    """lse, measured from the sink where that is the largest score: the sink's own digits stay, however large it is."""
    return tl.where(rest.top == sink * LOG2E, sink + _log2(rest.total, FAST) * LN2, lse)


@triton.jit
def _log2(x, FAST: tl.constexpr):
    return libdevice.fast_log2f(x) if FAST else tl.log2(x)


# How rows of two results over disjoint keys are merged: (x * mine + y * theirs) * inverse. lse: of both.
Merging = namedtuple("Merging", "mine theirs inverse lse")


@triton.jit
def merged_lse(lse, old):
    """How results are merged whose lse these are; a row that neither has keys of is 0."""
    above = tl.maximum(lse, old)
    above = tl.where(above == float("-inf"), 0.0, above)
    mine, theirs = tl.exp(lse - above), tl.exp(old - above)
    both = mine + theirs
    inverse = tl.where(both == 0, 0.0, 1.0 / both)
    return Merging(mine, theirs, inverse, tl.where(both == 0, float("-inf"), above + tl.log(both)))
