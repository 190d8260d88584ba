"""verify() accepts every plan that weft makes, refuses a plan with one thing wrong, and names the place."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tiers import every

import weft
from weft.acsr import Remainder
from weft.errors import VerificationError
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.verify import verify_pattern, verify_plan
from weft.testing.strategies import ALIGNMENTS, per_row_patterns, problems

from .helpers import ANY_LENGTH, FITTED, GRIDS, SMALL_BOXES, TARGETS, laws, planned, replanned, tile_plan
from .mutations import (
    axis_at,
    changed,
    dropped,
    item,
    places,
    with_axis,
    with_bit,
    with_blocks,
    with_entry,
    with_lanes,
    with_nest,
    with_part,
    with_these_lanes,
)

# --- what is right passes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", every(4, ANY_LENGTH))
def test_the_library_passes(name):
    pattern = ANY_LENGTH[name]
    for length in (0, 1, 33, 130):
        for target in TARGETS.values():
            planned(pattern, length, target=target).verify()
    for align in ALIGNMENTS:
        planned(pattern.aligned(align), 40, 100).verify()
        planned(pattern.aligned(align), 100, 40).verify()


@pytest.mark.parametrize("name", FITTED)
def test_patterns_with_a_length_pass(name):
    for length in (0, 1, 32, 100):
        planned(FITTED[name](length), length).verify()


@pytest.mark.parametrize("name", GRIDS)
def test_grids_pass(name):
    pattern, length = GRIDS[name]
    for target in TARGETS.values():
        planned(pattern, length, target=target).verify()


def test_terms_whose_meeting_has_no_form_are_compared_pair_by_pair():
    """A grid beside a cover of the sequence."""
    rows, threes = (weft.product([weft.full(), weft.strided(stride)], (1, 15)) for stride in (1, 3))
    plan_attention(~rows | threes.shift(k=-1), Problem(1, 1, 1, 15, 15, 8, 8)).verify()


@laws
@given(problems(), st.sampled_from(list(TARGETS.values())))
def test_every_expression_passes(problem, target):
    pattern, m, n = problem
    planned(pattern, m, n, target).verify()


@laws
@given(per_row_patterns(2), st.sampled_from([1, 2]))
def test_heads_and_batch_rows_pass(pattern, kv_heads):
    plan_attention(pattern, Problem(3, 2, kv_heads, 40, 40, 16, 16)).verify()


# --- a plan with one thing wrong ------------------------------------------------------------------------------------

BAND = tile_plan(weft.window(100, 100), 400, target=SMALL_BOXES)  # 13 tiles; tile 6: keys 92 to 323, edges of 1 tile
LANES = tile_plan(weft.dilated(40, 40, 3), 300, target=SMALL_BOXES)  # 3 lanes of 100 rows, 4 tiles each
TERMS = tile_plan(weft.longformer(60, 3), 200, target=SMALL_BOXES)
GRID = tile_plan(weft.neighborhood((12, 20), (5, 7)), 240, target=SMALL_BOXES)
BLOCKS = tile_plan(weft.blocks(64, [(0, 0), (0, 2), (1, 1), (3, 0)]), 256)
COLUMNS = (0, 0, 1)  # the second axis of a grid


def shifted(plan, tile, by, place=(0, 0, 0)):
    """Both ends of one run moved."""
    return with_entry(with_entry(plan, "start", (0, tile), by, place), "stop", (0, tile), by, place)


def left_called_full(plan, tile, place=(0, 0, 0)):
    """The last tile with a left edge is said to be full."""
    return with_entry(with_entry(plan, "left", (0, tile), -1, place), "full", (0, tile), 1, place)


def swapped_terms(plan):
    """The first parts of two nests have each other's term."""
    (i, a), (j, b) = ((i, nest.parts[0].term) for i, nest in enumerate(plan.nests[:2]))
    return with_part(with_part(plan, i, term=b), j, term=a)


def other_boxes(plan, box):
    """Box and axes agree with each other, but not with the tables."""
    return with_nest(with_axis(plan, block_q=box), box=(box,))


def wrong_lane(name, lane, by=1):
    """One entry of a table of the lanes of LANES moved."""
    return with_lanes(LANES, **{name: changed(getattr(axis_at(LANES).lanes, name), lane, by)})


def revived_lane():
    """A lane without keys in one part of its nest is said to have some."""
    plan = tile_plan(ANY_LENGTH["dead lanes of queries"], 100)
    place = next(place for place in places(plan) if not axis_at(plan, place).lanes.live.all())
    return with_lanes(plan, place, live=np.ones_like(axis_at(plan, place).lanes.live))


def two_owners():
    """causal and prefix as two terms, although they overlap."""
    acsr = weft.causal().acsr(90)
    return replace(acsr, terms=acsr.terms + weft.prefix(3).acsr(90).terms)


NOT_FULL = "a tile called full is not"
OUTSIDE = "keys outside the runs of its tile"
OTHER_KEYS = "its mask has other keys than its row"
RUNS = {
    "tile dropped": (dropped(BAND, 5), f"term 0, axis 0, query 160: {OUTSIDE}"),
    "tile dropped, its edges kept": (
        with_axis(BAND, stop=changed(axis_at(BAND).stop, (0, 5), -232)),
        "term 0, axis 0: a run of negative length",
    ),
    "tile of a grid dropped": (dropped(GRID, 1, COLUMNS), rf"term 0, axis 1, query \d+: {OUTSIDE}"),
    "tile moved back a block": (with_entry(BAND, "start", (0, 6), -32), f"term 0, axis 0, query 193: {NOT_FULL}"),
    "run shifted down": (shifted(BAND, 6, -1), f"term 0, axis 0, query 223: {OUTSIDE}"),
    "run shifted up": (shifted(BAND, 6, 1), f"term 0, axis 0, query 192: {OUTSIDE}"),
    "run of a grid shifted": (shifted(GRID, 1, 1), rf"term 0, axis 0, query \d+: {OUTSIDE}"),
    "run beyond the last key": (
        with_entry(with_axis(LANES, full=0 * axis_at(LANES).full), "stop", (0, 3), 1),
        "term 0, axis 0, query 288: runs beyond the last key",
    ),
    "run before the first key": (with_entry(BAND, "start", (0, 0), -1), "term 0, axis 0: a run of negative length"),
    "left edge called full": (left_called_full(BAND, 6), f"term 0, axis 0, query 193: {NOT_FULL}"),
    "right edge called full": (with_entry(BAND, "full", (0, 6), 1), f"term 0, axis 0, query 192: {NOT_FULL}"),
    "box of a grid called full": (left_called_full(GRID, 1, COLUMNS), rf"term 0, axis 1, query \d+: {NOT_FULL}"),
    "more full tiles than tiles": (with_entry(BAND, "full", (0, 6), 9), "term 0, axis 0: a run of negative length"),
    "box without its tables": (with_nest(BAND, box=(64,)), r"term 0, axis 0: tiles of 32 rows in a box \(64,\)"),
    "tables of smaller boxes": (other_boxes(BAND, 64), "term 0, axis 0: tables for 13 tiles, not 7"),
    "tables of larger boxes": (other_boxes(BAND, 30), "term 0, axis 0: tables for 13 tiles, not 14"),
    "tables cut by other boxes": (other_boxes(BAND, 31), f"term 0, axis 0, query 124: {OUTSIDE}"),
}
OWNERS = {
    "term planned in two parts": (
        with_nest(BAND, parts=BAND.nests[0].parts * 2),
        r"terms \[0, 0\] are planned, there are 1",
    ),
    "term planned in two nests": (replace(BAND, nests=BAND.nests * 2), r"terms \[0, 0\] are planned"),
    "term missing": (replace(TERMS, nests=TERMS.nests[1:]), r"terms \[\d.*\] are planned, there are 3"),
    "term that does not exist": (with_part(BAND, term=1), r"terms \[1\] are planned, there are 1"),
    "part with another term": (swapped_terms(TERMS), r"term \d, axis 0: masks of another relation"),
    "masks of another relation": (
        with_axis(BAND, relation=axis_at(tile_plan(weft.window(100, 101), 400)).relation),
        "term 0, axis 0: masks of another relation",
    ),
    "masks of another length": (with_axis(BAND, n=399), "term 0, axis 0: masks of another relation"),
    "grid of queries moved": (with_nest(GRID, q=replace(GRID.nests[0].q, origin=1)), "term 0 .* another grid"),
    "grid of keys moved": (with_part(GRID, k=replace(GRID.nests[0].q, origin=1)), "term 0 .* another grid"),
    "axis left out": (with_part(GRID, axes=GRID.nests[0].parts[0].axes[:1]), "term 0 .* another number of axes"),
    "pair that two terms own": (replanned(two_owners()), "terms 0 and 1 own a pair together"),
    "bit that a term owns too": (
        replanned(with_bit(weft.causal().acsr(100), 70, 3)),
        "the remainder and term 0 own a pair together",
    ),
}
LANES_AND_BLOCKS = {
    "lane missing": (with_these_lanes(LANES, [0, 2]), r"term 0, axis 0: row \[1\] is planned nowhere"),
    "lane planned twice": (with_these_lanes(LANES, [0, 1, 2, 0]), "term 0, axis 0: a row is in two lanes"),
    "lane one row short": (wrong_lane("rows", 2, -1), r"term 0, axis 0: row \[299\] is planned nowhere"),
    "lane one row long": (wrong_lane("rows", 2), "term 0, axis 0: rows 2 to 302 of 300"),
    "lane of other queries": (wrong_lane("q_first", 0), "term 0, axis 0"),
    "lane called dead": (wrong_lane("live", 0), f"term 0, axis 0, query 0: {OTHER_KEYS}"),
    "lane called alive": (revived_lane(), r"term \d, axis 0, query \d: a row without keys has some in its mask"),
    "keys of the next class": (wrong_lane("k_first", 1), rf"term 0, axis 0, query \d+: {OTHER_KEYS}"),
    "keys of the class before": (wrong_lane("k_first", 1, -1), rf"term 0, axis 0, query \d+: {OTHER_KEYS}"),
    "keys taken by another step": (with_lanes(LANES, k_step=2), r"term 0, axis 0, query \d+: its (mask|keys)"),
    "remainder left out": (replace(BLOCKS, blocks=None), "4 blocks of the remainder are planned nowhere"),
    "blocks of another row": (with_blocks(BLOCKS, "rows", 2, -1), "a block is planned in another row of blocks"),
    "block of the row before": (with_blocks(BLOCKS, "first", 1, -1), "a block is planned in another row of blocks"),
    "first block left out": (with_blocks(BLOCKS, "first", 0, 1), "blocks left out"),
    "last block left out": (with_blocks(BLOCKS, "first", 3, -1), "blocks left out"),
}
MUTATIONS = RUNS | OWNERS | LANES_AND_BLOCKS


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_plan_is_caught_and_the_place_is_named(name):
    plan, where = MUTATIONS[name]
    with pytest.raises(VerificationError, match=where) as raised:
        verify_plan(plan)
    error = raised.value
    assert error.asked == "verify a plan" and error.wrong and "defect" in error.cure


@pytest.mark.parametrize("plan", [BAND, LANES, TERMS, GRID, BLOCKS], ids=["band", "lanes", "terms", "grid", "blocks"])
def test_the_plans_that_are_mutated_here_are_right(plan):
    verify_plan(plan)
    verify_plan(replace(plan, report=("another", "report")))


# --- a plan of another pattern --------------------------------------------------------------------------------------


def wider(acsr):
    """The upper bound of the first term moved out by one key."""
    (relation,) = acsr.terms[0].axes
    moved = replace(relation, upper=tuple(bound.moved(0, 1) for bound in relation.upper))
    return replace(acsr, terms=item(acsr.terms, 0, replace(acsr.terms[0], axes=(moved,))))


FEW = weft.longformer(9, 2).acsr(90)
SOME_PAIR = r"query \d+, key \d+: (live|dead) in "
WRONG_FORMATS = {
    "a term that is wider": (weft.causal(), wider(weft.causal().acsr(90)), "query 0, key 1: dead in causal"),
    "a term that is narrower": (weft.window(9, 9), weft.window(9, 8).acsr(90), r"query 0, key 9: live in window\("),
    "a term too few": (weft.longformer(9, 2), replace(FEW, terms=FEW.terms[1:]), SOME_PAIR + "longformer"),
    "a pair too few": (
        weft.full(),
        (weft.full() & ~weft.blocks(1, [(40, 17)])).acsr(90),
        "query 40, key 17: live in full",
    ),
    "a pair too many": (weft.nothing(), weft.blocks(1, [(40, 17)]).acsr(90), "query 40, key 17: dead in nothing"),
    "a bit too many": (weft.causal(), with_bit(weft.causal().acsr(90), 3, 70), "query 3, key 70: dead in causal"),
    "blocks of another seed": (
        weft.random_blocks(16, 2, seed=1),
        weft.random_blocks(16, 2, seed=2).acsr(90),
        SOME_PAIR + "random_blocks",
    ),
    "another step": (weft.dilated(5, 5, 3), weft.dilated(5, 5, 4).acsr(90), SOME_PAIR + "dilated"),
    "another grid": (weft.neighborhood((9, 10), 3), weft.neighborhood((10, 9), 3).acsr(90), SOME_PAIR + "neighborhood"),
}


@pytest.mark.parametrize("name", WRONG_FORMATS)
def test_a_format_that_says_something_else_is_caught(name):
    pattern, acsr, where = WRONG_FORMATS[name]
    plan = replanned(acsr)
    verify_plan(plan)  # a good plan, of another pattern
    with pytest.raises(VerificationError, match=where):
        verify_pattern(pattern, plan)


@pytest.mark.parametrize("wrong", [lambda q, k: q != 700_001, lambda q, k: k != 700_001], ids=["row", "column"])
def test_one_row_or_column_of_a_long_sequence_is_caught(wrong, monkeypatch):
    """No bound leads there: whole rows and columns are compared as well."""
    pattern = weft.prefix(1 << 20)
    plan = tile_plan(pattern, 1 << 20)
    leaf = type(pattern.body)
    holds = leaf.holds
    monkeypatch.setattr(leaf, "holds", lambda self, q, k, at: holds(self, q, k, at) & wrong(q, k))
    with pytest.raises(VerificationError, match="700001"):
        verify_pattern(pattern, plan)


def test_verify_of_a_whole_call_looks_at_every_head():
    plan = plan_attention(weft.per_head([weft.causal(), weft.window(3, 3)]), Problem(1, 2, 1, 40, 40, 16, 16))
    plan.verify()
    wrong = replace(plan.forward[1], plan=dropped(plan.forward[1].plan, 0))
    with pytest.raises(VerificationError, match="query 0: keys outside the runs"):
        replace(plan, forward=(plan.forward[0], wrong)).verify()
    wrong = replace(plan.forward[1], plan=plan.forward[0].plan)
    with pytest.raises(VerificationError, match="query 0, key 1: live in per_head"):
        replace(plan, forward=(plan.forward[0], wrong)).verify()


def test_verify_of_a_whole_call_looks_at_the_transposed_plans():
    plan = planned(weft.causal(), 40)
    (share,) = plan.transposed
    vars(plan)["transposed"] = (replace(share, plan=dropped(share.plan, 0)),)
    with pytest.raises(VerificationError, match="query 0: keys outside the runs"):
        plan.verify()


# --- less likely mistakes -------------------------------------------------------------------------------------------


def block_listed_twice():
    acsr = weft.blocks(16, [(0, 0), (5, 0)]).acsr(100)
    rest = acsr.remainder
    twice = Remainder(*(np.repeat(x, [2, 1]) for x in (rest.rows, rest.cols, rest.bit_index)), rest.bits)
    return replanned(replace(acsr, remainder=twice))


def block_tables(**tables):
    return replace(BLOCKS, blocks=replace(BLOCKS.blocks, **tables))


NO_ROWS = np.zeros(0, np.int32)
UNLIKELY = {
    # row 0 of three is nowhere: the slice that marks the rows of an empty lane wraps around
    "lane without rows": with_lanes(tile_plan(weft.dilated(2, 2, 3), 3), rows=np.array([0, 1, 1])),
    "one lane 257 times": with_these_lanes(tile_plan(weft.causal(), 3), [0] * 257),
    "block listed twice": block_listed_twice(),
    "fewer queries than the grid": replace(BAND, acsr=replace(BAND.acsr, m=399)),
    "fewer keys than the grid": replace(BAND, acsr=replace(BAND.acsr, n=399)),
    "nest without parts": with_nest(replace(BAND, nests=BAND.nests * 2), 1, parts=()),
    "step of no queries": with_lanes(BAND, q_step=0),
    "tiles of no keys": with_axis(BAND, block_k=0),
    "block tables of unlike length": block_tables(rows=BLOCKS.blocks.rows[:-1]),
    "block tables that are empty": block_tables(rows=NO_ROWS, first=NO_ROWS),
}


@pytest.mark.parametrize("name", UNLIKELY)
def test_less_likely_mistakes_are_caught_too(name):
    with pytest.raises(VerificationError):
        verify_plan(UNLIKELY[name])


def test_bits_that_do_not_exist():
    rest = BLOCKS.acsr.remainder  # full blocks, without bits
    wrong = replace(rest, bit_index=changed(rest.bit_index, 1, 1))
    with pytest.raises(VerificationError):
        verify_plan(replace(BLOCKS, acsr=replace(BLOCKS.acsr, remainder=wrong)))


def test_transposed_plans_of_another_pattern():
    plan = planned(weft.causal(), 40)
    vars(plan)["transposed"] = planned(weft.window(3, 3), 40).transposed
    with pytest.raises(VerificationError):
        plan.verify()


def test_heads_that_nobody_serves():
    plan = plan_attention(weft.per_head([weft.causal(), weft.full()]), Problem(1, 2, 1, 40, 40, 16, 16))
    with pytest.raises(VerificationError):
        replace(plan, forward=plan.forward[:1]).verify()
