"""Bounds as one clipped line a side: they say the same of every row that a nest has a tile for."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.acsr.stairs import one_line
from weft.pattern.bounds import Stair
from weft.pattern.relation import Relation
from weft.planning.affine_bounds import as_lines

from .specs import small_nests

TOKENS = 200
laws = settings(max_examples=examples(60), deadline=None, derandomize=bool(os.environ.get("CI")))
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
    nests = small_nests(pattern, TOKENS, transposed)
    for nest, straight in ((x, as_lines(x)) for x in nests if as_lines(x) is not None):
        for part, other in zip(nest.parts, straight.parts, strict=True):
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


@st.composite
def stairs(draw):
    """A clipped line with thresholds, a constant, or a threshold."""
    place = st.integers(-20, 60)
    kind = draw(st.sampled_from(("line", "line", "constant", "threshold")))
    if kind == "constant":
        return Stair.constant(draw(place))
    if kind == "threshold":
        return Stair.threshold(draw(place))
    low, high = sorted((draw(place), draw(place)))
    ends = {draw(st.sampled_from(("in_lo", "out_lo"))): low, draw(st.sampled_from(("in_hi", "out_hi"))): high + 1}
    return Stair(draw(st.integers(1, 3)), 1, draw(place), draw(place), **(ends if draw(st.booleans()) else {}))


@settings(laws, max_examples=examples(500))
@given(st.lists(stairs(), max_size=3), st.booleans())
def test_one_line_says_the_same_of_the_rows_that_are_named(bounds, lower):
    found = one_line(bounds, lower)
    if found is None:
        return
    rows = np.arange(max(found.begin, -30), min(found.end, 70))
    one, other = (Relation(lower=tuple(x)) if lower else Relation(upper=tuple(x)) for x in (bounds, found.line))
    for x, y in zip(one.interval(rows, 50), other.interval(rows, 50), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        (weft.causal() & weft.window(left=30), True),
        (weft.dilated(20, 20, step=4), True),
        (weft.longformer(40, global_tokens=16), True),  # thresholds say which rows a nest has
        (weft.causal() & (weft.window(left=30) | weft.periodic_keys(9)), True),
        (weft.chunks(50) & weft.causal(), False),
        (weft.documents([70, 130]), False),
    ],
    ids=["window", "dilated", "longformer", "periodic", "chunks", "documents"],
)
def test_which_are_lines(pattern, lines, transposed):
    assert {as_lines(nest) is not None for nest in small_nests(pattern, TOKENS, transposed)} == {lines}
