"""What is chosen of the candidates, and what is said of it."""

from dataclasses import replace
from math import prod

import pytest

import weft
from weft.planning.attention_plan import plan_attention
from weft.planning.choose import offered
from weft.planning.cost import Cost, moved
from weft.planning.families.base import MOST, WORTH, Pass, Tiled
from weft.planning.families.hopper import LISTED, SUMMED, no_list, no_sums
from weft.planning.families.one_kernel import OneKernel
from weft.planning.families.tile import menu, unlike_apart
from weft.planning.problem import Problem
from weft.planning.tiling import DIRECTIONS, Tiling
from weft.target import GPU, GPUS
from weft.testing import workloads

from .helpers import problem, rows_of

WINDOW = weft.causal() & weft.window(left=1023)


def test_the_cheapest_offered_is_taken():
    plan = plan_attention(WINDOW, problem(), GPU)
    for direction in DIRECTIONS:
        rows = rows_of(plan, direction)
        tilings = offered(Pass(direction, rows, problem(), GPU))
        costs = {t: Pass(direction, rows, problem(), GPU).alike(t).cost.seconds for t in tilings}
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
    """On an H200, where no warp groups make one; a card on which sums in memory cost next to nothing takes one."""
    assert plan_attention(WINDOW, problem(), GPU).in_one is None
    assert plan_attention(weft.neighborhood((16, 16, 32), 5), problem(d=128), GPU).in_one is None
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


@pytest.mark.parametrize("tokens", [64, 512])
@pytest.mark.parametrize("d", [64, 128])
def test_short_backwards_take_two_kernels(tokens, d):
    """One kernel needs launches before and after it, which alone take longer than the second of two."""
    assert plan_attention(WINDOW, problem(tokens, d=d), GPU).in_one is None


def test_warp_groups_make_all_gradients_at_once_at_wide_heads():
    plan = plan_attention(weft.causal(), problem(d=128), GPU)
    assert plan.in_one is not None and {share.plan.tiling for share in plan.in_one} == {SUMMED}
    assert f"but taken is: one kernel of {SUMMED}" in plan.explain()
    plan.verify()


@pytest.mark.parametrize("shape, size", [((64, 64), (21, 21)), ((8, 24, 40), (6, 12, 12))], ids=str)
def test_warp_groups_walk_grids(shape, size):
    """At D=128 in bfloat16."""

    def against(**more):
        return no_sums(plan_attention(weft.neighborhood(shape, size), problem(prod(shape), **more), GPU).asked("dkdv"))

    plan = plan_attention(weft.neighborhood(shape, size), problem(prod(shape), d=128), GPU, (("dkdv", SUMMED),))
    assert against(d=128) == "" and plan.sums_by_groups
    plan.verify()
    assert "bfloat16" in against(d=128, dtype="float16")
    assert "grids" in against(d=64)


def test_lists_of_whole_blocks_have_all_gradients_by_warp_groups():
    """Where a call names them, and blocks are whole."""
    named, blocks = (("dkdv", LISTED),), weft.random_blocks(64, 3)

    def against(pattern, asked):
        return no_list(plan_attention(pattern, asked, GPU).asked("dkdv"))

    plan = plan_attention(blocks, problem(1024, d=128), GPU, named)
    assert against(blocks, problem(1024, d=128)) == "" and plan.sums_by_groups
    plan.verify()
    assert "D=128" in against(blocks, problem(1024, d=64))
    assert "not whole" in against(blocks, problem(1000, d=128))
    assert "not whole" in against(weft.random_blocks(32, 3), problem(1024, d=128))
    assert "no list" in against(WINDOW, problem(1024, d=128))


# ---- heads that differ -----------------------------------------------------------------------------------------------
STRIDED = weft.causal() & weft.strided(64)
UNLIKE = weft.per_head([STRIDED] * 16 + [weft.causal()] * 16)


def apart_of(asked, tilings):
    return Tiled(asked, unlike_apart(asked, tilings))


def test_unlike_heads_run_apart_where_that_costs_less():
    """Strided heads take two launches that add in memory; dense ones beside them would add as well."""
    whole = problem(d=128, heads=32)
    plan = plan_attention(UNLIKE, whole, GPU)
    rows = rows_of(plan, "forward")
    tilings = menu("forward", whole)
    assert [share.pack for share in plan.forward] == [0, 1]
    assert plan.candidate("forward").cost == apart_of(Pass("forward", rows, whole, GPU), tilings).cost
    for tiling in tilings:
        together = Pass("forward", rows, whole, GPU).alike(tiling)
        assert plan.candidate("forward").seconds < WORTH * together.seconds
    together = Pass("forward", rows, whole, GPU).alike(tilings[0])
    apart = apart_of(Pass("forward", rows, whole, GPU), tilings[:1])
    assert apart.cost.seconds < WORTH * together.cost.seconds
    assert apart.cost.launches == together.cost.launches + GPU.launch_seconds
    assert sum(work.tiles for work in apart.works) == sum(work.tiles for work in together.works)
    assert not all(work.merged for work in apart.works)
    assert all(work.merged for work in together.works)
    plan.verify()


def test_packs_take_tilings_of_their_own():
    """Short runs and long ones, D=128: dQ has two tilings to choose from. Gradients are added in one tensor."""
    plan = plan_attention(UNLIKE, problem(d=128, heads=32), GPU)
    found = apart_of(Pass("dq", rows_of(plan, "dq"), plan.problem, GPU), menu("dq", plan.problem))
    assert set(found.tilings) == set(menu("dq", plan.problem))
    alone = [
        Pass("dq", [row], plan.problem, GPU).alike(t).cost
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
    """131 us, and 1.9 ms for a batch of 16, on an H200 (benchmarks/notes/triton.md, T58)."""
    for batch, seconds in ((1, 131e-6), (16, 1.9e-3)):
        plan = plan_attention(weft.causal(align=END), few(batch=batch), GPU)
        assert plan.by_rows.cost.seconds == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize("name", [w.name for w in workloads.WORKLOADS.values() if "core" in w.tags])
def test_the_core_dozen_goes_by_tiles_and_at_wide_heads_takes_one_kernel_back_where_there_is_one(name):
    w = workloads.WORKLOADS[name]
    plan = plan_attention(w.make(), Problem(w.batch, w.q_heads, w.kv_heads, w.m, w.n, w.d, w.dv, w.dtype, "cuda"), GPU)
    assert plan.by_rows is None
    against = no_sums(plan.asked("dkdv"))
    assert plan.in_one is None if against else plan.in_one is not None or w.d == 64


def test_rows_that_have_no_formula_go_by_tiles_and_it_says_why():
    plan = plan_attention(weft.random_blocks(64, 3, seed=1), problem(1024, heads=1), GPU)
    assert plan.by_rows is None
    assert "against split_kv: some of it is listed block by block" in plan.explain()


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
    assert "one kernel of 128x128, 2 warp groups" in said
    said = plan_attention(WINDOW, problem(d=32), GPU).explain()
    assert "\nbackward  two kernels, " in said
    assert "\n  against one kernel: its sums of dQ in memory alone take" in said
    assert "tuned, or asked for" in plan_attention(WINDOW, problem(), GPU, (("dq", Tiling(64, 32, 4, 2)),)).explain()


def test_one_kernel_is_priced_by_the_keys_that_it_walks():
    """Those that lists leave unseen are not among them."""
    far = weft.dilated(3, 0, 8) & ~weft.global_tokens([*range(1000, 1600), 1700], columns=False)
    plan = plan_attention(weft.global_tokens([3, 9], columns=False) | far, problem(4096), GPU)
    assert "but taken is: one kernel of" in plan.explain()
    (priced,) = (one for one in plan.backwards.weighed if isinstance(one, OneKernel))
    walked, every = (tuple(share.plan.acsr for share in shares) for shares in (plan.in_one, plan.transposed))
    assert walked != every
    assert walked == tuple(acsr for acsr, _ in priced.keys.asked.rows)


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
