# ruff: noqa: PLR0913 - kernels take as many arguments as they need, and Gluon is not all of Python
"""A forward's short runs, of four tiles at most: terms one after the other, and a run's first and last tile as one.
Functions of Gluon, inlined into an emitted kernel; as those of `group_queries.walk`, and more code, which four copies
would have warps wait for (`weft.kernels.gpu.compile.dedup`).

A window of a multiple of 64 keys has of 64 queries' first tile what is right of a diagonal, and of the last what is
left of it: no query sees the same column of both. So a column's score is of either, one exponential makes its weight,
and only products are made of both tiles (`weft.kernels.gpu.tables.consumer_ranges` says where).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from weft.kernels.triton.groups import TILE, in_parts, live, masked, seen, skip, turn
from weft.kernels.triton.query_blocks import FOLDS, matrix
from weft.kernels.triton.told import GROUP, block_told, bounds_of, number, term_told


@gluon.jit
def less(x, y):
    """x - y in bfloat16, two at a time."""
    return gl.inline_asm_elementwise(
        "sub.rn.bf16x2 $0, $1, $2;", "=r,r,r", [x, y], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def folded(i, run, q, bounds, rings, of_scores, STAGES: gl.constexpr):
    """(sums, parts of sums of weights) of a run's first and last tile."""
    columns, scale2, zero = of_scores
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=zero.type.layout, k_width=2)
    k, v, full, empty = rings
    last = i + run[1] - run[0] - 1
    one, two = i & (STAGES - 1), last & (STAGES - 1)
    mbarrier.wait(full.index(one), turn(i, STAGES))
    x = warpgroup_mma(q, matrix(k.index(one)).permute((1, 0)), zero, use_acc=False, is_async=True)
    mbarrier.wait(full.index(two), turn(last, STAGES))
    y = warpgroup_mma(q, matrix(k.index(two)).permute((1, 0)), zero, use_acc=False, is_async=True)
    low = bounds[0] - run[0] * TILE
    words, bit = seen(low, gl.full_like(low, TILE), columns)
    x = warpgroup_mma_wait(1, (x,))
    y = warpgroup_mma_wait(0, (y,))
    p = gl.exp2(masked(x, words, bit, y) * scale2)
    of_one = masked(p, words, bit, 0.0).to(gl.bfloat16)
    of_two = less(p.to(gl.bfloat16), of_one)
    acc = warpgroup_mma(gl.convert_layout(of_one, factor), matrix(v.index(one)), zero, use_acc=False, is_async=True)
    acc = warpgroup_mma(gl.convert_layout(of_two, factor), matrix(v.index(two)), acc, is_async=True)
    acc = warpgroup_mma_wait(0, (acc,))
    mbarrier.arrive(empty.index(one), count=1)
    mbarrier.arrive(empty.index(two), count=1)
    return acc, in_parts(p)


@gluon.jit
def scores_of(i, q, rings, zero, STAGES: gl.constexpr):
    """Products of a group's queries and the keys of tile i of all, once they are there. rings: K, V, which are there
    and which are free.
    """
    k, _, full, _ = rings
    at = i & (STAGES - 1)
    mbarrier.wait(full.index(at), turn(i, STAGES))
    x = warpgroup_mma(q, matrix(k.index(at)).permute((1, 0)), zero, use_acc=False, is_async=True)
    return warpgroup_mma_wait(0, (x,))


@gluon.jit
def add_tile(i, j, x, sums, bounds, rings, of_scores, STAGES: gl.constexpr):
    """(sums, parts of sums of weights), with tile i of all, which is tile j of its term's run. x: see `scores_of`;
    bounds: of rows, and where they cut; of_scores: see `group_queries.weights_of`.
    """
    columns, scale2, zero = of_scores
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=zero.type.layout, k_width=2)
    acc, total = sums
    low, high, below, beyond = bounds
    _, v, _, empty = rings
    at = i & (STAGES - 1)
    if (j < below) | (j >= beyond):
        words, bit = seen(low - j * TILE, high - j * TILE, columns)
        x = masked(x, words, bit, float("-inf"))
    p = gl.exp2(x * scale2)
    total += in_parts(p)
    weights = gl.convert_layout(p.to(gl.bfloat16), factor)
    acc = warpgroup_mma(weights, matrix(v.index(at)), acc, is_async=True)
    acc = warpgroup_mma_wait(0, (acc,))
    mbarrier.arrive(empty.index(at), count=1)
    return acc, total


@gluon.jit
def walk(i, tiles, sums, q, bounds, rings, of_scores, STAGES: gl.constexpr):
    """(tiles so far, sums, parts of sums of weights), with a group's tiles of one term. tiles: the first of them and
    the one after the last.
    """
    acc, total = sums
    for j in range(tiles[0], tiles[1]):
        i = live(i)  # as in `group_queries.walk`
        x = scores_of(i, q, rings, of_scores[2], STAGES)
        acc, total = add_tile(i, j, x, (acc, total), bounds, rings, of_scores, STAGES)
        i += 1
    return i, acc, total


@gluon.jit
def heard(rooms, C, WIDE: gl.constexpr, TERMS: gl.constexpr, lies: gl.constexpr):
    """What group C was told of a block: whether its first and last tile fold, the terms, and `told.block_told`."""
    near, far = term_told(rooms, C, 0, WIDE, TERMS, lies), term_told(rooms, C, TERMS - 1, WIDE, TERMS, lies)
    found = number(rooms[0], GROUP * C + FOLDS), near, far, block_told(rooms[0])
    mbarrier.arrive(rooms[2].index(0), count=1)
    return found


@gluon.jit
def short_weights(i, block, rings, of_scores, STAGES: gl.constexpr, TERMS: gl.constexpr):
    """As `group_queries.weights_of`. block: what was `heard` of it, memory of queries, and which of it."""
    fold, near, far, _, rows, place = block
    full, empty = rings[2], rings[3]
    bounds = bounds_of(near)
    keys = bounds[1] - bounds[0]
    q = matrix(rows.index(place))
    i = skip(near[0], i, full, empty, STAGES)
    acc = of_scores[2]
    total = in_parts(acc)
    if fold != 0:
        # Where queries lie is hidden from ptxas: it took what this branch makes of it for what follows, taken or not.
        hidden = matrix(rows.index(live(place)))
        acc, total = folded(i, near, hidden, bounds, rings, of_scores, STAGES)
    between = (near[0] + fold, near[1] - fold)
    i, acc, total = walk(i + fold, between, (acc, total), q, bounds, rings, of_scores, STAGES)
    i += fold
    after = near[2]
    if TERMS == 2:
        bounds = bounds_of(far)
        keys += bounds[1] - bounds[0]
        i = skip(after + far[0], i, full, empty, STAGES)
        i, acc, total = walk(i, far, (acc, total), q, bounds, rings, of_scores, STAGES)
        after = far[2]
    return i, acc, total, keys, after
