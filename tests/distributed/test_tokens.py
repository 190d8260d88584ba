"""Sets of tokens as runs, against Python's sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.acsr.tokens import EMPTY, Tokens, boxes_of_run, grid_of, union
from weft.pattern.excerpt import Box

RUNS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=6)


def made(runs):
    """A set of (first, length) runs, and the same as Python's."""
    starts = np.array([a for a, _ in runs], np.int64)
    found = Tokens.of(starts, starts + np.array([n for _, n in runs], np.int64))
    return found, {x for a, n in runs for x in range(a, a + n)}


@given(RUNS, RUNS)
def test_algebra(one, other):
    (a, of_a), (b, of_b) = made(one), made(other)
    for found, wanted in (
        (a | b, of_a | of_b),
        (a & b, of_a & of_b),
        (a - b, of_a - of_b),
        (union([a, b, a]), of_a | of_b),
    ):
        assert found.array().tolist() == sorted(wanted) and len(found) == len(wanted)
        assert (found.starts[1:] > found.stops[:-1]).all() and (found.starts < found.stops).all()
    assert (a == b) == (of_a == of_b)


@given(RUNS, RUNS)
def test_places(one, other):
    whole, _ = made(one)
    some = whole & made(other)[0]
    assert (whole.array()[whole.places(some)] == some.array()).all()
    tokens = np.arange(60)
    assert whole.holds(tokens).tolist() == [x in set(whole.array().tolist()) for x in tokens.tolist()]


@given(RUNS, st.integers(0, 8), st.integers(1, 4))
def test_closed_fills_holes(runs, gap, most):
    whole, _ = made(runs)
    found = whole.closed(gap, most)
    assert not len(whole - found) and found.starts.size <= most
    if found.starts.size < most:
        assert (found.starts[1:] - found.stops[:-1] > gap).all()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_runs_of_a_grid_are_boxes(shape, data):
    size = int(np.prod(shape))
    first = data.draw(st.integers(0, size))
    after = data.draw(st.integers(first, size))
    boxes = boxes_of_run(first, after, tuple(shape))
    found = [Tokens.of_box(box).array() for box in boxes]
    assert np.concatenate([np.zeros(0, int), *found]).tolist() == list(range(first, after))
    assert len(boxes) <= 2 * len(shape) - 1


@pytest.mark.parametrize("shape", [(7,), (4, 5), (3, 4, 5)])
def test_products_of_axes(shape):
    generator = np.random.default_rng(0)
    axes = [Tokens.listed(np.flatnonzero(generator.random(n) < 0.6)) for n in shape]
    wanted = np.ravel_multi_index(np.meshgrid(*(axis.array() for axis in axes), indexing="ij"), shape).reshape(-1)
    assert grid_of(shape, tuple(axes)).array().tolist() == wanted.tolist()


def test_none():
    assert len(EMPTY) == 0 and EMPTY.array().size == 0 and union([]) == EMPTY
    assert Tokens.of_box(Box((4, 4), (1, 1), (2, 0))) == EMPTY
