"""What a forward by warp groups reads of each item: where its boxes are, and which tiles each group sees."""

import numpy as np
import pytest

import weft
from weft.kernels.gpu.tables.batches import plan_waves
from weft.kernels.gpu.tables.consumer_ranges import GROUP, RANGE
from weft.planning.attention_plan import plan_attention
from weft.planning.families.hopper import CONFIGS
from weft.planning.problem import Problem
from weft.target import GPUS

TILING = CONFIGS["forward"]
PATTERNS = [
    weft.full(),
    weft.causal() & weft.window(left=50),
    weft.window(70, 30),
    weft.dilated(30, 30, 3),
    weft.causal() & (weft.periodic_keys(64) | weft.window(left=63)),
    weft.window(20, 20) & weft.padding([700]),
]


def planned(pattern, tokens):
    """(plan, its only wave)"""
    problem = Problem(1, 1, 1, tokens, tokens, 64, 64, "bfloat16", "cuda")
    plan = plan_attention(pattern, problem, GPUS["h200"], (("forward", TILING),))
    (wave,) = plan_waves(plan.forward, problem, False).waves
    return plan, wave


def items_of(pattern, tokens):
    """(nest, its tables' items, the reach of queries and of each part's keys)"""
    plan, wave = planned(pattern, tokens)
    (nest,) = plan.forward[0].plan.nests
    assert wave.reach is not None
    place = wave.place
    words = wave.words[place.items_at :][: wave.items * place.record]
    return nest, words.reshape(wave.items, place.record).astype(np.int64), wave.reach


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("tokens", [900, 1200])
def test_boxes_begin_where_runs_do(pattern, tokens):
    nest, items, reach = items_of(pattern, tokens)
    parts = len(nest.parts)
    origins = [nest.q.origin, *(part.k.origin for part in nest.parts)]
    firsts = [items[:, 0], *(items[:, 2 + 4 * n] for n in range(parts))]
    some = [items[:, 1] > 0, *(items[:, 3 + 4 * n] > 0 for n in range(parts))]
    for side, (one, origin, first, exists) in enumerate(zip(reach, origins, firsts, some, strict=True)):
        place, lane = items[:, 2 + 4 * parts + 2 * side], items[:, 3 + 4 * parts + 2 * side]
        assert (one.step * place + lane == origin + first)[exists].all(), "descriptors begin at token 0"
        first_place, first_lane = one.first
        assert ((lane >= first_lane) & (lane < first_lane + one.lanes))[exists].all()
        assert ((place >= first_place) & (place < first_place + one.places))[exists].all()


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("tokens", [900, 1200])
def test_tiles_are_those_that_rows_see(pattern, tokens):
    """Row by row: every key that one sees is in a tile of its group, and in whole tiles are none that it does not."""
    nest, items, _ = items_of(pattern, tokens)
    parts, groups = len(nest.parts), TILING.rows // GROUP
    dense = pattern.to_dense(tokens, tokens).reshape(tokens, tokens)
    seen = np.zeros((tokens, tokens), int)
    for item in items:
        shares = item[4 + 6 * parts :].reshape(parts, groups, RANGE)
        for part, run, of_groups in zip(nest.parts, item[2 : 2 + 4 * parts].reshape(parts, 4), shares, strict=True):
            keys = part.k.origin + run[0] + part.axes[0].lanes.k_step * np.arange(run[1])
            for group, (begin, end, below, beyond, _) in enumerate(of_groups):
                rows = np.arange(GROUP * group, min(GROUP * (group + 1), item[1]))
                assert 0 <= begin <= end <= -(-run[1] // GROUP)
                if not rows.size:
                    assert begin == end
                    continue
                queries = nest.q.origin + item[0] + nest.lanes[0].q_step * rows
                walked = keys[GROUP * begin : GROUP * end]
                seen[np.ix_(queries, walked)] += dense[np.ix_(queries, walked)]
                whole = keys[GROUP * max(begin, below) : GROUP * min(end, beyond)]
                assert dense[np.ix_(queries, whole)].all()
                assert whole.size % GROUP == 0
    assert np.array_equal(seen > 0, dense)


@pytest.mark.parametrize(
    ("pattern", "tokens", "tiles"),
    [(weft.full(), 512, [4 * 8] * 2), (weft.causal() & weft.window(left=63), 512, [1 + 3 * 1, 4 * 1]),
     (weft.causal() & weft.window(left=127), 640, [1 + 2 + 2 * 2, 4 * 2, 2 * 2]),
     (weft.causal() & weft.window(left=99), 256, [1 + 2 + 3 + 3])],
    ids=["full", "folded once", "folded", "not folded"],
)  # fmt: skip
def test_time_counts_what_groups_compute(pattern, tokens, tiles):
    """A first and a last tile that fold are one; groups that have no rows take no time."""
    wave, rows = planned(pattern, tokens)[1], [min(256, tokens - 256 * n) for n in range(len(tiles))]
    assert sorted(wave.work.tolist()) == sorted(2 * n + 3 * -(-r // GROUP) for n, r in zip(tiles, rows, strict=True))


@pytest.mark.parametrize(("tokens", "short"), [(65_600, True), (65_800, False)])
def test_bounds_of_short_runs_fit_half_a_word(tokens, short):
    """The last block's run of every second key has half as many columns as there are tokens before its window."""
    pattern = weft.causal() & (weft.window(left=127) | weft.periodic_keys(2))
    nest, items, _ = items_of(pattern, tokens)
    assert len(nest.parts) == 2
    assert (items[:, 7].max() <= (1 << 15) - 1) == short  # keys of the second run
    assert planned(pattern, tokens)[1].short == short
