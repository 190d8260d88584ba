# ruff: noqa: PLR0913 - kernels take as many arguments as they need
"""One tile of a forward: scores, weights, and what they add to a consumer's sums."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.layouts import first_factor, matrix
from weft.kernels.gpu.hopper.ops.mask import mask_words, masked
from weft.kernels.gpu.hopper.ops.softmax import in_parts


@aggregate
class Scoring:
    """What all tiles take: a consumer's rows and their step, the columns of a tile, what makes logarithms of weights of
    scores, and a tile of zeros.
    """

    rows: gl.tensor
    pace: gl.tensor
    columns: gl.tensor
    scale2: gl.tensor
    zero: gl.tensor


@aggregate
class Cut:
    """Positions of a run that rows see, from low to before high; they cut tiles below one, and from another on."""

    low: gl.tensor
    high: gl.tensor
    below: gl.tensor
    beyond: gl.tensor


@gluon.jit
def scores_of(i, q, state, scoring):
    """Products of a consumer's queries and the keys of tile i of the ring, once they are there."""
    at = state.tiles.stage(i)
    state.tiles.wait(i)
    k = matrix(state.k.index(at)).permute((1, 0))
    x = warpgroup_mma(q, k, scoring.zero, use_acc=False, is_async=True)
    return warpgroup_mma_wait(0, (x,))


@gluon.jit
def add_tile(i, j, x, sums, cut, state, scoring):
    """(sums, parts of sums of weights), with tile i of the ring, which is tile j of its run. x: see `scores_of`."""
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.columns
    acc, total = sums
    at = state.tiles.stage(i)
    if (j < cut.below) | (j >= cut.beyond):
        words, bit = mask_words(cut.low - j * TILE, cut.high - j * TILE, scoring.columns)
        x = masked(x, words, bit, float("-inf"))
    p = gl.exp2(x * scoring.scale2)
    total += in_parts(p)
    weights = gl.convert_layout(p.to(state.v.dtype), first_factor(cfg.width_v))
    acc = warpgroup_mma(weights, matrix(state.v.index(at)), acc, is_async=True)
    acc = warpgroup_mma_wait(0, (acc,))
    state.tiles.release(i)
    return acc, total
