"""Spans in closed form, against the runs of real plans."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.acsr.relayout import lanes_of, natural_step
from weft.errors import RelabelError
from weft.napkin.cost import evaluate, span
from weft.napkin.diagram import Reading
from weft.napkin.span import Span, floor_sum
from weft.pattern.relation import Relation, Residue
from weft.planning.families.tile import usual
from weft.planning.problem import Problem
from weft.planning.tiles import axis_plan
from weft.planning.tiling.gpu import plan_for_device
from weft.target import GPU

SIZES = (1, 2, 3, 5, 8, 16, 64)


def planned(relation, m, n, g):
    """(keys read by all groups, groups) by the tables of a plan."""
    plan = axis_plan(relation, n, lanes_of(relation, (0, m), natural_step(relation)), g, 1)
    return int(plan.widths.sum()), int((plan.heights > 0).sum())


def check(relation, m, n, g):
    found = Span(relation, m, n)
    keys, groups = planned(relation, m, n, g)
    assert (found.total(g), found.groups(g)) == (keys, groups)
    assert found.mean(g) == pytest.approx(keys / groups)


@given(st.integers(0, 12), st.integers(1, 15), st.integers(0, 20), st.integers(-30, 30))
def test_floor_sum(count, modulus, a, b):
    assert floor_sum(count, modulus, a, b) == sum((a * t + b) // modulus for t in range(count))


@given(
    st.integers(1, 80), st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.booleans(), st.sampled_from(SIZES)
)
@settings(max_examples=examples(200), deadline=None)
def test_neighbourhoods(length, size, stride, dilation, causal, g):
    size, dilation = min(size, length), min(dilation, max(1, length // size))
    (term,) = weft.neighborhood(length, size, min(stride, size), dilation, causal).acsr(length, length).terms
    check(term.axes[0], length, length, g)


@given(st.integers(1, 90), st.integers(0, 40), st.integers(0, 40), st.integers(1, 6), st.sampled_from(SIZES))
@settings(max_examples=examples(100), deadline=None)
def test_windows(length, left, right, step, g):
    patterns = (
        weft.window(left=left, right=right),
        weft.causal() & weft.window(left=left),
        weft.dilated(left, right, step),
        weft.causal(),
        weft.full(),
        weft.periodic_keys(step),
        weft.causal() & weft.periodic_keys(step),
        weft.chunks(step),
    )
    for pattern in patterns:
        for term in pattern.acsr(length, length).terms:
            check(term.axes[0], term.q.size, term.k.size, g)


def test_bytes_of_a_plan_on_a_grid():
    """What the closed form says of each axis, multiplied, is what the tiles of a real plan read."""
    (term,) = (acsr := weft.neighborhood((24, 40), (5, 9), stride=(1, 3), dilation=(2, 1)).acsr(960, 960)).terms
    problem = Problem(1, 1, 1, 960, 960, 64, 64, "float16", "cuda")
    plan = plan_for_device(acsr, problem, GPU, usual("forward", problem, 2))
    (nest,) = plan.nests
    read = 1
    for axis, m, n, part in zip(term.axes, term.q.shape, term.k.shape, nest.parts[0].axes, strict=True):
        keys = Span(axis, m, n).total(part.block_q)
        assert keys == int(part.widths.sum())
        read *= keys
    visits = {}
    for tile, work in zip(nest.walk_tiles(), nest.work(), strict=True):
        visits[tile] = work // nest.tile_queries(tile).size
    assert sum(visits.values()) == read


def test_the_cost_does_not_depend_on_the_length():
    """A relation over 2^40 tokens is summed at once; its mean is the leading form, but for the two ends."""
    size = 1 << 40
    relation = Relation((weft.pattern.library.diagonal(-1023),), (weft.pattern.library.diagonal(1),))
    assert Span(relation, size, size).mean(128) == pytest.approx(128 + 1023, rel=1e-6)


@pytest.mark.parametrize(
    "pattern, g, expected",
    [
        (weft.window(left=10, right=21), 16, 16 + 32 - 1),
        (weft.neighborhood(4096, 9), 16, 16 + 9 - 1),
        (weft.neighborhood(4096, 9, stride=3), 18, 18 + 9 - 3),
        (weft.neighborhood(4096, 9, stride=3, dilation=2), 18, 18 + 9 - 3),
        (weft.neighborhood(4096, 9, stride=3, causal=True), 18, 18 + 9 - 3),
        (weft.dilated(5, 5, 4), 16, 16 + 11 - 1),
        (weft.full(), 16, 4096),
        (weft.periodic_keys(4), 16, 1024),
        (weft.causal(), 16, (4096 + 16) / 2),
    ],
    ids=str,
)
def test_leading_forms(pattern, g, expected):
    """Equal to the mean over a long axis, up to its ends."""
    relation = pattern.acsr(4096, 4096).terms[0].axes[0]
    found = evaluate(span(Reading("q", "x", relation), g), {"x": 4096})
    assert found == pytest.approx(expected)
    assert Span(relation, 4096, 4096).mean(g) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    "pattern, word",
    [
        (weft.documents([5, 11, 4]), "table"),
        (weft.causal() & weft.chunks(6) & weft.window(left=3), "several moving"),
    ],
)
def test_what_has_no_closed_form_is_refused(pattern, word):
    with pytest.raises(RelabelError, match=word) as caught:
        Span(pattern.acsr(20, 20).terms[0].axes[0], 20, 20).total(4)
    assert "count the tiles" in caught.value.cure


def test_a_relation_without_keys_has_no_span():
    nothing = Relation(keys=Residue(2, 0), diagonal=Residue(2, 1), rows=Residue(2, 0))
    assert Span(nothing, 8, 8).total(2) == 0
    with pytest.raises(RelabelError, match="no query sees"):
        span(Reading("q", "x", nothing), 4)


def test_bounds_that_may_cross_are_refused():
    ahead = Relation((weft.pattern.library.diagonal(2),), (weft.pattern.library.diagonal(1),))
    with pytest.raises(RelabelError, match="cross"):
        Span(ahead, 20, 20).total(4)


def test_lanes_without_keys_read_nothing():
    found = Span(Relation(rows=Residue(3, 1)), 10, 10)
    assert (found.groups(2), found.total(2)) == (2, 20)
    assert Span(Relation(rows=Residue(3, 1)), 0, 10).mean(2) == 0
