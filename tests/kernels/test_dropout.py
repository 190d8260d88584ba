"""Dropout in kernels: the pairs that the law keeps, forward and backward, under every relayout."""

import numpy as np
import pytest
import torch
from tests.tiers import every, sample

import weft
from weft.score.dropout import Dropout

from .compare import BACKENDS, generator, normal, qkv
from .scored import HEADS, SEED, Scored, check, named

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="tests/torch/test_dropout.py has the CPU's")
PATTERNS = {
    "full": weft.full(),
    "window": weft.causal() & weft.window(left=30),
    "dilated": weft.dilated(3, 2, 3),
    "documents": weft.documents([13, 1, 66]) & weft.causal(),
    "global": weft.longformer(8, 3),
    "random": weft.random_blocks(8, 2),
    "grid": weft.neighborhood((8, 10), (5, 5)),
    "heads": weft.per_head([weft.causal(), weft.window(3, 3), weft.full(), weft.causal()]),
    "listed": weft.keys(0, 60, 7) | weft.window(2, 0),
}


def case(name, at=(80, 80), dtype=torch.float32, dims=(16, 16), **more):
    tensors = qkv(generator(f"dropout {name} {at}"), at, dtype, HEADS, dims)
    return Scored(PATTERNS[name], tensors, dropout=0.3, **more)


@pytest.mark.parametrize("name", sample(PATTERNS, "window", "grid", "documents"))
def test_results(name):
    check(case(name))


@pytest.mark.parametrize("name", ["window", "dilated", "grid", "random"])
def test_kept_pairs_are_those_of_the_law(name):
    """With one value for each key out is the matrix of weights."""
    one = case(name, dims=(16, 80))
    one.tensors[2] = torch.eye(80)[None, None].expand(2, HEADS[1], -1, -1).contiguous()
    where = [torch.arange(n).view(*(-1 if i == axis else 1 for i in range(4))).numpy()
             for axis, n in enumerate((2, HEADS[0], 80, 80))]  # fmt: skip
    kept = torch.from_numpy(Dropout(0.3, SEED).kept(*where)) & torch.from_numpy(one.pattern.to_dense(80, 80))
    assert torch.equal(one.weft()["out"] != 0, kept)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sample(["window", "grid"], "window"))
def test_types(name, dtype):
    check(case(name, dtype=dtype, dims=(64, 64)))


@pytest.mark.parametrize("name", ["full", "window"])
def test_whole_tiles(name):
    """Of consecutive tokens from multiples of 16 on: a call of Philox serves eight pairs."""
    check(case(name, (192, 192)))


RUN = 3, np.arange(160, 352), np.arange(64, 256)  # from multiples of 16 on
SCATTERED = 1, np.arange(80) * 3 + 7, np.append(np.arange(40, 80), np.arange(100, 140))


PARTS = [("window", 192, RUN), ("window", 80, SCATTERED), ("grid", 80, SCATTERED), ("random", 80, SCATTERED)]


@pytest.mark.parametrize(("name", "at", "told"), every(4, PARTS))
def test_numbers_of_a_whole(name, at, told):
    """Of a part, whose heads, queries and keys have other numbers in the whole sequence."""
    check(case(name, (at, at), told=told))


@pytest.mark.parametrize("m,n", sample([(17, 130), (130, 17), (1, 9)], (17, 130)))
def test_lengths(m, n):
    check(case("full", (m, n)))


def test_beside_other_options():
    one = named("type_pairs", PATTERNS["window"], (80, 80), dropout=0.4, options={"softcap": 2.0})
    check(one)


@pytest.mark.parametrize(
    ("name", "length"), sample([("window", 150), ("global", 130), ("heads", 150)], ("window", 150))
)
def test_runs_that_begin_anywhere(name, length):
    """Tiles begin at multiples of 16, before the first key that they see; the last rows of a tile may not exist."""
    check(case(name, (length, length)))


BEFORE = {  # pattern, the tensor that is not a number at tokens 32 and 33, results whose rows from 64 on do not ask it
    "keys": (weft.causal() & weft.window(left=30), "v", ("out", "dq")),
    "queries": (weft.window(left=0, right=30), "dout", ("dk", "dv")),
}


@pytest.mark.parametrize("side", BEFORE)
def test_what_lies_before_a_run_may_be_anything(side):
    """Tiles begin at multiples of 16, also with tokens that none of their rows sees."""
    pattern, poisoned, results = BEFORE[side]
    made = []
    for value in (0.0, torch.nan):
        random = generator(side)
        tensors = {
            name: normal((1, 2, 128, 16), random, torch.float32).to(BACKENDS["triton"])
            for name in ("q", "k", "v", "dout")
        }
        tensors[poisoned][:, :, 32:34] = value
        *leaves, dout = (x.requires_grad_(name != "dout") for name, x in tensors.items())
        out = weft.attention(*leaves, pattern, backend="triton", dropout=0.3, seed=SEED)
        found = dict(zip(("out", "dq", "dk", "dv"), (out, *torch.autograd.grad(out, leaves, dout)), strict=True))
        made.append([found[name][:, :, 64:] for name in results])
    assert all(torch.equal(*both) for both in zip(*made, strict=True))
