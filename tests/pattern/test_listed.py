"""Sets of listed tokens: closed under intersection, complement and shift; and found by residue class."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.pattern.bounds import IntTable
from weft.pattern.listed import EVERY, ByClass, Listed

LINE = np.arange(-20, 60)
tokens = st.sets(st.integers(0, 40), max_size=12).map(sorted)
sets = st.builds(lambda listed, kept: Listed(IntTable(listed), kept), tokens, st.booleans())


@given(sets, sets)
def test_meet_and_complement(a, b):
    np.testing.assert_array_equal(a.meet(b).holds(LINE), a.holds(LINE) & b.holds(LINE))
    np.testing.assert_array_equal(a.complement().holds(LINE), ~a.holds(LINE))
    assert a.meet(a.complement()).is_empty
    assert a.meet(EVERY) == EVERY.meet(a) == a
    assert a.is_empty == (not a.holds(LINE).any())


@given(sets, st.integers(-9, 9), st.integers(-5, 45), st.integers(0, 30))
def test_moved_and_within(a, by, first, length):
    np.testing.assert_array_equal(a.moved(by).holds(LINE + by), a.holds(LINE))
    inside = np.arange(first, first + length)
    np.testing.assert_array_equal(a.within(first, first + length).holds(inside), a.holds(inside))
    assert len(a.within(first, first + length).tokens) <= length


@given(sets, st.integers(1, 5))
def test_enlarged(a, block):
    np.testing.assert_array_equal(a.enlarged(block).holds(LINE), a.holds(LINE // block))


@given(tokens, st.integers(1, 9), st.integers(-3, 45), st.integers(0, 45))
def test_by_class(listed, step, lo, length):
    hi = lo + length
    classes = ByClass.of(np.array(listed, np.int64), step)
    for phase in range(step):
        inside = [x for x in listed if lo <= x < hi and x % step == phase]
        ask = (np.array([x]) for x in (phase, max(lo, 0), max(hi, 0)))
        one, low, high = ask
        assert classes.count(one, low, high).tolist() == [len(inside)]
        assert classes.first(one, low, high).tolist() == [inside[0] if inside else high[0]]
        assert classes.last(one, low, high).tolist() == [inside[-1] if inside else low[0] - 1]


@given(tokens, st.integers(1, 9))
def test_past_runs_of_a_class(listed, step):
    classes, x = ByClass.of(np.array(listed, np.int64), step), np.arange(-10, 60)
    past, ahead = classes.past(x % step, x).tolist(), classes.ahead(x % step, x).tolist()
    for at, after, before in zip(x.tolist(), past, ahead, strict=True):
        assert after == next(y for y in range(at, 100, step) if y not in listed)
        assert before == next(y for y in range(at, -100, -step) if y not in listed)


@pytest.mark.parametrize("step", [(1 << 31) - 1, 1 << 31, (1 << 34) + 3, 1 << 62])
def test_by_class_of_long_steps(step):
    """From 2**31 on a class has one token at most, and most classes have none."""
    listed = np.array([0, 5, 59_998, (1 << 31) - 2])
    classes = ByClass.of(listed, step)
    phase = np.array([0, 5, 6, 59_998, (1 << 31) - 2, 1 << 31, (1 << 33) + 5, (1 << 62) - 1]) % step
    lo, hi = np.zeros_like(phase), np.full_like(phase, (1 << 31) - 1)
    expected = [int((listed % step == x).sum()) for x in phase]
    assert classes.count(phase, lo, hi).tolist() == expected
    first = [x if some else (1 << 31) - 1 for x, some in zip(phase.tolist(), expected, strict=True)]
    assert classes.first(phase, lo, hi).tolist() == first


@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
def test_global_tokens_are_cut_and_aligned(align):
    listed = [0, 7, 19, 20, 29, 64]
    q, k = np.arange(30)[:, None], np.arange(50)[None, :]
    shift = 20 if align == "bottom-right" else 0
    expected = np.isin(q + shift, listed) | np.isin(k, listed)
    pattern = weft.global_tokens(listed, align=align)
    np.testing.assert_array_equal(pattern.to_dense(30, 50), expected)
    np.testing.assert_array_equal(pattern.acsr(30, 50).to_dense(), expected)


def test_the_text_of_a_long_table_is_short():
    ids = np.repeat(np.arange(100), 50)
    for pattern in (weft.documents(ids=ids), weft.blocks(8, [(i, i) for i in range(2000)])):
        text = str(pattern)
        assert len(text) < 100 and f"{len(ids) if 'ids' in text else 2000} in all" in text
    assert str(weft.documents(lengths=range(3))) == "documents(lengths=[0, 1, 2])"
