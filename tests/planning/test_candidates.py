"""What a card has room for, and what calls and tuners choose from."""

from dataclasses import replace

import pytest

import weft
from weft.acsr.format import BLOCK
from weft.errors import UnsupportedKernel
from weft.planning.attention_plan import plan_attention
from weft.planning.choose import offered, tilings
from weft.planning.families.base import Pass
from weft.planning.families.tile import PLAIN, Under, legal, menu, usual
from weft.planning.problem import Problem
from weft.planning.resources import (
    footprint,
    of_blocks,
    resident,
    shared_beside_sums,
    shared_of,
    shared_of_blocks,
)
from weft.planning.tiling import DIRECTIONS, Tiling
from weft.target import GPU, GPUS
from weft.testing.refusals import refuse

from .helpers import problem, rows_of

WINDOW = weft.causal() & weft.window(left=1023)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_is_legal_fits_the_card_and_holds_what_is_offered(gpu, direction):
    for d in (64, 128, 256):
        for rank in (1, 2, 3):
            found = legal(direction, problem(d=d), rank, gpu)
            offered = menu(direction, problem(d=d), rank, gpu, "several")
            assert set(offered) <= set(found)
            assert len(set(found)) == len(found)
            others = [t for t in found if t not in offered]
            assert all(footprint(direction, problem(d=d), t, gpu).shared <= gpu.shared for t in others)
            assert all(resident(direction, problem(d=d), t, gpu) >= 1 for t in found)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_offered_fits_the_card(gpu, dtype):
    """The usual tiling where there is room for it, else a smaller one; at every head dimension."""
    for direction in DIRECTIONS:
        for rank in (1, 2, 3):
            for d in (8, 64, 96, 128, 192, 256):
                whole = problem(d=d, dtype=dtype)
                offered = menu(direction, whole, rank, gpu, "several")
                assert all(shared_of(direction, whole, tiling, gpu) <= gpu.shared for tiling in offered)
                usual_one = usual(direction, whole, rank, gpu)
                assert offered[0] == usual_one or shared_of(direction, whole, usual_one, gpu) > gpu.shared


@pytest.mark.parametrize("d", [96, 160, 192])
def test_short_runs_take_narrow_tiles_at_other_head_dimensions(d):
    """As timed there: windows of 200 keys 1.09 to 1.24 times as fast as under what long rows take."""
    for reach, cols in ((100, 32), (4000, 64)):
        pattern, own = weft.window(reach, reach), problem(d=d)
        rows = rows_of(plan_attention(pattern, own, GPU), "forward")
        assert tilings(Pass("forward", rows, own, GPU)).taken.tilings[0].cols == cols
    assert len(menu("forward", problem(d=d), 2, GPU)) == len(menu("forward", problem(d=d), 1, GPU, "several")) == 1


def test_two_launches_are_said():
    said = plan_attention(WINDOW, problem(d=256), GPU).explain()
    assert said.count("as many again: dV first, then dK") == 1
    assert "as many again" not in plan_attention(WINDOW, problem(d=128), GPU).explain()


def test_heads_that_share_keys_take_narrow_tiles_of_queries():
    """At 65 to 96 head dimensions: 0.68 to 0.87 of the time at D=96, 0.71 to 1.02 at D=80."""
    for d, cols in ((80, 32), (96, 32), (128, 32), (64, 32)):
        own = replace(problem(d=d), q_heads=16)
        assert usual("dkdv", own).cols == cols
    assert usual("dkdv", problem(d=96)).cols == usual("dq", replace(problem(d=96), q_heads=16)).cols == 64


@pytest.mark.parametrize("card", ["a100", "rtx4090"])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("direction", ["dq", "dkdv"])
def test_gradients_of_grids_keep_to_narrow_tiles_where_others_spill(direction, rank, card):
    """Where rates of another card would choose square ones: see `spilled.json` of tests/triton for what it saves."""
    narrow = Tiling(64, 32, 4, 3, apart=True)
    assert menu(direction, problem(d=64), rank, GPUS[card]) == (narrow,)
    assert len(menu(direction, problem(d=128), rank, GPUS[card])) == 1
    assert narrow not in menu(direction, problem(d=64), 1, GPUS[card])
    assert narrow not in menu(direction, problem(d=64), rank, GPU)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("d", [64, 128])
def test_a_tuner_has_two_dozen_candidates_and_a_call_three(d, rank):
    for direction in DIRECTIONS:
        assert len(legal(direction, problem(d=d), rank, GPU)) >= 24
        some = menu(direction, problem(d=d), rank)
        assert 1 <= len(some) <= 3
        assert set(some) <= set(legal(direction, problem(d=d), rank, GPU))


def test_queries_of_128_channels_choose_by_what_they_see():
    """On lines of one term between two kernels of one shape; of several, or of listed tokens, a narrower one; of
    several one with a stage more too.
    """
    own = Problem(1, 8, 8, 16384, 16384, 128, 128, "bfloat16", "cuda")
    narrow, loop, deep = Tiling(64, 32, 4, 3), Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 4, apart=True)
    for pattern, expected in (
        (weft.causal() & weft.window(left=900), (loop,)),
        (weft.causal() & weft.documents([9000, 7384]), (loop,)),
        (weft.longformer(900, global_tokens=9), (narrow, deep)),
        (weft.causal() & weft.global_tokens([5, 99], rows=False), (narrow,)),
    ):
        rows = rows_of(plan_attention(pattern, own, GPU), "dq")
        assert offered(Pass("dq", rows, own, GPU)) == (usual("dq", own), *expected)


def test_rows_of_several_terms_may_take_wide_tiles():
    """Where few rows that see all outlast the others; not in a problem that fills the card anyhow."""
    small, large = Problem(1, 12, 12, 24639, 24639, 64, 64), Problem(4, 12, 12, 16384, 16384, 64, 64)
    small, large = (replace(one, dtype="bfloat16", device="cuda") for one in (small, large))
    wide = Tiling(64, 128, 4, 3)
    assert wide in menu("forward", small, terms="several")
    assert wide not in menu("forward", small)
    assert wide not in menu("forward", replace(small, d=128, dv=128), terms="several")
    assert plan_attention(weft.longformer(85, global_tokens=109), small, GPU).candidate("forward").tilings == (wide,)
    chosen = plan_attention(weft.longformer(512, global_tokens=64), large, GPU).candidate("forward").tilings
    assert chosen and wide not in chosen


def test_wide_tiles_of_grids_are_not_offered_for_keys_of_grouped_heads():
    """They would spill inside their loop (tests/triton/test_compile.py looks at others)."""
    grouped = replace(problem(d=128), kv_heads=2)
    wide = Tiling(128, 64, 8, 3)
    assert wide in menu("dkdv", problem(d=128), 3)
    assert wide not in menu("dkdv", grouped, 3)


# ---- the remainder ---------------------------------------------------------------------------------------------------
BLOCKS = weft.random_blocks(64, 2, seed=1)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_remainder_takes_as_many_stages_as_fit(gpu, dtype):
    for direction in DIRECTIONS:
        for d in (16, 64, 80, 96, 128, 160, 192, 256):
            whole = problem(d=d, dtype=dtype)
            tiling = menu(direction, whole, 1, gpu)[0]
            found = of_blocks(direction, whole, tiling, gpu)
            if found is None:
                assert shared_of_blocks(direction, whole, 1, gpu) > gpu.shared
                continue
            assert (found.rows, found.cols, found.warps) == (BLOCK, BLOCK, tiling.warps)
            assert shared_of_blocks(direction, whole, found.stages, gpu) <= gpu.shared
            if found.stages < tiling.stages:
                more = shared_of_blocks(direction, whole, found.stages + 1, gpu, tf32=dtype == "float32")
                assert more > gpu.shared


@pytest.mark.parametrize("d", [16, 64, 96, 128])
def test_up_to_128_channels_the_remainder_keeps_all_stages(d):
    for direction in DIRECTIONS:
        for rank in (1, 2, 3):
            for tiling in legal(direction, problem(d=d), rank, GPU):
                found = of_blocks(direction, problem(d=d), tiling, GPU)
                assert found == replace(tiling, rows=BLOCK, cols=BLOCK)


def test_a_remainder_without_room_is_refused():
    """Where the forward has none, when it is planned."""
    asked = ("attention on", "blocks of 64 x 64", "for forward", "bytes", "rtx4090 has 101376", "16-bit")
    refuse(lambda: plan_attention(BLOCKS, problem(128, 256, 1, "float32"), GPUS["rtx4090"]), UnsupportedKernel, asked)


def test_gradients_of_a_remainder_without_room_are_refused_alone():
    """When they are asked for; the forward is planned, and what is said of the plan says so."""
    plan = plan_attention(BLOCKS, problem(128, 256, 1, "float32"), GPU)
    words = ("gradients of attention on", "for dq", "h200 has 232448", "forward alone", "smaller head dimension")
    for direction in ("dq", "dkdv"):
        refuse(lambda direction=direction: plan.check_room(direction), UnsupportedKernel, words)
    assert "dkdv      cannot run: the pattern has pairs that no affine term covers" in plan.explain()
    assert plan.in_one is None
    plan.verify()


def test_gradients_that_have_no_room_in_tf32_are_refused_in_it():
    plan = plan_attention(BLOCKS, problem(128, 192, 1, "float32"), GPU)
    plan.check_room("dq")
    words = ("in tf32", "set_float32_matmul_precision")
    refuse(lambda: plan.check_room("dq", tf32=True), UnsupportedKernel, words)


@pytest.mark.parametrize("under", [PLAIN, Under(scores=True, sums=True)], ids=["softcap", "tables that learn"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_blocks_have_tilings_under_options_that_take_others(direction, under):
    """Warp groups walk a list of whole blocks, but not with such options; dQ has narrower tiles for sums."""
    whole = replace(problem(d=128), m=1024, n=1024)
    plan = plan_attention(weft.random_blocks(64, 3), whole, GPU)
    assert plan.forward[0].plan.tiling.groups
    for share in plan.unspecialised(direction, under):
        found = share.plan.of_blocks
        assert not found.groups
        assert shared_of_blocks(direction, whole, found.stages, GPU) <= GPU.shared


@pytest.mark.parametrize("d, tiling", [(160, Tiling(128, 64, 8, 3)), (256, Tiling(128, 32, 8, 3))])
def test_sums_over_pairs_take_a_tile_beside_those_that_are_walked(d, tiling):
    """Triton 3.6 takes as many bytes of shared memory on Hopper, which are too many. With two stages there is room."""
    sums = 4 * tiling.rows * tiling.cols
    takes = shared_beside_sums("dq", problem(d=d), tiling, GPU)
    assert takes == footprint("dq", problem(d=d), tiling, GPU).shared + sums > GPU.shared
    assert shared_beside_sums("dq", problem(d=d), replace(tiling, stages=2), GPU) <= GPU.shared
