"""Where head dimensions leave no registers for both sums, dV and dK are made by a launch each."""

import pytest
import torch

import weft
from weft.kernels.gpu.configure import specs_of
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.target import GPU

from .compare import BACKENDS, Case, check, generator, normal, qkv

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends launch nothing")

# (pattern, tokens): bounds by formula or table, several terms, listed tokens, grids, blocks, sums that are joined
PATTERNS = {
    "window": (weft.causal() & weft.window(left=20), 70),
    "documents": (weft.documents([30, 0, 1, 39]) & weft.causal(), 70),
    "several": (weft.longformer(9, global_tokens=5), 70),
    "listed": (weft.window(8, 8) | weft.global_tokens([0, 31, 60]), 70),
    "plane": (weft.neighborhood((6, 9), (3, 5)), 54),
    "space": (weft.neighborhood((3, 4, 5), (3, 3, 3)), 60),
    "blocks": (weft.random_blocks(16, 2, seed=1), 70),
    "joined": (weft.causal() & (weft.window(left=15) | weft.periodic_keys(16)), 130),
    "heads": (weft.per_head([weft.dilated(9, 9, step) for step in (1, 2, 4, 4)]), 70),
}
OPTIONS = {"softcap": {"softcap": 3.0}, "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0])}}


def made(problem, pattern="window"):
    """What each of the kernels of keys makes, in order."""
    plan = plan_attention(PATTERNS[pattern][0], problem, GPU)
    return [spec.makes for spec in specs_of(plan, "dkdv")]


@pytest.mark.parametrize("dims", [(161, 161), (256, 72), (72, 256)])
def test_wide_heads_take_two_launches(dims):
    assert made(Problem(1, 2, 2, 70, 70, *dims, "bfloat16", "cuda")) == ["dv", "dk"]


@pytest.mark.parametrize("dims", [(160, 160), (192, 128), (128, 128)])
def test_others_take_one(dims):
    assert made(Problem(1, 2, 2, 70, 70, *dims, "bfloat16", "cuda")) == ["both"]


def test_float32_takes_none():
    assert made(Problem(1, 2, 2, 70, 70, 256, 256, "float32", "cuda")) == ["both"]


def test_each_launch_of_several_is_halved():
    own = Problem(1, 2, 2, 130, 130, 192, 192, "bfloat16", "cuda")
    assert made(own, "joined") == ["dv", "dk"] * 2


@pytest.mark.parametrize("dims", [(168, 168), (72, 256)])
@pytest.mark.parametrize("name", PATTERNS)
def test_gradients(name, dims):
    pattern, tokens = PATTERNS[name]
    dtype = torch.float16 if dims[0] < dims[1] else torch.bfloat16
    check(Case(pattern, qkv(generator(f"halves {name}"), (tokens, tokens), dtype, (4, 4), dims), backend="triton"))


@pytest.mark.parametrize("name", ["window", "joined", "plane"])
def test_heads_that_share_keys(name):
    pattern, tokens = PATTERNS[name]
    tensors = qkv(generator(f"shared {name}"), (tokens, tokens), torch.bfloat16, (4, 2), (200, 136))
    check(Case(pattern, tensors, backend="triton"))


@pytest.mark.parametrize("option", [*OPTIONS, "sinks"])
def test_options(option):
    """lse and delta are then subtracted after the products, or wanted by the gradient of sinks."""
    random = generator(f"options {option}")
    tensors = qkv(random, (70, 70), torch.bfloat16, (4, 2), (136, 256))
    options = OPTIONS.get(option) or {"sinks": normal((4,), random, torch.bfloat16)}
    check(Case(PATTERNS["window"][0], tensors, options=options, backend="triton"))
