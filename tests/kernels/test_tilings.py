"""Every tiling that a tuner may choose computes the same: one direction under it, the others as a call chooses."""

import random

import pytest
import torch
from triton.runtime.errors import OutOfResources

import weft
from weft.planning.attention_plan import plan_attention
from weft.planning.choose import offered
from weft.planning.families.base import Pass
from weft.planning.tiling import DIRECTIONS
from weft.runtime import tuner
from weft.target import GPU
from weft.testing.tolerance import assert_close
from weft.torch.card import at_hand

from .compare import BACKENDS, FEW, Case, generator, qkv
from .planned import problem_of, results

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends have one tiling")

# kind of kernel: a pattern with it, and its tokens
KINDS = {
    "formula": (weft.causal() & weft.window(left=100), 330),
    "table": (weft.documents([70, 0, 1, 159, 100]) & weft.causal(), 330),
    "several": (weft.longformer(50, global_tokens=20), 330),
    "listed": (weft.window(8, 8) | weft.global_tokens([0, 77, 150, 301]), 330),
    "plane": (weft.neighborhood((15, 22), (5, 7)), 330),
    "space": (weft.neighborhood((5, 8, 8), (3, 5, 3)), 320),
}
DRAWN = 1 if FEW else 5  # beside what is offered; `wide`: all, a quarter at a time, since each takes a minute or two
QUARTERS = [pytest.param(n, marks=pytest.mark.wide, id=f"every fourth from {n}") for n in range(4)]
CARD = at_hand().gpu if at_hand() else GPU


def menu_of(kind, direction, problem):
    """What is offered."""
    rows = [(KINDS[kind][0].acsr(problem.m, problem.n), 1)]
    return offered(Pass(direction, rows, problem, CARD))


def tilings(kind, direction, case, quarter):
    """What is offered, and others by chance or a quarter of them."""
    problem = problem_of(case)
    menu = menu_of(kind, direction, problem)
    _, predicted = tuner.candidates(direction, plan_attention(KINDS[kind][0], problem, CARD))
    others = [tiling for tiling in predicted if tiling not in menu]
    dice = random.Random(f"{kind} {direction} {problem.d}")
    return [*menu, *(dice.sample(others, DRAWN) if quarter is None else others[quarter::4])]


@pytest.mark.parametrize("quarter", [pytest.param(None, id="drawn"), *QUARTERS])
@pytest.mark.parametrize("d", [128] if FEW else [64, 128])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_tilings(kind, direction, d, quarter):
    case = case_of(kind, direction, d)
    assert computed_alike(case, direction, tilings(kind, direction, case, quarter)) > 1


def test_wide_tiles_of_several_terms():
    """What is offered where few rows outlast the others, and so not chosen for tests as short as these."""
    case = case_of("several", "forward", 64)
    wide = [tiling for tiling in menu_of("several", "forward", problem_of(case)) if tiling.cols == 128]
    assert computed_alike(case, "forward", wide) == len(wide) == 2


@pytest.mark.parametrize("kind", ["plane", "space"])
def test_tiles_of_keys_that_are_one_head_s(kind):
    """At D=128 more are offered than where heads share keys."""
    case = case_of(kind, "dkdv", 128, (2, 2))
    menu = menu_of(kind, "dkdv", problem_of(case))
    assert computed_alike(case, "dkdv", menu) == len(menu)


def case_of(kind, direction, d, heads=None):
    """The tensors of a kind; heads share keys where these have gradients."""
    pattern, tokens = KINDS[kind]
    heads = heads or ((2, 2) if direction == "forward" else (4, 2))
    return Case(pattern, qkv(generator(f"{kind} {d}"), (tokens, tokens), torch.bfloat16, heads, (d, d), 1))


def computed_alike(case, direction, some):
    """How many tilings run here; raises AssertionError if one is wrong."""
    truth, plain = case.dense(torch.float64), case.dense(torch.bfloat16)
    computed = 0
    for tiling in some:
        try:
            found = results(case, CARD, ((direction, tiling),), BACKENDS["triton"])
        except OutOfResources:  # an estimate was wrong: tuners pass over it
            continue
        computed += 1
        for name, x in found.items():
            assert_close(f"{tiling}: {name}", x, truth[name], plain[name])
    return computed
