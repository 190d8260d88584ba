"""Bounds as one clipped line a side: they say the same of every row that a launch has a tile for."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.kernels.triton.lines import as_lines

from .specs import small_launches

TOKENS = 200
laws = settings(max_examples=60, deadline=None, derandomize=bool(os.environ.get("CI")))
sizes = st.integers(0, 250)


@st.composite
def patterns(draw):
    """Windows with what makes their bounds more than lines: thresholds, constants, steps, second terms."""
    window = weft.window(left=draw(sizes), right=draw(st.one_of(st.none(), sizes)))
    other = draw(
        st.one_of(
            sizes.map(lambda x: weft.global_tokens(x, rows=False)),
            sizes.map(lambda x: weft.global_tokens(x, columns=False)),
            sizes.map(weft.prefix),
            st.integers(1, 300).map(weft.chunks),
            st.integers(1, 200).map(lambda x: weft.padding([x])),
            st.integers(2, 40).map(weft.periodic_keys),
        )
    )
    found = window | other if draw(st.booleans()) else window & other
    return weft.causal() & found if draw(st.booleans()) else found


@laws
@given(patterns(), st.booleans())
def test_the_same_rows_see_the_same_keys(pattern, transposed):
    launches = small_launches(pattern, TOKENS, transposed)
    for launch, straight in ((x, as_lines(x)) for x in launches if as_lines(x) is not None):
        for part, other in zip(launch.parts, straight.parts, strict=True):
            (axis,), (new,) = part.axes, other.axes
            for bound in (*new.relation.lower, *new.relation.upper):
                assert bound.run == 1
                assert bound.in_lo < -TOKENS
                assert bound.in_hi > TOKENS
            for lane, tile in np.argwhere((axis.heights > 0) & (axis.widths > 0)):
                low, high = axis.row_bounds(lane, tile)
                full = (
                    axis.left[lane, tile] == 0 and axis.unmasked[lane, tile] * axis.block_k >= axis.widths[lane, tile]
                )
                found = (low, high) if full else new.row_bounds(lane, tile)
                assert np.array_equal(found, (low, high))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        (weft.causal() & weft.window(left=30), True),
        (weft.dilated(20, 20, step=4), True),
        (weft.longformer(40, global_tokens=16), True),  # thresholds say which rows a launch has
        (weft.causal() & (weft.window(left=30) | weft.periodic_keys(9)), True),
        (weft.chunks(50) & weft.causal(), False),
        (weft.documents([70, 130]), False),
    ],
    ids=["window", "dilated", "longformer", "periodic", "chunks", "documents"],
)
def test_which_are_lines(pattern, lines, transposed):
    assert {as_lines(launch) is not None for launch in small_launches(pattern, TOKENS, transposed)} == {lines}
