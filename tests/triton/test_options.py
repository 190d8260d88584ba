"""Machine code of kernels with options: what a pair costs beside none, counted in the loops over tiles."""

import re
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

import weft
from weft.errors import UnsupportedKernel
from weft.kernels.gpu.compile import compiler, miscompiles
from weft.kernels.gpu.programs.kernels import Asked, kernels_of
from weft.kernels.options import Modifiers
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.tiling import Tiling
from weft.score.evaluate import Rule
from weft.settings import interpreted
from weft.target import GPU
from weft.testing.refusals import refuse
from weft.torch.along import scores_of

from .resources import TARGETS, innermost, resources

pytestmark = [pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing"), pytest.mark.more]
WINDOW, HEADS = weft.window(256, 256), 12


def with_bias(plan, bias, learns):
    """The kernels of a plan's calls with a bias."""
    rules = tuple(Rule(one, bias.tables, (learns,) * len(bias.tables)) for one in bias.expressions)
    scores = scores_of(Modifiers(1.0, rules=rules), plan)
    return kernels_of(plan, Asked(score=scores.score, tables=scores.forms, wanted=scores.wanted))


def kernels(learns=False, **asked):
    """{direction: (resources, loops with products)} of window_pm256 at D=64. learns: a relative bias, None: none."""
    plan = plan_attention(WINDOW, Problem(4, HEADS, HEADS, 16384, 16384, 64, 64, "bfloat16", "cuda"), GPU)
    bias = weft.bias.relative(torch.zeros(HEADS, 513))
    found = {}
    for source in kernels_of(plan, Asked(**asked)) if learns is None else with_bias(plan, bias, learns):
        kernel = compiler.compile_for(source, TARGETS["sm_90"])
        loops = innermost(miscompiles.disassembled(kernel.asm["cubin"]))
        found[source.name.split("_")[0]] = resources(kernel, "sm_90"), [loop for loop in loops if "HGMMA" in loop]
    return found


def count(loop, pattern):
    return len(re.findall(rf"\b{pattern}\b", loop))


def test_tables_by_distance_are_read_once_for_each_distance():
    """A thread has 32 pairs of 18 distances in a forward, 16 of 10 in gradients; nothing goes through shared memory."""
    made, none = kernels(), kernels(None)
    for direction, most in {"forward": 18, "dq": 10, "dkdv": 10}.items():
        taken, loops = made[direction]
        assert loops
        assert all(0 < count(loop, r"LDG\.E\.CONSTANT") <= most for loop in loops)
        assert taken.shared <= none[direction][0].shared
        assert taken.registers <= (128 if direction == "forward" else 168)
        assert not taken.spilled


def test_sums_along_diagonals_are_added_by_two_instructions():
    """Of 64 x 32 pairs in dQ."""
    taken, loops = kernels(learns=True)["dq"]
    assert all(count(loop, "REDG?[.A-Z0-9]*") <= 2 for loop in loops)
    assert taken.inside == 0


def test_one_call_of_philox_serves_the_pairs_that_a_thread_holds():
    """Eight pairs where queries are rows, four where keys are. A call has at most 14 products that are not of rows."""
    made = kernels(None, dropout=True)
    for direction, calls in {"forward": 4, "dq": 2, "dkdv": 4}.items():
        taken, loops = made[direction]
        products = [count(loop, r"IMAD\.WIDE\.U32") + count(loop, r"IMAD\.HI\.U32") for loop in loops]
        assert all(0 < one <= 17 * calls for one in products)
        assert not any(count(loop, "STS") for loop in loops)
        assert taken.registers <= 168


ROOM = {  # tilings of dQ, None: the plan's
    "lines of 256 channels": (weft.causal(), 256, Tiling(128, 32, 8, 3, apart=True)),
    "lines of 160 channels": (weft.causal(), 160, Tiling(128, 64, 8, 3, apart=True)),
    "blocks": (weft.random_blocks(64, 3), 128, None),
}


@pytest.mark.parametrize("name", ROOM)
def test_sums_of_a_relative_bias_have_room(name):
    """Beside tiles of wide heads, which have one stage less then."""
    pattern, d, tiling = ROOM[name]
    fixed = () if tiling is None else (("dq", tiling),)
    plan = plan_attention(pattern, Problem(2, 4, 2, 1024, 1024, d, d, "bfloat16", "cuda"), GPU, fixed)
    bias = weft.bias.relative(torch.zeros(4, 2047))
    (source,) = [one for one in with_bias(plan, bias, True) if one.name.startswith("dq")]
    assert compiler.compile_for(source, TARGETS["sm_90"]).metadata.shared <= GPU.shared


def test_sums_without_room_are_refused():
    plan = plan_attention(weft.causal(), Problem(2, 4, 2, 1024, 1024, 256, 256, "bfloat16", "cuda"), GPU)
    plan = replace(plan, target=replace(GPU, shared=120_000), fixed=(("dq", Tiling(128, 32, 8, 3, apart=True)),))
    bias = weft.bias.relative(torch.zeros(4, 2047))
    words = ("gradients of a score function's tables", "kernel for dq", "120000", "detach the tables")
    refuse(lambda: with_bias(plan, bias, True), UnsupportedKernel, words)
