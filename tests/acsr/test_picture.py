"""Which term owns which cell of a picture, against the mask."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tiers import every

import weft
from weft.acsr import cells
from weft.acsr.format import Acsr, Grid, Remainder, Term
from weft.acsr.picture import owned
from weft.pattern.bounds import IntTable, Stair
from weft.pattern.draw import edges
from weft.pattern.library import diagonal
from weft.pattern.listed import EVERY, Listed
from weft.pattern.relation import Relation, Residue
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


def counted(dense, rows, cols):
    """Pairs in each cell of a picture of at most rows x cols cells."""
    down, across = (edges(length, count)[:-1] for length, count in zip(dense.shape, (rows, cols), strict=True))
    return np.add.reduceat(np.add.reduceat(dense, down, axis=0, dtype=np.int64), across, axis=1)


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


@pytest.mark.parametrize("name", every(5, CASES))
@pytest.mark.parametrize("at", SIZES, ids=str)
@pytest.mark.parametrize("rows, cols, chunk", [(1, 1, 0), (1000, 7, 0), (7, 13, 8), (3, 1000, 8), (61, 48, 0)])
def test_where_a_cell_is_several_pairs(name, at, rows, cols, chunk, monkeypatch):
    for limit in ("STRIP", "PAIRS", "BATCH") if chunk else ():
        monkeypatch.setattr(cells, limit, chunk)
    dense, acsr = made(name, at)
    found = owned(acsr, rows, cols)
    rest = dense.copy()
    parts = [np.zeros_like(dense), *(term.to_dense(at.m, at.n) for term in acsr.terms), rest]
    for term in parts[1:-1]:
        rest &= ~term
    counts = np.stack([counted(part, rows, cols) for part in parts])
    area = counted(np.ones_like(dense), rows, cols)
    np.testing.assert_array_equal(found.share, counts.sum(axis=0) / area)
    np.testing.assert_array_equal(found.owners, counts.argmax(axis=0))


RELATIONS = [
    Relation(),
    Relation((diagonal(-9),), (diagonal(5),)),
    Relation((Stair(6, 4, base=-3),), (Stair(6, 4, base=20, out_hi=70),), rows=Residue(2, 1)),
    Relation(upper=(diagonal(1),), diagonal=Residue(7, 2)),
    Relation((diagonal(-50),), rows=Residue(3, 1), keys=Residue(5, 3), diagonal=Residue(4)),
    Relation(rows=Residue(2), keys=Residue(6, 1), diagonal=Residue(4, 1)),
]
LISTS = [EVERY, *(Listed(IntTable([0, 3, 4, 5, 17, 31, 32, 58, 60]), kept) for kept in (True, False))]


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
@pytest.mark.parametrize("keys", LISTS, ids=str)
@pytest.mark.parametrize("rows", LISTS, ids=str)
def test_terms_of_listed_tokens(relation, rows, keys):
    flat = Term.flat(relation, 61, 83, rows, keys)
    grid = Term(Grid(0, (8, 7)), Grid(6, (6, 9)), (RELATIONS[1], relation))
    terms = [flat] if rows.kept or keys.kept else [flat, grid.chosen(rows, keys)]
    for term in terms:
        acsr = Acsr(61, 83, (term,), Remainder.none())
        for shape in [(5, 7), (61, 4), (9, 83), (61, 83)]:
            wanted = counted(term.to_dense(61, 83), *shape) / counted(np.ones((61, 83)), *shape)
            np.testing.assert_array_equal(owned(acsr, *shape).share, wanted)


@given(st.integers(0, 127), st.integers(1, 127), st.integers(1, 40), st.integers(1, 40))
def test_single_rows_and_columns_are_never_missed(row, column, rows, cols):
    acsr = (weft.global_tokens([row], columns=False) | weft.global_tokens([column], rows=False)).acsr(128)
    live = owned(acsr, rows, cols).share > 0
    assert live.all(axis=1).sum() == 1 == live.all(axis=0).sum() or 1 in live.shape
    assert live.any(axis=0).all() and live.any(axis=1).all()


LARGE = {
    "strided": weft.causal() & (weft.window(left=127) | weft.periodic_keys(128)),
    "strided_far": weft.strided(70_001),
    "documents": weft.documents([700_000, 0, 1, 348_575]) & weft.causal(),
    "grid": weft.neighborhood((32, 256, 128), (3, 5, 7), dilation=(1, 2, 8)) | weft.global_tokens([5, 99_999]),
    "listed": weft.causal() & (weft.window(left=50) | weft.global_tokens([3, 5, 70_000, 1_048_575])),
    "blocks": weft.random_blocks(256, 3, seed=1),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_million_tokens_are_counted_one_by_one(name):
    acsr = LARGE[name].acsr(1 << 20)
    area = (1 << 20) // 64
    found = np.rint(owned(acsr, 64, 64).share * area**2).astype(np.int64)
    assert found.sum() == acsr.nnz
    for row in (0, 7, 40, 63):
        for column in (0, 6, 7, 40, 63):
            q = (row * area + np.arange(0, area, area // 4))[:, None]
            seen = LARGE[name].contains(q, column * area + np.arange(area)[None, :], 1 << 20)
            assert found[row, column] or not seen.any(), (row, column)
            assert found[row, column] < area**2 or seen.all(), (row, column)


def test_a_million_tokens_show_thin_structure():
    found = owned(weft.longformer(512, global_tokens=16).acsr(1_000_000), 40, 80)
    assert (found.share[0] > 0).all() and (found.share[:, 0] > 0).all()
    assert all(found.share[i, 2 * i : 2 * i + 2].all() for i in range(40))
    assert found.share[5, 40:].max() == 0


def test_nothing_is_owned_by_nothing():
    found = owned(weft.nothing().acsr(100), 10, 10)
    assert found.owners.max() == found.share.max() == 0 and found.pairs == {}
