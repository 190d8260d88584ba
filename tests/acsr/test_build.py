"""Building stays bounded: conjunctions of unions that grow beyond any use are scanned or refused, never run away."""

from functools import reduce
from operator import and_, or_

import numpy as np
import pytest

import weft
from weft.acsr.format import MAX_TERMS
from weft.acsr.terms import MAX_APART, disjoint
from weft.errors import IrregularError


def union(seed):
    """Sixteen bands of different widths, places and steps, which overlap in many ways."""
    sizes = np.random.default_rng(seed).integers(1, 60, (16, 3)).tolist()
    parts = [weft.dilated(a * (c % 3 + 1), b * (c % 3 + 1), c % 3 + 1).shift(c, b) for a, b, c in sizes]
    return reduce(or_, parts)


def conjunction(count):
    return reduce(and_, map(union, range(count)))


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_conjunction_of_unions_is_exact_whatever_becomes_of_its_terms(count):
    rows = conjunction(count).acsr(200)
    assert len(rows.terms) <= MAX_TERMS
    np.testing.assert_array_equal(rows.to_dense(), conjunction(count).to_dense(200))
    assert any("has too many" in note for note in rows.notes)


def test_a_conjunction_of_many_unions_is_refused_where_it_is_too_long_to_scan():
    with pytest.raises(IrregularError, match="has too many") as refused:
        conjunction(8).acsr(1 << 20)
    assert "too many to look at one by one" in str(refused.value)


def test_a_union_met_with_one_term_may_have_any_length():
    apart = reduce(or_, (weft.window(0, 0).shift(0, -4 * i) for i in range(100)))
    rows = (weft.causal() & apart).acsr(500)
    np.testing.assert_array_equal(rows.to_dense(), (weft.causal() & apart).to_dense(500))
    assert len(rows.terms) == MAX_TERMS


def test_terms_beyond_all_that_can_be_kept_are_spilled_unlooked_at():
    apart = [term for i in range(100) for term in weft.window(0, 0).shift(0, -4 * i).acsr(500).terms]
    kept, spilled = disjoint(apart)
    assert len(kept) == MAX_APART + 1
    assert set(kept) | set(spilled) == set(apart)


def test_many_spilled_terms_are_joined_without_a_second_look():
    count, length = 60, 16  # 3600 cells, of which all but a few terms go to the remainder
    cells = [[weft.causal() if i == j else j < i for j in range(count)] for i in range(count)]
    rows = weft.segments([length] * count, cells).acsr(count * length)
    assert len(rows.terms) == MAX_TERMS and len(rows.remainder)
    np.testing.assert_array_equal(rows.to_dense(), np.tri(count * length, dtype=bool))


AXES = {
    "listed": weft.global_tokens([0, 5]),
    "only keys, apart": weft.global_tokens([1, 4, 7], rows=False),
    "left out": weft.window(3, 2) & ~weft.global_tokens([2, 6], columns=False),
    "many runs": weft.global_tokens(range(0, 40, 2), rows=False),
}


@pytest.mark.parametrize("axis", AXES.values(), ids=AXES)
@pytest.mark.parametrize("shape", [(1, 40), (3, 40), (40, 3)], ids=str)
def test_lists_of_tokens_on_one_axis_of_a_grid(axis, shape):
    """They become bounds of that axis; too many of them are scanned."""
    parts = [axis if length == 40 else weft.window(1, 0) for length in shape]
    pattern, tokens = weft.product(parts, shape), shape[0] * shape[1]
    np.testing.assert_array_equal(pattern.acsr(tokens).to_dense(), pattern.to_dense(tokens))


NESTED = [
    weft.longformer(26, global_tokens=3), weft.bigbird(block=16, random=2, seed=1), weft.strided(12),
    weft.causal() & weft.documents(lengths=[100, 30, 70]),
]  # fmt: skip


@pytest.mark.parametrize("pattern", NESTED, ids=lambda x: str(x)[:20])
def test_complements_of_complements_have_the_form_of_what_they_say(pattern):
    other = weft.window(left=9, right=4)
    for nested, plain in (
        (~~pattern, pattern),
        (~(~pattern & ~other), pattern | other),
        (~(~pattern | other), pattern & ~other),
    ):
        found, wanted = nested.acsr(200), plain.acsr(200)
        assert (len(found.terms), found.remainder.nbytes) == (len(wanted.terms), wanted.remainder.nbytes)
        np.testing.assert_array_equal(found.to_dense(), nested.to_dense(200))
