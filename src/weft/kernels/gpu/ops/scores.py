"""The score of a pair, and what the gradient of a score gives the gradient of its product.

These are pointwise: they run in Triton and in Gluon. Score functions are `C.score` and `C.through`, which
`weft.kernels.gpu.score.fragment` writes.
"""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu import constants
from weft.kernels.gpu.ops.bounds import tanh
from weft.kernels.gpu.ops.dropout import dropping_of, keeps
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
def score(C: tl.constexpr, product, scores, rows, tile):
    """(scores, what `through_score` needs), from products of queries and keys (rows, cols).

    Scores are in units of log2, except that linear ones are not scaled yet: `exponent` does it. rows: of the tile, see
    `weft.kernels.gpu.tile.places`.
    """
    s, capped = product, product
    if C.scored:
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
def _apart(C: tl.constexpr, rows, tile):
    """Where the entry of each pair lies, as a sum of (rows, 1) and (1, cols): k - q; on a grid, of X times Y tokens,
    (ky - qy) * (2 Y - 1) + kx - qx.

    Columns of a line, one token apart, are numbers that the compiler knows: so the loads of a row have one address and
    fixed distances from it.
    """
    mine, theirs = rows.token - tile.at, tile.visit.part.column
    if C.rank > 1:
        mine, theirs = rows.at[0], _coordinates(tile, 0)
        for a in tl.static_range(1, C.rank):
            pace = 2 * tile.visit.part.runs[a].length - 1
            mine, theirs = mine * pace + rows.at[a], theirs * pace + _coordinates(tile, a)
    if C.of_keys:
        found = mine.to(tl.int64)[:, None], -theirs[None, :]
    else:
        found = -mine.to(tl.int64)[:, None], theirs[None, :]
    return found


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
    kept = ()
    for n in tl.static_range(1, len(found)):
        kept += (found[n],)
    return found[0] * LOG2E, (capped, kept)


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
    return tl.where(keeps(C, scores, rows, tile), p, 0.0) if C.dropout else p


@triton.jit
def kept_sums(C: tl.constexpr, sums, scores):
    """Sums of kept weights with values, a tile in chunks."""
    return scaled(sums, scores.dropping.scale) if C.dropout else sums


@triton.jit
def through_dropout(C: tl.constexpr, dp, kept, scores):
    """The gradients of weights from those of kept ones; kept: which are."""
    return tl.where(kept, dp * scores.dropping.scale, 0.0) if C.dropout else dp


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
