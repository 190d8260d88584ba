"""Every library pattern against its oracle: to_dense, contains, acsr, nnz and the transpose."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft

from . import oracles as o
from .helpers import same, same_everywhere, same_per_row

LENGTHS = (0, 1, 2, 7, 63, 64, 65, 130)
RECTANGLES = ((0, 5), (5, 0), (1, 7), (7, 1), (2, 65), (65, 2), (63, 130), (130, 64))
ALIGNMENTS = ("top-left", "bottom-right")


class Case(NamedTuple):
    name: str
    make: Callable[..., Any]  # takes align=... where the pattern relates q to k
    oracle: Callable[..., Any]  # a formula on (q, k)


def at_positions():
    """Patterns that relate a query's position to a key's."""

    def case(name, *args, formula=None, **options):
        formula = formula or getattr(o, name)
        text = ",".join([str(a) for a in args] + [f"{key}={value}" for key, value in options.items()])
        yield Case(
            f"{name}({text})".replace(" ", ""),
            lambda align=None: getattr(weft, name)(*args, align=align, **options),
            lambda q, k: formula(q, k, *args, **options),
        )

    for offset in (0, 3, -2, 70, -70):
        yield from case("causal", offset)
    for left, right in ((0, 0), (3, 0), (0, 3), (2, 5), (64, 63), (500, 500)):
        yield from case("window", left, right)
    for side in ("left", "right"):
        for extent in (0, 3, 64):
            yield from case("window", **{side: extent})
    reaches = ((0, 0, 1), (2, 2, 1), (3, 0, 2), (0, 3, 5), (1, 2, 3), (4, 4, 7), (2, 2, 64), (90, 90, 2))
    for left, right, step in reaches:
        yield from case("dilated", left, right, step)
    for stride in (1, 2, 5, 8, 64, 200):
        yield from case("strided", stride)
        yield from case("fixed", stride)
    for stride, summary in ((2, 2), (5, 2), (8, 3), (8, 8), (64, 7)):
        yield from case("fixed", stride, summary=summary)
    for size in (1, 2, 5, 64, 65, 300):
        yield from case("chunks", size)
    for width in (0, 1, 2, 3, 8):
        yield from case("longformer", width)
    yield from case("longformer", 5, global_tokens=3)
    yield from case("longformer", 6, dilation=3)
    yield from case("longformer", 7, global_tokens=2, dilation=4)
    yield from case("longformer", 4, global_tokens=200)


def at_keys():
    """Patterns that need no alignment."""

    def case(name, *args, **options):
        text = ",".join([str(a) for a in args] + [f"{key}={value}" for key, value in options.items()])
        yield Case(
            f"{name}({text})".replace(" ", ""),
            lambda: getattr(weft, name)(*args, **options),
            lambda q, k: getattr(o, name)(q, k, *args, **options),
        )

    yield from case("full")
    yield from case("nothing")
    for step, phase in ((1, None), (2, None), (5, None), (5, 0), (5, 3), (64, None), (64, 0), (200, 7)):
        yield from case("periodic_keys", step, phase)
    for block, pairs in (
        (1, ((0, 0), (1, 5), (6, 2), (1, 6))),
        (4, ((0, 0), (1, 0), (1, 1), (0, 3), (15, 15))),
        (64, ((0, 0), (0, 1), (1, 0))),
        ((2, 3), ((0, 0), (0, 1), (0, 2), (3, 1), (7, 9))),
        ((16, 5), ((0, 1), (0, 3), (0, 5), (2, 2), (2, 3), (9, 9))),
        (3, ((2, 2), (2, 2))),
        (7, ()),
    ):
        yield from case("blocks", block, pairs)
    for length in (0, 1, 5, 64, 500):
        yield from case("prefix", length)
        yield from case("padding", length)
    for tokens in (0, 2, (0, 5, 6), (64, 1, 62), ()):
        yield from case("global_tokens", tokens, rows=False)


POSITIONAL = list(at_positions())
ABSOLUTE = list(at_keys())
# Position dependent, but with no align= argument: the alignment comes through aligned().
ROWS = [
    Case("global_tokens(0)", lambda: weft.global_tokens(0), lambda q, k: o.global_tokens(q, k, 0)),
    Case("global_tokens(3)", lambda: weft.global_tokens(3), lambda q, k: o.global_tokens(q, k, 3)),
    Case("global_tokens(200)", lambda: weft.global_tokens(200), lambda q, k: o.global_tokens(q, k, 200)),
    Case("global_tokens([6,1])", lambda: weft.global_tokens([6, 1]), lambda q, k: o.global_tokens(q, k, [6, 1])),
    Case(
        "global_tokens([1,64,0],columns=False)",
        lambda: weft.global_tokens([1, 64, 0], columns=False),
        lambda q, k: o.global_tokens(q, k, [1, 64, 0], columns=False),
    ),
    Case("padding(5,rows=True)", lambda: weft.padding(5, rows=True), lambda q, k: o.padding(q, k, 5, rows=True)),
    Case("padding(64,rows=True)", lambda: weft.padding(64, rows=True), lambda q, k: o.padding(q, k, 64, rows=True)),
]

named = {"ids": lambda value: value.name if isinstance(value, Case) else str(value)}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("case", POSITIONAL + ABSOLUTE + ROWS, **named)
def test_square(case, length):
    same_everywhere(case.make(), o.dense(case.oracle, length))


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("case", POSITIONAL, **named)
def test_rectangle_with_alignment(case, align):
    for m, n in RECTANGLES:
        expected = o.dense(case.oracle, m, n, align)
        same_everywhere(case.make(align=align), expected)
        same(case.make().aligned(align).to_dense(m, n), expected, "aligned()")


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("case", ROWS, **named)
def test_rectangle_of_rows(case, align):
    for m, n in RECTANGLES:
        same_everywhere(case.make().aligned(align), o.dense(case.oracle, m, n, align))


@pytest.mark.parametrize("case", ABSOLUTE, **named)
def test_rectangle_without_alignment(case):
    for m, n in RECTANGLES:
        expected = o.dense(case.oracle, m, n)
        same_everywhere(case.make(), expected)
        same(case.make().aligned("bottom-right").to_dense(m, n), expected, "aligned() on what has no position")


@pytest.mark.parametrize("case", POSITIONAL, **named)
def test_alignment_says_nothing_on_a_square(case):
    expected = o.dense(case.oracle, 33)
    for align in ALIGNMENTS:
        same_everywhere(case.make(align=align), expected)


def test_aligned_leaves_declared_leaves_alone():
    mixed = weft.window(left=2, right=1, align="top-left") & weft.causal()
    expected = o.dense(lambda q, k: o.window(q, k, 2, 1), 5, 9, "top-left") & o.dense(o.causal, 5, 9, "bottom-right")
    same_everywhere(mixed.aligned("bottom-right"), expected)


def test_aligned_says_again_what_is_declared():
    declared = weft.window(left=2, align="top-left") & weft.prefix(3)
    assert declared.aligned("top-left") == declared
    assert declared.aligned(None) == declared


def test_padding_declares_what_distances_are_counted_by():
    for align in ALIGNMENTS:
        assert set(weft.padding([3, 4], align=align).alignments()) == {align}
    assert not set(weft.padding(3).alignments())  # and needs none
    assert weft.padding(3, align="top-left").to_dense(2, 5).tolist() == weft.padding(3).to_dense(2, 5).tolist()


@pytest.mark.parametrize("ids", [[-(2**63), 2**63 - 1, -(2**63)], np.array([2**64 - 1, 5, 2**64 - 1], np.uint64)])
def test_ids_may_be_any_numbers(ids):
    expected = np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], bool)
    pattern = weft.documents(ids=ids)
    assert (pattern.to_dense(3) == expected).all()
    assert (pattern.acsr(3).to_dense() == expected).all()


def test_aligned_reaches_under_operators():
    pattern = ~weft.causal().shift(q=1) | weft.window(left=1, right=1) & weft.prefix(4)
    for m, n in RECTANGLES:
        for align in ALIGNMENTS:
            inner = o.shift(o.dense(o.causal, m, n, align), 1, 0)
            band = o.dense(lambda q, k: o.window(q, k, 1, 1), m, n, align)
            same_everywhere(pattern.aligned(align), ~inner | band & o.dense(lambda q, k: k < 4, m, n))


# --- patterns whose length is their own -------------------------------------------------------------------------------

DOCUMENTS = {
    "none": [],
    "one-empty": [0],
    "one-token": [1],
    "one": [7],
    "ones": [1] * 7,
    "with-empties": [0, 3, 0, 0, 4, 0],
    "63": [63],
    "64": [40, 24],
    "65": [64, 1],
    "130": [1, 63, 2, 0, 64],
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents(name):
    lengths = DOCUMENTS[name]
    expected = o.documents(lengths)
    ids = [document for document, length in enumerate(lengths) for _ in range(length)]
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    same_everywhere(weft.documents(lengths), expected)
    same_everywhere(weft.documents(lengths=tuple(lengths)), expected)
    same_everywhere(weft.documents(np.array(lengths, dtype=np.int32)), expected)
    same_everywhere(weft.documents(cu_seqlens=bounds), o.documents(cu_seqlens=bounds))
    same_everywhere(weft.documents(ids=ids), o.documents(ids=ids))


@pytest.mark.parametrize(
    "ids",
    ([0, 0, 1, 1, 1], [3, 3, -5, -5, 3, 10**12], [1, 0] * 20, [2, 2, 1, 1, 2, 2, 7] * 5, list(range(65)), [4] * 64),
    ids=("sorted", "any-values", "interleaved", "returning", "all-apart", "all-one"),
)
def test_document_ids(ids):
    same_everywhere(weft.documents(ids=ids), o.documents(ids=ids))
    same_everywhere(weft.documents(ids=np.array(ids)), o.documents(ids=ids))


def test_causal_documents():
    lengths = DOCUMENTS["130"]
    expected = o.documents(lengths) & o.dense(lambda q, k: o.window(q, k, 5, 0), 130)
    same_everywhere(weft.documents(lengths) & weft.window(left=5, right=0), expected)


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


# --- shift ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dq,dk", ((0, 0), (1, 0), (0, 1), (-2, 0), (0, -3), (3, 3), (4, -1), (70, 0), (0, -70)))
def test_shift(dq, dk):
    formulas = {
        weft.causal(): o.causal,
        weft.full(): o.full,
        weft.dilated(2, 1, 3): lambda q, k: o.dilated(q, k, 2, 1, 3),
        weft.chunks(4): lambda q, k: o.chunks(q, k, 4),
        weft.blocks(3, [(0, 1), (2, 2), (4, 0)]): lambda q, k: o.blocks(q, k, 3, [(0, 1), (2, 2), (4, 0)]),
    }
    for pattern, formula in formulas.items():
        for length in (0, 1, 7, 65):
            same_everywhere(pattern.shift(q=dq, k=dk), o.shift(o.dense(formula, length), dq, dk))
            same_everywhere(~pattern.shift(q=dq, k=dk), ~o.shift(o.dense(formula, length), dq, dk))
        for m, n in ((3, 20), (20, 3)):
            for align in ALIGNMENTS:
                expected = o.shift(o.dense(formula, m, n, align if "blocks" not in str(pattern) else None), dq, dk)
                same_everywhere(pattern.aligned(align).shift(q=dq, k=dk), expected)


def test_shift_forgets_what_left_the_matrix():
    there_and_back = weft.full().shift(q=2).shift(q=-2)
    same_everywhere(there_and_back, o.shift(o.shift(np.ones((5, 5), dtype=bool), 2), -2))
    there_and_back = weft.causal().shift(k=-3).shift(k=3)
    same_everywhere(there_and_back, o.shift(o.shift(o.dense(o.causal, 8), 0, -3), 0, 3))


# --- what a pattern is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", POSITIONAL + ABSOLUTE + ROWS, **named)
def test_value(case):
    pattern, again = case.make(), case.make()
    assert pattern == again and hash(pattern) == hash(again)
    assert pattern != ~pattern
    assert repr(pattern) == str(pattern)
    assert eval(str(pattern), {**vars(weft), "weft": weft}) == pattern
    assert isinstance(pattern.acsr(12).nbytes, int)
    with pytest.raises(AttributeError):
        pattern.some_new_attribute = 1


@pytest.mark.parametrize("m,n", ((0, 0), (1, 1), (5, 5), (64, 64), (400, 400), (3, 200), (200, 3), (0, 5)))
def test_draw_is_small(m, n):
    pattern = weft.causal(align="top-left") | weft.global_tokens(2, rows=False)
    for width in (16, 64):
        picture = pattern.draw(m, n, width=width)
        assert isinstance(picture, str)
        # A cell may be two characters wide, to look square; there is room for a margin.
        assert max((len(line) for line in picture.splitlines()), default=0) <= 2 * width + 16
        assert len(picture.splitlines()) <= width + 16


def test_draw_shows_the_pattern():
    pictures = {pattern.draw(16) for pattern in (weft.full(), weft.nothing(), weft.causal(), weft.chunks(4))}
    assert len(pictures) == 4
    assert weft.causal().draw(9, 9) == weft.causal().draw(9)
