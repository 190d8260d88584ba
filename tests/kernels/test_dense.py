"""Rectangles and triangles that leave the tiles of a CPU's program: each pair once, and the same attention."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import weft
from weft.kernels.cpu import run
from weft.kernels.cpu.dense import Dense
from weft.kernels.cpu.program import program
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.testing.strategies import problems

from .compare import BACKENDS, Case, check, generator, normal, qkv

pytestmark = pytest.mark.skipif("cpu" not in BACKENDS, reason="on a GPU kernels of GPUs are tested")

END = "bottom-right"


def visits(pattern, m, n):
    """The program of a pattern, and how often it computes each pair as live."""
    problem = Problem(1, 8, 8, m, n, 64, 64)
    made = program(plan_attention(pattern, problem).forward[0].plan, torch.float32, problem)
    seen = np.zeros((m, n), np.int64)
    for one in made.dense:
        live = np.ones((one.queries.size, one.keys.size), np.bool_)
        live = np.tril(live) if one.causal else live
        for queries, keys in zip(one.queries.tokens(), one.keys.tokens(), strict=True):
            seen[np.ix_(queries, keys)] += live
    for tile in (tile for tiles in made.alike for tile in tiles):
        for piece in (piece for step in tile.steps for piece in step.pieces):
            live = np.ones((tile.queries.size, piece.keys.size), np.bool_)
            for first, last, mask in piece.masks:
                live[:, first:last] &= mask.numpy() == 0
            for queries, keys in zip(tile.queries.tokens(), piece.keys.tokens(), strict=True):
                seen[np.ix_(queries, keys)] += live
    return made, seen


@settings(deadline=None)
@given(problems())
def test_every_pair_is_computed_once(problem):
    pattern, m, n = problem
    _, seen = visits(pattern, m, n)
    np.testing.assert_array_equal(seen, pattern.to_dense(m, n))


@pytest.mark.parametrize(
    ("pattern", "m", "n", "count"),
    [
        (weft.full(), 300, 200, 1),
        (weft.causal(), 2000, 2000, 1),
        (weft.causal(), 300, 300, 0),  # torch's kernel computes all of the square
        (weft.causal(align=END), 4, 300, 2),
        (weft.causal(align=END), 1, 300, 1),
        (weft.documents(lengths=[100, 0, 37, 163]), 300, 300, 3),
        (weft.documents(lengths=[50] * 6), 300, 300, 1),
        (weft.causal() & weft.documents(lengths=[5] * 60), 300, 300, 1),
        (weft.dilated(400, 0, 16), 320, 320, 1),
        (weft.padding(200, rows=True), 300, 300, 1),
        (weft.window(20, 20), 300, 300, 0),
        (weft.causal() & (weft.window(left=9) | weft.prefix(4)), 300, 300, 0),
    ],
    ids=str,
)
def test_what_leaves_the_tiles(pattern, m, n, count):
    made, seen = visits(pattern, m, n)
    np.testing.assert_array_equal(seen, pattern.to_dense(m, n))
    assert len(made.dense) == count
    assert all(isinstance(one, Dense) for one in made.dense)
    assert bool(made.alike) == (count == 0)


PATTERNS = {
    "causal": weft.causal(),
    "documents": weft.causal() & weft.documents(lengths=[40, 1, 19, 20]),
    "equal documents": weft.documents(lengths=[16] * 5),
    "prefix": weft.causal() | weft.prefix(30),
    "lanes": weft.dilated(80, 0, 8),
    "padding of keys and queries": weft.causal() & weft.padding(61, rows=True),
    "heads": weft.per_head([weft.causal(), weft.causal(), weft.window(3, 3), weft.full()]),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [(4, 4), (4, 1)], ids=str)
@pytest.mark.parametrize("name", PATTERNS)
def test_attention_and_gradients(name, heads, dtype, monkeypatch):
    monkeypatch.setattr("weft.kernels.cpu.program.seconds", lambda *_: 0.0)  # whatever tiles would take
    run.programs_of.cache_clear()
    pattern = PATTERNS[name]
    random = generator(name)
    tensors = qkv(random, (80, 80), dtype, heads=heads)
    live = torch.from_numpy(np.stack([pattern.at(0, h).to_dense(80) for h in range(4)]))[None].expand(2, -1, -1, -1)
    check(Case(pattern, tensors, live, {"sinks": normal((4,), random, dtype)}))


def test_a_gradient_of_lse_goes_by_tiles():
    q, k, v = (x.requires_grad_() for x in qkv(generator("lse"), (60, 60), torch.float64))
    d_lse = normal((2, 4, 60), generator("d_lse"))
    _, lse = weft.attention(q, k, v, weft.causal(), return_lse=True)
    found = torch.autograd.grad(lse, (q, k), d_lse)
    scores = (q @ k.repeat_interleave(2, 1).transpose(2, 3)) / 4
    scores = scores.masked_fill(~torch.ones(60, 60, dtype=torch.bool).tril(), -torch.inf)
    expected = torch.autograd.grad(scores.logsumexp(-1), (q, k), d_lse)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "lie",
    [
        lambda x: torch.stack([x, x], -1)[..., 0],
        lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        lambda x: x[:1, :1].expand_as(x),
    ],
    ids=["strided", "transposed", "expanded"],
)
def test_tensors_in_any_order_of_memory(lie):
    tensors = [lie(x) for x in qkv(generator("lie"), (50, 50), torch.float32, heads=(4, 4))]
    plain = weft.attention(*(x.contiguous() for x in tensors), weft.causal())
    torch.testing.assert_close(weft.attention(*tensors, weft.causal()), plain)
