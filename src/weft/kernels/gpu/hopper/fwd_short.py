# ruff: noqa: PLR0913 - kernels take as many arguments as they need
"""A forward's short runs, of four tiles at most: terms one after the other, and a run's first and last tile as one.

Take a window of a multiple of a tile's keys. A consumer's queries see the right of a diagonal in its first tile, and
the left of it in its last. No query sees the same column of both. So a column's score is of either tile, one
exponential makes its weight, and only products are made of both (`weft.kernels.gpu.tables.consumer_ranges` says where).
This is more code than `fwd.walk`, so consumers share one copy of it (`weft.kernels.gpu.compile.dedup`).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from weft.kernels.gpu.hopper.fwd_tile import Sums, add_tile, no_sums, scores_of
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import FOLDS
from weft.kernels.gpu.hopper.ops.broadcast import OWN, Metadata, Seen, metadata, seen_of
from weft.kernels.gpu.hopper.ops.layouts import accumulator, first_factor, matrix
from weft.kernels.gpu.hopper.ops.mask import Cut, mask_words, masked
from weft.kernels.gpu.hopper.ops.softmax import in_parts, largest_in_parts
from weft.kernels.gpu.hopper.ops.values import opaque


@gluon.jit
def less(x, y):
    """x - y in bfloat16, two at a time."""
    return gl.inline_asm_elementwise(
        "sub.rn.bf16x2 $0, $1, $2;", "=r,r,r", [x, y], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def folded(i, run, q, low, state, scoring):
    """Sums of a run's first and last tile, with nothing taken off scores. low: the first position that rows see."""
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.columns
    factor: gl.constexpr = first_factor(cfg.width_v)
    tiles, k, v = state.tiles, state.k, state.v
    last = i + run.end - run.begin - 1
    one, two = tiles.stage(i), tiles.stage(last)
    tiles.wait(i)
    x = warpgroup_mma(q, matrix(k.index(one)).permute((1, 0)), scoring.zero, use_acc=False, is_async=True)
    tiles.wait(last)
    y = warpgroup_mma(q, matrix(k.index(two)).permute((1, 0)), scoring.zero, use_acc=False, is_async=True)
    low = low - run.begin * TILE
    words, bit = mask_words(low, gl.full_like(low, TILE), scoring.columns)
    x = warpgroup_mma_wait(1, (x,))
    y = warpgroup_mma_wait(0, (y,))
    p = gl.exp2(masked(x, words, bit, y) * scoring.scale2)
    of_one = masked(p, words, bit, 0.0).to(gl.bfloat16)
    of_two = less(p.to(gl.bfloat16), of_one)
    of_one = gl.convert_layout(of_one, factor)
    acc = warpgroup_mma(of_one, matrix(v.index(one)), scoring.none, use_acc=False, is_async=True)
    acc = warpgroup_mma(gl.convert_layout(of_two, factor), matrix(v.index(two)), acc, is_async=True)
    acc = warpgroup_mma_wait(0, (acc,))
    tiles.release(i)
    tiles.release(last)
    return Sums(acc, in_parts(p), largest_in_parts(p), 0)


@gluon.jit
def walk(i, begin, end, sums, q, cut, state, scoring):
    """(tiles so far, sums), with a consumer's tiles of one term."""
    for j in range(begin, end):
        i = opaque(i)  # as in `fwd.walk`
        x = scores_of(i, q, state, scoring)
        sums = add_tile(i, j, j - begin, x, sums, cut, state, scoring)
        i += 1
    return i, sums


@aggregate
class Heard:
    """What a consumer read of a block. folds: whether its first and last tile are one."""

    folds: gl.tensor
    near: Seen
    far: Seen
    block: Metadata


@gluon.jit
def hear(state, consumer_id):
    """Read what the consumer needs of a block, and say so."""
    cfg: gl.constexpr = state.cfg
    TERMS: gl.constexpr = cfg.terms
    layout: gl.constexpr = accumulator(cfg.columns)
    shared = state.broadcast
    near = seen_of(shared, consumer_id, 0, cfg.columns, layout)
    far = seen_of(shared, consumer_id, TERMS - 1, cfg.columns, layout)
    found = Heard(shared.number(OWN * consumer_id + FOLDS), near, far, metadata(shared))
    shared.heard.arrive(0)
    return found


@gluon.jit
def short_sums(i, heard, place, state, scoring):
    """As `fwd.sums_of`, of what a consumer heard of a block. place: where its queries are."""
    cfg: gl.constexpr = state.cfg
    TERMS: gl.constexpr = cfg.terms
    tiles, near, far, folds = state.tiles, heard.near, heard.far, heard.folds
    low, high = near.low(), near.high()
    keys = high - low
    q = matrix(state.q.index(place))
    i = tiles.pass_over(i, near.begin)
    sums = no_sums(scoring, cfg)
    if folds != 0:
        # Where queries lie is hidden from ptxas: it took what this branch makes of it for what follows, taken or not.
        hidden = matrix(state.q.index(opaque(place)))
        sums = folded(i, near, hidden, low, state, scoring)
    cut = Cut(low, high, near.below, near.beyond)
    i, sums = walk(i + folds, near.begin + folds, near.end - folds, sums, q, cut, state, scoring)
    i += folds
    after = near.after
    if TERMS == 2:
        low, high = far.low(), far.high()
        keys += high - low
        i = tiles.pass_over(i, after + far.begin)
        cut = Cut(low, high, far.below, far.beyond)
        i, sums = walk(i, far.begin, far.end, sums, q, cut, state, scoring)
        after = far.after
    return i, sums, keys, after
