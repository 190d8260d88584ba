"""The format: affine rows, ownership, the remainder's bits, bytes, and what it refuses to write down."""

import os
from dataclasses import replace
from functools import reduce
from operator import and_, or_

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.acsr import Acsr, Grid, Remainder, Term
from weft.acsr.blocks import Blocks
from weft.acsr.format import BLOCK, MAX_TERMS
from weft.errors import IrregularError
from weft.pattern.bounds import IntTable, Stair, coordinates
from weft.pattern.listed import Listed
from weft.pattern.relation import Relation, Residue
from weft.testing.strategies import problems

laws = settings(
    max_examples=examples(80),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def owners(acsr, terms):
    """How many of `terms` (dense) and blocks of the remainder own each pair: (M, N)."""
    count = np.zeros((acsr.m, acsr.n), int)
    for term in terms:
        count += term
    rest = acsr.remainder
    for i in range(len(rest)):
        live = rest.mask(i, acsr.m, acsr.n)
        row, col = BLOCK * int(rest.rows[i]), BLOCK * int(rest.cols[i])
        count[row : row + live.shape[0], col : col + live.shape[1]] += live
    return count


def check_one(acsr, expected, what):
    """The rows, the predicate and the counts of an Acsr say the same, and no pair has two owners."""
    terms = [term.to_dense(acsr.m, acsr.n) for term in acsr.terms]
    np.testing.assert_array_equal(owners(acsr, terms), expected, f"{what}: owners")
    np.testing.assert_array_equal(acsr.to_dense(), expected, f"{what}: rows")
    assert acsr.nnz == int(expected.sum())
    q, k = np.arange(acsr.m)[:, None], np.arange(acsr.n)[None, :]
    for term, dense in zip(acsr.terms, terms, strict=True):
        assert term.nnz == int(dense.sum()) > 0 and not term.is_empty(), f"{what}: an empty term"
        np.testing.assert_array_equal(term.contains(q, k), dense, f"{what}: contains")


def check(pattern, m, n=None):
    """The Acsr of a pattern, once all that it says of itself agrees with the dense mask; its transpose likewise."""
    dense = pattern.to_dense(m, n)
    acsr = pattern.acsr(m, n)
    check_one(acsr, dense, f"{pattern}")
    check_one(acsr.transpose(), dense.T, f"{pattern}, transposed")
    return acsr


# --- rows -----------------------------------------------------------------------------------------------------------


def test_stepped_rows_begin_where_their_class_does():
    acsr = check(weft.periodic_keys(5, phase=3), 7, 24)
    assert [columns.tolist() for columns in acsr.rows()] == [[3, 8, 13, 18, 23]] * 7
    start, step, count = acsr.terms[0].axes[0].affine_rows(np.arange(7), 24)
    assert (start.tolist(), step, count.tolist()) == ([3] * 7, 5, [5] * 7)


def test_dilated_rows_begin_in_the_class_of_their_query():
    acsr = check(weft.dilated(2, 1, 4), 20)
    assert acsr.columns(0).tolist() == [0, 4]
    assert acsr.columns(3).tolist() == [3, 7]
    assert acsr.columns(9).tolist() == [1, 5, 9, 13]
    assert acsr.columns(19).tolist() == [11, 15, 19]


@pytest.mark.parametrize("step", [2, 3, 7, 64, 65])
@pytest.mark.parametrize("phase", [0, 1, -1])
def test_two_congruences_at_once(step, phase):
    pattern = weft.periodic_keys(step, phase=phase % step) & weft.dilated(9, 9, 3)
    check(pattern, 66)
    check(pattern.shift(q=2, k=5), 66)


@pytest.mark.parametrize(
    "pattern", [weft.window(0, 0), weft.dilated(0, 0, 5), weft.documents([1] * 65), weft.causal() & weft.chunks(1)]
)
def test_rows_of_one_element(pattern):
    acsr = check(pattern, 65)
    assert [columns.tolist() for columns in acsr.rows()] == [[row] for row in range(65)]
    assert len(acsr.terms) == 1 and not len(acsr.remainder)


@pytest.mark.parametrize("m", [0, 1, 63, 64, 65])
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65])
def test_masks_larger_than_the_sequence(m, n):
    for pattern in (weft.window(1000, 1000), weft.chunks(4096), weft.dilated(9, 9, 100), weft.strided(500)):
        check(pattern.aligned("bottom-right"), m, n)
    check(weft.window(1000, 1000, align="top-left"), m, n)


def test_rows_outside_a_grid_have_no_keys():
    term = Term(Grid(4, (2, 3)), Grid(10, (3,) * 2), (Relation(), Relation(upper=(Stair(base=1),))))
    assert [term.columns(row).tolist() for row in (3, 10)] == [[], []]
    assert term.columns(4).tolist() == [10, 13, 16] and term.columns(8).tolist() == [10, 11, 13, 14, 16, 17]
    assert term.nnz == 2 * 3 * (1 + 2 + 3)


def test_inner_axes_with_steps_keep_their_order():
    relation = Relation(diagonal=Residue(2)), Relation(keys=Residue(3, 1))
    term = Term(Grid(0, (2, 2)), Grid(0, (4, 6)), relation)
    assert term.columns(3).tolist() == [7, 10, 19, 22]
    np.testing.assert_array_equal(term.transpose().to_dense(24, 4), term.to_dense(4, 24).T)


# --- ownership ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        weft.longformer(8, 3),
        weft.longformer(8, 3, dilation=2) | weft.dilated(5, 0, 3),
        weft.strided(6) | weft.fixed(6, 2),
        weft.window(5, 5) | weft.window(2, 9) | weft.chunks(7),
        weft.causal() | weft.prefix(9) | weft.documents([20, 30, 16]),
        weft.periodic_keys(3) | weft.periodic_keys(4) | weft.dilated(8, 8, 5),
        weft.bigbird(8, 3, 1, 2, seed=3),
        weft.random_blocks(8, 3) | weft.window(3, 3) | weft.random_blocks(5, 2, seed=1),
        weft.random_blocks(64, 1) | weft.full(),
    ],
)
def test_overlapping_parts_own_no_pair_twice(pattern):
    check(pattern, 66)


def test_a_part_inside_another_one_leaves_no_term():
    assert len(check(weft.full() | weft.window(3, 3) | weft.random_blocks(8, 2), 100).terms) == 1
    assert len(check(weft.window(9, 9) | weft.window(3, 3), 100).terms) == 1


def test_terms_are_capped_and_the_note_says_so():
    cells = [[i + j == 17 for j in range(18)] for i in range(18)]  # squares from the upper right to the lower left
    acsr = check(weft.segments([5] * 18, cells), 90)
    assert len(acsr.terms) == MAX_TERMS == 16
    assert len(acsr.remainder) and any("beyond 16 went to the remainder" in note for note in acsr.notes)
    assert any("went to the remainder" in line for line in str(acsr).splitlines())


def test_scattered_tokens_are_three_terms():
    listed = [1, 5, 6, 9, 20, 22, 27, 33, 34, 40, 50, 61, 63, 90]
    for part in (weft.window(9, 9), weft.dilated(2, 2, 7), weft.neighborhood((10, 10), 3)):
        acsr = check(part | weft.global_tokens(listed), 100)
        assert len(acsr.terms) == 3 and not len(acsr.remainder) and not acsr.notes


def test_a_grid_is_not_restricted_to_a_list():
    (term,) = weft.neighborhood((10, 10), 3).acsr(100).terms
    with pytest.raises(ValueError, match="2 axes"):
        replace(term, rows=Listed(IntTable([3])))


def test_the_largest_terms_are_kept():
    sizes = range(1, 21)  # boxes from the upper right to the lower left, one term each
    boxes = weft.segments(list(sizes), [[i + j == 21 for j in sizes] for i in sizes])
    acsr = check(boxes, sum(sizes))
    every = sorted(size * (21 - size) for size in sizes)
    assert sorted(term.nnz for term in acsr.terms) == every[4:]
    assert acsr.remainder.count(acsr.m, acsr.n) == sum(every[:4])
    assert acsr.notes == ("4 terms beyond 16 went to the remainder",)


@laws
@given(problems())
def test_every_expression_owns_each_pair_once(problem):
    pattern, m, n = problem
    acsr = check(pattern, m, n)
    assert len(acsr.terms) <= MAX_TERMS
    assert acsr.notes or not len(acsr.remainder) or any(name in str(pattern) for name in ("blocks", "bigbird"))


# Steps that leave 64 bits where they meet, and tokens out of one class of them.
FAR = 2**31
LONG_STEPS = {
    "dilated": weft.dilated(1, 1, 60013) & weft.dilated(1, 1, 60017) & weft.dilated(1, 1, 59999)
    & weft.dilated(1, 1, 59981) & weft.periodic_keys(7, 3),
    "periodic": weft.periodic_keys(FAR - 1, 5) & weft.periodic_keys(FAR - 3, 5) & weft.periodic_keys(FAR - 5, 5),
    "periodic, nowhere": weft.periodic_keys(FAR - 1, 5) & weft.periodic_keys(FAR - 3, 6) & weft.periodic_keys(FAR, 5),
    "both": weft.periodic_keys(FAR - 1, 5) & weft.periodic_keys(FAR - 3, 5) & weft.dilated(1, 1, FAR),
    "two": weft.periodic_keys(FAR - 1, 5) & weft.dilated(1, 1, FAR - 3),
    "complement": ~(weft.periodic_keys(FAR - 1, 5) & weft.dilated(1, 1, FAR - 3)),
    "union": (weft.periodic_keys(FAR - 1, 5) & weft.dilated(1, 1, FAR - 3)) | weft.periodic_keys(FAR - 3, 5)
    | weft.dilated(1, 1, FAR - 5),
    "shifted": (weft.periodic_keys(FAR - 1, 5) & weft.dilated(1, 1, FAR - 3)).shift(3, 7),
    "listed": weft.periodic_keys(FAR - 1, 5) & weft.dilated(1, 1, FAR - 3)
    & weft.global_tokens([1, 5, 40], rows=False),
    "left out": weft.periodic_keys(6, 5) & weft.dilated(1, 1, FAR) & ~weft.global_tokens([1, 11, 40], columns=False),
    "strided": reduce(and_, map(weft.strided, (41, 43, 47, 53, 59, 61))) & weft.fixed(67),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG_STEPS)
@pytest.mark.parametrize("n", [1, 6, 64, 130])
def test_steps_far_beyond_the_sequence(name, n):
    check(LONG_STEPS[name], n)


@pytest.mark.parametrize("step", [5, 6, 9, 13, 17, 23])
def test_steps_whose_product_is_far_beyond_the_sequence_lose_no_pair(step):
    steps = (60013, 60017, 59999)  # of which no two distances but 0 are multiples
    pattern = reduce(and_, (weft.dilated(1, 1, x) for x in steps)) & weft.periodic_keys(step)
    acsr = pattern.acsr(120_000)
    live = np.arange(step - 1, 120_000, step)
    assert acsr.nnz == live.size and pattern.contains(live, live, 120_000).all()
    for row in (0, step - 2, step - 1, live[-1], 119_999):
        assert acsr.columns(row).tolist() == ([row] if row % step == step - 1 else [])


# --- the remainder --------------------------------------------------------------------------------------------------


@laws
@given(st.integers(1, 150), st.integers(1, 150), st.floats(0, 1), st.integers(0, 1000))
def test_bits_round_trip_and_transpose(m, n, density, seed):
    dense = np.random.default_rng(seed).random((m, n)) < density
    dense[: m // 2, : n // 2] = density > 0.5  # some blocks are full or empty
    blocks = Blocks.scan(lambda q, k: dense[q, k], m, n, "a test")
    acsr = Acsr(m, n, (), blocks.remainder())
    np.testing.assert_array_equal(acsr.to_dense(), dense)
    np.testing.assert_array_equal(acsr.transpose().to_dense(), dense.T)
    assert acsr.transpose().transpose() == acsr and hash(acsr.transpose().transpose()) == hash(acsr)
    assert acsr.nnz == acsr.transpose().nnz == int(dense.sum())
    for i, (first, after) in enumerate(acsr.remainder.spans(n)):
        seen = np.flatnonzero(acsr.remainder.mask(i, m, n).any(axis=0))
        assert [first, after] == [seen[0], seen[-1] + 1]
    for i, (first, after) in enumerate(acsr.remainder.heights(m)):
        seeing = np.flatnonzero(acsr.remainder.mask(i, m, n).any(axis=1))
        assert [first, after] == [seeing[0], seeing[-1] + 1]
    again = Blocks.of_remainder(acsr.remainder, m, n)
    np.testing.assert_array_equal(again.contains(np.arange(m)[:, None], np.arange(n)[None, :]), dense)


@laws
@given(st.integers(1, 150), st.integers(1, 150), st.integers(2, 5), st.integers(0, 1000))
def test_joined_blocks_have_the_pairs_of_any(m, n, count, seed):
    """Parts of one block that make it full together, blocks of one side alone, full ones over partial ones."""
    owner = np.random.default_rng(seed).integers(0, count + 1, (m, n))
    owner[: m // 2] %= count  # where some part has every pair
    masks = [(owner == part) | (part == 1) * (np.arange(n) < n // 3) for part in range(count)]
    first, *others = [Blocks.scan(lambda q, k, mask=mask: mask[q, k], m, n, "a test") for mask in masks]
    joined = first.join(*others)
    expected = np.logical_or.reduce(masks)
    np.testing.assert_array_equal(Acsr(m, n, (), joined.remainder()).to_dense(), expected)
    scanned = Blocks.scan(lambda q, k: expected[q, k], m, n, "a test")
    assert joined.remainder() == scanned.remainder(), "a full block carries bits"
    assert not len(Blocks.none(m, n).join(Blocks.none(m, n))) and first.join().remainder() == first.remainder()


def test_joining_looks_at_no_pair(monkeypatch):
    parts = [weft.blocks(24, [(i, i), (0, i)]).body for i in range(1, 9)]
    first, *others = [Blocks.of_list(part, 300, 300) for part in parts]
    whole = Blocks.of_list(weft.blocks(64, [(0, 0), (1, 1)]).body, 300, 300)
    monkeypatch.setattr(Blocks, "evaluated", None)
    joined = first.join(*others, whole).join(whole)
    monkeypatch.undo()
    pattern = reduce(or_, (weft.blocks(24, [(i, i), (0, i)]) for i in range(1, 9))) | weft.blocks(64, [(0, 0), (1, 1)])
    np.testing.assert_array_equal(Acsr(300, 300, (), joined.remainder()).to_dense(), pattern.to_dense(300))


@pytest.mark.parametrize("block", [99, 100, 101, 128, 20_001, 1 << 20, FAR, (FAR, 7), (7, FAR), (64, FAR), (101, 99)])
def test_blocks_larger_than_the_sequence_cost_what_is_inside(block):
    acsr = check(weft.blocks(block, [(0, 0), (0, 2), (3, 0), (FAR, 1)]), 100, 90)
    assert len(acsr.remainder) <= 4


def test_full_blocks_carry_no_bits():
    acsr = check(weft.blocks(64, [(0, 0), (1, 2), (2, 2)]), 150, 190)
    assert len(acsr.remainder) == 3 and acsr.remainder.bits.shape == (0, BLOCK, BLOCK // 8)
    # blocks cut by the end of the sequence are full as well
    assert (acsr.remainder.bit_index == -1).all() and acsr.nnz == 64 * 64 + 64 * 62 + 22 * 62


def test_partial_blocks_carry_one_bit_a_pair():
    acsr = check(weft.blocks(40, [(0, 0)]), 100)
    rest = acsr.remainder
    assert len(rest) == 1 and rest.bits.nbytes == BLOCK * BLOCK // 8
    assert rest.nbytes == acsr.nbytes == 3 * 4 + BLOCK * BLOCK // 8


def test_blocks_are_sorted_and_listed_once():
    for pattern in (weft.random_blocks(32, 3), weft.documents(ids=np.arange(300) ** 2 % 97), weft.bigbird(16, 3, 1, 2)):
        for acsr in (pattern.acsr(300, orders=False), pattern.acsr(300, orders=False).transpose()):
            codes = acsr.remainder.rows.astype(int) * 100 + acsr.remainder.cols
            assert codes.size and (np.diff(codes) > 0).all()


def test_equal_remainders_are_equal():
    one, other = (weft.random_blocks(16, 2, seed=seed).acsr(100).remainder for seed in (1, 2))
    assert one == weft.random_blocks(16, 2, seed=1).acsr(100).remainder and one != other and one != "text"
    assert Remainder.none() == Remainder.none() and len({one, other, one}) == 2


# --- bytes ----------------------------------------------------------------------------------------------------------

FORMULAS = {
    "full": lambda n: weft.full(),
    "nothing": lambda n: weft.nothing(),
    "causal": lambda n: weft.causal(),
    "window": lambda n: weft.causal() & weft.window(left=n // 4),
    "dilated": lambda n: weft.dilated(7, 7, n // 64),
    "strided": lambda n: weft.strided(n // 16),
    "fixed": lambda n: weft.fixed(n // 16),
    "fixed, 4 summaries": lambda n: weft.fixed(n // 16, 4),
    "chunks": lambda n: weft.chunks(n // 8) & weft.causal(),
    "prefix": lambda n: weft.causal() | weft.prefix(n // 3),
    "padding": lambda n: weft.padding(n - 5, rows=True),
    "global_tokens": lambda n: weft.global_tokens(n // 8),
    "longformer": lambda n: weft.longformer(n // 32, 5, 2),
    "bigbird": lambda n: weft.bigbird(n // 32, 3, 1, random=0),
    "neighborhood": lambda n: weft.neighborhood((n // 32, 32), (9, 5)),
    "neighborhood & causal": lambda n: weft.neighborhood((n // 32, 32), (9, 5)) & weft.causal(),
    "product": lambda n: weft.product([weft.causal(), weft.window(1, 1)], (16, n // 16)),
    "complement": lambda n: ~(weft.causal() & weft.window(left=n // 4)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_do_not_grow_with_length(name):
    small, large = (FORMULAS[name](n).acsr(n) for n in (1 << 10, 1 << 20))
    assert large.nbytes == small.nbytes < 1500
    assert len(large.terms) == len(small.terms) and not len(small.remainder) and not len(large.remainder)


def test_tables_grow_with_documents_not_with_tokens():
    few, long, many = (weft.documents([n] * count).acsr(n * count) for n, count in ((10, 20), (50_000, 20), (10, 40)))
    assert few.nbytes == long.nbytes < many.nbytes <= 2 * few.nbytes


def test_bytes_are_those_of_the_parts():
    acsr = weft.bigbird(16, 3, 1, 2).acsr(300)
    assert acsr.nbytes == sum(term.nbytes for term in acsr.terms) + acsr.remainder.nbytes
    assert weft.causal().acsr(9).terms[0].nbytes == 32 + 4 * 4
    assert weft.dilated(3, 3, 2).acsr(90).terms[0].nbytes == 2 * 32 + 8 + 4 * 4


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        weft.documents(ids=np.arange(2**18) % 3),
        weft.causal() & weft.documents(ids=np.arange(2**18) % 3),
        ~weft.random_blocks(64, 2),
        weft.neighborhood((512, 512), (7, 7)) & weft.window(left=100),
    ],
)
def test_what_is_too_large_to_scan_is_refused(pattern):
    with pytest.raises(IrregularError) as raised:
        pattern.acsr(2**18, orders=False)
    error = raised.value
    assert error.asked and "262144 x 262144 pairs are too many" in error.wrong and "library patterns" in error.cure


def test_what_is_small_enough_is_scanned_and_the_note_says_why():
    for pattern in (weft.documents(ids=np.arange(200) ** 2 % 97), ~weft.random_blocks(8, 2)):
        check(pattern, 200)
        acsr = pattern.acsr(200, orders=False)
        np.testing.assert_array_equal(acsr.to_dense(), pattern.to_dense(200))
        assert acsr.notes and not acsr.terms and len(acsr.remainder)
        assert any(reason in acsr.notes[0] for reason in ("not contiguous", "complement of blocks"))


def test_ids_in_order_are_documents():
    ids = np.repeat([7, -2, 5], [20, 1, 44])
    acsr = check(weft.documents(ids=ids), 65)
    assert acsr == weft.documents([20, 1, 44]).acsr(65) and not acsr.notes


# --- flat patterns on grids -----------------------------------------------------------------------------------------

VIDEO = weft.neighborhood((4, 4, 5), (3, 3, 3))
IMAGE = weft.neighborhood((8, 9), (3, 5), dilation=(2, 1))
FRAME = 4 * 5


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        (weft.chunks(FRAME) & VIDEO, 80),
        (VIDEO & weft.chunks(2 * FRAME), 80),
        (VIDEO & weft.documents([FRAME, 2 * FRAME, FRAME]), 80),
        (VIDEO & weft.causal(), 80),
        (VIDEO & weft.causal(offset=-1), 80),
        (VIDEO & ~weft.causal(), 80),
        (VIDEO & weft.prefix(50), 80),
        (VIDEO & weft.padding(57, rows=True), 80),
        (VIDEO & weft.periodic_keys(5, phase=3), 80),
        (VIDEO | weft.global_tokens(7), 80),
        (VIDEO | weft.global_tokens(FRAME, rows=False), 80),
        (VIDEO | weft.prefix(7), 80),
        (VIDEO | weft.causal(), 80),
        (~VIDEO, 80),
        (~VIDEO & weft.causal(), 80),
        (IMAGE & weft.causal(), 72),
        (IMAGE | weft.global_tokens(11), 72),
        (~IMAGE, 72),
        (weft.segments([10, 72], [[weft.causal(), None], [True, IMAGE]]), 82),
        (weft.segments([10, 72], [[weft.causal(), None], [True, IMAGE]]) & weft.causal(), 82),
        (weft.segments([72, 10], [[IMAGE, True], [None, weft.window(2, 2)]]) | weft.global_tokens(4), 82),
    ],
    ids=str,
)
def test_flat_bounds_that_follow_a_grid_are_exact(pattern, length):
    acsr = check(pattern, length)
    assert not len(acsr.remainder) and not acsr.notes and 1 <= len(acsr.terms) <= MAX_TERMS


@pytest.mark.parametrize(
    ("pattern", "terms", "blocks"),
    [(VIDEO & weft.window(5, 5), 3, 0), (VIDEO | weft.window(5, 5), 1, 4), (VIDEO & weft.documents([31, 49]), 0, 4)],
    ids=str,
)
def test_flat_bounds_that_do_not_are_covered_or_written_down(pattern, terms, blocks):
    acsr = check(pattern, 80)
    assert (len(acsr.terms), len(acsr.remainder)) == (terms, blocks) and bool(acsr.notes) == (blocks > 0)


def test_coordinates_of_many_indices_in_a_thin_array():
    """np.unravel_index of numpy 2.4 is wrong here; a lost pair would be a silent wrong answer."""
    indices = (np.arange(8200) % 21)[:, None, None]
    assert np.array_equal(coordinates(indices, (21,))[0], indices)
    rows, columns = coordinates(indices, (3, 7))
    assert np.array_equal(rows, indices // 7) and np.array_equal(columns, indices % 7)


def test_many_global_tokens_lose_no_pair():
    pattern = weft.global_tokens(range(0, 1024, 64))
    acsr = pattern.acsr(1024)
    assert acsr.nnz == pattern.to_dense(1024).sum() == 32512
    assert np.array_equal(acsr.to_dense(), pattern.to_dense(1024))
