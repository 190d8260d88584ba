"""Launches that meet the same rows; where one visits all keys and others few, it adds what these leave in float32."""

from unittest import mock

import pytest
import torch

import weft
from weft.kernels.gpu.tables import batches
from weft.kernels.gpu.tables.batches import plan_waves
from weft.planning import work
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.target import GPU

from .compare import BACKENDS, Case, check, generator, qkv
from .planned import nothing_is_set

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends launch nothing")

NEAR = weft.window(left=15)
PATTERNS = {
    "one in sixteen": weft.causal() & (NEAR | weft.periodic_keys(16)),
    "of some heads": weft.per_head([weft.causal(), NEAR | weft.periodic_keys(16)] * 2),
    "of some batch rows": weft.per_batch([NEAR | weft.periodic_keys(16, phase=3), weft.causal()]),
}


def case_of(name, dims, kv_heads, deterministic=True, dtype=torch.float32):
    tensors = qkv(generator(f"joined {name}"), (130, 130), dtype, (4, kv_heads), dims)
    return Case(PATTERNS[name], tensors, backend="triton", deterministic=deterministic)


@pytest.mark.parametrize("name", PATTERNS)
def test_one_launch_joins_others(name):
    """What the tests below are about, where heads do not share keys."""
    problem = Problem(2, 4, 4, 130, 130, 16, 16, "float32", "cuda")
    waves = plan_waves(plan_attention(PATTERNS[name], problem, GPU).transposed, problem, True)
    assert [wave.adds_shared for wave in waves.waves] == [False] * (len(waves.waves) - 1) + [True]
    assert 0 < waves.shared_rows.sum() < 130 / 4


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("name", PATTERNS)
def test_gradients(name, kv_heads, deterministic):
    check(case_of(name, (16, 16), kv_heads, deterministic))


@pytest.mark.parametrize("dims", [(24, 40), (17, 9)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_other_dtypes(dims, dtype):
    check(case_of("one in sixteen", dims, 2, dtype=dtype))


def test_only_what_is_met_is_read():
    """The sums of all other rows are never set."""
    case = case_of("one in sixteen", (16, 16), 2)
    before = case.weft()
    with nothing_is_set():
        after = case.weft()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "pattern", [weft.causal() & (NEAR | weft.strided(16)), weft.bigbird(16)], ids=["strided", "bigbird"]
)
def test_launches_that_meet_all_rows_read_nothing_unset(pattern):
    """What they sum begins as nothing; all else they write before anything reads it."""
    problem = Problem(2, 4, 4, 130, 130, 16, 16, "float32", "cuda")
    for direction in ("forward", "dq"):
        waves = plan_waves(plan_attention(pattern, problem, GPU).towards(direction), problem, False)
        assert waves.covers
        assert waves.merges
    case = Case(pattern, qkv(generator("launches"), (130, 130), torch.float32), backend="triton")
    with nothing_is_set():
        check(case)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("tokens", [20, 64])
def test_long_tiles_leave_shares_to_a_launch_of_their_own(tokens, kv_heads):
    """Keys that all see, where programs visit no more than six tiles: the window's launch joins what others sum."""
    pattern = weft.longformer(30 + kv_heads, global_tokens=tokens)  # looked at nowhere else
    case = Case(pattern, qkv(generator("long"), (330, 330), torch.float32, (4, kv_heads)), backend="triton")
    case.deterministic = False
    problem = Problem(2, 4, kv_heads, 330, 330, 16, 16, "float32", "cuda")
    with mock.patch.object(batches, "most_of", lambda plans, slots: 6), mock.patch.object(work, "LEAST", 0):
        found = plan_waves(plan_attention(pattern, problem, GPU).transposed, problem, True, 1)
        assert [(wave.kind.split, wave.adds_shared) for wave in found.waves] == [(True, False), (False, True)]
        with (
            mock.patch.object(Case, "weft", Case._weft),  # by two kernels
            nothing_is_set(),
        ):
            check(case)
