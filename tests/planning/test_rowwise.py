"""Steady patterns: the last rows at any length are rows of one square pattern, and one plan serves all lengths."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import weft
from weft.acsr.steady import why_unsteady
from weft.errors import AlignmentError, InputError, LengthError
from weft.pattern.bounds import IntTable, Stair, Steps
from weft.pattern.leaves import Affine
from weft.pattern.relation import Relation, Residue
from weft.planning.problem import Problem
from weft.planning.rowwise import LEAST_CAPACITY, decode_plan, row_plan
from weft.testing import strategies
from weft.testing.cases import CASES, At

from .helpers import laws, planned

END = "bottom-right"
UNSTEADY = {
    *("fixed_summary", "sparse_transformer_fixed", "blocks", "blocks_oblong", "documents", "documents_cu_seqlens"),
    *("documents_scattered", "random_blocks", "segments", "bigbird", "product", "packed", "shifted"),
    *("neighborhood_1d", "neighborhood_1d_strided", "neighborhood_2d", "neighborhood_2d_causal", "neighborhood_3d"),
    *("coarse", "bits", "sized", "folded", "block_table", "tree", "block_diffusion", "shared_prefix"),
    *("sliding_tile", "svg_temporal", "radial", "rotating_anchors", "excerpt", "excerpt_of_a_grid"),
}


def problem(m=1, n=5000, heads=(1, 1), batch=1):
    return Problem(batch, *heads, m, n, 16, 16, "bfloat16", "cuda")


# ---- the law ---------------------------------------------------------------------------------------------------------
def check_law(pattern, m, n, capacity):
    """The rows at (m, n) are the rows n - m .. n - 1 of the square, cut at key n."""
    square = pattern.to_dense(capacity)[..., n - m : n, :n]
    assert np.array_equal(pattern.to_dense(m, n), square), f"{pattern} at M={m}, N={n} of {capacity}"


def sizes():
    """(m, n, capacity), m <= n <= capacity."""
    return st.lists(strategies.lengths(), min_size=3, max_size=3).map(sorted).map(tuple)


@laws
@given(strategies.patterns() | strategies.per_row_patterns(), sizes())
def test_steady_expressions(pattern, size):
    pattern = pattern.aligned(END)
    assume(why_unsteady(pattern) is None)
    check_law(pattern, *size)


@pytest.mark.parametrize("name", CASES)
def test_steady_cases(name):
    pattern = CASES[name].make(At(120, 120, END))
    why = why_unsteady(pattern)
    assert (why is not None) == (name in UNSTEADY), why
    if why is None:
        for m, n in ((1, 1), (1, 120), (3, 77), (16, 64), (65, 200)):
            check_law(pattern, m, n, 256)


EXAMPLES = {
    "top-left": (weft.causal(align="top-left"), "alignment is top-left"),
    "no alignment": (weft.full() & weft.causal(), "alignment is not declared"),
    "queries counted from the first": (Affine(Relation(upper=(Stair(base=1),))), "counts queries"),
    "rows by residue": (Affine(Relation(rows=Residue(2))), "counts queries"),
    "rows listed from the first": (weft.global_tokens([1, 5, 7], align="top-left"), "alignment is top-left"),
    "documents": (weft.documents([3, 4]), "exactly 7 tokens"),
    "queries moved": (weft.causal(align=END).shift(q=1), "shifted"),
    "keys moved down": (weft.causal(align=END).shift(k=-1), "shifted"),
    "one head": (weft.per_head([weft.full(), weft.causal()]), "alignment is not declared"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_why_unsteady(name):
    pattern, why = EXAMPLES[name]
    assert why in why_unsteady(pattern)


def test_keys_moved_up_stay_steady():
    pattern = weft.causal(align=END).shift(k=3) | weft.prefix(2)
    assert why_unsteady(pattern) is None
    check_law(pattern, 4, 9, 20)


# ---- the plan --------------------------------------------------------------------------------------------------------
def rows_of(plan, m, n):
    """(B, H, M, N): the plan's rows for m queries against n keys, pair by pair."""
    live = np.zeros((plan.problem.batch, plan.problem.q_heads, m, n), int)
    tokens, keys = np.arange(n - m, n)[:, None], np.arange(n)
    for share in plan.shares:
        seen = sum((r.contains(tokens, keys).astype(int) for r in share.relations), np.zeros((m, n), int))
        for heads in share.heads:
            for b in range(*heads.batch):
                for kv in range(*heads.kv):
                    group = plan.problem.group
                    live[b, kv * group + heads.group[0] : kv * group + heads.group[1]] += seen
    return live


@laws
@given(strategies.patterns(), st.integers(1, 4), st.integers(4, 3000))
def test_rows_of_a_plan(pattern, m, n):
    """One plan, made at some length, for every other length: each live pair once and no other."""
    pattern = pattern.aligned(END)
    plan = decode_plan(pattern, problem(m, 2000))
    assume(not isinstance(plan, str))
    assert np.array_equal(rows_of(plan, m, n)[0, 0], pattern.to_dense(m, n))


def test_rows_of_heads_and_batch_rows():
    heads = weft.per_head([weft.causal(), weft.window(left=9), weft.causal(), weft.strided(5)]).aligned(END)
    for pattern, batch in ((heads, 1), (weft.per_batch([heads, weft.causal(align=END)]), 2)):
        plan = decode_plan(pattern, problem(3, 100, (4, 2), batch))
        expected = np.broadcast_to(pattern.to_dense(3, 200), (batch, 4, 3, 200))
        assert np.array_equal(rows_of(plan, 3, 200), expected)


CAPACITIES = {1: LEAST_CAPACITY, LEAST_CAPACITY: LEAST_CAPACITY, LEAST_CAPACITY + 1: 2 * LEAST_CAPACITY}


@pytest.mark.parametrize("n", CAPACITIES)
def test_capacity(n):
    assert decode_plan(weft.causal(align=END), problem(1, n)).capacity == CAPACITIES[n]


LEFT_OUT = {
    "blocks": (weft.causal(align=END) & ~weft.blocks(64, [(0, 0)]), "made for given lengths"),
    "listed keys": (weft.global_tokens([x * x for x in range(1, 36)], rows=False), "a list, in 35 runs"),
    "classes": (~weft.dilated(9, 0, 1000, align=END), "too many"),
    "integers": (weft.periodic_keys(1 << 15) & weft.dilated(1, 0, (1 << 15) + 1, align=END), "too large"),
    "bounds": (
        Affine(Relation(upper=tuple(Stair(rise, base=9) for rise in range(1, 6))), positional=True, align=END),
        "too many",
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_planned_for_each_length(name):
    pattern, why = LEFT_OUT[name]
    assert why in decode_plan(pattern, problem())


LISTED = {
    "keys": weft.global_tokens([1, 5, 6, 7, 70], rows=False),
    "other keys": weft.causal() & ~weft.global_tokens([0, 5, 6, 99], rows=False),
    "keys and queries": weft.global_tokens([1, 98, 99]),
    "beside a window": weft.causal() & (weft.window(left=9) | weft.global_tokens([1, 50, 90, 300], rows=False)),
    "none": weft.causal() | weft.global_tokens([]),
}


@pytest.mark.parametrize("name", LISTED)
def test_a_few_listed_tokens_are_terms(name):
    pattern = LISTED[name].aligned(END)
    plan = decode_plan(pattern, problem(2, 50))
    for n in (8, 60, 100, 400):
        assert np.array_equal(rows_of(plan, 2, n)[0, 0], pattern.to_dense(2, n))


def test_step_functions_are_rows_too():
    table = Steps(IntTable([10, 90]), IntTable([5, 20, 400]))
    pattern = Affine(Relation(upper=(table,)), positional=True, align=END)
    assert np.array_equal(rows_of(decode_plan(pattern, problem()), 2, 91)[0, 0], pattern.to_dense(2, 91))


REFUSED = {
    AlignmentError: weft.causal(),
    LengthError: weft.documents([7]),
    InputError: weft.per_head([weft.full()] * 3),
}


@pytest.mark.parametrize("error", REFUSED)
def test_refuses_what_planning_refuses(error):
    with pytest.raises(error):
        decode_plan(REFUSED[error], problem())


LONGEST = {
    "window": (weft.causal() & weft.window(left=639), 10),
    "first rows apart": (weft.longformer(128, global_tokens=1) & weft.causal(), 3),
    "nothing": (weft.nothing(), 0),
    "causal": (weft.causal(), LEAST_CAPACITY // 64),
}


@pytest.mark.parametrize("name", LONGEST)
def test_longest_row_in_tiles(name):
    pattern, tiles = LONGEST[name]
    assert decode_plan(pattern.aligned(END), problem()).longest(64) == tiles


# ---- any plan --------------------------------------------------------------------------------------------------------
def rows(plan):
    return row_plan(plan.pattern, plan.problem, plan.forward)


def test_rows_of_any_plan():
    pattern = weft.documents([9, 0, 30, 1, 50]) & weft.causal()
    (share,) = rows(planned(pattern, 90)).shares
    tokens = np.arange(90)
    seen = sum(relation.contains(tokens[:, None], tokens).astype(int) for relation in share.relations)
    assert np.array_equal(seen, pattern.to_dense(90))


NO_ROWS = {
    "grid": (weft.neighborhood((6, 8), 3), 48, "grid"),
    "blocks": (weft.random_blocks(16, 2), 48, "block by block"),
    "list": (weft.global_tokens([1, 5, 20]), 48, "list"),
}


@pytest.mark.parametrize("name", NO_ROWS)
def test_plans_without_rows(name):
    pattern, m, why = NO_ROWS[name]
    assert why in rows(planned(pattern, m))
