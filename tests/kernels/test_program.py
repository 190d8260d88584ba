"""The CPU's program: its runs of tiles visit what the pattern says, however they are cut into batches."""

from unittest import mock

import numpy as np
import pytest
import torch

import weft
from weft.kernels.cpu import run
from weft.kernels.cpu.program import StridedBox, program
from weft.kernels.cpu.scores import IN_A_STRIP, TOGETHER, Batch, Strip, Workspace, schedule
from weft.planning.problem import Problem
from weft.planning.tiling.cpu import plan_tiles

from .compare import generator, qkv

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
    strips, batches = schedule(program(plan, torch.float32), heads)
    for batch in (*strips, *batches):
        for tile in batch.tiles:
            for step in tile.steps:
                for piece in step.pieces:
                    live = np.ones((tile.queries.size, piece.keys.size), np.bool_)
                    for first, last, mask in piece.masks:
                        live[:, first:last] &= mask.numpy() == 0
                    for queries, keys in zip(tile.queries.tokens(), piece.keys.tokens(), strict=True):
                        visits[np.ix_(queries, keys)] += live
    np.testing.assert_array_equal(visits, pattern.to_dense(tokens))


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize(
    "pattern", [weft.neighborhood((64, 64), (7, 7)), weft.window(100, 100)], ids=["grid", "window"]
)
def test_what_is_together_has_one_shape_and_no_more_scores_than_it_may(pattern, heads):
    tokens = 4096
    made = program(plan_tiles(pattern.acsr(tokens), Problem(1, heads, heads, tokens, tokens, 64, 64)), torch.float32)
    assert any(tile.count > 1 for runs in made.alike for tile in runs)
    strips, batches = schedule(made, heads)
    assert bool(strips) == (len(made.alike[0][0].queries.sizes) == 1)
    for batch, at_once in [*((one, 1) for one in strips), *((one, heads) for one in batches)]:
        assert len({tile.shape for tile in batch.tiles}) == 1
        scores = batch.count * at_once * batch.rows * batch.steps[0][0].width
        assert batch.count == 1 or scores <= (IN_A_STRIP if isinstance(batch, Strip) else TOGETHER)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("stride", [1, 3])
def test_a_strip_reads_and_adds_as_a_batch_does(dtype, stride):
    """Rows and keys of one head that slide along, staged or not, against the same tiles as a batch."""
    pattern, tokens = weft.dilated(20, 20, stride), 3000
    made = program(plan_tiles(pattern.acsr(tokens), Problem(1, 1, 1, tokens, tokens, 16, 16)), torch.float32)
    run = next(tile for runs in made.alike for tile in runs if tile.count > 1 and tile.slides)
    strip, batch, work = Strip((run,)), Batch((run,)), Workspace(torch.float32)
    x = torch.randn(tokens, 10).to(dtype)[:, ::2]
    keys = strip.key_rows(0, x, work, "strip")
    assert torch.equal(keys, batch.key_rows(0, x[None], work, "batch"))
    assert torch.equal(strip.query_rows(x, work, "q"), batch.query_rows(x[None, None], work, "batch q"))
    totals = torch.zeros(2, 1, tokens, 5)
    strip.add_key_rows(0, totals[0, 0], keys.contiguous())
    batch.add_key_rows(0, totals[1], keys.contiguous())
    assert torch.equal(*totals)


def test_a_view_of_a_run_is_what_its_tokens_say():
    boxes = StridedBox(first=7, sizes=(3, 4), strides=(20, 2), count=3, pitch=40)
    x = torch.randn(2, 150, 5)
    assert torch.equal(boxes.of(x, 1).reshape(3, 2, 12, 5), x[:, boxes.tokens()].transpose(0, 1))
    assert torch.equal(boxes.part(1, 3).of(x, 1), boxes.of(x, 1)[1:])


def test_programs_of_many_heads_are_made_once():
    """However many differ: with one more than were kept, taken in turn, none would ever be found again."""
    pattern = weft.per_head([weft.window(left=i) for i in range(40)])
    leaves = [x.requires_grad_() for x in qkv(generator("heads"), (50, 50), torch.float32, heads=(40, 40), batch=1)]
    with mock.patch.object(run, "program", side_effect=program) as made:
        for _ in range(2):
            weft.attention(*leaves, pattern, backend="cpu").sum().backward()
    assert made.call_count == 40
