"""Forms and their lowering against numpy: random expressions of q and k, traced and evaluated side by side."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from weft.recognition import forms
from weft.recognition.function import recognize_function
from weft.recognition.lower import Size, lower
from weft.recognition.periodic import NoFormError
from weft.recognition.tables import watched
from weft.recognition.tracer import Trace, condition

OPTIONS = {"deadline": None, "suppress_health_check": list(HealthCheck)}

UNARY = {
    "floor": lambda x, c: x // c,
    "modulo": lambda x, c: x % c,
    "floor of a negative": lambda x, c: x // -c,
    "modulo a negative": lambda x, c: x % -c,
    "times": lambda x, c: x * (c - 3),
    "plus": lambda x, c: x + (c - 6),
    "from": lambda x, c: c - x,
    "abs": lambda x, c: abs(x - c),
    "clip": lambda x, c: np.clip(x, c - 4, c + 5),
    "choice": lambda x, c: np.where(x % c == 0, x, c),
    "bits": lambda x, c: (x >> 1) + (x & 3),
}
BINARY = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: x - y,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "choice": lambda x, y: np.where(x < y, x, y - 1),
}
COMPARED = {
    "less": lambda x, y: x < y,
    "at most": lambda x, y: x <= y,
    "more": lambda x, y: x > y,
    "equal": lambda x, y: x == y,
    "not equal": lambda x, y: x != y,
    "near": lambda x, y: abs(x - y) <= 3,
    "alike": lambda x, y: (x - y) % 3 == 0,
}
JOINED = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "but not": lambda a, b: a & ~b,
}


@st.composite
def numbers(draw, depth, tables):
    """A function (q, k) -> number."""
    if depth == 0:
        axis, offset = draw(st.sampled_from([0, 1])), draw(st.integers(-5, 5))
        table = tables[axis] if tables and draw(st.booleans()) else None
        if table is not None:
            return lambda *at: table[at[axis]]
        return lambda *at: at[axis] + offset
    inner = draw(numbers(depth - 1, tables))
    if draw(st.integers(0, 2)):
        rule, c = UNARY[draw(st.sampled_from(sorted(UNARY)))], draw(st.integers(1, 9))
        return lambda q, k: rule(inner(q, k), c)
    rule, other = BINARY[draw(st.sampled_from(sorted(BINARY)))], draw(numbers(depth - 1, tables))
    return lambda q, k: rule(inner(q, k), other(q, k))


@st.composite
def conditions(draw, tables=None):
    """A function (q, k) -> condition."""
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        rule = COMPARED[draw(st.sampled_from(sorted(COMPARED)))]
        x, y = draw(numbers(draw(st.integers(0, 2)), tables)), draw(numbers(draw(st.integers(0, 2)), tables))
        parts.append(lambda q, k, rule=rule, x=x, y=y: rule(x(q, k), y(q, k)))
    joins = [JOINED[draw(st.sampled_from(sorted(JOINED)))] for _ in parts[1:]]

    def whole(q, k):
        found = parts[0](q, k)
        for join, part in zip(joins, parts[1:], strict=True):
            found = join(found, part(q, k))
        return found

    return whole


def on_pairs(function, m, n):
    return np.broadcast_to(function(*np.ogrid[:m, :n]), (m, n))


def traced(function, trace):
    """The formula of a function, None where the trace ends."""
    try:
        return condition(watched(function)(trace.argument("q"), trace.argument("k")))
    except NoFormError:
        return None


@settings(max_examples=examples(250), **OPTIONS)
@given(conditions(), st.integers(1, 70), st.integers(1, 70))
def test_formulas_hold_at_every_length(function, m, n):
    formula = traced(function, Trace())
    if formula is None:
        return
    q, k = np.ogrid[:m, :n]
    assert (forms.truth(formula, q, k) == on_pairs(function, m, n)).all()
    assert (forms.truth(forms.negated(formula), q, k) != on_pairs(function, m, n)).all()
    try:
        pattern = lower(formula, Size())
    except NoFormError:
        return
    assert (pattern.aligned("top-left").to_dense(m, n) == on_pairs(function, m, n)).all()


@st.composite
def tabled(draw):
    """(function, m, n) over tables of m and n numbers: falling, rising, in documents, any."""
    m, n = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    n = m if draw(st.booleans()) else n
    made = []
    for length in (m, n):
        table = np.array(draw(st.lists(st.integers(-4, 9), min_size=length, max_size=length)), np.int64)
        made.append(np.sort(table) if draw(st.booleans()) else table)
    if m == n and draw(st.booleans()):
        made[1] = made[0]
    return draw(conditions(made)), m, n


@settings(max_examples=examples(100), **OPTIONS)
@given(tabled())
def test_tables(case):
    function, m, n = case
    mask = on_pairs(function, m, n)
    found = recognize_function(function, size=(m, n))
    assert (found.pattern.to_dense(m, n) == mask).all()
    if found.proof == "symbolic":
        acsr = found.pattern.acsr(m, n)
        assert (acsr.to_dense() == mask).all()
        assert found.closed == (
            not acsr.remainder.rows.size
        )  # labels that differ may meet in more terms than there are
