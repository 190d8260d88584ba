"""Components of patterns: each query and each key once, and the pattern's live pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.errors import VerificationError
from weft.planning.families.components import SIZE, Components, tiles_of, verify_components


def tiles(pattern, m, n=None):
    acsr = pattern.acsr(m, m if n is None else n, 0, 0)
    return tiles_of(acsr), acsr


lengths = st.lists(st.integers(1, 8), min_size=1, max_size=6)


@given(lengths, lengths)
@settings(max_examples=examples(60), deadline=None)
def test_windows_of_a_grid(down, along):
    shape = sum(down), sum(along)
    found, acsr = tiles(weft.product([weft.documents(down), weft.documents(along)], shape), shape[0] * shape[1])
    verify_components(found, acsr)
    least = -(-acsr.m // SIZE)
    assert least <= found.count <= len(down) * len(along)


@given(st.lists(st.integers(0, SIZE), min_size=1, max_size=6), st.integers(0, 9))
@settings(max_examples=examples(60), deadline=None)
def test_documents_lie_apart(sizes, left):
    total = sum(sizes)
    if not total:
        return
    found, acsr = tiles(weft.documents(sizes) & weft.window(left=left, right=1), total)
    verify_components(found, acsr)
    document = np.repeat(np.arange(len(sizes)), sizes)
    for row in found.queries:
        assert len(set(document[row[row >= 0]])) == 1, "one document a tile"


def test_shifted_windows_are_packed_as_if_rolled():
    """Swin's 56 x 56 tokens, of which 81 windows come of the shift: no more tiles than the 64 windows without it."""
    found, acsr = tiles(weft.product([weft.documents([3, *[7] * 7, 4])] * 2, (56, 56)), 3136)
    verify_components(found, acsr)
    assert found.count <= 64


def test_tokens_that_see_nothing_have_places():
    found, acsr = tiles(weft.causal(align="bottom-right"), 90, 40)
    verify_components(found, acsr)
    assert (found.queries >= 0).sum() == 90
    assert (found.keys >= 0).sum() == 40


def changed(found, **fields):
    return Components(**({"queries": found.queries, "keys": found.keys, "live": found.live} | fields))


@pytest.mark.parametrize("what", ["a query twice", "a pair more", "a pair less"])
def test_a_wrong_tile_is_found(what):
    found, acsr = tiles(weft.documents([5, 7]), 12)
    queries, live = found.queries.copy(), found.live.copy()
    if what == "a query twice":
        queries[0, 5] = queries[1, 0]
    else:
        live[0, 0, 0 if what == "a pair less" else 5] ^= True
    with pytest.raises(VerificationError):
        verify_components(changed(found, queries=queries, live=live), acsr)
