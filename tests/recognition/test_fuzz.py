"""Random compositions of library patterns come back equal on every pair, and nearly all of them in closed form.

As masks, and as mask functions. benchmarks/recognize_fuzz.py runs the same with 2000 of them.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.tiers import examples

from weft.errors import LengthError
from weft.recognition import recognize, recognize_mask
from weft.recognition.bitrows import BitRows
from weft.recognition.raster import raster
from weft.testing.mask_functions import as_function
from weft.testing.strategies import patterns, per_row_patterns, problems

ONCE = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.more
def test_compositions():
    closed = []

    @seed(11)
    @settings(max_examples=200, phases=[Phase.generate], **ONCE)
    @given(problems())
    def each(problem):
        pattern, m, n = problem
        mask = pattern.to_dense(m, n)
        found = recognize_mask(mask)
        assert (found.pattern.to_dense(m, n) == mask).all()
        assert found.exact and found.remainder <= mask.size
        closed.append(found.closed)

    each()
    print(f"{sum(closed)} of {len(closed)} in closed form")
    assert len(closed) >= 200
    assert sum(closed) >= 0.9 * len(closed)


@settings(max_examples=examples(40), **ONCE)
@given(problems(longest=40))
def test_affine_rows_of_what_comes_back(problem):
    pattern, m, n = problem
    mask = pattern.to_dense(m, n)
    assert (recognize_mask(mask).pattern.acsr(m, n).to_dense() == mask).all()


@pytest.mark.more
@settings(max_examples=examples(25), **ONCE)
@given(per_row_patterns())
def test_heads_and_batch_rows(pattern):
    mask = pattern.to_dense(33)
    found = recognize_mask(mask).pattern.to_dense(33)
    batches, heads = max(mask.shape[0], 1), max(mask.shape[1], 1)
    assert found.shape[-2:] == (33, 33)
    whole = found if found.ndim == 4 else found[None, None]
    assert (whole.repeat(batches // whole.shape[0], 0).repeat(heads // whole.shape[1], 1) == mask).all()


@settings(max_examples=examples(60), **ONCE)
@given(patterns(3, length=40))
def test_raster_is_the_meaning(pattern):
    assert raster(pattern, 40, 40).same(BitRows.pack(pattern.to_dense(40)))


def on_pairs(function, m, n, b=0, h=0):
    """The mask of a function of (b, h, q, k)."""
    return np.broadcast_to(function(b, h, *np.ogrid[:m, :n]), (m, n))


@pytest.mark.more
def test_functions():
    proofs, closed = [], []

    @seed(5)
    @settings(max_examples=80, phases=[Phase.generate], **ONCE)
    @given(problems())
    def each(problem):
        pattern, m, n = problem
        mask, function = pattern.to_dense(m, n), as_function(pattern, m, n)
        assert not mask.size or (on_pairs(function, m, n) == mask).all()
        found = recognize(function, size=(m, n))
        assert found.exact and (found.pattern.to_dense(m, n) == mask).all()
        proofs.append(found.proof)
        closed.append(found.closed)

    each()
    assert sum(closed) >= 0.9 * len(closed)
    assert proofs.count("symbolic") >= 0.7 * len(proofs)


@settings(max_examples=examples(40), **ONCE)
@given(patterns(3), patterns(2))
def test_functions_without_tables_hold_at_other_lengths(pattern, other):
    """Asked at one size, right at others; what is proven at one size only says so."""
    function = as_function((pattern | other).aligned("top-left"), 40, 40)
    found = recognize(function, size=(40, 40)).pattern.aligned("top-left")
    for size in ((40, 40), (7, 7), (33, 64), (130, 20)):
        try:
            dense = found.to_dense(*size)
        except LengthError:
            assert size != (40, 40)
            continue
        assert (dense == on_pairs(function, *size)).all()


@settings(max_examples=examples(20), **ONCE)
@given(per_row_patterns())
def test_functions_of_heads_and_batch_rows(pattern):
    batches, heads = pattern.extent()
    function = as_function(pattern, 33, 33)
    found = recognize(function, size=(33, 33), batch=batches, heads=heads)
    dense = np.broadcast_to(found.pattern.to_dense(33), (batches or 1, heads or 1, 33, 33))
    for b, h in np.ndindex(dense.shape[:2]):
        assert (dense[b, h] == on_pairs(function, 33, 33, b, h)).all()


@pytest.mark.more
def test_both_routes_meet():
    """A mask and the function that means it run as the same number of terms, nearly always."""
    alike = []

    @seed(3)
    @settings(max_examples=120, phases=[Phase.generate], **ONCE)
    @given(problems())
    def each(problem):
        pattern, m, n = problem
        mask, function = pattern.to_dense(m, n), as_function(pattern, m, n)
        found, other = recognize(function, size=(m, n)), recognize_mask(mask)
        alike.append((found.form.terms, found.closed) == (other.form.terms, other.closed))

    each()
    assert sum(alike) >= 0.95 * len(alike)
