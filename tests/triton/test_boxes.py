"""Boxes on a grid moved to where their tokens exist: as many as before, over the same columns, and no unseen ones."""

import os
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.kernels.gpu.configure import specs_of
from weft.pattern.bounds import Stair
from weft.planning.attention_plan import plan_attention
from weft.planning.boxes import whole_boxes
from weft.target import GPU
from weft.testing.workloads import named

from .specs import small_nests

laws = settings(max_examples=examples(60), deadline=None, derandomize=bool(os.environ.get("CI")))


@st.composite
def neighborhoods(draw):
    shape = draw(st.lists(st.integers(8, 32), min_size=2, max_size=3))
    size = [draw(st.integers(1, 4)) for _ in shape]
    dilation = [draw(st.sampled_from([1, 1, 2])) for _ in shape]
    causal = [draw(st.booleans()) for _ in shape]
    return shape, size, {"dilation": dilation, "causal": causal}


def nests(shape, size, transposed=False, **options):
    return small_nests(weft.neighborhood(shape, size, **options), prod(shape), transposed)


@laws
@given(neighborhoods(), st.booleans())
def test_moved_runs(neighborhood, transposed):
    shape, size, options = neighborhood
    for nest in nests(shape, size, transposed, **options):
        moved = whole_boxes(nest)
        assume(moved is not None)
        for part, other in zip(nest.parts, moved.parts, strict=True):
            for axis, new in zip(part.axes, other.axes, strict=True):
                some = axis.widths > 0
                positions = np.ceil((axis.n - axis.lanes.k_first) / axis.lanes.k_step)[:, None]
                assert (new.widths == -(-axis.widths // axis.block_k) * axis.block_k).all()
                assert ((new.start <= axis.start) & (new.stop >= axis.stop))[some].all()
                assert ((new.start >= 0) & (new.stop <= positions))[some].all()


def grid_of(nest, axis):
    """The nest with one axis of its only part replaced."""
    (part,) = nest.parts
    return replace(nest, parts=(replace(part, axes=(axis, *part.axes[1:])),))


def test_a_column_that_nobody_sees_stays_unread():
    (nest,) = nests([32, 32], [9, 9])
    assert whole_boxes(nest) is not None
    axis = nest.parts[0].axes[0]
    assert whole_boxes(grid_of(nest, axis)) is not None
    for bound in ("upper", "lower"):
        clip = Stair.constant(30 if bound == "upper" else 2)
        relation = replace(axis.relation, **{bound: (*getattr(axis.relation, bound), clip)})
        assert whole_boxes(grid_of(nest, replace(axis, relation=relation))) is None


@pytest.mark.parametrize("shape,size,room", [([3, 40], [3, 5], True), ([6, 40], [6, 5], False)])
def test_boxes_longer_than_what_is_left_of_an_axis_stay(shape, size, room):
    """Boxes are 1 x 8, and on an axis of 6 they are 8 x 1."""
    (nest,) = nests(shape, size)
    assert (whole_boxes(nest) is not None) == room


def test_lines_stay_as_they_are():
    for nest in nests([512], [63]):
        assert whole_boxes(nest) is None


@pytest.mark.parametrize(
    "name,direction",
    [
        ("na2d_128x128_k21", "forward"),
        ("na2d_128x128_k21", "dq"),
        ("na2d_128x128_k21", "dkdv"),
        ("na3d_30x48x80_k18x24x24", "forward"),
        ("na3d_30x48x80_k18x24x24", "dq"),
    ],
)
def test_kernels_of_the_workloads_load_without_a_mask(name, direction):
    """Not dK and dV of na3d: the middle of an axis of 30 is seen by all 30 queries, in boxes of 4."""
    w = named(name)
    assert all(spec.whole for spec in specs_of(plan_attention(w.make(), w.problem("cuda"), GPU), direction))
