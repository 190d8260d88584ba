"""Which keys some rows see, against the dense mask: library patterns, and unions of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.acsr.needs import needed
from weft.acsr.tokens import Tokens
from weft.pattern.excerpt import Box
from weft.testing.cases import CASES, At
from weft.testing.strategies import patterns

LENGTH = 130


def asked(generator, length):
    """Some runs of rows."""
    ends = np.sort(generator.integers(0, length + 1, (2, int(generator.integers(1, 4)))), axis=0)
    return Tokens.of(*ends)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.fits(LENGTH, LENGTH)])
def test_library(name):
    pattern = CASES[name].make(At(LENGTH, LENGTH))
    pattern = pattern.at(0, 0) if pattern.extent() != (None, None) else pattern
    acsr, dense = pattern.acsr(LENGTH), pattern.to_dense(LENGTH)
    generator = np.random.default_rng(len(name))
    for _ in range(12):
        rows = asked(generator, LENGTH)
        assert needed(acsr, rows).array().tolist() == np.flatnonzero(dense[rows.array()].any(axis=0)).tolist()


@given(patterns(24), st.integers(0, 24), st.integers(0, 24))
def test_drawn(pattern, a, b):
    acsr, dense = pattern.acsr(24), pattern.to_dense(24)
    rows = Tokens.of(np.array([min(a, b)]), np.array([max(a, b)]))
    assert needed(acsr, rows).array().tolist() == np.flatnonzero(dense[rows.array()].any(axis=0)).tolist()


@pytest.mark.parametrize("shape", [(12, 10), (5, 4, 6)])
def test_boxes_of_a_grid_are_looked_at_as_such(shape):
    pattern = weft.neighborhood(shape, 3)
    size = int(np.prod(shape))
    acsr, dense = pattern.acsr(size), pattern.to_dense(size)
    box = Box(shape, tuple(n // 3 for n in shape), tuple(n // 2 for n in shape))
    rows = Tokens.of_box(box)
    assert needed(acsr, (box,)) == needed(acsr, rows)
    assert needed(acsr, rows).array().tolist() == np.flatnonzero(dense[rows.array()].any(axis=0)).tolist()


@pytest.mark.parametrize("first", [0, 70_000, 524_288])
def test_a_long_line(first):
    """Rows are sampled, and all looked at only where the samples leave a doubt."""
    gaps = weft.staircase("from", (100, 10)) & weft.staircase("before", (100, 10), origin=(0, 30))
    for pattern in (weft.causal() & weft.window(left=1023), gaps):
        acsr = pattern.acsr(1 << 20)
        rows = np.arange(first, first + 9000)
        axis = acsr.terms[0].axes[0]
        low, high = axis.interval(rows, 1 << 20)
        wanted = np.unique(np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)]))
        assert needed(acsr, Tokens.of(rows[:1], rows[-1:] + 1)).array().tolist() == wanted.tolist()


@pytest.mark.parametrize("rows", [(0, 3000), (700, 2900), (2000, 2003), (0, 1), (5, 75)])
@pytest.mark.parametrize("pattern", [weft.dilated(30, 0, 4), weft.dilated(3, 3, 16), weft.strided(64), weft.strided(7)])
def test_congruences(pattern, rows):
    """Rows of whole periods are looked at together; a few are marked one by one."""
    acsr, dense = pattern.acsr(3000), pattern.to_dense(3000)
    for one, mask in ((acsr, dense), (acsr.transpose(), dense.T)):
        found = needed(one, Tokens.of(*(np.array([x]) for x in rows)))
        assert found.array().tolist() == np.flatnonzero(mask[slice(*rows)].any(axis=0)).tolist()
