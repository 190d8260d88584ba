"""`grouped` says ids == key_ids, by documents where it can."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from weft.pattern.grouped import grouped

numbers = st.lists(st.integers(-1, 4), min_size=1, max_size=14).map(lambda x: np.array(x, np.int64))


@settings(max_examples=examples(200), deadline=None)
@given(numbers, numbers, st.booleans())
def test_law(ids, key_ids, alike):
    key_ids = ids if alike else key_ids
    found = grouped(ids, key_ids).to_dense(len(ids), len(key_ids))
    np.testing.assert_array_equal(found, ids[:, None] == key_ids[None])


@pytest.mark.parametrize(
    ("ids", "key_ids", "said"),
    [
        ([0, 0, 1, 1, 1], [0, 0, 1, 1, 1], "documents(lengths=[2, 3])"),
        ([-1, -1, 3, 3, -1], [-2, -2, 3, 3, -2], "key_lengths="),
        ([0, 0, 0], [0, 0, 1, 1, 1], "key_lengths="),
        ([0, 1, 0], [0, 1, 0], "ids="),
    ],
)
def test_spelling(ids, key_ids, said):
    assert said in str(grouped(np.array(ids), np.array(key_ids)))
