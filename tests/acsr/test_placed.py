"""`placed` says of some queries and keys what the pattern says of the whole sequence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.acsr.placed import by_distance, last_rows, placed, realigned, within_causal
from weft.testing import strategies

MODELS = {
    "causal": weft.causal(align="top-left"),
    "window": weft.causal() & weft.window(left=4, align="top-left"),
    "both sides": weft.window(3, 3),
    "chunks": weft.causal() & weft.chunks(5),
    "rows": weft.per_batch([weft.causal(), weft.causal() & ~weft.prefix(2)]),
    "images": weft.sized(weft.causal() | weft.documents([2, 3, 1, 6]), 12, 12),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("m", "q_offset", "k_offset", "n"), [(1, 11, 0, 12), (3, 9, 0, 12), (1, 11, 4, 8), (2, 10, 7, 5)]
)
def test_steps_of_models(name, m, q_offset, k_offset, n):
    pattern = MODELS[name]
    found = placed(pattern, (m, n), (q_offset, k_offset))
    want = realigned(pattern, "top-left").to_dense(q_offset + m, k_offset + n)[..., q_offset:, k_offset:]
    np.testing.assert_array_equal(found.to_dense(m, n), want)


def test_one_pattern_for_all_steps():
    for name in ("causal", "window", "both sides", "chunks"):
        first, later = (placed(MODELS[name], (1, t + 1), (t, 0)) for t in (7, 8))
        assert first is later
    first, later = (placed(MODELS["window"], (1, 5), (t, t - 4)) for t in (7, 8))
    assert first is later
    assert last_rows(MODELS["chunks"], False) is None
    assert last_rows(MODELS["images"], True) is None


@settings(max_examples=examples(100), deadline=None)
@given(strategies.patterns(), st.integers(0, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
def test_law(pattern, q_offset, m, k_offset, n):
    try:
        pattern = realigned(pattern, "top-left")
        whole = pattern.to_dense(q_offset + m, k_offset + n)
    except weft.errors.PatternError:  # a pattern of some length
        return
    found = placed(pattern, (m, n), (q_offset, k_offset))
    np.testing.assert_array_equal(found.to_dense(m, n), whole[..., q_offset:, k_offset:])
    if within_causal(pattern):
        assert not np.triu(whole, 1).any()
    if by_distance(pattern):
        np.testing.assert_array_equal(whole[..., 1:, 1:], whole[..., :-1, :-1])


def test_within_causal():
    assert within_causal(MODELS["window"])
    assert within_causal(MODELS["rows"])
    assert not within_causal(MODELS["images"])
    assert not within_causal(weft.window(3, 3))
    assert not within_causal(~weft.causal())
