"""Two or three terms on one axis: forward and dQ walk them in one loop."""

import pytest
import torch

import weft
from weft.kernels.gpu.configure import specs_of
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.target import GPU

from .compare import BACKENDS, Case, check, generator, qkv

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="of this backend's kernels")

TOKENS = 330
NEAR = weft.window(left=70)
PATTERNS = {
    "every ninth key": weft.causal() & (NEAR | weft.periodic_keys(9)),
    "first keys": weft.causal() & (NEAR | weft.prefix(4)),
    "no tile is full": weft.causal() & (weft.window(left=3) | weft.periodic_keys(40)),
    "both sides": weft.window(20, 60) | weft.periodic_keys(11),
    "lists of bounds": weft.documents([40, 3, 57, 230]) | weft.periodic_keys(16),
    "fewer terms beside it": weft.longformer(50, global_tokens=16),
    "of some heads": weft.per_head([weft.causal() & (NEAR | weft.periodic_keys(9)), weft.causal()] * 2),
    "of some batch rows": weft.per_batch([weft.causal() & (NEAR | weft.prefix(4)), NEAR | weft.periodic_keys(30)]),
}
OPTIONS = {
    "softcap": {"softcap": 3.0},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
    "sinks": {"sinks": torch.tensor([0.3, -0.5, 0.1, 2.0])},
}


def case_of(name, dtype=torch.float32, kv_heads=4, dims=(16, 16), **options):
    tensors = qkv(generator(f"terms {name}"), (TOKENS, TOKENS), dtype, (4, kv_heads), dims)
    return Case(PATTERNS[name], tensors, backend="triton", **options)


@pytest.mark.parametrize("direction", ["forward", "dq"])
@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("every ninth key", 2),
        ("first keys", 2),
        ("no tile is full", 2),
        ("both sides", 3),
        ("lists of bounds", 3),
        ("fewer terms beside it", 2),
    ],
)
def test_what_the_tests_below_are_about(name, terms, direction):
    problem = Problem(2, 4, 4, TOKENS, TOKENS, 16, 16, "float32", "cuda")
    specs = specs_of(plan_attention(PATTERNS[name], problem, GPU), direction)
    assert [(spec.terms, spec.several, spec.apart) for spec in specs] == [(terms, False, False)]


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("name", PATTERNS)
def test_results(name, kv_heads):
    check(case_of(name, kv_heads=kv_heads))


@pytest.mark.parametrize("dims", [(24, 40), (80, 80)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["every ninth key", "no tile is full"])
def test_results_of_other_dtypes(name, dtype, dims):
    check(case_of(name, dtype, dims=dims))


@pytest.mark.parametrize("option", OPTIONS)
def test_results_with_options(option):
    check(case_of("every ninth key", options=OPTIONS[option]))


def test_rows_whose_maximum_is_in_the_second_term():
    """The first keys of a window weigh next to nothing beside one far back."""
    case = case_of("first keys")
    case.tensors[1][:, :, 0] *= 30
    check(case)
