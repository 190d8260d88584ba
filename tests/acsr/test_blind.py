"""Queries that bounds let see keys, and that lists leave none."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.acsr import Acsr, Remainder
from weft.pattern.bounds import IntTable
from weft.pattern.listed import EVERY, Listed

from .test_format import laws

NEAR = [weft.window(3, 2), weft.window(0, 0).shift(k=-20), weft.dilated(8, 8, 4), weft.dilated(0, 40, 3), weft.causal()]
LISTS = st.builds(
    lambda listed, kept: Listed(IntTable(sorted(listed)), kept), st.sets(st.integers(0, 59), max_size=40), st.booleans()
)


@laws
@given(st.sampled_from(NEAR), LISTS, LISTS)
def test_rows_that_only_a_list_keeps_from_seeing_are_left_out(near, rows, keys):
    (whole,) = near.acsr(60).terms
    _check_without_blind(whole.chosen(rows, keys))


@laws
@given(st.sets(st.integers(0, 59), max_size=40), st.sets(st.integers(0, 59), max_size=40))
def test_on_a_grid_too(rows, keys):
    (whole,) = weft.neighborhood([6, 10], [3, 5]).acsr(60).terms
    _check_without_blind(whole.chosen(*(Listed(IntTable(sorted(x)), kept=False) for x in (rows, keys))))


def _check_without_blind(term):
    acsr = Acsr(60, 60, (term,), Remainder.none())
    found, dense, every = acsr.without_blind(), acsr.to_dense(), np.arange(60)
    assert np.array_equal(found.to_dense(), dense)
    by_axes = replace(term, rows=EVERY, keys=EVERY).to_dense(60, 60).any(axis=1)
    if term.keys.kept:
        low, high = term.axes[0].interval(every, 60)
        by_axes = low < high
    blind = by_axes & ~dense.any(axis=1)
    assert np.array_equal(found.terms[0].rows.holds(every), term.rows.holds(every) & ~blind)
