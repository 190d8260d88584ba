"""The score of a pair, and what the gradient of a score gives the gradient of its product.

These are pointwise: they run in Triton and in Gluon. A score function that is traced from a user's has its place in
`score` and `through_score`.
"""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu import constants
from weft.kernels.gpu.ops.bounds import tanh

LOG2E = tl.constexpr(constants.LOG2E)


# What scores are made with. shift: what the walked side's tokens lag behind the other's, for ALiBi. slopes: of ALiBi,
# one float32 for each query head, or None.
Scaling = namedtuple("Scaling", "scale softcap shift slopes")

# The same for one query head. slope: of ALiBi in units of log2. log2_scale: the scale in these units.
Scores = namedtuple("Scores", "scale softcap shift slope log2_scale")


@triton.jit
def scores_of(C: tl.constexpr, scaling, head):
    """What scores of a query head are made with; without ALiBi nothing reads the slope."""
    slope = scaling.scale
    if C.alibi:
        slope = tl.load(scaling.slopes + head) * LOG2E
    return Scores(scaling.scale, scaling.softcap, scaling.shift, slope, scaling.scale * LOG2E)


@triton.jit
def score(C: tl.constexpr, product, scores, rows, columns):
    """(scores, what `through_score` needs), from products of queries and keys (rows, cols).

    Scores are in units of log2, except that linear ones are not scaled yet: `exponent` does it. rows (rows,), columns
    (cols,): tokens.
    """
    s, capped = product, product
    if C.softcap:
        capped = tanh(s * (scores.scale / scores.softcap))
        s = capped * (scores.softcap * LOG2E)
    elif not C.linear:
        s = s * scores.log2_scale
    if C.alibi:
        if C.of_keys:
            s -= scores.slope * tl.abs(rows[:, None] - scores.shift - columns[None, :]).to(tl.float32)
        else:
            s -= scores.slope * tl.abs(rows[:, None] + scores.shift - columns[None, :]).to(tl.float32)
    return s, capped


@triton.jit
def through_score(C: tl.constexpr, ds, capped):
    """The gradient of products, but for the scale, from that of scores."""
    if C.softcap:
        ds = ds * (1.0 - capped * capped)
    return ds


@triton.jit
def exponent(C: tl.constexpr, s, scores):
    """Scores in units of log2."""
    return s * scores.log2_scale if C.linear else s
