"""The loop over families of kernels: what it weighs, what it takes, and that kernels are selected from that alone."""

import ast
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.kernels.gpu import select
from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.program import row_major
from weft.planning.attention_plan import plan_attention
from weft.planning.choose import TILED, Decision, tilings, weigh
from weft.planning.families import fused_backward, one_kernel, tile
from weft.planning.families.base import MOST, Pass
from weft.planning.problem import Problem
from weft.planning.tiling import DIRECTIONS
from weft.target import GPUS

from .helpers import laws, rows_of

BAND = weft.causal() & weft.window(left=300)
SHORT = weft.causal() & weft.window(left=127)
PATTERNS = {
    "band": BAND,
    "short": SHORT,
    "causal": weft.causal(),
    "documents": weft.documents([3000, 1096]),
    "lists": weft.global_tokens([1, 77, 900]),
    "blocks": weft.random_blocks(64, 3),
    "heads": weft.per_head([BAND, weft.causal()] * 4),
}


def planned(pattern, card="h200", d=64, dtype="bfloat16"):
    return plan_attention(pattern, Problem(2, 8, 8, 4096, 4096, d, d, dtype, "cuda"), GPUS[card])


@dataclass(frozen=True)
class Priced:
    """An alternative of given seconds."""

    compared: float
    family: str = "some"

    @property
    def seconds(self):
        return self.compared


@laws
@given(st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=5))
def test_the_cheapest_is_taken_and_what_costs_less_than_the_first_is_listed(seconds):
    decision = Decision(tuple(map(Priced, seconds)))
    assert decision.taken is decision.weighed[seconds.index(min(seconds))]
    assert [one.compared for one in decision.listed] == [x for x in seconds[1:] if x < seconds[0]] + seconds[:1]


class Family:
    """One that has a reason, or configurations."""

    def __init__(self, name, reason, configs):
        self.NAME, self.reason, self.some = name, reason, configs

    def reasons_against(self, asked):
        return self.reason

    def configs(self, asked):
        assert not self.reason, "a family is not asked for configurations that it has none of"
        return self.some

    def cost(self, asked, config):
        return Priced(asked * config, self.NAME)


def test_every_configuration_of_every_family_is_weighed_in_their_order():
    found = weigh(2.0, (Family("a", "", [3.0, 1.0]), Family("b", "too wide", []), Family("c", "", [1.0])))
    assert found.weighed == (Priced(6.0, "a"), Priced(2.0, "a"), Priced(2.0, "c"))
    assert found.against == (("b", "too wide"),)
    assert found.taken is found.weighed[1]


@pytest.mark.parametrize("name,card", product(PATTERNS, ("h200", "a100")))
def test_a_plan_takes_what_was_weighed(name, card):
    plan = planned(PATTERNS[name], card)
    for direction in DIRECTIONS:
        decision = tilings(Pass(direction, rows_of(plan, direction), plan.problem, plan.target))
        assert plan.candidate(direction).ways == decision.taken.ways
        assert {family for family, _ in decision.against} <= {family.NAME for family in TILED}
    assert plan.forwards.weighed[0].family == plan.backwards.weighed[0].family == tile.NAME
    assert (plan.by_rows is not None) == (plan.forwards.taken is plan.by_rows)


def test_of_many_distinct_heads_some_say_what_all_take():
    many = weft.per_head([weft.window(i, 0) for i in range(2 * MOST)])
    plan = planned(many)
    asked = plan.asked("forward")
    some = Pass("forward", asked.rows[::2], plan.problem, plan.target)
    for one in tilings(asked).weighed:
        assert one.compared == some.alike(one.tilings[0]).seconds


@pytest.mark.parametrize("name", PATTERNS)
def test_an_explanation_names_all_that_was_weighed_and_every_reason(name):
    plan = planned(PATTERNS[name])
    said = plan.explain()
    for decision in (plan.forwards, plan.backwards, *(tilings(plan.asked(one)) for one in DIRECTIONS)):
        for family, reason in decision.against:
            assert f"  against {family}: {reason}" in said
    assert said.count("  but taken is: ") == len(plan.forwards.listed) + len(plan.backwards.listed) - 2


# ---- selection -------------------------------------------------------------------------------------------------------
def layout(plan, gradients, aligned=True):
    p = plan.problem
    of_q, of_k = (p.batch, p.q_heads, p.m, p.d), (p.batch, p.kv_heads, p.n, p.d)
    sizes = (of_q, of_k, of_k) + (of_q, of_q) * gradients
    return Layout(tuple(map(row_major, sizes)), aligned)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("aligned,softcap,deterministic", product((True, False), (None, 5.0), (True, False)))
def test_only_what_a_plan_lists_is_selected(name, aligned, softcap, deterministic):
    plan = planned(PATTERNS[name])
    options = Options(0.125, softcap, deterministic=deterministic)
    family = select.gradients(plan, layout(plan, True, aligned), options)
    assert family in {one.family for one in plan.backwards.listed}
    if family == fused_backward.NAME:
        assert aligned and softcap is None
    assert family != one_kernel.NAME or not deterministic
    for direction in DIRECTIONS:
        *first, last = select.tiles(direction, plan, layout(plan, direction != "forward", aligned), options)
        assert not last.groups and last.shares is plan.unspecialised(direction)
        assert [one.shares for one in first] in ([], [plan.specialised(direction)])
        assert not first or (aligned and softcap is None)


@pytest.mark.parametrize("pattern", [weft.random_blocks(64, 2), weft.bigbird(64, 3, 1, 3)], ids=str)
@pytest.mark.parametrize("card", ["a100", "h200"])
def test_tiles_under_any_options_have_one_of_the_remainder(pattern, card):
    """Warp groups walk lists of whole blocks. Under options that they do not have, other kernels do."""
    plan = plan_attention(pattern, Problem(1, 2, 2, 1024, 1024, 128, 128, "bfloat16", "cuda"), GPUS[card])
    for direction, under in product(DIRECTIONS, (tile.PLAIN, tile.Under(scores=True), tile.Under(True, True))):
        for share in plan.unspecialised(direction, under):
            assert share.plan.blocks is not None and share.plan.of_blocks is not None
            assert not share.plan.of_blocks.groups


def test_warp_groups_that_specialise_are_selected_where_they_are_listed():
    plan = planned(BAND)
    first = next(select.tiles("forward", plan, layout(plan, False), Options(0.125)))
    assert first.groups and first.shares is plan.forward and plan.candidate("forward").family == "hopper"


# ---- one direction of imports ----------------------------------------------------------------------------------------
def test_no_module_of_planning_imports_inside_a_function():
    """Such imports hid a circle of five modules once."""
    folder = Path(weft.__file__).parent / "planning"
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert not any(isinstance(x, ast.Import | ast.ImportFrom) for x in ast.walk(node)), path
