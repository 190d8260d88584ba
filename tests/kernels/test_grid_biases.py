"""Gradients of biases on grids, which kernels sum by differences of coordinates, beside dense attention."""

from math import prod

import pytest
import torch
from tests.tiers import sample

import weft
from weft.kernels.gpu.score.slots import walked_grid
from weft.planning.attention_plan import plan_attention
from weft.planning.families.tile import Under
from weft.planning.tiling import DIRECTIONS
from weft.target import GPU
from weft.torch.along import distances_of
from weft.torch.inputs import problem_of

from .compare import BACKENDS, generator, normal, qkv
from .scored import Scored, check

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="tests/torch/test_bias.py has the CPU's")
CUTS = [3, 7, 7, 4]
CASES = {
    "plane": ((8, 10), weft.neighborhood((8, 10), (5, 5)), (5, 7), 1),
    "clipped": ((8, 10), weft.neighborhood((8, 10), (7, 7)), (3, 3), 1),
    "long boxes": ((4, 37), weft.neighborhood((4, 37), (3, 21)), (5, 41), 1),
    "dilated": ((12, 12), weft.neighborhood((12, 12), (5, 5), dilation=2), (9, 9), 2),
    "strided": ((8, 16), weft.neighborhood((8, 16), (5, 6), stride=(1, 2)), (9, 13), 1),
    "shifted windows": ((21, 21), weft.product([weft.documents(CUTS)] * 2, (21, 21)), (13, 13), 1),
    "wide boxes": ((16, 24), weft.neighborhood((16, 24), (7, 7)), (13, 13), 1),
    "volume": ((4, 5, 6), weft.neighborhood((4, 5, 6), (3, 3, 3)), (5, 3, 5), 1),
}


def function_of(table, shape, step):
    """The bias as users of FlexAttention write it."""

    def f(score, b, h, q, k):
        at = [h]
        for axis, length in enumerate(shape):
            pace, reach = prod(shape[axis + 1 :]), table.shape[1 + axis] // 2
            apart = (k // pace % length - q // pace % length) // step
            at.append(apart.clamp(-reach, reach) + reach)
        return score + table[tuple(at)]

    return f


@pytest.mark.parametrize("name", sample(CASES, "clipped"))
def test_gradients_of_a_bias_on_a_grid(name):
    shape, pattern, sizes, step = CASES[name]
    random, tokens = generator(name), prod(shape)
    table = normal((4, *sizes), random).double().requires_grad_()
    tensors = qkv(random, (tokens, tokens), torch.float32, (4, 2))
    plan = plan_attention(pattern, problem_of(*tensors), GPU)
    assert walked_grid(plan) == shape, "or sums are made pair by pair"
    assert distances_of(plan).grid == shape, "or tables are read where they are"
    found = check(Scored(pattern, tensors, function_of(table, shape, step), (table,),
                         lambda x: weft.bias.grid(x, shape, step)))  # fmt: skip
    assert (found["dtable0"] != 0).any()


@pytest.mark.more
def test_grids_that_are_not_walked_are_summed_by_pairs():
    """A bias on another grid than the pattern's, and one beside a pattern of lines."""
    tensors = qkv(generator("others"), (80, 80), torch.float32, (4, 2))
    table = normal((4, 3, 5), generator("table")).double().requires_grad_()
    for pattern in (weft.neighborhood((10, 8), (5, 5)), weft.window(9, 9)):
        check(Scored(pattern, tensors, function_of(table, (8, 10), 1), (table,),
                     lambda x: weft.bias.grid(x, (8, 10))))  # fmt: skip


@pytest.mark.more
def test_wide_heads_take_narrow_tiles():
    """Beyond D=64 score functions take tiles of their own on a grid, in the same order of tokens; gradients by distance
    take them with fewer warps.
    """
    shape, pattern, sizes, step = CASES["plane"]
    table = normal((4, *sizes), generator("wide")).double().requires_grad_()
    tensors = qkv(generator("wide"), (80, 80), torch.bfloat16, (4, 2), (96, 96))
    plan = plan_attention(pattern, problem_of(*tensors), GPU)
    tilings = [plan.unspecialised(one, Under(scores=True))[0].plan.tiling for one in DIRECTIONS]
    assert all(tiling.cols == 32 for tiling in tilings)
    by_distance = Under(scores=True, by_distance=True)
    tilings = [plan.unspecialised(one, by_distance)[0].plan.tiling for one in ("dq", "dkdv")]
    assert all((tiling.cols, tiling.warps) == (32, 4) for tiling in tilings)
    check(Scored(pattern, tensors, function_of(table, shape, step), (table,), lambda x: weft.bias.grid(x, shape, step)))
