"""The tables of a planned mask visit every live pair once and no other. numpy alone: nothing is compiled."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("jax", reason="JAX is not installed")

from tests.jax.expand import visits
from tests.tiers import examples

import weft
from weft.errors import InputError
from weft.jax.mask import planned
from weft.planning.problem import Problem
from weft.testing.cases import BATCH, CASES, HEADS, At
from weft.testing.strategies import per_row_patterns, problems

laws = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


def problem(m, n, batch=BATCH, heads=HEADS, group=2):
    return Problem(batch, heads, heads // group, m, n, 1, 1)


def check(pattern, m, n, like=None, **how):
    asked = problem(m, n, **how)
    found = planned(pattern, asked, like)
    counts = visits(found, asked.batch, asked.kv_heads, asked.group)
    np.testing.assert_array_equal(counts, np.broadcast_to(pattern.to_dense(m, n), counts.shape))
    return found


@pytest.mark.parametrize("m, n", [(130, 130), (200, 64), (40, 130), (1, 1)])
@pytest.mark.parametrize("name", CASES)
def test_every_library_pattern(name, m, n):
    case = CASES[name]
    if not case.fits(m, n):
        pytest.skip("the pattern has no meaning at these lengths")
    check(case.make(At(m, n, None if m == n else "bottom-right")), m, n)


@laws
@given(problems())
def test_drawn_patterns(drawn):
    check(*drawn)


@laws
@given(per_row_patterns(), st.sampled_from((1, 2)), st.integers(0, 40))
def test_drawn_patterns_that_tell_rows_and_heads_apart(pattern, group, length):
    batch, heads = pattern.extent()
    check(pattern, length, length, batch=batch or 2, heads=heads or 2, group=group)


@laws
@given(problems(), problems())
def test_a_plan_in_the_structure_of_another_is_right_or_refused(one, two):
    (pattern, m, n), (first, *_) = one, two
    try:
        first.check(m, n, "")
        like = planned(first, problem(m, n)).structure
        planned(pattern, problem(m, n), like)
    except weft.errors.WeftError:
        return
    assert check(pattern, m, n, like).structure == like


def test_a_plan_is_like_itself():
    for name, case in CASES.items():
        if case.fits(130, 130):
            pattern = case.make(At(130, 130))
            first = planned(pattern, problem(130, 130)).structure
            assert planned(pattern, problem(130, 130), first).structure == first, name


def test_another_structure_is_refused():
    like = planned(weft.causal(), problem(100, 100)).structure
    with pytest.raises(InputError, match="like="):
        planned(weft.dilated(3, 3, 4), problem(100, 100), like)


def test_lengths_that_differ_are_refused():
    like = planned(weft.causal(), problem(100, 100)).structure
    with pytest.raises(InputError, match="100"):
        planned(weft.causal(), problem(90, 90), like)
