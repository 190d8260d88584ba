"""The CPU's program: its runs of tiles visit what the pattern says, however they are cut into batches."""

import numpy as np
import pytest
import torch

import weft
from weft.kernels.cpu.program import BATCH, Box, batches, program
from weft.planning.planner import plan_tiles
from weft.planning.problem import Problem

PATTERNS = [
    (weft.window(40, 40), 500),
    (weft.dilated(20, 20, 3), 500),
    (weft.neighborhood((24, 40), (5, 7)), 960),
    (weft.neighborhood((6, 10, 9), (3, 5, 3), dilation=(1, 2, 1)), 540),
    (weft.bigbird(block=64, random=2, seed=1), 1024),
    (weft.causal() & weft.documents(lengths=[64] * 6), 384),
]


@pytest.mark.parametrize("heads", [1, 8, 300])
@pytest.mark.parametrize(("pattern", "tokens"), PATTERNS, ids=lambda x: str(x)[:40])
def test_every_live_pair_is_visited_once(pattern, tokens, heads):
    plan = plan_tiles(pattern.acsr(tokens), Problem(1, heads, heads, tokens, tokens, 16, 16))
    visits = np.zeros((tokens, tokens), np.int64)
    for batch in batches(program(plan, torch.float32), heads):
        for tile in batch:
            for step in tile.steps:
                for piece in step.pieces:
                    live = np.ones((tile.queries.size, piece.keys.size), np.bool_)
                    for first, last, mask in piece.masks:
                        live[:, first:last] &= mask.numpy() == 0
                    for queries, keys in zip(tile.queries.tokens(), piece.keys.tokens(), strict=True):
                        visits[np.ix_(queries, keys)] += live
    np.testing.assert_array_equal(visits, pattern.to_dense(tokens))


@pytest.mark.parametrize("heads", [1, 8])
def test_batches_hold_one_shape_and_no_more_scores_than_they_may(heads):
    pattern, tokens = weft.neighborhood((64, 64), (7, 7)), 4096
    made = program(plan_tiles(pattern.acsr(tokens), Problem(1, heads, heads, tokens, tokens, 64, 64)), torch.float32)
    assert any(tile.count > 1 for runs in made.alike for tile in runs)
    for batch in batches(made, heads):
        assert len({tile.shape for tile in batch}) == 1
        count = sum(tile.count for tile in batch)
        assert count == 1 or count * heads * batch[0].queries.size * batch[0].steps[0].width <= BATCH


def test_a_view_of_a_run_is_what_its_tokens_say():
    boxes = Box(first=7, sizes=(3, 4), strides=(20, 2), count=3, pitch=40)
    x = torch.randn(2, 150, 5)
    assert torch.equal(boxes.of(x, 1).reshape(3, 2, 12, 5), x[:, boxes.tokens()].transpose(0, 1))
    assert torch.equal(boxes.part(1, 3).of(x, 1), boxes.of(x, 1)[1:])
