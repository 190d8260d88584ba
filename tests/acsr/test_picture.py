"""Which term owns which cell of a picture, against the mask."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.acsr.picture import owned
from weft.testing.cases import BATCH, CASES, HEADS, At

SIZES = [At(130, 64, "top-left"), At(96, 96), At(17, 200, "bottom-right")]


def made(name, at):
    """(mask, Acsr) of the last head of the last batch row; skips where the pattern has no meaning."""
    if not CASES[name].fits(at.m, at.n):
        pytest.skip("no meaning at this size")
    pattern = CASES[name].make(at)
    batches, heads = pattern.extent()
    batch, head = (batches or BATCH) - 1, (heads or HEADS) - 1
    dense = pattern.at(batch, head).to_dense(at.m, at.n)
    return dense, pattern.acsr(at.m, at.n, batch, head)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("at", SIZES, ids=str)
def test_where_every_pair_is_a_cell(name, at):
    dense, acsr = made(name, at)
    found = owned(acsr, at.m, at.n)
    assert found.exact
    np.testing.assert_array_equal(found.owners > 0, dense)
    np.testing.assert_array_equal(found.share, dense)
    for i, term in enumerate(acsr.terms):
        np.testing.assert_array_equal(found.owners == i + 1, term.to_dense(at.m, at.n))
    assert found.owners.max(initial=0) <= len(found.pairs)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cols", [1, 7, 50])
def test_where_a_cell_is_several_keys_of_one_query(name, cols):
    at = SIZES[0]
    dense, acsr = made(name, at)
    found = owned(acsr, at.m, cols)
    edges = np.arange(cols + 1) * at.n // cols
    np.testing.assert_allclose(found.share, np.add.reduceat(dense, edges[:-1], axis=1, dtype=float) / np.diff(edges))
    np.testing.assert_array_equal(found.owners > 0, found.share > 0)


@given(st.integers(0, 127), st.integers(1, 127), st.integers(2, 40), st.integers(1, 40))
def test_first_and_last_query_of_a_cell_are_always_seen(token, cells, rows, cols):
    acsr = (weft.global_tokens([token], columns=False) | weft.global_tokens([cells], rows=False)).acsr(128)
    found = owned(acsr, rows, cols)
    row = next(i for i in range(rows) if token < (i + 1) * 128 // rows)
    assert (found.share > 0).any(axis=0).all() or token not in (row * 128 // rows, (row + 1) * 128 // rows - 1)
    assert ((found.share >= 0) & (found.share <= 1)).all()
    assert (found.share > 0).any(axis=1).all()  # a global key is seen in every row of cells


def test_a_million_tokens_show_thin_structure():
    found = owned(weft.longformer(512, global_tokens=16).acsr(1_000_000), 40, 80)
    assert (found.share[0] > 0).all() and (found.share[:, 0] > 0).all()
    assert all(found.share[i, 2 * i : 2 * i + 2].all() for i in range(40))
    assert found.share[5, 40:].max() == 0


def test_nothing_is_owned_by_nothing():
    found = owned(weft.nothing().acsr(100), 10, 10)
    assert found.owners.max() == found.share.max() == 0 and found.pairs == {}
