"""Packed rows against numpy on booleans, at sizes around a word and on both sides of the switch to words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.recognition import bitrows, grids
from weft.recognition.bitrows import BitRows
from weft.recognition.parts import Known

SIZES = [(1, 1), (5, 7), (64, 64), (65, 130), (200, 63), (130, 129)]


@pytest.fixture(params=SIZES, ids=str)
def mask(request):
    return np.random.default_rng(0).random(request.param) < 0.03


@pytest.fixture(params=["bytes", "words"])
def either_way(request, monkeypatch):
    if request.param == "words":
        monkeypatch.setattr(bitrows, "SMALL", 0)


def test_there_and_back(mask):
    rows = BitRows.pack(mask)
    assert (rows.dense() == mask).all()
    assert (rows.inverted().dense() == ~mask).all()
    assert (rows.transposed().dense() == mask.T).all()
    assert rows.count == mask.sum() and (rows.row_counts() == mask.sum(axis=1)).all()


def test_projections(mask, either_way):
    rows, (m, n) = BitRows.pack(mask), mask.shape
    assert (rows.keys == mask.any(axis=0)).all() and (rows.queries == mask.any(axis=1)).all()
    assert (rows.diagonals == [np.diagonal(mask, d).any() for d in range(1 - m, n)]).all()
    assert (rows.first == np.where(mask.any(axis=1), mask.argmax(axis=1), n)).all()
    assert (rows.last == np.where(mask.any(axis=1), n - 1 - mask[:, ::-1].argmax(axis=1), -1)).all()
    assert (rows.next_key_differs() == (mask[:, 1:] != mask[:, :-1]).any(axis=0)).all()


def test_simple_sets(mask, either_way):
    generator = np.random.default_rng(1)
    m, n = mask.shape
    q, k = np.ogrid[:m, :n]
    some = generator.random(m + n - 1) < 0.4
    assert (BitRows.of_diagonals(some, m, n).dense() == some[k - q + m - 1]).all()
    assert (BitRows.of_keys(some[:n], m).dense() == some[:n][k].repeat(m, axis=0)).all()
    assert (BitRows.of_queries(some[:m], n).dense() == some[:m][q].repeat(n, axis=1)).all()
    lo, hi = generator.integers(-3, n + 3, m), generator.integers(-3, n + 3, m)
    assert (BitRows.of_intervals(lo, hi, n).dense() == ((k >= lo[:, None]) & (k < hi[:, None]))).all()


def test_algebra(mask):
    other = np.random.default_rng(2).random(mask.shape) < 0.3
    a, b = BitRows.pack(mask), BitRows.pack(other)
    assert ((a & b).dense() == (mask & other)).all() and ((a | b).dense() == (mask | other)).all()
    assert (a.without(b).dense() == (mask & ~other)).all()
    assert a.meets(b) == (mask & other).any() and a.exceeds(b) == (mask & ~other).any()
    assert (BitRows.meet([a, b, a]).dense() == (mask & other)).all()
    assert (BitRows.join([a, b, a]).dense() == (mask | other)).all()


@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 40), st.integers(0, 1 << 30))
def test_sides_of_blocks(block, share, size, number):
    """Blocks of which each is live or dead where it is decided have a side that divides it."""
    generator = np.random.default_rng(number)
    coarse = generator.random((size, size)) < 0.5
    mask = np.kron(coarse, np.ones((block, block), np.bool_))[:size, :size]
    known = generator.random(mask.shape) < share / 6
    found = grids.sides_of_blocks(Known(BitRows.pack(mask & known), BitRows.pack(~mask & known)))
    assert found % block == 0
    if share >= 6:
        places = [np.argwhere(turned[1:] != turned[:-1])[:, 0] + 1 for turned in (mask, mask.T)]
        assert found == np.gcd.reduce(np.concatenate(places), initial=0)
