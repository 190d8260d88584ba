"""What plans for a GPU are said to do is what their tables make programs do."""

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from tests.tiers import examples

import weft
from weft.kernels.gpu.tables.batches import plan_waves
from weft.planning.attention_plan import plan_attention
from weft.planning.cost import waiting
from weft.planning.heads import count_heads
from weft.planning.problem import Problem
from weft.planning.rates import Rates
from weft.planning.work import Work, slots_of, works
from weft.target import CPU, GPU
from weft.testing.strategies import problems

LONG = [
    weft.causal() & weft.window(left=500),
    weft.longformer(100, global_tokens=5),
    weft.causal() & (weft.strided(64) | weft.window(left=63)),
    weft.documents([100, 700, 1200, 48]) & weft.causal(),
    weft.dilated(300, 300, 4),
    weft.neighborhood((32, 64), (9, 7)),
    weft.neighborhood((8, 16, 16), (3, 5, 5)),
    weft.per_head([weft.window(30, 30), weft.dilated(100, 100, 2)]),
    weft.random_blocks(64, 3, seed=1) | weft.window(80, 80),
]


def both(pattern, problem, transposed, split):
    """(works, waves) of one direction."""
    plan = plan_attention(pattern, problem, GPU)
    shares = plan.transposed if transposed else plan.forward
    counted = []
    for pack in dict.fromkeys(share.pack for share in shares):
        mine = [(share.plan, count_heads(share.heads)) for share in shares if share.pack == pack]
        counted += works(mine, slots_of(GPU), split)
    slots = slots_of(GPU) if split else None
    return counted, plan_waves(shares, problem, transposed, slots)


def check(pattern, problem):
    """Programs, tiles and the longest program, wave by wave; groups of one head, so that heads are members."""
    for transposed in (False, True):
        counted, waves = both(pattern, problem, transposed, False)
        assert len(counted) <= len(waves.waves)  # kinds are coarser than what a kernel's code depends on
        assert sum(work.tiles for work in counted) == sum(_tiles(wave) for wave in waves.waves)


def _tiles(wave):
    """Tiles of all members of a wave, read from its tables."""
    words, total = wave.words.astype(np.int64), 0
    for member in words[wave.heads_at :].reshape(wave.members, -1):
        base, items, record, parts, _, items_at = member[4:]
        here = words[base + items_at : base + items_at + items * record].reshape(items, record)
        rank = wave.kind.rank
        if rank == 0:
            total += int((here[:, 2] - here[:, 1]).sum())
            continue
        boxes = _boxes(words[base:], rank, int(parts))
        for part in range(parts):
            here_part = np.ones(items, np.int64)
            for axis in range(rank):
                here_part *= -(-here[:, 2 * rank + 4 * (part * rank + axis) + 1] // boxes[part][axis])
            total += int(here_part.sum())
    return total


def _boxes(words, rank, parts):
    """Keys of a box, for each part and axis."""
    from weft.kernels.gpu.tables.pack import PART, axis_words

    at, size = 2 + 3 * rank, PART + axis_words(rank) * rank
    return [
        [1 << int(words[at + part * size + PART + axis_words(rank) * axis + 1]) for axis in range(rank)]
        for part in range(parts)
    ]


@pytest.mark.parametrize("pattern", LONG, ids=str)
def test_tiles_of_patterns(pattern):
    heads = 2 if "per_head" in str(pattern) else 3
    problem = Problem(2, heads, heads, 2048, 2048, 64, 64, "bfloat16", "cuda")
    check(pattern, problem)
    counted, waves = both(pattern, problem, False, False)
    assert len(counted) == len(waves.waves)


@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(problems(longest=300))
@example((~weft.segments([1, 6], [[True, False], [False, weft.strided(1, align="top-left")]]), 7, 7))
def test_tiles_of_any_pattern(found):
    pattern, m, n = found
    batch, heads = pattern.extent()
    check(pattern, Problem(batch or 1, heads or 2, heads or 2, m, n, 64, 64, "bfloat16", "cuda"))


def test_full_and_edge_tiles_of_a_window():
    """A causal window of two tiles: an edge at both ends, one full tile between; less in the first rows."""
    problem = Problem(1, 1, 1, 640, 640, 64, 64, "bfloat16", "cuda")
    (work,), _ = both(weft.causal() & weft.window(left=127), problem, False, False)
    assert (work.kind, work.programs, work.edge, work.full, sum(work.most)) == ("formula", 10, 18, 9, 3)


def test_kinds():
    kinds = {}
    for pattern in LONG:
        heads = 2 if "per_head" in str(pattern) else 3
        counted, _ = both(pattern, Problem(1, heads, heads, 2048, 2048, 64, 64, "bfloat16", "cuda"), False, False)
        kinds[str(pattern).split("(")[0]] = {work.kind for work in counted}
    assert kinds["longformer"] == {"several"}
    assert kinds["documents"] == {"table"}
    assert kinds["dilated"] == {"formula"}


def test_a_split_program_is_no_longer_the_longest():
    """The tile of keys that every query sees is cut where sums may come in any order."""
    problem = Problem(1, 4, 4, 65536, 65536, 64, 64, "bfloat16", "cuda")
    whole, _ = both(weft.longformer(64, global_tokens=1), problem, True, False)
    cut, _ = both(weft.longformer(64, global_tokens=1), problem, True, True)
    assert max(sum(work.most) for work in cut) < max(sum(work.most) for work in whole) / 4
    assert sum(work.tiles for work in cut) == sum(work.tiles for work in whole)
    assert sum(work.programs for work in cut) > sum(work.programs for work in whole)


def test_few_rows_of_other_launches_are_joined():
    """As the kernels do: one key in 128 is in a launch of its own, and every key in the other; or all in both."""
    problem = Problem(1, 4, 4, 16384, 16384, 64, 64, "bfloat16", "cuda")
    near = weft.window(left=127)
    few, waves = both(weft.causal() & (near | weft.periodic_keys(128)), problem, True, True)
    assert [work.merged for work in few] == [False] * 2
    assert waves.shared_rows.nonzero()[0].tolist() == list(range(127, 16384, 128))
    all_of_both, waves = both(weft.causal() & (near | weft.strided(128)), problem, True, True)
    assert [work.merged for work in all_of_both] == [True] * 2
    assert waves.shared_rows is None


def test_a_cpu_has_one_slot():
    assert slots_of(CPU) == 1


def test_short_programs_leave_room_for_the_last_round():
    """400 programs on 396 places wait less if 40 of them are short, and a lone long one has a processor for itself."""
    rate = Rates(1000.0, 100.0, 100.0)

    def waits(programs, most, least, tiles):
        return waiting(Work("formula", programs, 0, tiles, (0, most), (0, least)), rate, 3, GPU)

    alike, some_short = waits(400, 20, 20, 400 * 20), waits(400, 20, 5, 360 * 20 + 40 * 5)
    assert GPU.processors == 132
    assert 0 < some_short < alike / 2
    assert waits(396, 20, 20, 396 * 20) == 0
    alone = waits(1, 100, 100, 100)
    assert 1.6 * 11_000 < alone + 11_000 / 132 < 1.7 * 11_000


def test_programs_that_take_turns_fill_whole_rounds():
    """One on each processor: a last round of a few takes as long as a full one."""
    rate, count = Rates(1000.0, 0.0, 100.0), GPU.processors + 60
    work = Work("formula", count, 0, 10 * count, (0, 10), (0, 10))
    whole = 2000 * count / GPU.processors + waiting(work, rate, 1, GPU, in_turn=True)
    assert whole == pytest.approx(2 * 2000)
    assert whole > 2000 * count / GPU.processors + waiting(work, rate, 1, GPU)
