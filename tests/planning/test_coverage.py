"""A plan computes every live pair exactly once and no other, at every length near its tiles, for every head once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tiers import every

import weft
from weft.pattern.arguments import LIBRARY
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.testing.strategies import ALIGNMENTS, per_row_patterns, problems

from .helpers import (
    ANY_LENGTH,
    FITTED,
    GRIDS,
    LARGE_BOXES,
    PER_HEAD,
    SMALL_BOXES,
    TARGETS,
    check_both_ways,
    coverage,
    laws,
    planned,
    tile_plan,
)

MAKERS = {**{name: (lambda n, p=p: p) for name, p in ANY_LENGTH.items()}, **FITTED}


def edges(make, target):
    """0, 1, and one either side of the planned boxes: of one box of rows in every lane, and of one box of tokens."""
    found = {0, 1}
    for nest in tile_plan(make(300), 300, target=target).nests:
        if len(nest.box) == 1:
            lengths = {nest.box[0], nest.box[0] * nest.lanes[0].q_step}
            found |= {length + by for length in lengths if length <= 320 for by in (-1, 0, 1)}
    return sorted(found)


def test_the_whole_library_is_here():
    written = " ".join(str(p) for p in ANY_LENGTH.values())
    written += " ".join(str(make(60)) for make in FITTED.values()) + " ".join(str(p) for p, _ in GRIDS.values())
    public = [name for name in LIBRARY if name in weft.__all__]  # recognition has some of its own
    assert {name for name in public if f"{name}(" not in written} <= set(PER_HEAD)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", every(4, MAKERS))
def test_square(name, target):
    make = MAKERS[name]
    for length in edges(make, TARGETS[target]):
        pattern = make(length)
        plan = planned(pattern, length, target=TARGETS[target])
        check_both_ways(plan, pattern.to_dense(length), f"{pattern} at {length}")


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("name", every(4, ANY_LENGTH))
def test_rectangular(name, align):
    pattern = ANY_LENGTH[name].aligned(align)
    for m, n in ((33, 0), (0, 33), (1, 64), (64, 1), (31, 65), (65, 31), (40, 200), (200, 40)):
        check_both_ways(planned(pattern, m, n), pattern.to_dense(m, n), f"{pattern} at ({m}, {n})")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRIDS)
def test_grids(name, target):
    pattern, length = GRIDS[name]
    check_both_ways(planned(pattern, length, target=TARGETS[target]), pattern.to_dense(length), f"{pattern}")


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_grids_around_their_box(by):
    nest = tile_plan(weft.neighborhood((32, 32), (3, 3)), 1024).nests[0]
    shape = tuple(side + by if side + by > 2 else 3 for side in nest.box)
    pattern = weft.neighborhood(shape, (3, 3))
    length = shape[0] * shape[1]
    check_both_ways(planned(pattern, length), pattern.to_dense(length), f"{pattern}")


def test_rectangular_grids():
    pattern = weft.product([weft.window(1, 1, align="bottom-right"), weft.causal()], (5, 6), (9, 6))
    check_both_ways(planned(pattern, 30, 54), pattern.to_dense(30, 54), f"{pattern}")


def test_the_targets_of_these_tests_force_small_and_large_boxes():
    pattern = weft.window(9, 9)
    for length in (255, 256, 257):
        assert tile_plan(pattern, length, target=SMALL_BOXES).nests[0].box == (32,)
        assert tile_plan(pattern, length, target=LARGE_BOXES).nests[0].box == (256,)


@laws
@given(problems(), st.sampled_from(list(TARGETS.values())))
def test_every_expression(problem, target):
    pattern, m, n = problem
    check_both_ways(planned(pattern, m, n, target), pattern.to_dense(m, n), f"{pattern} at ({m}, {n})")


@laws
@given(problems(3))
def test_full_tiles_are_full_and_their_pairs_are_counted(problem):
    pattern, m, n = problem
    plan = tile_plan(pattern, m, n)
    live = pattern.to_dense(m, n)
    for nest in plan.nests:
        for part in nest.parts:
            assert 0 <= part.unmasked <= min(part.visited, plan.acsr.terms[part.term].nnz)
    assert plan.visited >= plan.acsr.nnz == int(live.sum())


def test_interior_tiles_carry_no_mask():
    part = tile_plan(weft.window(200, 200), 1000, target=SMALL_BOXES).nests[0].parts[0]
    assert part.unmasked > 0.7 * part.visited
    assert tile_plan(weft.full(), 100).nests[0].parts[0].unmasked == 100 * 100


@pytest.mark.parametrize(("name", "side"), [("dead lanes of queries", "forward"), ("dead lanes of keys", "transposed")])
def test_lanes_that_are_dead_in_one_part_are_here(name, side):
    (share,) = getattr(planned(ANY_LENGTH[name], 100), side)
    lives = [np.array([part.axes[0].lanes.live for part in nest.parts]) for nest in share.plan.nests]
    assert any(live.any(axis=0).all() and not live.all() for live in lives)


def test_dead_rows_cost_nothing():
    plan = tile_plan(weft.padding(10, rows=True), 1000)
    assert plan.visited == 10 * 10 and plan.nests[0].lanes[0].rows.sum() == 10
    assert tile_plan(weft.nothing(), 1000).nests == ()


# --- heads ----------------------------------------------------------------------------------------------------------


def served(plan):
    """[batch row, query head] -> the TilePlans that serve it."""
    problem = plan.problem
    found = [[[] for _ in range(problem.q_heads)] for _ in range(problem.batch)]
    for share in plan.forward:
        for heads in share.heads:
            for batch in range(*heads.batch):
                for kv in range(*heads.kv):
                    for member in range(*heads.group):
                        found[batch][kv * problem.group + member].append(share.plan)
    return found


def check_heads(pattern, problem):
    plan = plan_attention(pattern, problem)
    dense = pattern.to_dense(problem.m, problem.n)
    dense = np.broadcast_to(dense, (problem.batch, problem.q_heads, problem.m, problem.n))
    for batch, heads in enumerate(served(plan)):
        for head, plans in enumerate(heads):
            where = f"{pattern}, batch row {batch}, head {head}"
            assert len(plans) == 1, f"{where} is served {len(plans)} times"
            np.testing.assert_array_equal(coverage(plans[0]), dense[batch, head], where)
    assert plan.nnz == int(dense.sum())
    assert plan.visited == sum(plans[0].visited for heads in served(plan) for plans in heads)
    assert [share.heads for share in plan.transposed] == [share.heads for share in plan.forward]
    for share, turned in zip(plan.forward, plan.transposed, strict=True):
        np.testing.assert_array_equal(coverage(turned.plan), coverage(share.plan).T)
    return plan


A, B, C = weft.causal(), weft.window(3, 3), weft.dilated(2, 2, 3)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "shares"),
    [
        ([A, A, A, A], 2, 1),
        ([A, B, A, B], 4, 2),
        ([A, A, B, B], 2, 2),  # whole groups
        ([A, B, A, B], 2, 2),  # each group splits
        ([A, A, B, C, C, C], 2, 3),  # one group splits, its neighbour does not
        ([A, B, B, B, B, A], 2, 2),
        ([A, B, C, A, B, C], 1, 3),  # one group of everyone
        ([A, A, A, A, B, B, A, A], 4, 2),  # equal groups apart from each other
        ([C], 1, 1),
    ],
)
def test_every_head_is_served_once(heads, kv_heads, shares):
    problem = Problem(2, len(heads), kv_heads, 40, 40, 16, 16)
    plan = check_heads(weft.per_head(heads), problem)
    assert len(plan.forward) == shares
    plan.verify()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_every_batch_row_is_served_once(kv_heads):
    for pattern, shares in (
        (weft.per_batch([A, B, A]), 2),
        (weft.padding([7, 40, 0]), 3),
        (A & weft.padding([9, 9, 9], rows=True), 1),
        (weft.per_batch([A, weft.per_head([A, B, B, C]), B]), 3),
        (weft.per_head([A, B, A, B]) & weft.prefix([3, 40, 3]), 4),
    ):
        plan = check_heads(pattern, Problem(3, 4, kv_heads, 40, 40, 16, 16))
        assert len(plan.forward) == shares, f"{pattern}"
        plan.verify()


def test_one_pattern_serves_everybody_at_once():
    plan = check_heads(A, Problem(3, 4, 2, 20, 20, 16, 16))
    assert len(plan.forward) == 1 and len(plan.forward[0].heads) == 1


@pytest.mark.parametrize("kind", ["strided", "fixed"])
def test_sparse_transformer(kind):
    pattern = weft.sparse_transformer(6, heads=4, kind=kind, summary=2)
    plan = check_heads(pattern, Problem(1, 4, 2, 50, 50, 16, 16))
    assert len(plan.forward) == 2
    plan.verify()


@laws
@given(per_row_patterns(), st.sampled_from([1, 2]), st.sampled_from([0, 1, 31, 40]))
def test_expressions_over_heads_and_batch_rows(pattern, kv_heads, length):
    check_heads(pattern, Problem(3, 2, kv_heads, length, length, 16, 16))
