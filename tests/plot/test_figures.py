"""Figures of what cannot be drawn are refused, and those of one head are those of that head."""

import numpy as np
import pytest

import weft
from weft import plot
from weft.errors import OptionError, PatternError
from weft.testing.refusals import refuse

pytest.importorskip("matplotlib")
HEADS = weft.per_head([weft.causal(), weft.full()])
figures = pytest.mark.parametrize("figure", [plot.pattern_figure, plot.term_figure])


@figures
@pytest.mark.parametrize("m,n", [(0, None), (0, 5), (5, 0)])
def test_no_pairs(figure, m, n):
    refuse(lambda: figure(weft.full(), m, n), OptionError, (f"{m} x {m if n is None else n} tokens", "no pair"))


@figures
@pytest.mark.parametrize("at,word", [((0, 5), "head 5"), ((0, -1), "head -1"), ((-1, 0), "batch row -1"),
                                     ((0, "a"), "head='a'")])  # fmt: skip
def test_no_such_head(figure, at, word):
    refuse(lambda: figure(HEADS, 8, at=at), PatternError, (word,))


@figures
def test_lengths_are_integers(figure):
    refuse(lambda: figure(weft.full(), 2.5), PatternError, ("m=2.5",))


@figures
def test_one_head(figure):
    first, last = (figure(HEADS, 8, at=(0, head)).axes[0].images[0].get_array() for head in (0, 1))
    live = first != first[0, -1]  # the first query does not see the last key
    np.testing.assert_array_equal(live.any(axis=2), np.tri(8, dtype=bool))
    assert (last == last[0, 0]).all()
