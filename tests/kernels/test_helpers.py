"""What the other tests lean on: the tolerance policy fails what it should, the selection covers its pairs."""

from itertools import combinations, product

import numpy as np
import pytest

import weft
from weft.testing.cases import CASES, At, grid, parts
from weft.testing.tolerance import TABLE, assert_close

from .pairwise import pairwise

TRUTH = np.linspace(-2.0, 2.0, 12).reshape(3, 4)
PLAIN = TRUTH.astype(np.float32)


def test_the_truth_is_close_to_itself():
    for quantity in {quantity for quantity, _ in TABLE}:
        assert_close(quantity, TRUTH.astype(np.float32), TRUTH, PLAIN)


def test_tf32_has_its_own_tolerance():
    got = TRUTH.astype(np.float32) + np.float32(2.0**-9)
    assert_close("out", got, TRUTH, PLAIN, tf32=True)
    with pytest.raises(AssertionError, match="out is off by"):
        assert_close("out", got, TRUTH, PLAIN)
    with pytest.raises(AssertionError, match="out is off by"):
        assert_close("out", got + np.float32(2.0**-6), TRUTH, PLAIN, tf32=True)


def test_a_failure_names_quantity_place_errors_and_c():
    got = TRUTH.astype(np.float32)
    got[1, 2] += 0.25
    with pytest.raises(AssertionError) as caught:
        assert_close("second call: dq", got, TRUTH, PLAIN)
    for word in ("second call: dq", "(1, 2)", "0.25", "plain float32", "c = 4", "1 of 12"):
        assert word in str(caught.value)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_close(wrong):
    got = TRUTH.astype(np.float32)
    got[0, 0] = wrong
    with pytest.raises(AssertionError, match="off by inf"):
        assert_close("out", got, TRUTH, PLAIN)


def test_infinities_must_be_the_same():
    truth = np.array([-np.inf, 1.0])
    assert_close("lse", truth, truth, truth.astype(np.float32))
    for wrong in (np.inf, np.nan, -1e30):
        with pytest.raises(AssertionError, match="off by inf"):
            assert_close("lse", np.array([wrong, 1.0]), truth, truth.astype(np.float32))


def test_an_overflowing_plain_result_measures_nothing():
    with pytest.raises(AssertionError, match="overflows"):
        assert_close("out", PLAIN, TRUTH, np.full_like(PLAIN, np.inf))


def test_more_plain_error_allows_more():
    got = (TRUTH + 0.001).astype(np.float32)
    assert_close("out", got, TRUTH, (TRUTH + 0.001).astype(np.float32))
    with pytest.raises(AssertionError):
        assert_close("out", got, TRUTH, PLAIN)


def test_pairwise_covers_every_allowed_pair():
    factors = {"a": [1, 2, 3], "b": [1, 2, 3, 4], "c": ["x", "y"], "d": [True, False]}

    def allowed(row):
        return row.get("a") != row.get("b")

    rows = pairwise(factors, allowed)
    assert all(allowed(row) and list(row) == list(factors) for row in rows)
    met = {pair for row in rows for pair in combinations(row.items(), 2)}
    for (a, xs), (b, ys) in combinations(factors.items(), 2):
        for x, y in product(xs, ys):
            assert ((a, x), (b, y)) in met or not allowed({a: x, b: y})
    assert len(rows) < 24  # of 3 * 4 * 2 * 2
    assert rows == pairwise(factors, allowed)


def test_cases_use_the_whole_library():
    from weft.pattern.arguments import LIBRARY

    written = " ".join(case.make(At(12, 12)).structure for case in CASES.values())
    assert [name for name in LIBRARY if name in weft.__all__ and f"{name}(" not in written] == []


@pytest.mark.parametrize("total", [0, 1, 7, 130])
def test_parts_add_up(total):
    assert sum(parts(total, 1, 0, 5, 2)) == total
    assert parts(total, 1, 0, 5, 2)[1] == 0
    for rank in (1, 2, 3):
        assert not total or int(np.prod(grid(total, rank))) == total
