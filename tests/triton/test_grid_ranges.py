"""What kernels by warp groups read of each item on a grid: a list of tiles, and which of them each group sees."""

from math import prod

import numpy as np
import pytest

import weft
from weft.kernels.gpu.tables.batches import plan_waves
from weft.kernels.gpu.tables.consumer_ranges import GROUP
from weft.kernels.gpu.tables.grid_ranges import BITS, RANGE, in_slabs
from weft.planning.attention_plan import plan_attention
from weft.planning.families.hopper import BOXED, CONFIGS, SUMMED, WIDE
from weft.planning.problem import Problem
from weft.target import GPUS

GRIDS = [
    ((32, 40), (9, 11), {}),
    ((20, 37), (5, 9), {"causal": (True, False)}),
    ((6, 9, 18), (4, 5, 8), {}),
    ((6, 8, 16), (4, 6, 8), {"stride": (2, 4, 8)}),
]


def plan_of(pattern, tokens, groups=2):
    """(problem, plan)"""
    wide, forward = {1: (64, BOXED["forward"]), 2: (128, WIDE), 4: (64, CONFIGS["forward"])}[groups]
    problem = Problem(1, 1, 1, tokens, tokens, wide, wide, "bfloat16", "cuda")
    return problem, plan_attention(pattern, problem, GPUS["h200"], (("forward", forward), ("dkdv", SUMMED)))


def items_of(shape, size, more, transposed=False, groups=2):
    """(pattern, words, items, box of rows, box of a tile)"""
    pattern, tokens = weft.neighborhood(shape, size, **more), prod(shape)
    problem, plan = plan_of(pattern, tokens, groups)
    (wave,) = plan_waves(plan.transposed if transposed else plan.forward, problem, transposed).waves
    place = wave.place
    items = wave.words[place.items_at :][: wave.items * place.record].reshape(wave.items, place.record)
    return pattern, wave.words, items, *wave.kind.boxes


def box_tokens(first, box, shape):
    """(tokens of a box, which of its places are on the grid)"""
    at = np.stack([f + x for f, x in zip(first, np.indices(box).reshape(len(box), -1), strict=True)])
    there = ((at >= 0) & (at < np.array(shape)[:, None])).all(0)
    return np.ravel_multi_index(tuple(np.clip(at, 0, np.array(shape)[:, None] - 1)), shape), there


@pytest.mark.parametrize("transposed, groups", [(False, 1), (False, 2), (True, 2), (False, 4)])
@pytest.mark.parametrize("shape, size, more", GRIDS, ids=str)
def test_tiles_are_those_that_rows_see(shape, size, more, transposed, groups):
    """Every pair is in one tile of its group, and whole tiles have no other pair."""
    pattern, words, items, box, tile = items_of(shape, size, more, transposed, groups)
    tokens, rank = prod(shape), len(shape)
    dense = pattern.to_dense(tokens, tokens).reshape(tokens, tokens)
    dense = dense.T if transposed else dense
    met = np.zeros((tokens, tokens), int)
    for item in items:
        rows, there = box_tokens(item[: 2 * rank : 2], box, shape)
        list_at, count = item[6 * rank : 6 * rank + 2]
        for group, (begin, end, below, beyond) in enumerate(item[6 * rank + 2 :].reshape(-1, RANGE)):
            mine = rows[GROUP * group :][:GROUP][there[GROUP * group :][:GROUP]]
            assert 0 <= begin <= end <= count
            for j, word in enumerate(words[list_at : list_at + count]):
                place = [int(word) >> BITS * (rank - 1 - a) & (1 << BITS) - 1 for a in range(rank)]
                columns, exist = box_tokens(item[2 * rank : 6 * rank : 4] + place, tile, shape)
                live = dense[np.ix_(mine, columns)] & exist
                met[np.ix_(mine, columns[exist])] += (begin <= j < end) & live[:, exist]
                assert (begin <= j < end) or not live.any()
                assert not (begin <= j < end and below <= j < beyond) or live.all()
    assert np.array_equal(met, dense.astype(int))


def test_full_tiles_lie_side_by_side():
    """Windows that move in steps: all tiles of each block are full for both groups."""
    *_, items, _, tile = items_of((16, 16, 32), (8, 8, 16), {"stride": (8, 8, 8)})
    assert prod(tile) == WIDE.cols
    for begin, end, below, beyond in items[:, 20:].reshape(-1, RANGE):
        assert (begin, end) == (below, beyond)


def test_four_groups_walk_no_more_than_they_see():
    """Groups are neighbours along one axis, and so are the tiles that each sees: (4, 16) keys for (8, 8) queries."""
    *_, items, box, tile = items_of((64, 64), (7, 7), {}, groups=4)
    assert (box, tile) == ((32, 8), (4, 16))
    ranges = items[:, 14:].reshape(-1, RANGE)
    assert (ranges[:, 1] - ranges[:, 0]).max() == 4


def test_blocks_that_see_alike_share_a_list():
    *_, items, _, _ = items_of((64, 64), (9, 9), {})
    assert len(np.unique(items[:, 12])) < len(items) / 2


def test_blocks_in_slabs_walk_few_tokens():
    """Each block is there once. Those that follow each other walk fewer tokens than if the first axis were slowest."""
    shape, many = (8, 32, 64), 64
    (share,) = plan_of(weft.neighborhood(shape, (6, 16, 8)), prod(shape))[1].transposed
    (nest,) = share.plan.nests
    order, sizes = in_slabs(nest), [nest.slots(a)[0].size for a in range(3)]
    assert sorted(order) == list(range(prod(sizes)))

    def walked(blocks):
        """Tokens of the box around the runs of some blocks."""
        total = 1
        for axis, at in zip(nest.parts[0].axes, np.unravel_index(blocks, sizes), strict=True):
            first = axis.start[0, at]
            total *= int((first + axis.widths[0, at]).max() - first.min())
        return total

    chunks = range(0, len(order) - many, many)
    most, before = (max(walked(one[x : x + many]) for x in chunks) for one in (order, np.arange(len(order))))
    assert most <= 0.75 * before
