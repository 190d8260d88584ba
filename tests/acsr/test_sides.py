"""Terms that differ in one bound become one term with the same pairs."""

import numpy as np
import pytest

import weft
from weft.acsr.build import build
from weft.acsr.format import Term
from weft.acsr.sides import joined_sides
from weft.pattern.bounds import Stair
from weft.pattern.relation import Relation

TOKENS = 40
STAIRS = [Stair(base=1), Stair(rise=3, run=2, base=-4), Stair(base=-5, out_lo=2), Stair(base=3, out_hi=30)]
STAIRS += [Stair(base=2, in_lo=7), Stair(base=-2, in_hi=33), Stair.threshold(11), Stair.constant(12)]


def pairs(terms):
    """The pairs of some terms, as a matrix."""
    at = np.arange(TOKENS)
    return np.logical_or.reduce([term.contains(at[:, None], at[None, :]) for term in terms])


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("constant", [0, 9, 35, 60])
@pytest.mark.parametrize("stair", range(len(STAIRS)))
def test_pairs_stay(stair, constant, lower):
    other = Stair(base=-12) if not lower else Stair(base=15)
    made = [
        Term.flat(Relation((x,), (other,)) if lower else Relation((other,), (x,)), TOKENS, TOKENS)
        for x in (STAIRS[stair], Stair.constant(constant))
    ]
    found = joined_sides(made)
    assert len(found) <= 2
    assert (pairs(found) == pairs(made)).all()


@pytest.mark.parametrize(
    ("pattern", "terms"),
    [
        (weft.causal() | weft.prefix(9), 1),
        (weft.causal() | weft.global_tokens(3), 2),
        (weft.causal() & (weft.window(left=5) | weft.global_tokens(3)), 2),
        (weft.causal() | weft.window(2, 2), 1),
    ],
)
def test_how_many_terms(pattern, terms):
    acsr = build(pattern, TOKENS, TOKENS)
    assert len(acsr.terms) == terms
    assert (pairs(acsr.terms) == pattern.to_dense(TOKENS)).all()
