"""Parts of patterns: boxes of queries and keys, against the dense mask of the whole."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.errors import LengthError, PatternError
from weft.testing.refusals import refuse
from weft.testing.strategies import patterns

GRIDS = [
    (weft.neighborhood((8, 8), (3, 5)), (8, 8)),
    (weft.neighborhood((4, 4, 4), (3, 3, 2), stride=(1, 2, 2)), (4, 4, 4)),
    (weft.neighborhood((8, 8), 3) | weft.global_tokens(4), (8, 8)),
    (weft.causal(), (8, 8)),
    (weft.neighborhood((8, 8), 3) & weft.causal(), (8, 8)),
]


def taken(shape, pairs):
    return np.ravel_multi_index(np.meshgrid(*[np.arange(*x) for x in pairs], indexing="ij"), shape).reshape(-1)


@given(patterns(24), st.data())
def test_of_a_line(pattern, data):
    (a, b), (c, d) = (sorted((data.draw(st.integers(0, 24)), data.draw(st.integers(0, 24)))) for _ in range(2))
    part = weft.excerpt(pattern, 24, (a, b), (c, d))
    wanted = pattern.to_dense(24)[a:b, c:d]
    assert np.array_equal(part.to_dense(b - a, d - c), wanted)
    assert np.array_equal(part.acsr(b - a, d - c).to_dense(), wanted)


@pytest.mark.parametrize(("pattern", "shape"), GRIDS)
def test_of_a_grid(pattern, shape):
    generator = np.random.default_rng(1)
    dense = pattern.to_dense(int(np.prod(shape)))
    for _ in range(12):
        q, k = ([sorted(generator.integers(0, n + 1, 2).tolist()) for n in shape] for _ in range(2))
        part = weft.excerpt(pattern, shape, q, k)
        wanted = dense[np.ix_(taken(shape, q), taken(shape, k))]
        assert np.array_equal(part.to_dense(*wanted.shape), wanted)
        assert np.array_equal(part.acsr(*wanted.shape).to_dense(), wanted)


def test_a_box_keeps_the_form_of_a_neighbourhood():
    part = weft.excerpt(weft.neighborhood((512, 512), 21), (512, 512), [(0, 256), (128, 256)], [(0, 266), (118, 266)])
    acsr = part.acsr(256 * 128, 266 * 148)
    assert len(acsr.terms) == 1 and acsr.terms[0].q.shape == (256, 128) and not len(acsr.remainder)


def test_whole_rows_of_a_grid_keep_it_too():
    part = weft.excerpt(weft.neighborhood((64, 32), 5), 2048, (320, 640), (256, 704))
    acsr = part.acsr(320, 448)
    assert len(acsr.terms) == 1 and acsr.terms[0].q.shape == (10, 32) and not len(acsr.remainder)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: weft.excerpt(3, 8, (0, 4), (0, 4)), PatternError, ("excerpt", "no pattern")),
        (lambda: weft.excerpt(weft.full(), 8, (0, 9), (0, 4)), PatternError, ("queries", "(0, 9)", "within 0 and 8")),
        (lambda: weft.excerpt(weft.full(), 8, (5, 4), (0, 4)), PatternError, ("queries", "(5, 4)")),
        (lambda: weft.excerpt(weft.full(), (4, 4), (0, 4), (0, 4)), PatternError, ("queries", "each of 2 axes")),
        (lambda: weft.excerpt(weft.full(), 8, (0, 4), (0, 4)).acsr(4, 5), LengthError, ("4 queries and 4 keys",)),
    ],
)
def test_refusals(make, error, said):
    refuse(make, error, said)


def test_it_crosses():
    part = weft.excerpt(weft.causal() & weft.window(left=3), (4, 8), [(0, 2), (1, 5)], [(0, 3), (0, 8)])
    assert pickle.loads(pickle.dumps(part)) == part
    assert eval(repr(part), vars(weft)) == part
