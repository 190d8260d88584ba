"""Patterns whose components fit into a tile, with biases: forward, gradients and those of tables beside dense ones."""

import numpy as np
import pytest
import torch
from tests.tiers import sample

import weft
from weft.kernels.gpu import select
from weft.planning.attention_plan import plan_attention
from weft.planning.families.components import Components
from weft.target import GPU
from weft.torch.inputs import problem_of

from .compare import BACKENDS, generator, normal, qkv
from .scored import Scored, check
from .test_grid_biases import function_of

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="tests/torch/test_bias.py has the CPU's")
WINDOWS = (21, 21), weft.product([weft.documents([3, 7, 7, 4])] * 2, (21, 21)), (13, 13)
GRIDS = {
    "shifted windows": WINDOWS,
    "long windows": ((4, 30), weft.product([weft.documents([2, 2]), weft.documents([20, 10])], (4, 30)), (3, 39)),
    "volume": ((2, 4, 6), weft.product([weft.full(), weft.documents([2, 2]), weft.documents([3, 3])], (2, 4, 6)),
               (3, 3, 5)),
}  # fmt: skip
LINES = {
    "documents": (weft.documents([5, 0, 64, 31]) & weft.causal(), 100, 100, (16, 16)),
    "chunks": (weft.chunks(24) & weft.causal(), 70, 70, (64, 64)),
    "queries that see nothing": (weft.causal(align="bottom-right"), 60, 33, (48, 16)),
    "a few queries": (weft.full(), 33, 60, (96, 96)),
}


@pytest.fixture
def taken(monkeypatch):
    """Whether calls took the kernels of components, in order."""
    found, inner = [], select.by_components

    def recorded(*asked):
        found.append(inner(*asked))
        return found[-1]

    monkeypatch.setattr(select, "by_components", recorded)
    return found


def of_grid(name, dims=(32, 32), batch=2, **more):
    shape, pattern, sizes = GRIDS[name]
    random = generator(name)
    table = normal((2, *sizes), random).double().requires_grad_()
    tensors = qkv(random, (int(np.prod(shape)),) * 2, torch.bfloat16, (2, 2), dims, batch)
    return Scored(pattern, tensors, function_of(table, shape, 1), (table,), lambda x: weft.bias.grid(x, shape), **more)


@pytest.mark.parametrize("name", sample(GRIDS, "long windows"))
def test_windows_of_a_grid(name, taken):
    found = check(of_grid(name))
    assert taken and all(taken)
    assert (found["dtable0"] != 0).any()


@pytest.mark.more
def test_programs_walk_batch_rows(monkeypatch, taken):
    """Two batch rows in a program, and the last alone."""
    monkeypatch.setattr(Components, "share", lambda self, problem, processors: 2)
    check(of_grid("long windows", batch=3))
    assert all(taken)


@pytest.mark.parametrize("name", sample(LINES, "documents"))
def test_runs_of_a_line(name, taken):
    pattern, m, n, dims = LINES[name]
    random = generator(name)
    table = normal((2, 19), random).double().requires_grad_()

    def biased(score, b, h, q, k):
        return score + table[h, (k - q).clamp(-9, 9) + 9]

    tensors = qkv(random, (m, n), torch.bfloat16, (2, 2), dims)
    check(Scored(pattern, tensors, biased, (table,), weft.bias.relative if m == n else None))
    assert taken and all(taken)


@pytest.mark.more
def test_a_table_says_which_entries_are_read(taken):
    """Two tables that learn, one of which is read where a table of integers says."""
    random = generator("buckets")
    table, slopes = (normal(size, random).double().requires_grad_() for size in ((2, 5), (2,)))
    bucket = torch.randint(5, (100,), generator=random)

    def biased(score, b, h, q, k):
        return score + table[h, bucket[k]] - slopes[h] * (q - k)

    tensors = qkv(random, (100, 100), torch.bfloat16, (2, 2), (16, 16))
    check(Scored(weft.documents([40, 60]), tensors, biased, (table, slopes)))
    assert all(taken)


@pytest.mark.more
@pytest.mark.parametrize("how", ["heads share keys", "float32", "of batch rows", "softcap", "dropout", "not added"])
def test_other_calls_take_tiles(how, taken):
    """What the kernels have not is computed by those of tiles."""
    random = generator(how)
    table = normal((2, 2, 19), random).double()
    heads = (2, 1) if how == "heads share keys" else (2, 2)
    dtype = torch.float32 if how == "float32" else torch.bfloat16
    more = {"options": {"softcap": 3.0}} if how == "softcap" else {}
    more |= {"dropout": 0.3} if how == "dropout" else {}

    def biased(score, b, h, q, k):
        bias = table[b if how == "of batch rows" else 0, h, (k - q).clamp(-9, 9) + 9]
        return score * bias if how == "not added" else score + bias

    check(Scored(weft.documents([5, 64, 31]), qkv(random, (100, 100), dtype, heads), biased, (), **more))
    assert taken and not any(taken)


def test_why_a_pattern_has_none():
    """Each reason names what is in the way."""

    def reason(pattern, tokens=200):
        tensors = qkv(generator("reasons"), (tokens, tokens), torch.bfloat16, (2, 2))
        found = plan_attention(pattern, problem_of(*tensors), GPU).components
        return found if isinstance(found, str) else "none"

    assert "200 queries and 200 keys" in reason(weft.window(3, 3))
    assert "135 queries" in reason(weft.documents([65, 135]))
    assert "one affine term" in reason(weft.documents([50] * 4) | weft.global_tokens([7]))
    assert "residue" in reason(weft.documents([50] * 4) & weft.dilated(9, 9, 3))
    assert "differ" in reason(weft.per_head([weft.documents([50] * 4), weft.documents([40] * 5)]))
