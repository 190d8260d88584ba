"""Dropout: the pairs that the law keeps, whatever the tiling, forward and backward; seeds, compilers, checkpoints."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import weft
from weft.score.dropout import Dropout

from . import oracle
from .helpers import qkv

HEADS = (4, 2)
PATTERNS = {
    "window": weft.causal() & weft.window(left=9),
    "dilated": weft.dilated(3, 2, 3),
    "documents": weft.documents([13, 1, 16]),
    "global": weft.longformer(4, 3),
    "random": weft.random_blocks(8, 2),
    "grid": weft.neighborhood((5, 6), (3, 3)),
    "heads": weft.per_head([weft.causal(), weft.window(3, 3), weft.full(), weft.causal()]),
    "listed": weft.keys(0, 30, 7) | weft.window(2, 0),
    "scattered": weft.documents(ids=[i * 7 % 4 for i in range(30)]),  # terms in another order
    "batch": weft.padding([30, 11]) & weft.causal(),
}
MASK = PATTERNS["window"]


@pytest.mark.parametrize("name", PATTERNS)
def test_the_definition(name):
    """`weft.acsr.interpret` with the law of weft.score.dropout, values and gradients."""
    tensors = qkv(30, heads=HEADS, dtype=torch.float64, grad=True)
    seeds = torch.randn_like(tensors[0]), torch.randn(tensors[0].shape[:3], dtype=torch.float64)
    seeds[1][...] = 0  # rows without keys
    expected = oracle.attention(tensors, PATTERNS[name], seeds, dropout=0.4, seed=-3)
    out, lse = weft.attention(*tensors, PATTERNS[name], dropout=0.4, seed=-3, return_lse=True)
    grads = torch.autograd.grad((out * seeds[0]).sum(), tensors)
    oracle.assert_close({"out": out, "lse": lse, **dict(zip(("dq", "dk", "dv"), grads, strict=True))}, expected)


def test_which_pairs_are_kept():
    """Read off the results: weights are equal, values are unit vectors."""
    m = 70
    q, k = torch.zeros(2, 4, m, 8), torch.zeros(2, 4, m, 8)
    v = torch.eye(m).expand(2, 4, m, m)
    out = weft.attention(q, k, v, weft.full(), dropout=0.3, seed=99)
    b, h, i, j = torch.meshgrid(*map(torch.arange, out.shape), indexing="ij")
    kept = torch.from_numpy(Dropout(0.3, 99).kept(*(x.numpy() for x in (b, h, i, j))))
    assert torch.equal(out > 0, kept)
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / m / (1 - round(0.3 * 65536) / 65536)))


def test_a_part_of_the_queries_is_a_part_of_the_results():
    """Whatever tiles there are: pairs do not know them."""
    q, k, v = qkv(200, heads=HEADS, dtype=torch.float64)
    whole = weft.attention(q, k, v, weft.window(left=20, align="top-left"), dropout=0.5, seed=1)
    part = weft.attention(q[:, :, :71], k, v, weft.window(left=20, align="top-left"), dropout=0.5, seed=1)
    torch.testing.assert_close(part, whole[:, :, :71], rtol=1e-12, atol=1e-12)


def test_lse_is_that_of_all_weights():
    q, k, v = qkv(30, heads=HEADS)
    _, lse = weft.attention(q, k, v, MASK, dropout=0.5, seed=1, return_lse=True)
    _, expected = weft.attention(q, k, v, MASK, return_lse=True)
    torch.testing.assert_close(lse, expected)


def test_the_mean_is_attention():
    q, k, v = qkv(16, heads=HEADS, dtype=torch.float64)
    mean = sum(weft.attention(q, k, v, MASK, dropout=0.25, seed=seed) for seed in range(400)) / 400
    torch.testing.assert_close(mean, weft.attention(q, k, v, MASK), rtol=0, atol=0.3)


def test_seeds():
    q, k, v = qkv(30, heads=HEADS)

    def call(**options):
        return weft.attention(q, k, v, MASK, dropout=0.5, **options)

    assert torch.equal(call(seed=5), call(seed=torch.tensor(5)))
    assert torch.equal(call(seed=-1), call(seed=2**64 - 1))
    assert not torch.equal(call(seed=5), call(seed=6))
    torch.manual_seed(0)
    drawn = call(), call()
    torch.manual_seed(0)
    assert torch.equal(drawn[0], call()) and not torch.equal(*drawn)
    assert torch.equal(weft.attention(q, k, v, MASK, dropout=0.0, seed=5), weft.attention(q, k, v, MASK))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    weft.attention(q, k, v, MASK, seed=None, dropout=0.0)
    assert torch.equal(state, torch.get_rng_state())  # nothing is drawn without need


@pytest.mark.more
def test_compiled():
    tensors = qkv(30, heads=HEADS, grad=True)
    compiled = torch.compile(
        lambda q, k, v, seed: weft.attention(q, k, v, MASK, dropout=0.5, seed=seed), backend="aot_eager", fullgraph=True
    )
    for seed in (torch.tensor([5]), torch.tensor([6])):
        found, expected = compiled(*tensors, seed), weft.attention(*tensors, MASK, dropout=0.5, seed=seed)
        assert torch.equal(found, expected)
        grads = [torch.autograd.grad(x.square().sum(), tensors) for x in (found, expected)]
        assert all(map(torch.equal, *grads))


def test_compiled_and_drawn():
    """A seed that is drawn in the graph: another one at each call, the same one in the backward."""
    tensors = qkv(30, heads=HEADS, dtype=torch.float64, grad=True)
    compiled = torch.compile(
        lambda q, k, v: weft.attention(q, k, v, MASK, dropout=0.5), backend="aot_eager", fullgraph=True
    )
    first, second = compiled(*tensors), compiled(*tensors)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    out = compiled(*tensors)
    (grad,) = torch.autograd.grad((out * out.detach()).sum(), tensors[2])  # linear in v
    torch.testing.assert_close((grad * tensors[2]).sum(), (out * out).sum())


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    tensors = qkv(30, heads=HEADS, dtype=torch.float64, grad=True)

    def call(*tensors):
        return weft.attention(*tensors, MASK, dropout=0.5)

    torch.manual_seed(0)
    expected = torch.autograd.grad(call(*tensors).square().sum(), tensors)
    torch.manual_seed(0)
    checkpoint(call, *tensors, use_reentrant=reentrant).square().sum().backward()
    assert all(torch.equal(x.grad, y) for x, y in zip(tensors, expected, strict=True))


def test_with_sinks_and_narrow_types():
    sinks = torch.randn(4)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensors = qkv(30, heads=HEADS, dtype=dtype)
        seeds = torch.zeros(tensors[0].shape), torch.zeros(tensors[0].shape[:3])
        expected = oracle.attention(tensors, MASK, seeds, sinks=sinks, dropout=0.4, seed=8)
        out = weft.attention(*tensors, MASK, sinks=sinks, dropout=0.4, seed=8)
        bound = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(out.double(), expected["out"], rtol=bound, atol=bound)
