"""Random compositions of library patterns come back equal on every pair, and nearly all of them in closed form.

benchmarks/recognize_fuzz.py runs the same with 2000 of them.
"""

from hypothesis import HealthCheck, Phase, given, seed, settings

from weft.recognition import recognize_mask
from weft.recognition.bitrows import BitRows
from weft.recognition.raster import raster
from weft.testing.strategies import patterns, per_row_patterns, problems

ONCE = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


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


@settings(max_examples=40, **ONCE)
@given(problems(longest=40))
def test_affine_rows_of_what_comes_back(problem):
    pattern, m, n = problem
    mask = pattern.to_dense(m, n)
    assert (recognize_mask(mask).pattern.acsr(m, n).to_dense() == mask).all()


@settings(max_examples=25, **ONCE)
@given(per_row_patterns())
def test_heads_and_batch_rows(pattern):
    mask = pattern.to_dense(33)
    found = recognize_mask(mask).pattern.to_dense(33)
    batches, heads = max(mask.shape[0], 1), max(mask.shape[1], 1)
    assert found.shape[-2:] == (33, 33)
    whole = found if found.ndim == 4 else found[None, None]
    assert (whole.repeat(batches // whole.shape[0], 0).repeat(heads // whole.shape[1], 1) == mask).all()


@settings(max_examples=60, **ONCE)
@given(patterns(3, length=40))
def test_raster_is_the_meaning(pattern):
    assert raster(pattern, 40, 40).same(BitRows.pack(pattern.to_dense(40)))
