"""Laws of bounds, residues and relations: over a small range, a relation is a set of pairs."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from weft.pattern.bounds import INF, IntTable, Stair, Steps
from weft.pattern.relation import LONG, Relation, Residue

# Under CI the examples are always the same; elsewhere every run draws new ones.
laws = settings(max_examples=examples(150), deadline=None, derandomize=bool(os.environ.get("CI")))
LINE = np.arange(-60, 60, dtype=np.int64)
TOKENS = np.arange(26, dtype=np.int64)

small = st.integers(-30, 30)
moves = st.integers(-25, 25)
steps_of = st.integers(1, 8)


# --- strategies -----------------------------------------------------------------------------------------------------


@st.composite
def stairs(draw):
    """Any stair in normal form: at each end a threshold of the input, a clip of the output, or neither."""
    low, high = sorted((draw(small), draw(small)))
    ends = {draw(st.sampled_from(("", "out_lo", "in_lo"))): low, draw(st.sampled_from(("", "out_hi", "in_hi"))): high}
    ends.pop("", None)
    return Stair(draw(steps_of), draw(steps_of), draw(small), draw(small), **ends)


@st.composite
def tables(draw):
    """A table of steps, sometimes infinite at an end; breaks may repeat."""
    breaks = sorted(draw(st.lists(small, max_size=5)))
    values = sorted(draw(st.lists(small, min_size=len(breaks) + 1, max_size=len(breaks) + 1)))
    if draw(st.booleans()):
        values[0] = -INF
    if draw(st.booleans()):
        values[-1] = INF
    return Steps(IntTable(breaks), IntTable(values))


constants = small.map(Stair.constant)
thresholds = small.map(Stair.threshold)
bounds = st.one_of(stairs(), stairs(), tables(), constants, thresholds)
residues = st.builds(Residue, st.integers(1, 12), st.integers(-20, 20))
few_residues = st.just(Residue()) | st.builds(Residue, st.integers(1, 5), st.integers(0, 9))
relations = st.builds(
    Relation,
    st.lists(bounds, max_size=2).map(tuple),
    st.lists(bounds, max_size=2).map(tuple),
    few_residues,
    few_residues,
    few_residues,
)
related = st.one_of(
    st.tuples(bounds, bounds),
    st.tuples(bounds, st.integers(-3, 3)).map(lambda drawn: (drawn[0], drawn[0].moved(0, drawn[1]))),
    st.tuples(stairs(), st.integers(-3, 3)).map(lambda drawn: (drawn[0], replace(drawn[0], base=drawn[1]))),
    st.tuples(constants, constants),
    st.tuples(thresholds, thresholds),
)


def pairs(relation, rows=TOKENS, keys=TOKENS):
    """The relation as a bool matrix over the given queries and keys."""
    return relation.contains(rows[:, None], keys[None, :])


def finite_moved(values, by):
    return np.where(np.abs(values) >= INF // 2, values, values + by)


# --- bounds ---------------------------------------------------------------------------------------------------------


@laws
@given(st.integers(1, 8), st.integers(1, 8), small, small, st.tuples(small, small), st.booleans())
def test_a_stair_is_its_formula(rise, run, shift, base, ends, clips):
    low, high = sorted(ends)
    names = ("out_lo", "out_hi") if clips else ("in_lo", "in_hi")
    stair = Stair(rise, run, shift, base, **dict(zip(names, (low, high), strict=True)))
    for i, got in zip(LINE.tolist(), stair(LINE).tolist(), strict=True):
        value = rise * ((i + shift) // run) + base
        if clips:
            assert got == min(max(value, low), high)
        else:
            assert got == (-INF if i < low else INF if i >= high else value)


@laws
@given(tables())
def test_a_table_counts_its_breaks(table):
    breaks, values = table.breaks.array.tolist(), table.values.array.tolist()
    assert table(LINE).tolist() == [values[sum(b <= i for b in breaks)] for i in LINE.tolist()]


@laws
@given(bounds)
def test_bounds_never_decrease(bound):
    assert (np.diff(bound(LINE)) >= 0).all()
    assert (np.diff(bound.adjoint()(LINE)) >= 0).all()


@laws
@given(bounds)
def test_the_adjoint_exchanges_queries_and_keys(bound):
    i, k = LINE[:, None], LINE[None, :]
    limit, first = bound(LINE)[:, None], bound.adjoint()(LINE)[None, :]
    np.testing.assert_array_equal(k >= limit, i < first)
    np.testing.assert_array_equal(k < limit, i >= first)


@laws
@given(bounds)
def test_the_adjoint_twice_is_the_same_function(bound):
    np.testing.assert_array_equal(bound.adjoint().adjoint()(LINE), bound(LINE))


@laws
@given(bounds, moves, moves)
def test_moved_bounds(bound, dq, dk):
    expected = finite_moved(bound(LINE - dq), dk)
    np.testing.assert_array_equal(bound.moved(dq, dk)(LINE), expected)
    np.testing.assert_array_equal(bound.moved(dq, dk).moved(-dq, -dk)(LINE), bound(LINE))
    np.testing.assert_array_equal(bound.moved(dq, dk).adjoint()(LINE), bound.adjoint().moved(dk, dq)(LINE))


@laws
@given(related)
def test_never_above_is_never_wrong(two):
    one, other = two
    for low, high in ((one, other), (other, one), (one.adjoint(), other.adjoint())):
        if low.never_above(high):
            wide = np.arange(-400, 400, dtype=np.int64)
            assert (low(wide) <= high(wide)).all()


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (Stair(base=-3), Stair(base=2)),
        (Stair(4, 4), Stair(4, 4, base=4)),
        (Stair(4, 4, base=1, out_lo=0, out_hi=9), Stair(4, 4, base=2, out_lo=0, out_hi=9)),
        (Stair.constant(3), Stair.constant(3)),
        (Stair.constant(-3), Stair.constant(7)),
        (Stair.threshold(5), Stair.threshold(4)),
        (Steps(IntTable([2]), IntTable([0, 5])), Steps(IntTable([2]), IntTable([0, 5]))),
    ],
)
def test_never_above_knows_the_plain_cases(low, high):
    assert low.never_above(high)
    assert high.never_above(low) == (low == high)


@pytest.mark.parametrize(("rise", "run"), [(0, 1), (1, 0), (-2, 3)])
def test_a_stair_that_could_fall_is_refused(rise, run):
    with pytest.raises(ValueError, match="rise and run"):
        Stair(rise, run)


@pytest.mark.parametrize(("breaks", "values"), [([3, 1], [0, 1, 2]), ([1, 3], [0, 2, 1]), ([1], [0, 1, 2]), ([1], [0])])
def test_a_table_that_falls_or_does_not_fit_is_refused(breaks, values):
    with pytest.raises(ValueError, match="table of steps"):
        Steps(IntTable(breaks), IntTable(values))


def test_equal_functions_have_one_spelling():
    assert Stair(4, 4, shift=9) == Stair(4, 4, shift=1, base=8)
    assert Stair(1, 1, shift=-3) == Stair(base=-3)
    assert hash(IntTable([1, 2])) == hash(IntTable([1, 2])) and IntTable([1, 2]) != IntTable([1, 3])


# --- residues -------------------------------------------------------------------------------------------------------


@laws
@given(residues, residues)
def test_meet_of_residues_is_the_intersection(a, b):
    wide = range(-300, 300)
    expected = [x for x in wide if x % a.step == a.phase and x % b.step == b.phase]
    met = a.meet(b)
    assert [x for x in wide if met is not None and x in met] == expected
    if met is not None:
        assert met == b.meet(a)
        assert met.holds(np.array(wide)).tolist() == [x in met for x in wide]


@laws
@given(residues, residues, moves)
def test_residues_move_and_have_differences(residue, other, by):
    pieces = list(residue.minus(other))
    for x in range(-300, 300):
        assert (x + by in residue.moved(by)) == (x in residue)
        assert sum(x in piece for piece in pieces) == (x in residue and x not in other)


# --- relations ------------------------------------------------------------------------------------------------------


@laws
@given(relations)
def test_contains_is_the_conjunction(relation):
    expected = np.ones((LINE.size, LINE.size), bool)
    for row, i in enumerate(LINE.tolist()):
        for bound in relation.lower:
            expected[row] &= bound(np.array([i]))[0] <= LINE
        for bound in relation.upper:
            expected[row] &= bound(np.array([i]))[0] > LINE
        expected[row] &= [
            i in relation.rows and k in relation.keys and k - i in relation.diagonal for k in LINE.tolist()
        ]
    np.testing.assert_array_equal(pairs(relation, LINE, LINE), expected)


@laws
@given(relations, relations)
def test_meet_of_relations(a, b):
    met = a.meet(b)
    expected = pairs(a) & pairs(b)
    if met is None:
        assert not expected.any()
    else:
        np.testing.assert_array_equal(pairs(met), expected)


@laws
@given(relations, relations)
def test_minus_is_disjoint_and_is_the_difference(a, b):
    count = np.zeros((TOKENS.size, TOKENS.size), int)
    for piece in a.minus(b):
        count += pairs(piece)
    np.testing.assert_array_equal(count, pairs(a) & ~pairs(b))


@laws
@given(relations)
def test_transposed_relations(relation):
    np.testing.assert_array_equal(pairs(relation.transpose(), LINE, LINE), pairs(relation, LINE, LINE).T)
    np.testing.assert_array_equal(pairs(relation.transpose().transpose(), LINE, LINE), pairs(relation, LINE, LINE))


@laws
@given(relations, moves, moves)
def test_moved_relations(relation, dq, dk):
    np.testing.assert_array_equal(pairs(relation.moved(dq, dk), LINE, LINE), pairs(relation, LINE - dq, LINE - dk))


ranges = st.tuples(st.integers(0, 26), st.integers(0, 26)).map(lambda ends: tuple(sorted(ends)))


@laws
@given(relations, ranges, ranges)
def test_within_cuts_a_rectangle(relation, rows, keys):
    inside = (TOKENS >= rows[0]) & (TOKENS < rows[1]), (TOKENS >= keys[0]) & (TOKENS < keys[1])
    np.testing.assert_array_equal(pairs(relation.within(rows, keys)), pairs(relation) & np.outer(*inside))


lengths = st.integers(0, 26)


@laws
@given(relations, lengths, lengths)
def test_tidied_keeps_the_pairs_of_the_rectangle(relation, m, n):
    tidied = relation.tidied(m, n)
    np.testing.assert_array_equal(pairs(tidied, TOKENS[:m], TOKENS[:n]), pairs(relation, TOKENS[:m], TOKENS[:n]))
    assert tidied.conditions <= relation.conditions and tidied.nbytes <= relation.nbytes


far_residues = st.builds(Residue, st.integers(1, 60) | st.integers(LONG - 1, 1 << 90), st.integers(-40, 1 << 90))


@laws
@given(relations, st.tuples(far_residues, far_residues, far_residues), lengths, lengths)
def test_bounded_keeps_the_pairs_of_the_rectangle_and_no_long_step(relation, drawn, m, n):
    rows, keys, diagonal = drawn
    i, k = TOKENS[:m, None], TOKENS[None, :n]
    apart = (i.astype(object), k.astype(object), (k - i).astype(object))  # Python's integers have no end
    obeyed = [x % r.step == r.phase for x, r in zip(apart, drawn, strict=True)]
    expected = pairs(replace(relation, rows=Residue(), keys=Residue(), diagonal=Residue()), TOKENS[:m], TOKENS[:n])
    for one in obeyed:
        expected &= one.astype(bool)
    bounded = replace(relation, rows=rows, keys=keys, diagonal=diagonal).bounded(m, n)
    np.testing.assert_array_equal(pairs(bounded, TOKENS[:m], TOKENS[:n]), expected)
    for kept, drawn_one in zip((bounded.rows, bounded.keys, bounded.diagonal), drawn, strict=True):
        assert kept == (drawn_one if drawn_one.step < LONG else Residue())


def test_long_steps_are_kept_where_several_multiples_are_inside():
    relation = Relation(rows=Residue(LONG, 1), keys=Residue(LONG + 9, 2), diagonal=Residue(2 * LONG, 3))
    assert relation.bounded(LONG + 1, LONG + 10) == relation
    only = Relation((Stair(base=3),), (Stair(base=4),), relation.rows, relation.keys)
    assert relation.bounded(LONG + 1, LONG - 1).diagonal == Residue()
    assert replace(relation, keys=Residue()).bounded(LONG + 1, LONG - 1) == replace(only, keys=Residue())


# Steps of 2**31 tokens on either side: what `bounded` leaves of any.
@pytest.mark.parametrize(
    ("keys", "diagonal"),
    [
        (Residue((1 << 31) - 1, 5), Residue((1 << 32) - 5, 7)),
        (Residue((1 << 31) - 2, 1 << 30), Residue((1 << 32) - 2, (1 << 32) - 4)),
        (Residue(1 << 31, 77), Residue((1 << 32) - 1, 1 << 31)),
        *((Residue((1 << 31) - more, 0), Residue((1 << 32) - 5, (1 << 32) - 6)) for more in (1, 3, 19, 61)),
        (Residue(6, 5), Residue(60013 * 60017, 3)),
        (Residue(59999, 59998), Residue(60013 * 60017, 60013)),
    ],
    ids=str,
)
def test_classes_of_long_steps_are_exact(keys, diagonal):
    rows = np.array([0, 1, 2, 59999, (1 << 30) + 1, (1 << 31) - 1], np.int64)
    step, phase, some = Relation(keys=keys, diagonal=diagonal).key_classes(rows)
    for i, first, found in zip(rows.tolist(), phase.tolist(), some.tolist(), strict=True):
        both = keys.meet(diagonal.moved(i))
        assert found == (both is not None)
        assert both is None or (both.step, both.phase) == (step, first)


@laws
@given(relations, lengths, lengths)
def test_affine_rows_are_the_rows(relation, m, n):
    expected = pairs(relation, TOKENS[:m], TOKENS[:n])
    start, step, count = relation.affine_rows(TOKENS[:m], n)
    assert step >= 1 and (count >= 0).all()
    for row in range(m):
        columns = start[row] + step * np.arange(count[row])
        np.testing.assert_array_equal(columns, np.flatnonzero(expected[row]), f"row {row}")


@laws
@given(relations, lengths, lengths)
def test_intervals_are_monotone_and_hold_every_pair(relation, m, n):
    lo, hi = relation.interval(TOKENS[:m], n)
    for ends in (lo, hi):
        assert ((ends >= 0) & (ends <= n)).all() and (np.diff(ends) >= 0).all()
    rows, keys = np.nonzero(pairs(relation, TOKENS[:m], TOKENS[:n]))
    assert ((keys >= lo[rows]) & (keys < hi[rows])).all()


@laws
@given(relations, lengths, lengths)
def test_count_and_is_empty_are_exact(relation, m, n):
    live = int(pairs(relation, TOKENS[:m], TOKENS[:n]).sum())
    assert relation.count(m, n) == live
    assert relation.is_empty(m, n) == (live == 0)


# Long axes take other ways through is_empty (a look at some tiles first) and through count (a piece at a time).
@pytest.mark.parametrize("row", [0, 63, 64, 1000, 2047, 2048, 3071, 4095, 4096])
def test_one_row_among_many_is_found(row):
    m = 4096
    relation = Relation(rows=Residue(5000, row), keys=Residue(7, 3))
    assert relation.is_empty(m, 8) == (row >= m)
    assert relation.count(m, 8) == (row < m)
    assert relation.is_empty(m, 3)


@pytest.mark.parametrize("row", [0, 70, 2000, 4095])
def test_one_key_among_many_is_found(row):
    low, high = (Steps(IntTable([row, row + 1]), IntTable([0, row + more, row + more])) for more in (0, 1))
    relation = Relation((low, Stair.threshold(row + 1)), (high,))
    assert relation.count(4096, 4096) == 1 and not relation.is_empty(4096, 4096)
    assert replace(relation, rows=Residue(4097, row + 1)).is_empty(4096, 4096)


def test_long_counts_are_formulas():
    m = (1 << 19) + 3
    assert Relation(upper=(Stair(base=1),)).count(m, m) == m * (m + 1) // 2
    assert Relation(keys=Residue(4, 3)).count(m, 10) == 2 * m
    assert Relation().count(m, 1 << 20) == m << 20
