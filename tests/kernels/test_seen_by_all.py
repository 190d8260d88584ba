"""Tokens that all see, and that see all, beside a window: kernels walk them in the window's loop of full tiles."""

import pytest
import torch

import weft
from weft.kernels.gpu.configure import specs_of
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.target import GPU
from weft.testing.workloads import named

from .compare import BACKENDS, Case, check, generator, qkv

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="of this backend's kernels")

TOKENS = 330
PATTERNS = {
    "longformer": weft.longformer(80, global_tokens=64),
    "two tiles of them": weft.longformer(50, global_tokens=128),
    "of a causal window": weft.causal() & (weft.window(left=70) | weft.prefix(64)),
    "narrower than a tile": weft.longformer(9, global_tokens=64),
    "of some heads": weft.per_head([weft.longformer(80, global_tokens=64), weft.longformer(80, global_tokens=70)] * 2),
    "of some batch rows": weft.per_batch([weft.longformer(50, global_tokens=128), weft.causal()]),
}


def case_of(name, dtype=torch.float32, kv_heads=4, dims=(16, 16), deterministic=True):
    tensors = qkv(generator(f"seen by all {name}"), (TOKENS, TOKENS), dtype, (4, kv_heads), dims)
    return Case(PATTERNS[name], tensors, backend="triton", deterministic=deterministic)


@pytest.mark.parametrize("name", ["longformer", "two tiles of them", "narrower than a tile"])
@pytest.mark.parametrize("direction", ["forward", "dq"])
def test_what_the_tests_below_are_about(name, direction):
    problem = Problem(2, 4, 4, TOKENS, TOKENS, 16, 16, "float32", "cuda")
    specs = specs_of(plan_attention(PATTERNS[name], problem, GPU), direction)
    assert any(spec.more for spec in specs)
    assert not any(spec.several for spec in specs)


@pytest.mark.parametrize("direction", ["forward", "dq"])
@pytest.mark.parametrize(("tokens", "alone"), [(64, True), (128, True), (65, False)])
def test_queries_that_see_all_join_the_others_where_a_tile_ends(tokens, alone, direction):
    """A program need not ask then which of two nests is its own; each tile still belongs to one of them."""
    problem = Problem(2, 4, 4, 1280, 1280, 16, 16, "bfloat16", "cuda")
    plan = plan_attention(weft.longformer(100, global_tokens=tokens), problem, GPU)
    assert [spec.packed for spec in specs_of(plan, direction)] == [not alone]
    (share,) = plan.towards(direction)
    assert len(share.plan.nests) == (1 if alone else 2)
    plan.verify()


def test_keys_of_longformer_are_walked_so_too():
    """Three terms: the window, the queries that see all, and for keys that all see the other queries."""
    w = named("longformer_w512_g64")
    plan = plan_attention(w.make(), w.problem("cuda"), GPU)
    assert [(spec.more, spec.several) for spec in specs_of(plan, "dkdv")] == [(True, False)]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("name", PATTERNS)
def test_results(name, kv_heads, deterministic):
    check(case_of(name, kv_heads=kv_heads, deterministic=deterministic))


@pytest.mark.parametrize("dims", [(24, 40), (80, 80)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["longformer", "of a causal window"])
def test_results_of_other_dtypes(name, dtype, dims):
    check(case_of(name, dtype, dims=dims))
