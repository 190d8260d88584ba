"""The order of blocks of a forward by warp groups: the same blocks, in equal shares."""

import numpy as np
import pytest

import weft
from weft.kernels.triton.turns import BESIDE, in_turns
from weft.kernels.triton.waves import plan_waves
from weft.planning.attention_plan import plan_attention
from weft.planning.candidates import IN_GROUPS
from weft.planning.problem import Problem
from weft.target import GPUS

CAUSAL = weft.causal()
STRIDED = CAUSAL & (weft.window(left=127) | weft.periodic_keys(128))
PROGRAMS = 132


def wave_of(pattern, tokens, heads=16):
    problem = Problem(1, heads, heads, tokens, tokens, 64, 64, "bfloat16", "cuda")
    plan = plan_attention(pattern, problem, GPUS["h200"], (("forward", IN_GROUPS["forward"]),))
    (wave,) = plan_waves(plan.forward, problem, False).waves
    return wave


def items_of(wave):
    begin = wave.place.items_at
    return wave.words[begin : begin + wave.items * wave.place.record].reshape(wave.items, wave.place.record)


def busiest(wave):
    """Time of the busiest program by that of the mean, counted block by block."""
    done = [0.0] * PROGRAMS
    for block in range(wave.items * wave.members):
        done[block % PROGRAMS] += wave.work[block % wave.items] + BESIDE
    return max(done) / (sum(done) / PROGRAMS)


@pytest.mark.parametrize(("tokens", "was", "least"), [(16384, 1.09, 1.05), (32768, 1.13, 1.05)])
def test_long_blocks_are_spread(tokens, was, least):
    wave = wave_of(STRIDED, tokens)
    assert busiest(wave) > was
    assert busiest(in_turns(wave, PROGRAMS)) < least


@pytest.mark.parametrize("tokens", [16384, 32768])
def test_blocks_are_the_same_ones(tokens):
    wave = wave_of(STRIDED, tokens)
    other = in_turns(wave, PROGRAMS)
    one, two = items_of(wave), items_of(other)
    assert not np.array_equal(one, two)
    assert sorted(map(tuple, one)) == sorted(map(tuple, two))
    end = wave.place.items_at + one.size
    assert np.array_equal(wave.words[: wave.place.items_at], other.words[: wave.place.items_at])
    assert np.array_equal(wave.words[end:], other.words[end:])
    # and each has its own work beside it
    assert sorted(zip(map(tuple, one), wave.work, strict=True)) == sorted(zip(map(tuple, two), other.work, strict=True))


@pytest.mark.parametrize(
    ("pattern", "tokens", "heads"),
    [(CAUSAL & weft.window(left=127), 16384, 16), (weft.window(256, 256), 16384, 16), (weft.full(), 8192, 16),
     (STRIDED, 4096, 4)],
    ids=["window", "either side", "full", "one block a program"],
)  # fmt: skip
def test_equal_blocks_stay_where_they_are(pattern, tokens, heads):
    wave = wave_of(pattern, tokens, heads)
    assert in_turns(wave, PROGRAMS) is wave
