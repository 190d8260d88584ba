"""NATTEN's rule: exhaustive on one axis, a selection of grids with unlike axes."""

import numpy as np
import pytest
from tests.tiers import every

import weft

from . import oracles as o
from .helpers import same_everywhere

LONGEST = 25


def parameters(length):
    """Every (size, stride, dilation) the rule allows on an axis of `length`."""
    for size in range(1, length + 1):
        for stride in range(1, size + 1):
            for dilation in range(1, length // size + 1):
                yield size, stride, dilation


@pytest.mark.parametrize("causal", (False, True), ids=("both-ways", "causal"))
@pytest.mark.parametrize("length", every(5, range(1, LONGEST + 1)))
def test_every_axis(length, causal):
    wrong = []
    for size, stride, dilation in parameters(length):
        expected = o.natten_axis(length, size, stride, dilation, causal)
        pattern = weft.neighborhood(length, size, stride=stride, dilation=dilation, causal=causal)
        acsr, row = pattern.acsr(length), (7 * size + 3 * stride + dilation) % length  # any
        for name, good in (
            ("to_dense", np.array_equal(pattern.to_dense(length), expected)),
            ("acsr", np.array_equal(acsr.to_dense(), expected)),
            ("columns", np.array_equal(acsr.columns(row), np.flatnonzero(expected[row]))),
            ("nnz", acsr.nnz == expected.sum()),
            ("transpose", np.array_equal(acsr.transpose().to_dense(), expected.T)),
        ):
            if not good:
                wrong.append((name, {"size": size, "stride": stride, "dilation": dilation}))
    assert not wrong, f"length {length}, causal {causal}: {len(wrong)} wrong, the first {wrong[0]}"


@pytest.mark.parametrize("length", (63, 64, 65, 130))
def test_long_axes(length):
    for size, stride, dilation, causal in (
        (1, 1, 1, False),
        (7, 1, 1, False),
        (8, 3, 1, True),
        (9, 4, 7, False),
        (16, 16, 3, True),
        (5, 2, 12, False),
        (63, 5, 1, False),
    ):
        pattern = weft.neighborhood(length, size, stride=stride, dilation=dilation, causal=causal)
        same_everywhere(pattern, o.natten_axis(length, size, stride, dilation, causal))


GRIDS = (
    # shape, size, stride, dilation, causal
    ((1, 1), 1, 1, 1, False),
    ((5, 7), 3, 1, 1, False),
    ((5, 7), (5, 3), 1, 1, False),
    ((7, 5), (4, 5), (2, 3), 1, False),
    ((8, 8), 4, 4, 1, False),
    ((8, 9), (3, 4), (1, 2), (2, 2), False),
    ((9, 8), (2, 3), (2, 1), (4, 2), (True, False)),
    ((6, 11), (6, 3), (5, 2), (1, 3), (False, True)),
    ((7, 9), (3, 2), (3, 2), (2, 4), True),
    ((1, 13), (1, 6), (1, 4), (1, 2), (True, False)),
    ((13, 1), (6, 1), (5, 1), (2, 1), True),
    ((16, 16), 7, 1, 1, False),
    ((3, 4, 5), (3, 3, 3), 1, 1, False),
    ((4, 5, 6), (2, 3, 4), (1, 3, 2), 1, (True, False, False)),
    ((5, 4, 6), (2, 2, 3), (2, 1, 3), (2, 2, 2), (False, True, False)),
    ((2, 7, 5), (1, 3, 5), (1, 2, 4), (2, 2, 1), True),
    ((6, 6, 4), 2, 2, 2, False),
    ((1, 1, 9), (1, 1, 4), (1, 1, 3), (1, 1, 2), (True, False, True)),
)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: "-".join(str(part).replace(" ", "") for part in grid))
def test_grids(grid):
    shape, size, stride, dilation, causal = grid
    pattern = weft.neighborhood(shape, size, stride=stride, dilation=dilation, causal=causal)
    same_everywhere(pattern, o.neighborhood(shape, size, stride, dilation, causal))


def test_a_bare_length_is_one_axis():
    assert (weft.neighborhood(9, 3).to_dense(9) == weft.neighborhood((9,), (3,)).to_dense(9)).all()
    same_everywhere(weft.neighborhood([9], [3]), o.natten_axis(9, 3))


def test_scalars_reach_every_axis():
    one = weft.neighborhood((8, 9, 4), 2, stride=2, dilation=2, causal=True)
    each = weft.neighborhood((8, 9, 4), (2,) * 3, stride=(2,) * 3, dilation=(2,) * 3, causal=(True,) * 3)
    assert (one.to_dense(288) == each.to_dense(288)).all()


def test_the_whole_axis_is_plain_attention():
    same_everywhere(weft.neighborhood((5, 6), (5, 6)), np.ones((30, 30), dtype=bool))
    same_everywhere(weft.neighborhood(12, 12, causal=True), o.dense(o.causal, 12))


def test_stride_of_the_window_is_chunks():
    same_everywhere(weft.neighborhood(24, 4, stride=4), o.dense(lambda q, k: o.chunks(q, k, 4), 24))


def test_it_combines():
    pattern = weft.neighborhood((6, 7), 3) & ~weft.neighborhood((6, 7), 1) | weft.global_tokens(2)
    expected = o.neighborhood((6, 7), 3) & ~np.eye(42, dtype=bool) | o.dense(lambda q, k: o.global_tokens(q, k, 2), 42)
    same_everywhere(pattern, expected)
