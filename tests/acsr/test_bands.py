"""Unions of hundreds of bands: merged before anything is subtracted, and the same pairs."""

import functools
import operator
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.acsr.bands import merged_bands
from weft.acsr.format import Term
from weft.pattern.bounds import Stair
from weft.pattern.relation import Relation, Residue

M, N = 40, 50
DISTANCES = st.integers(-45, 45)


@st.composite
def terms(draw):
    rise, run = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 3)]))
    cut = {"out_lo": 3, "out_hi": 30} if draw(st.booleans()) and draw(st.booleans()) else {}
    lower = [Stair(rise, run, base=draw(DISTANCES), **cut)] * draw(st.booleans())
    upper = [Stair(rise, run, base=draw(DISTANCES), **cut)] * draw(st.booleans())
    lower += [Stair.constant(draw(st.integers(1, 20)))] * draw(st.sampled_from([False, False, True]))
    keys = Residue(draw(st.sampled_from([1, 1, 2])))
    return Term.flat(Relation(tuple(lower), tuple(upper), keys=keys), M, N)


@given(st.lists(terms(), min_size=1, max_size=30))
def test_merged_bands_have_the_same_pairs(found):
    merged = merged_bands(found)
    assert len(merged) <= len(found)
    wanted, have = (functools.reduce(operator.or_, (term.to_dense(M, N) for term in some)) for some in (found, merged))
    assert (wanted == have).all()


def union(parts):
    return functools.reduce(operator.or_, parts)


UNIONS = {
    "nested": ([weft.window(i, 0) for i in range(800)], 1),
    "side by side": ([weft.window(i, 0) & weft.causal(-i) for i in range(800)], 1),
    "every other": ([weft.window(2 * i, 0) & weft.causal(-2 * i) for i in range(400)], None),
    "in blocks": ([weft.window(i, 0) & weft.blocks(64, [(j, j) for j in range(64)]) for i in range(60)], None),
}


@pytest.mark.parametrize(("parts", "count"), UNIONS.values(), ids=UNIONS)
def test_unions_of_hundreds_take_little(parts, count):
    pattern = union(parts)
    began = time.process_time()
    acsr = pattern.acsr(64, 64)
    assert time.process_time() - began < 5
    assert count is None or len(acsr.terms) == count
    wanted = functools.reduce(np.logical_or, (part.to_dense(64) for part in parts))
    assert (acsr.to_dense() == wanted).all()
