"""Candidates, what they are predicted to take, and what is chosen and said of it."""

from dataclasses import replace

import pytest

import weft
from weft.acsr.format import BLOCK
from weft.errors import UnsupportedKernel
from weft.napkin.formulas import attention_memory
from weft.planning.attention_plan import count_heads, plan_attention
from weft.planning.candidates import (
    footprint,
    legal,
    menu,
    of_blocks,
    resident,
    shared_of,
    shared_of_blocks,
    usual,
)
from weft.planning.choice import MOST, WORTH, candidate, offered, ranked, unlike_apart
from weft.planning.cost import FLOORS, Cost, converting, cost, moved, read, waiting
from weft.planning.problem import Problem
from weft.planning.rates import Rates, measured, rates
from weft.planning.tiling import DIRECTIONS, Tiling
from weft.planning.work import Work
from weft.target import GPU, GPUS
from weft.testing import workloads
from weft.testing.refusals import refuse

WINDOW = weft.causal() & weft.window(left=1023)


def problem(tokens=8192, d=64, heads=8, dtype="bfloat16"):
    return Problem(1, heads, heads, tokens, tokens, d, d, dtype, "cuda")


def rows_of(plan, direction):
    return [(share.plan.acsr, count_heads(share.heads)) for share in plan.towards(direction)]


# ---- candidates ------------------------------------------------------------------------------------------------------
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


@pytest.mark.parametrize("d", [96, 160, 192, 256])
def test_short_runs_take_narrow_tiles_at_other_head_dimensions(d):
    """As timed there: windows of 200 keys 1.09 to 1.24 times as fast as under what long rows take."""
    for reach, cols in ((100, 32), (4000, 64)):
        pattern, own = weft.window(reach, reach), problem(d=d)
        rows = rows_of(plan_attention(pattern, own, GPU), "forward")
        assert ranked("forward", rows, own, GPU, offered("forward", rows, own, GPU))[0].tilings[0].cols == cols
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
        assert offered("dq", rows, own, GPU) == (usual("dq", own), *expected)


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


# ---- cost ------------------------------------------------------------------------------------------------------------
def test_more_work_takes_longer():
    tiling = usual("forward", problem())
    small = Work("formula", 1000, 2000, 8000, (2, 8))
    for more in (replace(small, edge=3000), replace(small, full=9000), replace(small, programs=1500)):
        assert cost([more], "forward", problem(), tiling, GPU).seconds > cost(
            [small], "forward", problem(), tiling, GPU
        ).seconds  # fmt: skip
    assert cost([small, small], "forward", problem(), tiling, GPU).launches == 2 * GPU.launch_seconds


def test_causes_add_up_and_nothing_is_below_the_floor():
    for direction in DIRECTIONS:
        plan = plan_attention(WINDOW, problem(), GPU)
        for one in ranked(direction, rows_of(plan, direction), problem(), GPU):
            c = one.cost
            assert c.seconds == pytest.approx(c.starts + c.edges + c.full + c.uneven + c.merging + c.launches)
            assert c.seconds > max(getattr(c, name) for name in FLOORS) == getattr(c, c.bound)


def test_rounds():
    """Programs of one length, two at a time on each processor: a round more costs more than an even share of it."""
    rate, at_a_time = Rates(0.0, 1.0, 100.0), GPU.processors * 2

    def takes(programs):
        work = Work("formula", programs, 0, 10 * programs, (0, 10))
        return programs * 1000 / GPU.processors + waiting(work, rate, 2, GPU)

    assert takes(3 * at_a_time) == pytest.approx(3 * takes(at_a_time))
    assert takes(3 * at_a_time) < takes(3 * at_a_time + 1) <= takes(4 * at_a_time)


def test_one_program_far_longer_than_the_rest_bounds_the_whole():
    rate = Rates(0.0, 1.0, 100.0)
    alone = waiting(Work("formula", 1000, 0, 10_000, (0, 10)), rate, 2, GPU)
    assert waiting(Work("formula", 1000, 0, 10_000, (0, 5000)), rate, 2, GPU) > alone + 500_000


def test_gradients_added_in_float32_are_converted():
    """Once, however many launches added to them; outputs of the forward are not."""
    once, twice = Work("formula", 8, 8, 0, (1, 0)), Work("formula", 8, 8, 0, (1, 0), merged=True)
    assert converting([once], "dq", problem(), GPU) == 0
    assert converting([twice, twice], "forward", problem(), GPU) == 0
    assert converting([twice, twice], "dq", problem(), GPU) == 6 * 8 * 8192 * 64 / GPU.bandwidth
    assert converting([twice, twice], "dkdv", problem(), GPU) == 2 * converting([twice], "dq", problem(), GPU)


def test_bytes_of_each_direction():
    """Forward reads q, k, v and writes out and lse; D=64, bfloat16."""
    p = problem(tokens=1000, heads=1)
    assert moved("forward", p) == 2 * 1000 * 4 * 64 + 4 * 1000
    assert moved("dq", p) < moved("dkdv", p) + 2 * 1000 * 64


def test_what_a_forward_tile_holds_is_the_napkin_s_memory():
    """Less the sums of the output, which stay in registers; chunks in flight count as one."""
    for tiling in legal("forward", problem(), 1, GPU):
        chunk = tiling.stages * tiling.cols
        whole = attention_memory(d=64, v=64, g_q=tiling.rows, s_x=chunk, nbytes=2)
        assert footprint("forward", problem(), tiling, GPU).shared == whole - 2 * 64 * tiling.rows


def test_bytes_read_of_a_dense_forward():
    """Queries and output once, keys and values once for each group of queries."""
    work, tiling = Work("formula", 16, 0, 16 * 16, (0, 16)), Tiling(64, 64, 4, 3)
    assert read(work, "forward", problem(1024, heads=1), tiling) == 2 * (2 * 1024 * 64 + 16 * 2 * 1024 * 64)
    assert read(work, "dkdv", problem(1024, heads=1), tiling) > read(work, "forward", problem(1024, heads=1), tiling)


# ---- rates -----------------------------------------------------------------------------------------------------------
def test_measured_rates_are_used_as_they_are():
    table = measured("h200")
    assert len(table) > 500
    (d, direction, kind, tiling), known = next(iter(table.items()))
    assert rates(kind, direction, problem(d=d), tiling, GPU) == known


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_is_offered_was_measured(d, direction):
    for rank, kind in ((1, "formula"), (1, "table"), (2, "plane"), (3, "space")):
        for tiling in menu(direction, problem(d=d), rank):
            assert (d, direction, kind, tiling) in measured("h200")


def test_what_was_not_measured_lies_between_what_was():
    tiling = Tiling(64, 64, 4, 3)
    tile = {d: rates("formula", "forward", problem(d=d), tiling, GPU).full for d in (64, 80, 128)}
    assert tile[64] < tile[80] < tile[128]


def test_a_card_without_a_table_is_estimated():
    found = rates("formula", "forward", problem(), Tiling(64, 64, 4, 3), GPUS["a100"])
    assert measured("a100") == {}
    assert found.edge > found.full > 0
    assert found.start > 0


# ---- choice ----------------------------------------------------------------------------------------------------------
def test_the_cheapest_offered_is_taken():
    plan = plan_attention(WINDOW, problem(), GPU)
    for direction in DIRECTIONS:
        rows = rows_of(plan, direction)
        tilings = offered(direction, rows, problem(), GPU)
        costs = {t: candidate(direction, rows, problem(), GPU, t).cost.seconds for t in tilings}
        assert plan.towards(direction)[0].plan.tiling == min(costs, key=costs.get)


def test_what_is_asked_for_is_taken_and_covers_the_same_pairs():
    asked = Tiling(128, 32, 8, 2)
    plan = plan_attention(WINDOW, problem(1000), GPU, (("dq", asked),))
    assert plan.queries[0].plan.tiling == asked
    assert plan.forward[0].plan.tiling in menu("forward", problem())
    plan.verify()


def test_dq_shares_the_forward_plan_where_nothing_differs():
    forward = plan_attention(WINDOW, problem(1000), GPU).forward[0].plan.tiling
    same = plan_attention(WINDOW, problem(1000), GPU, (("dq", forward),))
    assert same.queries is same.forward


def test_two_kernels_make_the_backward_where_one_is_predicted_slower():
    """On an H200 always; a card on which sums in memory cost next to nothing takes one."""
    assert plan_attention(WINDOW, problem(d=128), GPU).in_one is None
    cheap = replace(GPU, l2_bandwidth=1e18, bandwidth=1e18, launch_seconds=0)
    plan = plan_attention(weft.causal(), problem(d=128), cheap)
    assert plan.in_one is not None
    plan.verify()
    forward, of_queries = (plan.candidate(one).tilings[0] for one in ("forward", "dq"))
    # tilings of gradients ask for two, one of the forward does not
    assert plan_attention(weft.causal(), problem(d=128), cheap, (("forward", forward),)).in_one is not None
    assert plan_attention(weft.causal(), problem(d=128), cheap, (("dq", of_queries),)).in_one is None
    assert plan_attention(weft.causal(), problem(d=128, dtype="float32"), cheap).in_one is None
    assert plan_attention(weft.causal(), problem(d=128), replace(cheap, shared=99 << 10)).in_one is None  # no room


@pytest.mark.parametrize("tokens", [64, 512, 4096])
def test_short_backwards_take_two_kernels(tokens):
    """One kernel needs launches before and after it, which alone take longer than the second of two."""
    for d in (64, 128):
        assert plan_attention(WINDOW, problem(tokens, d=d), GPU).in_one is None


# ---- heads that differ -----------------------------------------------------------------------------------------------
STRIDED = weft.causal() & weft.strided(64)
UNLIKE = weft.per_head([STRIDED] * 16 + [weft.causal()] * 16)


def test_unlike_heads_run_apart_where_that_costs_less():
    """Strided heads take two launches that add in memory; dense ones beside them would add as well."""
    whole = problem(d=128, heads=32)
    plan = plan_attention(UNLIKE, whole, GPU)
    rows = rows_of(plan, "forward")
    tilings = menu("forward", whole)
    assert [share.pack for share in plan.forward] == [0, 1]
    assert plan.candidate("forward").cost == unlike_apart("forward", rows, whole, GPU, tilings).cost
    for tiling in tilings:
        assert (
            plan.candidate("forward").cost.seconds < WORTH * candidate("forward", rows, whole, GPU, tiling).cost.seconds
        )
    together = candidate("forward", rows, whole, GPU, tilings[0])
    apart = unlike_apart("forward", rows, whole, GPU, tilings[:1])
    assert apart.cost.seconds < WORTH * together.cost.seconds
    assert apart.cost.launches == together.cost.launches + GPU.launch_seconds
    assert sum(work.tiles for work in apart.works) == sum(work.tiles for work in together.works)
    assert not all(work.merged for work in apart.works)
    assert all(work.merged for work in together.works)
    plan.verify()


def test_packs_take_tilings_of_their_own():
    """Short runs and long ones, D=128: dQ has two tilings to choose from. Gradients are added in one tensor."""
    plan = plan_attention(UNLIKE, problem(d=128, heads=32), GPU)
    found = unlike_apart("dq", rows_of(plan, "dq"), plan.problem, GPU, menu("dq", plan.problem))
    assert set(found.tilings) == set(menu("dq", plan.problem))
    alone = [
        candidate("dq", [row], plan.problem, GPU, t).cost
        for row, (t, _) in zip(rows_of(plan, "dq"), found.ways, strict=True)
    ]
    assert found.cost.loads == alone[0].loads  # tensors are counted once
    assert found.cost.merging > sum(one.merging for one in alone[:1])


def test_alike_heads_stay_together():
    alike = weft.per_head([weft.causal() & weft.window(left=100 + i) for i in range(8)])
    plan = plan_attention(alike, problem(), GPU)
    for direction in DIRECTIONS:
        assert {share.pack for share in plan.towards(direction)} == {0}
    many = weft.per_head([weft.causal() & weft.strided(20 + i) for i in range(MOST + 1)] + [weft.causal()])
    plan = plan_attention(many, problem(heads=MOST + 2), GPU)
    assert {share.pack for share in plan.forward} == {0}


# ---- rows or tiles ---------------------------------------------------------------------------------------------------
END = "bottom-right"


def few(m=1, n=1 << 17, batch=1):
    """A step of decoding, or as many queries."""
    return Problem(batch, 32, 8, m, n, 128, 128, "bfloat16", "cuda")


@pytest.mark.parametrize("m,batch", [(1, 1), (1, 16), (16, 1), (64, 1)])
def test_few_queries_against_many_keys_go_by_rows(m, batch):
    plan = plan_attention(weft.causal(align=END), few(m, batch=batch), GPU)
    tiles = plan.candidate("forward")
    assert plan.by_rows is not None
    assert plan.by_rows.cost.seconds < tiles.cost.seconds
    assert plan.by_rows.shape.programs * plan.by_rows.shape.splits > GPU.processors
    keys = batch * 8 * few().n * 2 * 128 * 2
    assert plan.by_rows.cost.seconds > keys / GPU.bandwidth  # never faster than reading them
    assert f"but taken is: by rows, {plan.by_rows.shape.rows} in a program, keys in" in plan.explain()


def test_a_step_of_decoding_takes_what_was_measured():
    """131 us, and 1.9 ms for a batch of 16, on an H200 (benchmarks/notes/triton.md)."""
    for batch, seconds in ((1, 131e-6), (16, 1.9e-3)):
        plan = plan_attention(weft.causal(align=END), few(batch=batch), GPU)
        assert plan.by_rows.cost.seconds == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize("name", [w.name for w in workloads.WORKLOADS.values() if "core" in w.tags])
def test_the_core_dozen_goes_by_tiles_and_takes_two_kernels_back(name):
    w = workloads.WORKLOADS[name]
    plan = plan_attention(w.make(), Problem(w.batch, w.q_heads, w.kv_heads, w.m, w.n, w.d, w.dv, w.dtype, "cuda"), GPU)
    assert plan.by_rows is None
    assert plan.in_one is None


def test_rows_that_have_no_formula_go_by_tiles_and_it_says_why():
    plan = plan_attention(weft.random_blocks(64, 3, seed=1), problem(1024, heads=1), GPU)
    assert plan.by_rows is None
    assert "rejected: by rows: some of it is listed block by block" in plan.explain()


def test_what_is_asked_for_goes_by_tiles():
    asked = (("forward", Tiling(64, 64, 4, 3)),)
    assert plan_attention(weft.causal(align=END), few(), GPU, asked).by_rows is None


def test_scores_in_memory_are_never_less():
    """The reuse ratio of the two: dense attention at D=64 of 8,192 tokens would write and read 64 times its tensors."""
    said = plan_attention(weft.full(), problem(heads=1), GPU).explain()
    (line,) = [line for line in said.splitlines() if "kernels of their own" in line]
    assert f"{1 + 4 * 2 * 8192**2 / moved('forward', problem(heads=1)):.3g} times" in line


# ---- words -----------------------------------------------------------------------------------------------------------
def test_an_explanation_says_what_bounds_it_and_what_was_rejected():
    plan = plan_attention(WINDOW, problem(), GPU)
    said = plan.explain()
    for direction in DIRECTIONS:
        assert f"\n{direction:<9} {plan.towards(direction)[0].plan.tiling}" in said
    assert said.count("the floor of these tiles is") == 3
    assert said.count("legal: ") >= 12
    assert said.splitlines()[-1].startswith("backward  two kernels, ")
    assert "tuned, or asked for" in plan_attention(WINDOW, problem(), GPU, (("dq", Tiling(64, 32, 4, 2)),)).explain()


def test_an_explanation_draws_every_head():
    parts = [weft.causal() & (weft.window(left=127) | weft.periodic_keys(128)), weft.chunks(3000)]
    said = plan_attention(weft.per_head(parts), problem(tokens=16384, heads=2)).explain()
    drawn = [line[5:-1] for line in said.splitlines() if line.startswith("    |")]
    assert drawn == [line for part in parts for line in part.draw(16384, width=24).split("\n")]


def test_an_explanation_says_what_a_card_has_no_room_for():
    said = plan_attention(WINDOW, problem(d=128), GPUS["rtx4090"]).explain().splitlines()[-1]
    assert said.endswith("the card's shared memory is too small")


def test_an_explanation_tells_packs():
    said = plan_attention(UNLIKE, problem(d=128, heads=32), GPU).explain()
    assert "\nforward   unlike heads apart, in 2 packs: " in said
    assert "\n  offered: unlike heads apart" in said  # weighed for dQ, and not worth it


def test_a_cost_names_its_bound():
    assert Cost(0, 0, 0, 0, 0, 0, products=1, exponentials=2, reads=0, loads=0).bound == "exponentials"
