"""Unions of terms as fewer terms: sets of queries and of keys joined, and spelled as bounds, residues or lists."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.acsr.format import MAX_TERMS, Term
from weft.acsr.merge import Rectangle, absorbed, fewest, merged, spelled
from weft.pattern.bounds import Stair
from weft.pattern.relation import Relation, Residue

laws = settings(max_examples=examples(80), deadline=None)
SETS = st.lists(st.booleans(), min_size=30, max_size=30).map(lambda bits: np.array(bits, np.bool_))


def dense(boxes, m, n):
    live = np.zeros((m, n), np.bool_)
    for box in boxes:
        live |= box.rows[:, None] & box.keys
    return live


def test_terms_that_others_hold_are_left_out():
    """Windows one inside the other, in any order, beside what no other holds."""
    windows = [Term.flat(Relation(lower=(Stair(base=-i),), upper=(Stair(base=1),)), 64, 64) for i in range(300)]
    other = Term.flat(Relation(lower=(Stair(base=5),), upper=(Stair(base=7),)), 64, 64)
    for terms in (windows, windows[::-1], [*windows[:100], other, *windows[100:]]):
        left = absorbed(terms)
        assert windows[-1] in left and len(left) <= 2
        assert (np.any([x.to_dense(64, 64) for x in left], 0) == np.any([x.to_dense(64, 64) for x in terms], 0)).all()
    classes = [Term.flat(Relation(diagonal=Residue(4, x)), 8, 8) for x in range(4)]
    assert absorbed(classes) == classes


@laws
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 9), st.sampled_from((1, 1, 2))), min_size=1, max_size=30))
def test_what_is_left_is_the_same_union(drawn):
    terms = [
        Term.flat(Relation((Stair(base=-a),), (Stair(base=b),), diagonal=Residue(step, 0)), 20, 20)
        for a, b, step in drawn
    ]
    left, whole = (np.any([x.to_dense(20, 20) for x in some], 0) for some in (absorbed(terms), terms))
    assert (left == whole).all()


@laws
@given(SETS.filter(lambda live: live.any()), st.booleans())
def test_a_set_is_spelled_exactly(live, of_rows):
    relation, listed = spelled(live, of_rows)
    rows, keys = (30, 4) if of_rows else (4, 30)
    lists = {"rows" if of_rows else "keys": listed}
    term = Term.flat(relation, rows, keys, **lists)
    expected = np.broadcast_to(live[:, None] if of_rows else live, (rows, keys))
    assert (term.to_dense(rows, keys) == expected).all()


@pytest.mark.parametrize("of_rows", [True, False])
def test_runs_and_steps_are_no_lists(of_rows):
    place = np.arange(100)
    for live in (
        place >= 0,
        place < 40,
        place >= 7,
        (place > 3) & (place < 90),
        place % 7 == 3,
        (place % 4 == 0) & (place > 9),
    ):
        assert spelled(live, of_rows)[1].is_every
    relation, _ = spelled(place % 7 == 3, of_rows)
    assert (relation.rows if of_rows else relation.keys) == Residue(7, 3) and not relation.lower + relation.upper


def test_few_holes_are_left_out_and_many_are_not():
    live = np.ones(1000, np.bool_)
    live[[3, 500]] = False
    assert spelled(live, of_rows=False)[1].left_out.tolist() == [3, 500]
    live[::5] = False
    assert spelled(live, of_rows=False)[1].kept


@laws
@given(st.lists(st.tuples(SETS, SETS), max_size=8))
def test_rectangles_keep_their_pairs(sides):
    boxes = [Rectangle(rows, keys) for rows, keys in sides]
    found = fewest(boxes)
    assert (dense(found, 30, 30) == dense(boxes, 30, 30)).all() and len(found) <= len(boxes)


@laws
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 5), st.booleans()), max_size=12))
@example([(0, 0, 1, False)] * 3)
def test_merged_terms_keep_their_pairs(parts):
    terms = []
    for first, length, step, causal in parts:
        relation = Relation.span(first, first + length, of_rows=False, residue=Residue(step, first))
        core = Relation(upper=(Stair(base=1),)) if causal else Relation()
        terms.append(Term.flat(relation.meet(core), 50, 60))
    found = merged(terms, 50, 60)
    before, after = (np.zeros((50, 60), np.bool_) for _ in range(2))
    for term in terms:
        before |= term.to_dense(50, 60)
    for term in found:
        after |= term.to_dense(50, 60)
    assert (before == after).all() and len(found) <= min(len(terms), 2)


@pytest.mark.parametrize("causal", [False, True])
def test_keys_with_holes_are_one_term(causal):
    """However many runs they fall into: 400 here, where 16 terms would leave most of them to a remainder."""
    live = np.random.default_rng(0).random(2000) > 0.2
    begins = np.flatnonzero(np.diff(live.astype(int), prepend=0) == 1)
    ends = np.flatnonzero(np.diff(live.astype(int), append=0) == -1) + 1
    runs = [weft.prefix(b) & ~weft.prefix(a) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    pattern = weft.pattern.algebra.Or(tuple(runs))
    acsr = (weft.causal() & pattern if causal else pattern).acsr(2000)
    assert len(acsr.terms) == 1 and not len(acsr.remainder) and not acsr.notes
    assert len(acsr.terms[0].keys.tokens) == live.sum()
    rows = np.array([0, 700, 1999])
    held = acsr.terms[0].contains(rows[:, None], np.arange(2000))
    assert (held == (live & (np.arange(2000) <= rows[:, None]) if causal else live)).all()


@pytest.mark.more
def test_long_steps_are_one_term():
    acsr = (~weft.periodic_keys(100) & weft.causal()).acsr(5000)
    assert len(acsr.terms) == 1 and not len(acsr.remainder)
    assert len((~weft.strided(5)).acsr(5000).terms) <= MAX_TERMS
