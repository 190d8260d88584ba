# ruff: noqa: PLR0913 - kernels take as many arguments as they need
"""A forward's tiles at wide heads: scores of a tile are made beside the product of the weights before.

Tensor cores then have work while a consumer makes weights, and nothing waits for the sums but what gives their values
back. Keys and values have a ring each, since a tile's keys are needed a tile earlier. Weights wait for their product as
words of two, which the compiler carries from tile to tile without taking them apart. Tiles that bounds cut are apart
from those in between, and what a row sees is read from the tables.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from weft.kernels.gpu.hopper.fwd_tile import Sums, ask_scores, no_sums, weights_of, with_acc, with_weights
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import keys_of, range_of, row_bounds, tiles_of
from weft.kernels.gpu.hopper.ops.grids import grid_words
from weft.kernels.gpu.hopper.ops.layouts import matrix
from weft.kernels.gpu.hopper.ops.mask import Cut, mask_words, masked
from weft.kernels.gpu.hopper.ops.values import opaque
from weft.kernels.gpu.hopper.ops.words import factor_of, in_words


@aggregate
class Part:
    """A consumer's part of a block: which consumer, a pointer to the block's integers, the place of its queries."""

    consumer: gl.tensor | gl.constexpr
    item: gl.tensor
    place: gl.tensor


@aggregate
class Own:
    """What a consumer has of a run: its queries, and where bounds cut."""

    q: gl.shared_memory_descriptor
    cut: Any


@aggregate
class Ahead:
    """Sums, without the product of the last tile's weights, which are here as words of two."""

    sums: Sums
    words: gl.tensor


@gluon.jit
def ask_sums(i, ahead, state):
    """Ask for the product of tile i's weights with its values, once these are there."""
    at = state.values.stage(i)
    state.values.wait(i)
    weights = factor_of(ahead.words, state.v.dtype, state.cfg.width_v)
    return warpgroup_mma(weights, matrix(state.v.index(at)), ahead.sums.acc, is_async=True)


@gluon.jit
def tile_at(j, cut, cfg: gl.constexpr):
    """Where tile j of a run is: the word of its list on a grid, read before scores are waited for."""
    if cfg.axes:
        j = gl.load(cut.words + j)
    return j


@gluon.jit
def cut_scores(x, at, cut, scoring, cfg: gl.constexpr):
    """Scores of a tile of a run, -inf where a row does not see the key. at: see `tile_at`."""
    TILE: gl.constexpr = cfg.columns
    if cfg.axes:
        words, bit = grid_words(at, cut, scoring.columns, cfg)
    else:
        words, bit = mask_words(cut.low - at * TILE, cut.high - at * TILE, scoring.columns)
    return masked(x, words, bit, float("-inf"))


@gluon.jit
def first_tile(i, j, s, own, sums, state, scoring):
    """The first tile of a run. j: which of the run; s: tiles that the consumer had before."""
    cfg: gl.constexpr = state.cfg
    at = tile_at(j, own.cut, cfg)
    x = warpgroup_mma_wait(0, (ask_scores(i, own.q, state, scoring),))
    state.tiles.release(i)
    x = cut_scores(x, at, own.cut, scoring, cfg)
    p, sums = weights_of(x, s, sums, scoring, cfg.row_max)
    return Ahead(with_weights(sums, p, cfg.row_max), in_words(p, state.v.dtype))


@gluon.jit
def next_tile(i, j, s, own, before, state, scoring, MASK: gl.constexpr):
    """Another one, beside the product of the one before. MASK: bounds may cut it."""
    cfg: gl.constexpr = state.cfg
    i = opaque(i)  # as in `fwd.walk`
    at = tile_at(j, own.cut, cfg) if MASK else j
    x = ask_scores(i, own.q, state, scoring)
    acc = ask_sums(i - 1, before, state)
    x = warpgroup_mma_wait(1, (x,))
    state.tiles.release(i)
    if MASK:
        x = cut_scores(x, at, own.cut, scoring, cfg)
    if cfg.row_max == "online":  # which multiplies sums
        acc = warpgroup_mma_wait(0, (acc,))
        p, sums = weights_of(x, s, with_acc(before.sums, acc), scoring, cfg.row_max)
        acc = sums.acc
    else:
        p, sums = weights_of(x, s, before.sums, scoring, cfg.row_max)
    sums = with_weights(sums, p, cfg.row_max)
    if cfg.row_max != "online":
        acc = warpgroup_mma_wait(0, (acc,))
    state.values.release(i - 1)
    words = in_words(p, state.v.dtype)  # after the wait: before it, ptxas writes them over those that are still read
    return Ahead(with_acc(sums, acc), words)


@gluon.jit
def pass_over(i, count, state):
    """Give back tiles that only others need. Returns the tile after them."""
    for _ in range(0, count):
        state.tiles.wait(i)
        state.tiles.release(i)
        state.values.wait(i)
        state.values.release(i)
        i += 1
    return i


@gluon.jit
def add_run(i, s, place, seen, cut, sums, state, scoring):
    """(tiles so far, sums) with a consumer's tiles of a run. place: of its queries; seen: which tiles; s: how many it
    had before; cut: a Cut, or on a grid a GridCut.
    """
    begin, end = seen.begin, seen.end
    here = i - begin
    for _ in range(0, gl.minimum(end - begin, 1)):  # a branch
        # Where queries lie is hidden from ptxas: it took what the first term makes of it for the second, made or not.
        own = Own(matrix(state.q.index(opaque(place))), cut)
        ahead = first_tile(i, begin, s, own, sums, state, scoring)
        one = gl.maximum(begin + 1, gl.minimum(seen.below, end))
        two = gl.maximum(one, gl.minimum(seen.beyond, end))
        for j in range(begin + 1, one):
            ahead = next_tile(here + j, j, s + j - begin, own, ahead, state, scoring, True)
        for j in range(one, two):
            ahead = next_tile(here + j, j, s + j - begin, own, ahead, state, scoring, False)
        for j in range(two, end):
            ahead = next_tile(here + j, j, s + j - begin, own, ahead, state, scoring, True)
        acc = warpgroup_mma_wait(0, (ask_sums(here + end - 1, ahead, state),))
        state.values.release(here + end - 1)
        sums = with_acc(ahead.sums, acc)
    return here + end, sums


@gluon.jit
def add_term(i, s, term, part, sums, state, scoring):
    """(tiles so far, the consumer's own, sums, keys that each row sees) with a consumer's tiles of a term."""
    cfg: gl.constexpr = state.cfg
    item = part.item
    seen = range_of(item, part.consumer, term, cfg.consumers, cfg.terms)
    low, high = row_bounds(item, scoring.rows + part.consumer * cfg.rows, term, cfg)
    _, count = keys_of(item, term)
    i = pass_over(i, seen.begin, state)
    i, sums = add_run(i, s, part.place, seen, Cut(low, high, seen.below, seen.beyond), sums, state, scoring)
    i = pass_over(i, tiles_of(count, cfg.columns) - seen.end, state)
    return i, s + seen.end - seen.begin, sums, gl.maximum(high - low, 0)


@gluon.jit
def overlapped_sums(i, consumer_id, item, t, state, scoring):
    """(tiles so far, sums, keys that each row sees, 0) over the consumer's tiles of block t, as `fwd.sums_of`."""
    cfg: gl.constexpr = state.cfg
    queries = state.queries(consumer_id)
    at = queries.stage(t)
    queries.wait(t)
    part, sums = Part(consumer_id, item, at), no_sums(scoring, cfg)
    i, s, sums, keys = add_term(i, 0, 0, part, sums, state, scoring)
    if cfg.terms == 2:
        i, s, sums, more = add_term(i, s, 1, part, sums, state, scoring)
        keys += more
    return i, sums, keys, 0
