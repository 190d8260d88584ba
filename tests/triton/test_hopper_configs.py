"""What forwards of configurations that a call names take of a card, read from their machine code."""

from math import prod

import pytest

import weft
from weft.kernels.gpu.compile.load import source_of
from weft.kernels.gpu.configure import specs_of
from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.program import row_major
from weft.kernels.gpu.programs.backward import keys_program
from weft.kernels.gpu.programs.forward import forward_program
from weft.planning.attention_plan import plan_attention
from weft.planning.families.hopper import CONFIGS, SUMMED, WIDE
from weft.planning.problem import Problem
from weft.settings import interpreted

from .resources import SHARED, TARGETS, resources
from .specs import card

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

FEW = 24  # accesses of local memory in all loops of the two consumers, of results that are written too
ONE_BY_ONE = 0.5  # waits for products over products: about 1 where the assembler runs them one by one
CASES = [
    (64, "float16", CONFIGS["forward"]),
    (128, "bfloat16", WIDE),
    (80, "bfloat16", WIDE),
    (96, "bfloat16", WIDE),
    (120, "bfloat16", WIDE),
    (128, "float16", WIDE),
]


def named(d, dtype, tiling):
    return f"{d}, {dtype}, {tiling.rows}x{tiling.cols}"


@pytest.mark.parametrize(
    "d, dtype, tiling",
    [pytest.param(*one, id=named(*one), marks=[pytest.mark.more] * (n > 0)) for n, one in enumerate(CASES)],
)
def test_named_configurations_fit(d, dtype, tiling):
    """Nothing spills inside a loop, and products overlap what comes between them."""
    from weft.kernels.gpu.compile import compiler

    plan = plan_attention(
        weft.causal(), Problem(1, 4, 4, 4096, 4096, d, d, dtype), card("sm_90"), (("forward", tiling),)
    )
    (spec,) = specs_of(plan, "forward")
    assert spec.groups == tiling.groups
    takes = resources(compiler.compile_for(source_of(spec), TARGETS["sm_90"]), "sm_90")
    assert takes.registers <= tiling.registers
    assert takes.inside == 0
    assert takes.waits < ONE_BY_ONE
    assert takes.shared <= SHARED["sm_90"] * 1024


@pytest.mark.more
@pytest.mark.parametrize("direction, shape, size, d", [
    ("forward", (128, 128), (31, 31), 128), ("gradients", (128, 128), (31, 31), 128),
    ("forward", (16, 32, 32), (8, 12, 12), 128), ("gradients", (16, 32, 32), (8, 12, 12), 128),
    ("forward", (64, 64), (7, 7), 64),
], ids=str)  # fmt: skip
def test_kernels_of_grids_fit(direction, shape, size, d):
    """Nothing spills inside a loop of a forward, and little in those of gradients."""
    from weft.kernels.gpu.compile import compiler

    tokens, of_keys = prod(shape), direction == "gradients"
    problem, sides = Problem(1, 16, 16, tokens, tokens, d, d, "bfloat16"), (row_major((1, 16, tokens, d)),)
    pattern = weft.neighborhood(shape, size)
    plan = plan_attention(pattern, problem, card("sm_90"), (("dkdv", SUMMED),) if of_keys else ())
    if of_keys:
        program = keys_program(plan, Layout(sides * 5, True), Options(1.0, deterministic=False), True)
    else:
        program = forward_program(plan, Layout(sides * 3, True), Options(1.0))
    (launch,) = program.launches
    assert launch.spec.boxes
    takes = resources(compiler.compile_for(launch.kernel, TARGETS["sm_90"]), "sm_90")
    assert takes.inside <= (FEW if of_keys else 0)
    assert takes.waits < ONE_BY_ONE
    assert takes.shared <= SHARED["sm_90"] * 1024
