"""Walking a plan tile by tile means what the Acsr means: to 1e-12 in float64, forward and backward."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tiers import every

import weft
from weft.acsr import interpret as meaning
from weft.acsr.interpret import Scoring
from weft.planning import interpret as walked
from weft.testing.strategies import problems

from .helpers import ANY_LENGTH, FITTED, GRIDS, TARGETS, laws, planned

SCORINGS = {
    "scale": Scoring(scale=0.3),
    "softcap": Scoring(scale=0.7, softcap=1.5),
    "alibi": Scoring(scale=0.3, slope=0.25, shift=-4),
    "sink": Scoring(scale=0.3, sink=0.4),
    "all": Scoring(scale=0.9, softcap=2.0, slope=0.125, shift=3, sink=-0.6),
}
every_way = pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)


def check(plan, scoring, dims=(5, 3)):
    """Both interpreters on random numbers: out, lse and all gradients."""
    (forward,), (transposed,) = plan.forward, plan.transposed
    acsr, (d, dv) = forward.plan.acsr, dims
    draw = np.random.default_rng(acsr.m + 1000 * acsr.n).standard_normal
    qkv = draw((acsr.m, d)), draw((acsr.n, d)), draw((acsr.n, dv))
    grads = draw((acsr.m, dv)), draw(acsr.m)
    out, lse = walked.forward(forward.plan, *qkv, scoring)
    expected_out, expected_lse = meaning.forward(acsr, *qkv, scoring)
    close(out, expected_out, "out")
    close(lse, expected_lse, "lse")
    got = walked.backward(forward.plan, transposed.plan, qkv, grads, scoring)
    expected = meaning.backward(acsr, qkv, *grads, scoring)
    for name in ("dq", "dk", "dv", "d_sink"):
        close(getattr(got, name), getattr(expected, name), name)


def close(got, expected, name):
    assert np.shape(got) == np.shape(expected)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12, err_msg=name)


@every_way
@pytest.mark.parametrize("name", every(8, ANY_LENGTH))
def test_any_length(name, scoring):
    check(planned(ANY_LENGTH[name], 45), scoring)
    check(planned(ANY_LENGTH[name].aligned("bottom-right"), 33, 70), scoring, dims=(2, 4))


@every_way
@pytest.mark.parametrize("name", every(4, FITTED))
def test_fitted(name, scoring):
    check(planned(FITTED[name](48), 48), scoring)


@pytest.mark.parametrize("name", every(3, GRIDS))
def test_grids(name):
    pattern, length = GRIDS[name]
    check(planned(pattern, length), SCORINGS["all"])


@pytest.mark.parametrize("target", TARGETS)
def test_every_box(target):
    pattern = weft.longformer(40, 3) & ~weft.window(2, 2)
    check(planned(pattern, 130, target=TARGETS[target]), SCORINGS["all"])


@every_way
@pytest.mark.parametrize(("m", "n"), [(0, 0), (0, 5), (5, 0), (1, 1), (1, 65), (65, 1)])
def test_short_sides(m, n, scoring):
    check(planned(weft.causal(align="bottom-right"), m, n), scoring)


@laws
@given(problems(3, longest=33), st.sampled_from(list(SCORINGS.values())), st.sampled_from(list(TARGETS.values())))
def test_every_expression(problem, scoring, target):
    pattern, m, n = problem
    check(planned(pattern, m, n, target), scoring)


def test_large_scores_do_not_overflow():
    plan = planned(weft.causal() | weft.prefix(9), 70)
    check(plan, Scoring(scale=300.0, sink=100.0))


def test_keys_that_nobody_sees_have_no_influence():
    plan = planned(weft.window(9, 9) & weft.prefix(20), 60)
    q, k, v = (np.ones((60, 2)) for _ in range(3))
    out, lse = walked.forward(plan.forward[0].plan, q, k, v, SCORINGS["all"])
    k[20:], v[20:] = 1e6, 1e6
    again = walked.forward(plan.forward[0].plan, q, k, v, SCORINGS["all"])
    np.testing.assert_array_equal(out, again[0])
    np.testing.assert_array_equal(lse, again[1])
