"""Patterns made of blocks, of unlike parts, of grids, and of other patterns, against their oracles."""

import numpy as np
import pytest

import weft

from . import oracles as o
from .helpers import same, same_everywhere, same_per_row
from .test_library import ALIGNMENTS, LENGTHS, RECTANGLES

CELLS = [[weft.causal, True, None], [False, weft.full, True], [True, True, lambda: weft.window(2, 1)]]


@pytest.mark.parametrize("lengths", ([3, 4, 5], [0, 4, 1], [64, 1, 65], [0, 0, 0]), ids=str)
def test_segments(lengths):
    cells = [[cell() if callable(cell) else cell for cell in row] for row in CELLS]
    dense = [list(row) for row in CELLS]
    dense[0][0] = o.dense(o.causal, lengths[0])
    dense[1][1] = True
    dense[2][2] = o.dense(lambda q, k: o.window(q, k, 2, 1), lengths[2])
    same_everywhere(weft.segments(lengths, cells), o.segments(lengths, dense))


def test_segments_of_text_and_image():
    text, grid = 9, (5, 6)
    image = weft.neighborhood(grid, 3)
    pattern = weft.segments([text, 30], [[weft.causal(), False], [True, image]])
    expected = o.segments([text, 30], [[o.dense(o.causal, text), False], [True, o.neighborhood(grid, 3)]])
    same_everywhere(pattern, expected)


@pytest.mark.parametrize("align", ALIGNMENTS)
def test_segments_off_the_diagonal(align):
    lengths = [5, 12]
    band = weft.window(left=2, right=3, align=align)
    cells = [[None, band], [band, weft.chunks(4)]]
    matrices = [[o.dense(lambda q, k: o.window(q, k, 2, 3), m, n, align) for n in lengths] for m in lengths]
    matrices[0][0] = None
    matrices[1][1] = o.dense(lambda q, k: o.chunks(q, k, 4), 12)
    same_everywhere(weft.segments(lengths, cells), o.segments(lengths, matrices))


def test_one_segment_is_its_pattern():
    same_everywhere(weft.segments([13], [[weft.strided(4)]]), o.dense(lambda q, k: o.strided(q, k, 4), 13))
    same_everywhere(weft.segments([], []), np.zeros((0, 0), dtype=bool))


def test_product():
    causal, band = weft.causal(), weft.window(left=1, right=2)
    axes = [o.dense(o.causal, 5), o.dense(lambda q, k: o.window(q, k, 1, 2), 7)]
    same_everywhere(weft.product([causal, band], (5, 7)), o.product(axes, (5, 7)))
    same_everywhere(weft.product([band], (7,)), axes[1])
    axes.append(o.dense(lambda q, k: o.dilated(q, k, 1, 1, 2), 4))
    pattern = weft.product([causal, band, weft.dilated(1, 1, 2)], (5, 7, 4))
    same_everywhere(pattern, o.product(axes, (5, 7, 4)))


def test_product_of_one_long_and_one_flat_axis():
    axes = [np.ones((1, 1), dtype=bool), o.dense(lambda q, k: o.fixed(q, k, 8, 2), 65)]
    same_everywhere(weft.product([weft.full(), weft.fixed(8, 2)], (1, 65)), o.product(axes, (1, 65)))
    same_everywhere(weft.product([weft.fixed(8, 2), weft.full()], (65, 1)), o.product(axes[::-1], (65, 1)))


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("shapes", (((4, 5), (6, 3)), ((1, 5), (3, 5)), ((6, 2), (1, 9)), ((0, 3), (2, 3))), ids=str)
def test_product_of_unlike_shapes(shapes, align):
    shape, key_shape = shapes
    pattern = weft.product([weft.causal(align=align), weft.window(left=1, right=1, align=align)], shape, key_shape)
    axes = [
        o.dense(o.causal, shape[0], key_shape[0], align),
        o.dense(lambda q, k: o.window(q, k, 1, 1), shape[1], key_shape[1], align),
    ]
    same_everywhere(pattern, o.product(axes, shape, key_shape))


def test_product_of_unions():
    axis = weft.causal() & weft.chunks(3) | weft.prefix(1)
    matrix = o.dense(lambda q, k: (o.causal(q, k) & o.chunks(q, k, 3)) | (k < 1), 6)
    same_everywhere(weft.product([axis, ~axis], (6, 6)), o.product([matrix, ~matrix], (6, 6)))


# --- random blocks, bigbird -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m,n", ((0, 0), (1, 1), (7, 7), (63, 63), (64, 64), (65, 65), (130, 130), (65, 20), (20, 65)))
@pytest.mark.parametrize("block,count", ((8, 2), (8, 0), (16, 3), (5, 1), (4, 100)))
def test_random_blocks(m, n, block, count):
    pattern = weft.random_blocks(block, count, seed=3)
    matrix = pattern.to_dense(m, n)
    table = o.random_block_table(matrix, block)
    assert (table.sum(1) == min(count, table.shape[1])).all()
    same_everywhere(pattern, matrix)
    same(weft.random_blocks(block, count, seed=3).to_dense(m, n), matrix, "the same seed")


def test_random_blocks_depend_on_seed_and_block_counts_only():
    def table(seed, m, n, block=8):
        return o.random_block_table(weft.random_blocks(block, 3, seed=seed).to_dense(m, n), block)

    assert (table(0, 128, 128) == table(0, 121, 123)).all(), "ragged last blocks choose alike"
    assert (table(0, 128, 128) == table(0, 64, 64, block=4)).all(), "the block size does not enter"
    assert (weft.random_blocks(8, 3).to_dense(64) == weft.random_blocks(8, 3, seed=0).to_dense(64)).all()
    assert len({table(seed, 128, 128).tobytes() for seed in range(6)}) == 6, "seeds differ"
    rows = table(0, 512, 512)
    assert len({row.tobytes() for row in rows}) > 32, "rows differ"
    assert (rows.sum(0) > 0).sum() > 48, "key blocks are spread"


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "block,width,global_blocks,random,seed",
    ((8, 3, 1, 2, 0), (16, 1, 0, 1, 5), (16, 3, 0, 0, 0), (5, 5, 2, 0, 0), (64, 3, 1, 3, 0), (1, 3, 1, 2, 2)),
)
def test_bigbird(length, block, width, global_blocks, random, seed):
    scatter = weft.random_blocks(block, random, seed=seed).to_dense(length)
    expected = o.dense(lambda q, k: o.bigbird(q, k, length, block, width, global_blocks, scatter), length)
    pattern = weft.bigbird(block=block, window=width, global_blocks=global_blocks, random=random, seed=seed)
    same_everywhere(pattern, expected)


def test_bigbird_of_more_blocks_than_any_sequence_has():
    np.testing.assert_array_equal(weft.bigbird(block=2**31, global_blocks=2**31).acsr(70).to_dense(), True)


def test_bigbird_defaults():
    scatter = weft.random_blocks(64, 3, seed=0).to_dense(700)
    expected = o.dense(lambda q, k: o.bigbird(q, k, 700, 64, 3, 1, scatter), 700)
    same(weft.bigbird().to_dense(700), expected, "bigbird()")


@pytest.mark.parametrize("align", ALIGNMENTS)
def test_bigbird_band_of_a_rectangle(align):
    pattern = weft.bigbird(block=4, window=3, global_blocks=0, random=0, align=align)
    for m, n in RECTANGLES:
        same_everywhere(pattern, o.dense(lambda q, k: abs(q // 4 - k // 4) <= 1, m, n, align))


# --- heads and batch rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", (1, 2, 3))
@pytest.mark.parametrize("kind,summary", (("strided", 1), ("fixed", 1), ("fixed", 3)))
def test_sparse_transformer(kind, summary, heads):
    def expected(m, n, align=None):
        def head(h):
            return o.dense(lambda q, k: o.sparse_transformer(q, k, h, 8, kind, summary), m, n, align)

        return np.stack([head(h) for h in range(heads)])[None]

    for length in LENGTHS:
        same_per_row(weft.sparse_transformer(8, heads, kind=kind, summary=summary), expected(length, length))
    for align in ALIGNMENTS:
        pattern = weft.sparse_transformer(8, heads, kind=kind, summary=summary, align=align)
        for m, n in RECTANGLES:
            same_per_row(pattern, expected(m, n, align))


def test_sparse_transformer_is_strided_by_default():
    got = weft.sparse_transformer(4, 2).to_dense(20)
    assert (got == weft.sparse_transformer(4, 2, kind="strided").to_dense(20)).all()


@pytest.mark.parametrize("length", LENGTHS)
def test_per_batch_lengths(length):
    rows = (0, 1, 5, 64, 300)
    expected = np.stack([o.dense(lambda q, k, b=b: o.padding(q, k, b), length) for b in rows])[:, None]
    same_per_row(weft.padding(rows), expected)
    same_per_row(weft.prefix(list(rows)), expected)
    both = np.stack([o.dense(lambda q, k, b=b: o.padding(q, k, b, True), length) for b in rows])[:, None]
    same_per_row(weft.padding(np.array(rows), rows=True), both)


def test_per_batch_rectangles():
    rows = (0, 3, 64)
    for m, n in RECTANGLES:
        expected = np.stack([o.dense(lambda q, k, b=b: o.padding(q, k, b), m, n) for b in rows])[:, None]
        same_per_row(weft.padding(rows), expected)
        same_per_row(weft.prefix(rows), expected)
        for align in ALIGNMENTS:
            both = [o.dense(lambda q, k, b=b: o.padding(q, k, b, True), m, n, align) for b in rows]
            same_per_row(weft.padding(rows, rows=True).aligned(align), np.stack(both)[:, None])


def test_per_head():
    pattern = weft.per_head([weft.causal(), weft.window(left=1, right=1), weft.full(), weft.nothing()])
    for length in (0, 1, 7, 65):
        matrices = [
            o.dense(o.causal, length),
            o.dense(lambda q, k: o.window(q, k, 1, 1), length),
            o.dense(o.full, length),
            o.dense(o.nothing, length),
        ]
        same_per_row(pattern, np.stack(matrices)[None])


def test_per_batch():
    pattern = weft.per_batch([weft.documents([3, 4]), weft.documents([7]), weft.chunks(2)])
    matrices = [o.documents([3, 4]), o.documents([7]), o.dense(lambda q, k: o.chunks(q, k, 2), 7)]
    same_per_row(pattern, np.stack(matrices)[:, None])


def test_heads_and_batch_rows_combine():
    heads = weft.per_head([weft.causal(), weft.window(left=2, right=2)])
    rows = weft.per_batch([weft.prefix(3), weft.full(), weft.periodic_keys(2)])
    head_matrices = np.stack([o.dense(o.causal, 9), o.dense(lambda q, k: o.window(q, k, 2, 2), 9)])[None]
    row_formulas = (lambda q, k: k < 3, o.full, lambda q, k: o.periodic_keys(q, k, 2))
    row_matrices = np.stack([o.dense(formula, 9) for formula in row_formulas])[:, None]
    same_per_row(heads & rows, head_matrices & row_matrices)
    same_per_row(heads | rows, head_matrices | row_matrices)
    same_per_row(~heads, ~head_matrices)
    same_per_row(rows & weft.chunks(4), row_matrices & o.dense(lambda q, k: o.chunks(q, k, 4), 9))
    shifted = np.stack([o.shift(matrix, 2, -1) for matrix in head_matrices[0]])[None]
    same_per_row(heads.shift(q=2, k=-1), shifted)


def test_per_head_within_per_batch():
    pattern = weft.per_batch([weft.per_head([weft.causal(), weft.full()]), weft.nothing()])
    causal, full, nothing = (o.dense(formula, 6) for formula in (o.causal, o.full, o.nothing))
    same_per_row(pattern, np.array([[causal, full], [nothing, nothing]]))


def test_aligned_reaches_into_heads():
    heads = weft.per_head([weft.causal(), weft.chunks(3)]).aligned("bottom-right")
    matrices = [o.dense(f, 4, 10, "bottom-right") for f in (o.causal, lambda q, k: o.chunks(q, k, 3))]
    same_per_row(heads, np.stack(matrices)[None])
