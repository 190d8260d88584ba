"""The score of a pair, and what the gradient of a score gives the gradient of its product.

These are pointwise: they run in Triton and in Gluon. Score functions are `C.score` and `C.through`, which
`weft.kernels.gpu.score.fragment` writes.
"""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu import constants
from weft.kernels.gpu.ops.bounds import tanh
from weft.kernels.gpu.ops.dropout import dropping_of, kept
from weft.kernels.gpu.ops.loads import scaled

LOG2E = tl.constexpr(constants.LOG2E)


# What scores are made with. shift: what the walked side's tokens lag behind the other's, for ALiBi. slopes: of ALiBi,
# one float32 for each query head, or None. captured: what score functions are told of their tables.
# dropping: the seed's pointer, what is dropped and what kept weights are multiplied by, or ().
Scaling = namedtuple("Scaling", "scale softcap shift slopes captured dropping")

# The same for one query head. slope: of ALiBi in units of log2. log2_scale: the scale in these units. b, h: the batch
# row and the head, which score functions and dropout read. dropping: `weft.kernels.gpu.ops.dropout.Dropping`, or ().
Scores = namedtuple("Scores", "scale softcap shift slope log2_scale captured b h dropping")


@triton.jit
def scores_of(C: tl.constexpr, scaling, batch, head):
    """What scores of a query head are made with; without ALiBi nothing reads the slope."""
    slope, b, h, dropping = scaling.scale, (), (), ()
    if C.alibi:
        slope = tl.load(scaling.slopes + head) * LOG2E
    if C.scored or C.dropout:
        b, h = batch.to(tl.int32), head
    if C.dropout:
        dropping = dropping_of(C, scaling, head)
    return Scores(
        scaling.scale, scaling.softcap, scaling.shift, slope, scaling.scale * LOG2E, scaling.captured, b, h, dropping
    )  # fmt: skip


@triton.jit
def score(C: tl.constexpr, product, scores, rows, tile, begun=None):
    """(scores, what `through_score` needs), from products of queries and keys (rows, cols).

    Scores are in units of log2, except that linear ones are not scaled yet: `exponent` does it. rows: of the tile, see
    `weft.kernels.gpu.tile.places`. begun: what `begin` gave.
    """
    s, capped = product, product
    if C.adds:
        capped = (product, begun[1])
    elif C.scored:
        s, capped = _by_functions(C, product, scores, rows, tile)
    elif C.softcap:
        capped = tanh(s * (scores.scale / scores.softcap))
        s = capped * (scores.softcap * LOG2E)
    elif not C.linear:
        s = s * scores.log2_scale
    if C.alibi:
        if C.of_keys:
            s -= scores.slope * tl.abs(rows.token[:, None] - scores.shift - tile.token[None, :]).to(tl.float32)
        else:
            s -= scores.slope * tl.abs(rows.token[:, None] + scores.shift - tile.token[None, :]).to(tl.float32)
    return s, capped


@triton.jit
def begin(C: tl.constexpr, scores, rows, tile):
    """(what products of a tile begin with, what `C.through` needs) where score functions only add to scores, else ().

    It is divided by the scale, which sums of products are multiplied by later. So no operation for each pair adds it.
    """
    begun = ()
    if C.adds:
        q, k = rows.token[:, None], tile.token[None, :]
        if C.of_keys:
            q, k = tile.token[None, :], rows.token[:, None]
        if C.along:
            apart = _apart(C, rows, tile)
            found = C.score(C.rows, C.cols, scores.b, scores.h, q, k, scores.shift, scores.captured, apart)
        else:
            found = C.score(C.rows, C.cols, scores.b, scores.h, q, k, scores.shift, scores.captured)
        begun = found[0] * (1.0 / scores.scale), others(found)
    return begun


@triton.jit
def others(found):
    """All that a fragment gave but the first."""
    more = ()
    for n in tl.static_range(1, len(found)):
        more += (found[n],)
    return more


@triton.jit
def _apart(C: tl.constexpr, rows, tile):
    """Where the entry of each pair lies, as a sum of two. On a line: k - q. On a grid of X times Y tokens:
    (ky - qy) * (2 Y - 1) + kx - qx.
    """
    if C.rank > 1:
        mine, theirs = rows.at[0], _coordinates(tile, 0)
        for a in tl.static_range(1, C.rank):
            pace = 2 * tile.visit.part.runs[a].length - 1
            mine, theirs = mine * pace + rows.at[a], theirs * pace + _coordinates(tile, a)
        if C.of_keys:
            found = mine.to(tl.int64)[:, None], -theirs[None, :]
        else:
            found = -mine.to(tl.int64)[:, None], theirs[None, :]
    else:
        found = _apart_on_line(C, rows, tile)
    return found


@triton.jit
def _apart_on_line(C: tl.constexpr, rows, tile):
    """The same of consecutive tokens, also for rows beyond a tile's end.

    What a thread has of a product are rows r and r ^ 8, and columns c, c ^ 1, c ^ 8 and so on. So the second number is
    a constant for each of its pairs, and the first is the same for all of them.
    """
    r, c = rows.number[:, None], tile.visit.part.column[None, :]
    first, near, fixed = tile.at - rows.first, (c & 6) - (r & -9), (c & -7) - (r & 8)
    if C.of_keys:
        first, near, fixed = -first, -near, -fixed
    return first.to(tl.int64) + near.to(tl.int64), fixed


@triton.jit
def _coordinates(tile, A: tl.constexpr):
    """Of the columns of a box (cols,) along one axis."""
    run = tile.visit.part.runs[A]
    return run.first + run.step * (run.column + (tile.visit.j[A] << run.log))


@triton.jit
def _by_functions(C: tl.constexpr, product, scores, rows, tile):
    """(scores, (the softcap's tanh, what `C.through` needs)), where there are score functions."""
    s, capped = product, product
    if C.softcap:
        capped = tanh(s * (scores.scale / scores.softcap))
        s = capped * scores.softcap
    else:
        s = s * scores.scale
    q, k = rows.token[:, None], tile.token[None, :]
    if C.of_keys:
        q, k = tile.token[None, :], rows.token[:, None]
    if C.along:
        found = C.score(s, scores.b, scores.h, q, k, scores.shift, scores.captured, _apart(C, rows, tile))
    else:
        found = C.score(s, scores.b, scores.h, q, k, scores.shift, scores.captured)
    return found[0] * LOG2E, (capped, others(found))


@triton.jit
def through_score(C: tl.constexpr, ds, p, capped):
    """The gradient of products, but for the scale, from that of scores. p: weights.

    Nothing comes of pairs without one, whatever the derivatives of score functions are there.
    """
    if C.scored:
        ds = C.through(ds, capped[1])[0]
        if C.sloped:
            ds = tl.where(p > 0, ds, 0.0)
        capped = capped[0]
    if C.softcap:
        ds = ds * (1.0 - capped * capped)
    return ds


@triton.jit
def kept_weights(C: tl.constexpr, p, scores, rows, tile):
    """Weights, 0 where dropout drops them; what their sums are multiplied by comes at the end, see `kept_sums`."""
    return kept(C, p, scores, rows, tile) if C.dropout else p


@triton.jit
def kept_sums(C: tl.constexpr, sums, scores):
    """Sums of kept weights with values, a tile in chunks."""
    return scaled(sums, scores.dropping.scale) if C.dropout else sums


@triton.jit
def weighed(C: tl.constexpr, p, kept_p, dp, delta):
    """The gradients of scores from those of kept weights, p * (dp - delta). kept_p: weights, 0 where they are dropped.

    With dropout they and delta are divided by what kept weights are multiplied by.
    """
    return kept_p * dp - p * delta if C.dropout else p * (dp - delta)


@triton.jit
def shares_of_reads(C: tl.constexpr, ds, p, capped):
    """Of each read of a table whose gradient is summed, the gradients of what it gave (rows, cols). ds: of scores."""
    made, found = C.through(ds, capped[1]), ()
    for n in tl.static_range(1, len(made)):
        found += (tl.where(p > 0, made[n], 0.0),)
    return found


@triton.jit
def exponent(C: tl.constexpr, s, scores):
    """Scores in units of log2."""
    return s * scores.log2_scale if C.linear else s
