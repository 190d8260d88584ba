"""Whole programs on the oracle, of calls that reach every kernel: what dense attention computes, to 1e-10."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from tests.tiers import every

import weft
from weft.kernels.gpu.layout import Vector
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.program import Convert
from weft.kernels.gpu.programs.backward import backward_program
from weft.kernels.gpu.spec import KernelSpec
from weft.planning.tiling import DIRECTIONS
from weft.testing.workloads import WORKLOADS

from .calls import BAND, KERNELS, TWO, hopper
from .checked import EXACT, Call, check, expected, given_to, programs, specs_of

CARDS = ("a100", "b200", "mi300x")  # beside the H200, which all calls are planned for


@pytest.mark.parametrize("name", every(4, KERNELS))
def test_programs_compute_attention(name):
    check(KERNELS[name])


@pytest.mark.parametrize("name,card", every(5, [(name, CARDS[i % len(CARDS)]) for i, name in enumerate(KERNELS)]))
def test_programs_of_other_cards_compute_attention(name, card):
    check(replace(KERNELS[name], card=card, fixed=()))


# Options of KernelSpec by direction, of which some call has each; a value that is not True is one of several.
OF_TILES = (
    "listed",
    "ordered",
    "several",
    "more",
    "whole",
    "packed",
    "accumulate",
    "lines",
    "softcap",
    "alibi",
    "rescaled",
)
REACHED = {
    "forward": (*OF_TILES, "sinks", "short"),
    "dq": (*OF_TILES, "lse_gradient", "with_delta"),
    "dkdv": (*OF_TILES, "grouped", "split", "with_dq", "leaves_shared", "adds_shared"),
    "delta": ("lse_gradient",),
    "fused": ("lse_gradient", "with_delta"),
    "sparse_keys": (),
    "reduce_partials": (),
}
VALUES = {
    ("forward", "rank"): {0, 1, 2, 3},
    ("dq", "rank"): {0, 1, 2, 3},
    ("dkdv", "rank"): {0, 1, 2, 3},
    ("forward", "formula"): {False, True},
    ("dq", "formula"): {False, True},
    ("dkdv", "formula"): {False, True},
    ("forward", "aligned"): {False, True},
    ("dq", "aligned"): {False, True},
    ("dkdv", "aligned"): {False, True},
    ("forward", "terms"): {1, 2, 3},
    ("dq", "terms"): {1, 2, 3},
    ("forward", "groups"): {0, 2, 4},
    ("dkdv", "groups"): {0, 2},
    ("dkdv", "makes"): {"both", "dk", "dv"},
    ("dkdv", "folded"): {False, True},
}  # fmt: skip


def test_calls_reach_every_kernel():
    seen = defaultdict(set)
    in_groups = set()
    for call in KERNELS.values():
        for spec in specs_of(call):
            if isinstance(spec, KernelSpec):
                for name in {*REACHED[spec.direction], *(name for one, name in VALUES if one == spec.direction)}:
                    seen[spec.direction, name].add(getattr(spec, name))
                in_groups.add((spec.direction, spec.groups > 0, spec.terms, spec.short))
    missing = [(one, name) for one, names in REACHED.items() for name in names if True not in seen[one, name]]
    missing += [(*key, wanted - seen[key]) for key, wanted in VALUES.items() if wanted - seen[key]]
    assert missing == []
    assert {("forward", True, terms, short) for terms in (1, 2) for short in (False, True)} <= in_groups


def test_vectors_of_a_call_in_other_types_and_orders():
    """Kernels read contiguous float32: a program converts lse, its gradient and slopes first."""
    call = Call(BAND, 150, heads=(2, 1), options={"lse": True, "alibi": True})
    arrays = call.arrays()
    arrays |= run_program(programs(call)[0], given_to(programs(call)[0], arrays))
    lies = (1, 300, 2)  # batch row, head, query
    layout = call.layout(True)._replace(
        lse=Vector("float64", lies), dlse=Vector("bfloat16", lies), slopes=Vector("float64", (3,))
    )
    program = backward_program(call.plan, layout, call.how)
    converted = [step.source for step in program.steps if isinstance(step, Convert)]
    assert {*converted} == {"lse", "dlse", "slopes"}
    found, wanted = run_program(program, given_to(program, arrays)), expected(call, arrays)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_allclose(found[name], wanted[name], **EXACT, err_msg=name)


# ---- as plans choose ---------------------------------------------------------------------------------------------
wide = pytest.mark.wide
CHOSEN = {  # what plans choose warp groups for by themselves -> (call, the directions that have them)
    "a short sequence": (hopper(BAND, 300), {"forward", "fused"}),
    "dilated": (hopper(weft.dilated(9, 9, 3), 200), {"dkdv"}),
    "few keys beside a short window": (hopper(TWO, 1500), {"fused", "sparse_keys", "reduce_partials"}),
    "a short window": (hopper(weft.causal() & weft.window(left=127), 4096, heads=(4, 4)), {"forward", "fused"}),
    "a window": (hopper(weft.causal() & weft.window(left=300), 8192, heads=(4, 4)), {"forward", "dkdv"}),
}
LONG = ("a short window", "a window")


@pytest.mark.parametrize("name", [pytest.param(x, marks=wide) if x in LONG else x for x in CHOSEN])
def test_plans_that_choose_warp_groups(name):
    call, wanted = CHOSEN[name]
    chosen = {spec.direction for spec in specs_of(call) if spec.groups}
    assert chosen == wanted
    check(call)


MOST, LONGEST = 512, 4608  # tokens of workloads that are computed always, and if asked for


@pytest.mark.parametrize(
    "name", [pytest.param(w.name, marks=() if w.n <= MOST else wide) for w in WORKLOADS.values() if w.n <= LONGEST]
)
def test_workloads(name):
    """One head of keys with the query heads that share it, in the tiles of all heads."""
    w = WORKLOADS[name]
    full = Call(w.make(), w.m, w.n, (w.q_heads, w.kv_heads), w.batch, (w.d, w.dv), w.dtype).plan
    tilings = {direction: full.towards(direction)[0].plan.tiling for direction in DIRECTIONS}
    fixed = tuple((direction, tiling) for direction, tiling in tilings.items() if tiling is not None)
    heads = (w.q_heads // w.kv_heads, 1)
    check(Call(w.make(), w.m, w.n, heads, 1, (w.d, w.dv), w.dtype, options={"sinks": w.sinks}, fixed=fixed))
