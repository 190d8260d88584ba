"""Blocks of warp groups as programs take them, in turn or by claims: each once, in equal shares."""

import heapq
from dataclasses import replace

import numpy as np
import pytest

import weft
from weft.kernels.gpu.tables.batches import plan_waves
from weft.kernels.gpu.tables.tile_scheduler import in_turns
from weft.planning.attention_plan import plan_attention
from weft.planning.families.hopper import CONFIGS, SUMMED, WIDE
from weft.planning.problem import Problem
from weft.target import GPUS

CAUSAL = weft.causal()
STRIDED = CAUSAL & (weft.window(left=127) | weft.periodic_keys(128))
PROGRAMS = 132


def wave_of(pattern, tokens, heads=16, d=64):
    problem = Problem(1, heads, heads, tokens, tokens, d, d, "bfloat16", "cuda")
    tiling = WIDE if d > 64 else CONFIGS["forward"]
    plan = plan_attention(pattern, problem, GPUS["h200"], (("forward", tiling),))
    (wave,) = plan_waves(plan.forward, problem, False).waves
    return wave


def blocks_of(wave):
    """(item, member) in the order of the list."""
    return wave.words[wave.blocks_at :].reshape(-1, 2)


def busiest(wave, blocks):
    """Time of the busiest program by that of the mean, counted block by block."""
    done = [0.0] * PROGRAMS
    for number, (item, _) in enumerate(blocks):
        done[number % PROGRAMS] += wave.work[item]
    return max(done) / (sum(done) / PROGRAMS)


def one_after_the_other(wave):
    return [(item, member) for member in range(wave.members) for item in range(wave.items)]


@pytest.mark.parametrize(("tokens", "was", "least"), [(16384, 1.08, 1.035), (32768, 1.11, 1.03)])
def test_long_blocks_are_spread(tokens, was, least):
    wave = wave_of(STRIDED, tokens)
    assert busiest(wave, one_after_the_other(wave)) > was
    assert busiest(wave, blocks_of(in_turns(wave, PROGRAMS))) < least


@pytest.mark.parametrize(
    "pattern", [CAUSAL, CAUSAL & weft.documents([1000, 3000, 500, 7000, 4884])], ids=["causal", "documents"]
)
def test_blocks_of_unlike_length_end_together(pattern):
    """At wide heads, where blocks are exchanged: each is taken once."""
    wave = wave_of(pattern, 16384, d=128)
    blocks = blocks_of(in_turns(wave, PROGRAMS))
    assert busiest(wave, one_after_the_other(wave)) > 1.05
    assert busiest(wave, blocks) < 1.01
    assert sorted(map(tuple, blocks)) == sorted(one_after_the_other(wave))


def claims_of(time):
    """(when each block begins, when the last program ends), where who is done first takes the next one."""
    free, begins = [0.0] * PROGRAMS, []
    for one in time:
        begins.append(free[0])
        heapq.heapreplace(free, free[0] + one)
    return begins, max(free)


@pytest.mark.parametrize(
    ("pattern", "tokens", "most"),
    [
        (CAUSAL, 16384, 1.02), (CAUSAL & weft.chunks(2048), 32768, 1.01), (CAUSAL & weft.chunks(8192), 32768, 1.02),
        (CAUSAL & weft.documents([1000, 3000, 500, 7000, 2000, 1500, 900, 484]), 16384, 1.02),
        (CAUSAL & weft.window(left=1023), 32768, 1.02),
    ],
    ids=["causal", "chunks of 2048", "chunks of 8192", "documents", "window"],
)  # fmt: skip
def test_claimed_blocks_end_together_and_stay_near(pattern, tokens, most):
    """Each block is taken once. At most a few heads are met at a time, before the last ones."""
    problem = Problem(1, 16, 16, tokens, tokens, 128, 128, "bfloat16", "cuda")
    plan = plan_attention(pattern, problem, GPUS["h200"], (("dkdv", SUMMED),))
    (wave,) = plan_waves(plan.transposed, problem, True).waves
    blocks = blocks_of(in_turns(wave, PROGRAMS))
    assert sorted(map(tuple, blocks)) == sorted(one_after_the_other(wave))
    time = wave.work[blocks[:, 0]].tolist()
    begins, end = claims_of(time)
    assert end < most * sum(time) / PROGRAMS
    first = {}
    for begin, (_, member) in zip(begins, blocks, strict=True):
        first.setdefault(int(member), begin)
    half = [m for m in first if first[m] < end / 2]
    for member in half:  # all of a head's blocks begin before the next but two does
        last = max(begin for begin, (_, other) in zip(begins, blocks, strict=True) if other == member)
        assert last <= first.get(member + 2, end)


@pytest.mark.parametrize("tokens", [4096, 16384, 20000, 32768])
@pytest.mark.parametrize("pattern", [STRIDED, CAUSAL], ids=["strided", "causal"])
def test_every_block_is_taken_once_in_its_round(pattern, tokens):
    wave = wave_of(pattern, tokens)
    turned = in_turns(wave, PROGRAMS)
    found, all_of_them = [tuple(x) for x in blocks_of(turned)], one_after_the_other(wave)
    assert np.array_equal(turned.words[: turned.blocks_at], wave.words)
    for begin in range(0, len(all_of_them), PROGRAMS):
        assert sorted(found[begin : begin + PROGRAMS]) == sorted(all_of_them[begin : begin + PROGRAMS])


@pytest.mark.parametrize(
    ("pattern", "tokens", "heads"),
    [(CAUSAL & weft.window(left=127), 16384, 16), (weft.window(256, 256), 16384, 16), (weft.full(), 8192, 16),
     (STRIDED, 4096, 4)],
    ids=["window", "either side", "full", "one block a program"],
)  # fmt: skip
def test_blocks_that_are_alike_stay_one_after_the_other(pattern, tokens, heads):
    wave = wave_of(pattern, tokens, heads)
    assert [tuple(x) for x in blocks_of(in_turns(wave, PROGRAMS))] == one_after_the_other(wave)


def test_heads_side_by_side_stay_so():
    wave = replace(wave_of(weft.full(), 4096), skewed=True)
    blocks = blocks_of(in_turns(wave, len(wave.work) * wave.members))
    assert [tuple(x) for x in blocks] == [(i, m) for i in range(wave.items) for m in range(wave.members)]


def test_waves_of_other_kernels_have_no_list():
    problem = Problem(1, 4, 4, 4096, 4096, 64, 64, "bfloat16", "cuda")
    plan = plan_attention(CAUSAL, problem, GPUS["a100"])
    for wave in plan_waves(plan.forward, problem, False).waves:
        assert in_turns(wave, PROGRAMS) is wave


def test_gradients_on_grids_end_together():
    """Where every so many'th block sees twice as much as others. Each is taken once."""
    problem = Problem(1, 24, 24, 115200, 115200, 128, 128, "bfloat16", "cuda")
    pattern = weft.neighborhood((30, 48, 80), (18, 24, 24), stride=(16, 8, 8))
    plan = plan_attention(pattern, problem, GPUS["h200"], (("dkdv", SUMMED),))
    (wave,) = plan_waves(plan.transposed, problem, True).waves
    blocks = blocks_of(in_turns(wave, PROGRAMS))
    assert sorted(map(tuple, blocks)) == sorted(one_after_the_other(wave))
    time = wave.work[blocks[:, 0]].tolist()
    _, end = claims_of(time)
    assert end < 1.01 * sum(time) / PROGRAMS
