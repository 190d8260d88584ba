"""Pairs are counted by closed sums, which are those of all rows, and take no longer for more rows."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.pattern import counting
from weft.pattern.bounds import INF, IntTable, Stair, Steps
from weft.pattern.relation import Relation, Residue

SMALL = st.integers(-40, 140)
RESIDUES = st.builds(Residue, st.sampled_from([1, 1, 1, 2, 3, 4]), st.integers(0, 5))


@st.composite
def stairs(draw):
    kind = draw(st.sampled_from(["line", "line", "constant", "threshold", "cut", "late"]))
    if kind == "constant":
        return Stair.constant(draw(SMALL))
    if kind == "threshold":
        return Stair.threshold(draw(SMALL))
    line = {"rise": draw(st.integers(1, 4)), "run": draw(st.sampled_from([1, 1, 2, 3, 8])), "shift": draw(SMALL),
            "base": draw(SMALL)}  # fmt: skip
    ends = sorted((draw(SMALL), draw(SMALL)))
    if kind == "cut":
        line |= dict(zip(("out_lo", "out_hi"), ends, strict=True))
    if kind == "late":
        line |= dict(zip(("in_lo", "in_hi"), ends, strict=True))
    return Stair(**line)


@st.composite
def steps(draw):
    breaks = sorted(draw(st.lists(SMALL, max_size=4)))
    values = sorted(draw(st.lists(SMALL, min_size=len(breaks) + 1, max_size=len(breaks) + 1)))
    return Steps(IntTable(breaks), IntTable(values))


BOUNDS = st.lists(stairs() | steps(), max_size=3).map(tuple)
RELATIONS = st.builds(Relation, BOUNDS, BOUNDS, RESIDUES, RESIDUES, RESIDUES)


def by_rows(relation, m, n):
    return int(relation.affine_rows(np.arange(m, dtype=np.int64), n)[2].sum())


@settings(max_examples=400)
@given(RELATIONS, st.integers(1, 300), st.integers(1, 200))
def test_the_closed_sum_is_that_of_all_rows(relation, m, n):
    edges = counting._edges(relation, 0, m)
    pairs = pairwise(edges)
    found = sum(counting._between(counting._straight(relation, a), a, b, n) for a, b in pairs)
    assert found == by_rows(relation, m, n) == relation.count(m, n)
    assert relation.is_empty(m, n) == (found == 0)


LONG = {
    "causal": (weft.causal(), lambda m: m * (m + 1) // 2),
    "a window": (weft.window(left=1000, right=0), lambda m: 1001 * m - 1000 * 1001 // 2),
    "full": (weft.full(), lambda m: m * m),
    "strided": (weft.dilated(3, 3, 1024), None),
    "blocks": (weft.chunks(4096), None),
}


@pytest.mark.parametrize(("pattern", "pairs"), LONG.values(), ids=LONG)
def test_more_rows_take_no_longer(pattern, pairs):
    for m in (1 << 20, 1 << 28, (1 << 31) - 4096):
        acsr = pattern.acsr(m, m)
        began = time.process_time()
        found = acsr.nnz
        assert time.process_time() - began < 1
        assert pairs is None or found == pairs(m)


def test_an_empty_relation_of_many_rows_is_found_empty_at_once():
    never = Relation((Stair(base=10), Stair.constant(5)), (Stair(base=10, shift=1, run=2),))
    began = time.process_time()
    assert never.is_empty(1 << 30, 1 << 30) == (never.count(1 << 30, 1 << 30) == 0)
    assert time.process_time() - began < 1
    assert Relation((Stair.constant(INF),)).count(1 << 30, 1 << 30) == 0
