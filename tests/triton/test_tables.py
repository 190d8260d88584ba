"""Laws of the tables: read back as kernels read them, they cover exactly the pairs of the pattern, each once."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.tiers import every, examples

import weft
from weft.kernels.gpu.configure import wave_specs
from weft.kernels.gpu.programs import launches
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.tables.batches import plan_waves
from weft.kernels.gpu.tables.writer import reciprocal
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.tiling import Tiling
from weft.planning.tiling.gpu import FAR, plan_for_device
from weft.target import GPU
from weft.testing.cases import BATCH, CASES, HEADS, At
from weft.testing.strategies import per_row_patterns, problems

from .walker import walk_wave

laws = settings(
    max_examples=examples(100),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),  # under CI the examples are always the same
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SMALL = Tiling(16, 8, 4, 1)  # many tiles in few tokens
SHAPES = (None, SMALL)  # None: the shapes that kernels have


def waves_of(pattern, problem, shape, transposed, packs=1):
    """The waves of one direction as programs have them, of tiles of another shape if one is named;
    distinct heads dealt out into so many packs.
    """
    plan = plan_attention(pattern, problem, GPU)
    found = []
    for number, share in enumerate(plan.transposed if transposed else plan.forward):
        tiles = share.plan
        if shape is not None:
            tiles = replace(plan_for_device(tiles.acsr, problem, GPU, shape), of_blocks=tiles.of_blocks)
        found.append(replace(share, plan=tiles, pack=number % packs))
    return plan_waves(found, problem, transposed)


def coverage(waves, problem, transposed):
    """(how often each pair is computed (B, Hq, M, N), how many waves write each row (B, heads, rows))."""
    lengths = (problem.n, problem.m) if transposed else (problem.m, problem.n)
    heads = problem.kv_heads if transposed else problem.q_heads
    count = np.zeros((problem.batch, problem.q_heads, *lengths), int)
    written = np.zeros((problem.batch, heads, lengths[0]), int)
    for wave in waves.waves:
        here = np.zeros_like(written)
        for tile in walk_wave(wave, lengths):
            batch, kv_head, first, group = tile.owner
            here[batch, kv_head if transposed else first, tile.rows] += 1
            for visit in tile.visits:
                for head in range(first, first + group):
                    count[batch, head][np.ix_(visit.rows, visit.cols)] += visit.mask
        # waves run side by side and one after another: inside one, nobody waits for anybody
        assert here.max(initial=0) <= 1, "a wave writes a row twice"
        assert wave.merges or (written[here > 0] == 0).all(), "a row is written again by a wave that does not merge"
        written += here
    return count.swapaxes(2, 3) if transposed else count, written


def check_tables(pattern, problem, shape, packs=1):
    live = np.broadcast_to(
        pattern.to_dense(problem.m, problem.n), (problem.batch, problem.q_heads, problem.m, problem.n)
    )
    for transposed in (False, True):
        waves = waves_of(pattern, problem, shape, transposed, packs)
        count, written = coverage(waves, problem, transposed)
        what = f"{pattern} {problem}, {'transposed' if transposed else 'forward'}"
        wrong = np.argwhere(count != live)
        assert not wrong.size, f"{what}: pair {wrong[0]} is computed {count[tuple(wrong[0])]} times"
        assert not written.size or waves.covers == (written > 0).all(), f"{what}: covers is {waves.covers}"
        assert waves.merges or (written <= 1).all(), f"{what}: two waves write a row, and nobody merges"
        if waves.shared_rows is not None:  # the last wave writes all rows, so what others write is what it must join
            assert transposed, what
            assert [wave.adds_shared for wave in waves.waves][:-1] == [False] * (len(waves.waves) - 1), what
            assert np.array_equal(waves.shared_rows, (written > 1).any((0, 1))), (
                f"{what}: shared_rows are not what others write"
            )


# Integers of an item, which come in this order for the only part: what they must not be off by.
WRONG = [("first", 1), ("first", -1), ("count", -1), ("left", 1), ("left", -1), ("full", 1)]


@pytest.mark.parametrize("field,by", WRONG)
def test_a_wrong_integer_is_noticed(field, by):
    """One tile in the middle of a window, with an edge at both ends and full tiles between."""
    pattern, problem = weft.window(100, 100), problem_at(400, 400)
    waves = waves_of(pattern, problem, SMALL, False)
    (wave,) = waves.waves
    words = wave.words.copy()
    words[wave.place.items_at + 12 * wave.place.record + 2 + ("first", "count", "left", "full").index(field)] += by
    wrong = replace(waves, waves=(replace(wave, words=words),))
    try:
        count, _ = coverage(wrong, problem, False)
    except AssertionError:
        return
    assert (count != pattern.to_dense(400)).any()


def problem_at(m, n, batch=1, heads=(1, 1)):
    return Problem(batch, *heads, m, n, 64, 64, "bfloat16", "cuda")


@pytest.mark.parametrize("shape", SHAPES, ids=["real", "small"])
@pytest.mark.parametrize("name", every(12, CASES))
def test_cases(name, shape):
    for at in (At(130, 130), At(70, 130, "bottom-right"), At(130, 63, "top-left")):
        if CASES[name].fits(at.m, at.n):
            check_tables(CASES[name].make(at), problem_at(at.m, at.n, BATCH, (HEADS, 2)), shape)


@laws
@given(problems(longest=100), st.sampled_from(SHAPES))
def test_random_patterns(problem, shape):
    pattern, m, n = problem
    check_tables(pattern, problem_at(m, n), shape)


def test_lanes_without_a_listed_key():
    pattern = ~weft.fixed(3) | (weft.periodic_keys(3) & weft.global_tokens([0, 5]))
    check_tables(pattern, problem_at(7, 7), None)


def test_heads_of_a_group_that_are_no_neighbours():
    """The first and the third head share a plan and a head of keys: side by side they would both add to its rows."""
    heads = [weft.causal(), weft.window(9, 9), weft.causal(), weft.window(9, 9)]
    check_tables(weft.per_head(heads), problem_at(100, 100, 2, (4, 1)), SMALL)


@laws
@given(per_row_patterns(), st.integers(0, 70), st.integers(1, 2), st.integers(1, 3))
def test_random_patterns_of_heads_and_rows(pattern, length, group, packs):
    """Two heads and three batch rows, of which some share plans."""
    problem = problem_at(length, length, 3, (2, 2 // group))
    check_tables(pattern, problem, SMALL, packs)


@pytest.mark.parametrize("pattern", [weft.causal(), weft.longformer(9, global_tokens=2)], ids=["alone", "skewed"])
def test_more_heads_than_the_third_axis_of_a_grid_has(pattern):
    """Of many small windows: a grid has 65,535 programs along its second and third axis."""
    (wave,) = waves_of(pattern, problem_at(64, 64, 4096, (17, 17)), None, False).waves
    together, tiles, after = launches._grid(wave, 0)
    assert (together * after, tiles) == (wave.members, wave.items)
    assert wave.members >= 4096 * 17 > launches.GRID >= max(tiles, after)


@pytest.mark.parametrize("span, fits", [((1 << 27) - 1, True), (1 << 27, False)])
def test_offsets_of_rows_of_numbers_are_32_bits_where_that_is_enough(span, fits):
    """Stats has 16 numbers for each query, more than queries of 8 dims."""
    waves = waves_of(weft.dilated(9, 9, 3), problem_at(64, 64), None, True)
    spec = KernelSpec("dkdv", "bfloat16", 8, 8, 1, 0, 0)
    (found,) = wave_specs(spec, replace(waves.waves[0], span=span), waves, 8)
    assert found.aligned == fits


@given(st.integers(1, FAR), st.integers(0, 2**31 - 1))
@example(step=1, x=2**31 - 1)
@example(step=FAR, x=2**31 - 1)
@example(step=3, x=2**31 - 1)
def test_a_reciprocal_divides_exactly(step, x):
    """As `device.positions` does: by the high half of a product of 32 bits by 32."""
    inverse, digits = reciprocal(step)
    assert inverse < 1 << 32
    assert 0 <= digits < 32
    assert (2 * x * inverse >> 32) >> digits == x // step
