"""Terms of tokens in another order: scattered documents, alone and with what else a pattern says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.acsr.cells import term_cells
from weft.acsr.format import Acsr, Grid, NotAffineError, Remainder, Term
from weft.acsr.interpret import Scoring, forward
from weft.acsr.ordered import of_labels
from weft.errors import VerificationError
from weft.pattern.bounds import IntTable
from weft.planning.attention_plan import plan_attention
from weft.planning.interpret import forward as walked
from weft.planning.problem import Problem
from weft.planning.verify import verify_plan
from weft.target import GPU

IDS = np.random.default_rng(3).integers(0, 7, 200)
ALIKE = weft.documents(ids=IDS)
PATTERNS = {
    "alone": (ALIKE, 1),
    "causal": (weft.causal() & ALIKE, 1),
    "window": (weft.window(40, 3) & ALIKE, 1),
    "other documents": (weft.documents(lengths=[90, 110]) & ALIKE, 1),
    "beside a window": (weft.window(5, 5) | ALIKE, 3),
    "without a window": (ALIKE & ~weft.window(5, 5), 2),
    "some keys": (ALIKE & weft.global_tokens([*range(0, 200, 3)], rows=False), 1),
    "without some keys": (ALIKE & ~weft.global_tokens([3, 70, 71], rows=False), 1),
    "every fourth query": (ALIKE & weft.global_tokens([*range(0, 200, 4)], columns=False), 1),
    "odd keys": (ALIKE & weft.periodic_keys(2, phase=1), 1),
    "some queries": (ALIKE & weft.global_tokens([3, 70, 71, 199], columns=False), 1),
    "beside listed tokens": (ALIKE | weft.global_tokens([3, 70]), 3),
    "other labels": (~ALIKE, 2),
    "twice not": (~~(ALIKE & weft.causal()), 1),
    "not in a causal window": (~(ALIKE & weft.causal() & weft.window(left=30)), 2),
    "neither": (~(ALIKE & weft.padding(150, rows=True)), 2),
    "padded": (weft.causal() & ALIKE & weft.padding(150, rows=True), 1),
    "in a part": (weft.segments([200, 50], [[ALIKE, False], [False, True]]), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_few_terms_with_the_same_pairs(name):
    pattern, count = PATTERNS[name]
    n = 250 if name == "in a part" else 200
    acsr, dense = pattern.acsr(n), pattern.to_dense(n)
    assert len(acsr.terms) == count
    assert not len(acsr.remainder)
    assert any(term.is_ordered for term in acsr.terms)
    np.testing.assert_array_equal(acsr.to_dense(), dense)
    np.testing.assert_array_equal(acsr.transpose().to_dense(), dense.T)
    assert acsr.nnz == dense.sum()
    assert [row.tolist() for row in acsr.rows()] == [np.flatnonzero(row).tolist() for row in dense]
    assert "in another order" in str(acsr)


@pytest.mark.parametrize("name", PATTERNS)
def test_plans_are_proven(name):
    pattern, _ = PATTERNS[name]
    n = 250 if name == "in a part" else 200
    plan = plan_attention(pattern, Problem(1, 1, 1, n, n, 8, 8))
    plan.verify()
    on_gpu = plan_attention(pattern, Problem(1, 2, 1, n, n, 64, 64, "bfloat16", "cuda"), GPU)
    on_gpu.verify()
    assert any(nest.is_ordered for share in on_gpu.every_share() for nest in share.plan.nests)
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((n, 8)) for _ in range(3))
    expected = forward(pattern.acsr(n), q, k, v, Scoring(0.3))
    for got, want in zip(walked(plan.forward[0].plan, q, k, v, Scoring(0.3)), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.lists(st.integers(0, 5), min_size=1, max_size=80))
def test_labels_of_queries_and_of_keys(queries, keys):
    queries, keys = np.array(queries), np.array(keys)
    term = of_labels(queries, keys)
    live = queries[:, None] == keys
    assert (term is None) == (not live.any())
    if term is not None:
        np.testing.assert_array_equal(term.to_dense(*live.shape), live)
        assert term.nnz == live.sum()


@settings(max_examples=examples(30))
@given(st.integers(1, 300), st.integers(1, 300))
def test_pairs_of_cells_are_counted(rows, columns):
    term = ALIKE.acsr(200).terms[0]
    queries, keys = (np.append(np.arange(0, 200, step), 200) for step in (rows, columns))
    dense = ALIKE.to_dense(200).astype(np.int64)
    expected = np.add.reduceat(np.add.reduceat(dense, queries[:-1], 0), keys[:-1], 1)
    np.testing.assert_array_equal(term_cells(term, queries, keys), expected)


def test_what_asks_for_no_order_gets_blocks():
    """Where no rows are gathered the same pairs are listed, block by block."""
    acsr = (weft.causal() & ALIKE).acsr(200, orders=False)
    assert not any(term.is_ordered for term in acsr.terms)
    assert len(acsr.remainder)
    np.testing.assert_array_equal(acsr.to_dense(), (weft.causal() & ALIKE).to_dense(200))


def test_long_sequences_are_neither_scanned_nor_large():
    ids = np.random.default_rng(0).integers(0, 4096, 1 << 19)
    acsr = (weft.causal() & weft.documents(ids=ids)).acsr(1 << 19)
    assert len(acsr.terms) == 1
    assert acsr.nbytes < 1 << 22


def test_two_orders_that_meet_are_listed():
    other = weft.documents(ids=np.random.default_rng(4).integers(0, 3, 200))
    acsr = (ALIKE & other).acsr(200)
    np.testing.assert_array_equal(acsr.to_dense(), (ALIKE & other).to_dense(200))
    (a,), (b,) = ALIKE.acsr(200).terms, other.acsr(200).terms
    with pytest.raises(NotAffineError):
        from weft.acsr import ordered

        ordered.meet(a, b)


@pytest.mark.parametrize("order", [[0, 1, 1], [0, 1, 3], [-1, 0, 1]])
def test_an_order_that_is_none_is_refused(order):
    grid = Grid(0, (3,), IntTable(order))
    acsr = Acsr(3, 3, (Term(grid, grid, ALIKE.acsr(200).terms[0].axes),), Remainder.none())
    from weft.planning.tiling.cpu import plan_tiles

    with pytest.raises(VerificationError):
        verify_plan(plan_tiles(acsr, Problem(1, 1, 1, 3, 3, 8, 8)))
