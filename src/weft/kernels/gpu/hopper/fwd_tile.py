# ruff: noqa: PLR0913 - kernels take as many arguments as they need
"""One tile of a forward: scores, weights, and what they add to a consumer's sums."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.layouts import first_factor, matrix
from weft.kernels.gpu.hopper.ops.mask import cut_tile
from weft.kernels.gpu.hopper.ops.softmax import in_parts, largest_in_parts, online, times_rows


@aggregate
class Scoring:
    """What all tiles take. rows, pace: a consumer's rows and their step. columns: of a tile. scale2: makes logarithms
    of weights of scores. zero: a tile of zeros. none: zeros of a consumer's sums.
    """

    rows: gl.tensor
    pace: gl.tensor
    columns: gl.tensor
    scale2: gl.tensor
    zero: gl.tensor
    none: gl.tensor


@aggregate
class Sums:
    """Sums of values, and of weights in parts. top: the bits of the largest weight of each part. largest: what was
    taken off scores, in bits; a constant where that is nothing.
    """

    acc: gl.tensor
    total: gl.tensor
    top: gl.tensor
    largest: gl.tensor | gl.constexpr


@gluon.jit
def no_sums(scoring, cfg: gl.constexpr):
    """Before a consumer's first tile."""
    total, top = in_parts(scoring.zero), largest_in_parts(scoring.zero)
    ROWS: gl.constexpr = scoring.zero.type.shape[0]
    if cfg.row_max == "none":
        sums = Sums(scoring.none, total, top, 0)  # a constant, which a variable would make a tensor of
    else:
        largest = gl.full([ROWS], float("-inf"), gl.float32, scoring.rows.type.layout)
        sums = Sums(scoring.none, total, top, largest)
    return sums


@gluon.jit
def with_acc(sums, acc):
    """Sums with other sums of values."""
    return Sums(acc, sums.total, sums.top, sums.largest)


@gluon.jit
def ask_scores(i, q, state, scoring):
    """Ask for the products of a consumer's queries and the keys of tile i of the ring, once these are there."""
    at = state.tiles.stage(i)
    state.tiles.wait(i)
    k = matrix(state.k.index(at)).permute((1, 0))
    return warpgroup_mma(q, k, scoring.zero, use_acc=False, is_async=True)


@gluon.jit
def scores_of(i, q, state, scoring):
    """These products."""
    return warpgroup_mma_wait(0, (ask_scores(i, q, state, scoring),))


@gluon.jit
def weights_of(x, s, sums, scoring, ROW_MAX: gl.constexpr):
    """(weights of a tile's scores, sums that belong to them). s: how many tiles the consumer had before.

    Bounds mostly rise or fall by a key a row, or less, so every row has a key in the consumer's first two tiles. Other
    rows have nothing taken off, and go again where that is not enough.
    """
    if ROW_MAX == "none":
        p = gl.exp2(x * scoring.scale2)
    elif ROW_MAX == "first":
        largest = sums.largest
        if s < 2:
            new = gl.max(x, 1) * scoring.scale2
            largest = gl.where(largest == float("-inf"), new, largest)
            if s == 1:
                largest = gl.where(largest == float("-inf"), 0.0, largest)
        safe = gl.where(largest == float("-inf"), 0.0, largest)
        p = gl.exp2(x * scoring.scale2 - gl.expand_dims(safe, 1))
        sums = Sums(sums.acc, sums.total, sums.top, largest)
    else:
        p, kept, new = online(x, sums.largest, scoring.scale2)
        sums = Sums(times_rows(sums.acc, kept), times_rows(sums.total, kept), sums.top, new)
    return p, sums


@gluon.jit
def with_weights(sums, p, ROW_MAX: gl.constexpr):
    """Sums of weights with those of a tile."""
    top = sums.top
    if ROW_MAX != "online":  # where the largest weight is 1, which no rounding changes
        top = gl.maximum(top, largest_in_parts(p))
    return Sums(sums.acc, sums.total + in_parts(p), top, sums.largest)


@gluon.jit
def add_tile(i, j, s, x, sums, cut, state, scoring):
    """Sums with tile i of the ring, which is tile j of its run and tile s of the consumer's. x: see `scores_of`."""
    cfg: gl.constexpr = state.cfg
    at = state.tiles.stage(i)
    x = cut_tile(x, j, cut, scoring.columns, float("-inf"))
    p, sums = weights_of(x, s, sums, scoring, cfg.row_max)
    sums = with_weights(sums, p, cfg.row_max)
    weights = gl.convert_layout(p.to(state.v.dtype), first_factor(cfg.width_v))
    acc = warpgroup_mma(weights, matrix(state.v.index(at)), sums.acc, is_async=True)
    acc = warpgroup_mma_wait(0, (acc,))
    state.tiles.release(i)
    return with_acc(sums, acc)
