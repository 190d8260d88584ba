"""Bounds as patterns: what is written for one sees the pairs that the bound leaves, thresholds of rows included."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.pattern.bounds import INF, Stair
from weft.recognition import names, recognize_function

M, N = 6, 7
NEAR = st.integers(-3, 9)


@st.composite
def bounds(draw):
    """A Stair; at each end a threshold of rows, a clip, or neither."""
    ends = {}
    for threshold, clip in (("in_lo", "out_lo"), ("in_hi", "out_hi")):
        limited = draw(st.sampled_from([None, threshold, clip]))
        if limited:
            ends[limited] = draw(NEAR)
    for low, high in (("in_lo", "in_hi"), ("out_lo", "out_hi")):
        if ends.get(low, -INF) > ends.get(high, INF):
            ends[low], ends[high] = ends[high], ends[low]
    return Stair(draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(NEAR), draw(NEAR), **ends)


@pytest.mark.parametrize("side", ["from", "before"])
@given(bound=bounds())
def test_a_bound_is_written_as_what_it_leaves(side, bound):
    q, k = np.ogrid[:M, :N]
    at = bound(q)
    wanted = k >= at if side == "from" else k < at
    found = names.of_bound(side, bound, N, "top-left")
    np.testing.assert_array_equal(found.to_dense(M, N), np.broadcast_to(wanted, (M, N)))


@pytest.mark.parametrize("values", list(product((-1, 0), (-2,), (1, 2), (-1,), (0, 1))), ids=str)
def test_limits_of_keys_that_rise_and_fall(values):
    """q < T[k], where keys apart from each other are one chain, and a clip of their limits becomes a threshold."""
    torch = pytest.importorskip("torch")
    limits = np.array([*values, 5, 5, 5, 5])
    table = torch.from_numpy(np.arange(9) - limits)
    found = recognize_function(lambda q, k: (q - 1) <= k - table[k], size=(3, 9)).pattern
    np.testing.assert_array_equal(found.to_dense(3, 9), np.arange(3)[:, None] - 1 <= limits)
