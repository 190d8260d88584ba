"""Pairs that no algebra makes terms of, as chains of runs and as rectangles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.acsr.blocks import Blocks
from weft.acsr.cover import covered, room
from weft.acsr.format import BLOCK
from weft.testing.strategies import patterns

laws = settings(max_examples=examples(60), deadline=None)


def blocks_of(mask):
    return Blocks.scan(lambda q, k: mask[q, k], *mask.shape, "")


def check(mask, most):
    """The terms of a mask, at most so many, which share no pair and have all of them."""
    terms = covered(blocks_of(mask), most)
    if terms is None:
        return None
    owners = sum((term.to_dense(*mask.shape).astype(int) for term in terms), np.zeros(mask.shape, int))
    assert len(terms) <= most and (owners == mask).all()
    return terms


@laws
@given(patterns(2, length=90), st.integers(1, 16))
def test_terms_are_the_pairs(pattern, most):
    check(pattern.to_dense(90), most)


@laws
@given(st.integers(1, 200), st.integers(1, 200), st.randoms(use_true_random=False))
def test_a_chain_is_one_term(m, n, random):
    """Any runs whose ends never decrease, with queries between them that see nothing."""
    lo, hi = (np.sort([random.randint(0, n) for _ in range(m)]) for _ in range(2))
    lo, hi = np.minimum(lo, hi), np.maximum(lo, hi)
    lo = np.where([random.random() < 0.3 for _ in range(m)], hi, lo) if m % 2 else lo
    mask = (np.arange(n) >= lo[:, None]) & (np.arange(n) < hi[:, None])
    terms = check(mask, 16)
    if (np.diff(lo) >= 0).all():
        assert len(terms) <= 1
    assert terms is None or len(terms) <= max(1, m)


def test_rectangles_of_queries_that_are_alike():
    ids = np.random.default_rng(1).integers(0, 6, 500)
    mask = ids[:, None] == ids
    terms = check(mask, 16)
    assert len(terms) == 6 and sum(term.nnz for term in terms) == mask.sum()
    assert len(check(mask | (ids == 0), 16)) == 6
    assert check(mask, 5) is None


def test_noise_is_refused_soon():
    mask = np.random.default_rng(2).random((400, 400)) < 0.4
    assert check(mask, 16) is None


def test_runs_of_keys_may_be_chains_where_those_of_queries_are_not():
    """A tree laid out depth first: the keys of a query are many runs, the queries of a key one run each."""
    end = np.arange(64) + 1
    for at in range(63, -1, -1):  # a tree of four levels
        end[at] = min(64, at + (64 if at == 0 else 21 if at % 21 == 1 else 5 if at % 5 == 2 else 1))
    q, k = np.arange(64)[:, None], np.arange(64)
    mask = (k <= q) & (q < end)
    assert len(check(mask, 16)) <= 5


def test_full_blocks_are_looked_at_once():
    mask = np.zeros((40 * BLOCK, 40 * BLOCK), np.bool_)
    for i in range(40):
        mask[i * BLOCK : (i + 1) * BLOCK, i // 2 * BLOCK : (i // 2 + 3) * BLOCK] = True
    mask[:, :BLOCK] = True
    terms = check(mask, 4)
    assert len(terms) == 2 and all(term.nbytes < 1000 for term in terms)


@pytest.mark.parametrize(("blocks", "kept", "most"), [(1, 0, 5), (1, 14, 2), (40, 0, 10), (10**6, 3, 13)])
def test_a_term_takes_the_place_of_some_blocks(blocks, kept, most):
    assert room(blocks, kept) == most


def test_blocks_that_a_pattern_lists_stay_blocks():
    pattern = weft.blocks(64, [(0, 0), (1, 3), (2, 3)])
    assert len(pattern.acsr(256).remainder) == 3 and not pattern.acsr(256).terms
