"""Lines against numpy: every operation is evaluated on arrays beside the exact form, at random sizes and offsets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from weft.pattern.bounds import INF
from weft.recognition.lines import Line, chosen
from weft.recognition.periodic import BeyondTableError, NoFormError

NEGATIVE = Line.between(-INF, 0)


@st.composite
def domains(draw):
    """(first, last + 1) of a Line, and the indices at which it is looked at."""
    lo, hi = draw(st.sampled_from([(0, INF), (-INF, INF), (None, None)]))
    if lo is None:
        lo = draw(st.integers(-70, 70))
        hi = lo + draw(st.integers(1, 90))
    return lo, hi, np.arange(max(lo, -300), min(hi, 500), dtype=np.int64)


def leaf(draw, lo, hi, x):
    kind = draw(st.sampled_from(["index", "index", "constant", "table"]))
    if kind == "constant":
        value = draw(st.integers(-9, 30))
        return Line.constant(value, lo, hi), np.full_like(x, value)
    if kind == "table" and hi < INF and lo > -INF:
        values = np.array(draw(st.lists(st.integers(-5, 5), min_size=hi - lo, max_size=hi - lo)), np.int64)
        return Line.table(values, lo), values
    scale, base = draw(st.integers(-3, 3)), draw(st.integers(-40, 40))
    return Line.index(lo, hi, scale, base), scale * x + base


UNARY = {
    "floor": (lambda a, c: Line.floor(c).of(a), lambda v, c: v // c),
    "places": (lambda a, c: Line.modulo(3).of(Line.floor(c).of(a)), lambda v, c: v // c % 3),
    "modulo": (lambda a, c: Line.modulo(c).of(a), lambda v, c: v % c),
    "scaled": (lambda a, c: a.scaled(c - 4, c), lambda v, c: v * (c - 4) + c),
    "negative": (lambda a, c: NEGATIVE.of(a), lambda v, c: (v < 0).astype(np.int64)),
    "between": (lambda a, c: Line.between(-c, c).of(a), lambda v, c: ((v >= -c) & (v < c)).astype(np.int64)),
}
BINARY = {
    "add": (lambda a, b: a + b, lambda v, w: v + w),
    "subtract": (lambda a, b: a - b, lambda v, w: v - w),
    "minimum": (lambda a, b: chosen(NEGATIVE.of(a - b), a, b), np.minimum),
    "maximum": (lambda a, b: chosen(NEGATIVE.of(a - b), b, a), np.maximum),
    "times a condition": (lambda a, b: a * NEGATIVE.of(b), lambda v, w: v * (w < 0)),
    "union": (lambda a, b: NEGATIVE.of(a) | NEGATIVE.of(b), lambda v, w: ((v < 0) | (w < 0)).astype(np.int64)),
}


@st.composite
def expressions(draw):
    """(Line, its values, the indices): a random expression over one index."""
    lo, hi, x = draw(domains())
    stack = [leaf(draw, lo, hi, x)]
    for _ in range(draw(st.integers(1, 5))):
        line, values = stack.pop()
        if draw(st.booleans()):
            on_lines, on_values = UNARY[draw(st.sampled_from(sorted(UNARY)))]
            c = draw(st.integers(1, 12))
            stack.append((on_lines(line, c), on_values(values, c)))
        else:
            on_lines, on_values = BINARY[draw(st.sampled_from(sorted(BINARY)))]
            other, more = leaf(draw, lo, hi, x)
            stack.append((on_lines(line, other), on_values(values, more)))
    return (*stack[0], x)


@settings(max_examples=examples(300), deadline=None)
@given(expressions())
def test_every_operation_is_exact(case):
    line, values, x = case
    assert (line.at(x) == values).all()
    assert [a.stop for a in line.pieces[:-1]] == [b.start for b in line.pieces[1:]]


@settings(max_examples=examples(150), deadline=None)
@given(expressions())
def test_questions(case):
    line, values, _ = case
    low, high = line.extent
    assert low <= values.min() and values.max() <= high
    if line.bounded:
        assert line.rises == (np.diff(values) >= 0).all() and line.falls == (np.diff(values) <= 0).all()
        assert (line.all() == values).all()
    else:
        assert not line.rises or (np.diff(values) >= 0).all()
        assert not line.falls or (np.diff(values) <= 0).all()
    assert line.same(line.scaled(2) - line) and not line.same(line.scaled(1, 1))
    assert line.gap(line.scaled(-1, 7), -1) == 7


@settings(max_examples=examples(100), deadline=None)
@given(expressions(), expressions())
def test_composition(inner, outer):
    (f, values, x), (g, _, _) = inner, outer
    if g.bounded and not (g.lo <= values.min() and values.max() < g.hi):
        return
    try:
        assert (g.of(f).at(x) == g.at(values)).all()
    except BeyondTableError:
        assert not f.bounded or g.lo > -INF or g.hi < INF


def test_million_indices_cost_nothing():
    window = Line.between(0, 1_000_000).of(Line.index())
    assert len(window.pieces) == 3 and sum(p.values.size for p in window.pieces) == 3
    assert len((Line.floor(64).of(Line.index(0, INF)) + Line.index(0, INF)).pieces[0].values) == 64
    far = Line.modulo(64).of(Line.floor(1 << 20).of(Line.index(0, INF)))
    assert [p.values.size for p in far.pieces] == [64] and (far * far).pieces[0].period == 1 << 26


def test_refusals():
    with pytest.raises(NoFormError, match="repeats only after"):
        Line.modulo(1 << 30)
    with pytest.raises(BeyondTableError, match="beyond its ends"):
        Line.table(np.arange(5) ** 2).of(Line.index(0, 6))
    square = Line.index(0, INF)
    with pytest.raises(NoFormError):
        _ = square * square
