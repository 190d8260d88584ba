"""What only a GPU can show: streams, graphs, and long sequences."""

from contextlib import nullcontext

import pytest
import torch

import weft
from weft.errors import UnsupportedError
from weft.testing.tolerance import assert_close
from weft.torch import eager

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")

MASK = weft.causal() & weft.window(left=100)
SHAPE = (2, 4, 500, 64)


def qkv(shape=SHAPE, grad=False, device="cuda"):
    return [torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_(grad) for _ in range(3)]


def both(leaves, seed):
    """(out, dq, dk, dv)"""
    out = weft.attention(*leaves, MASK, deterministic=True)
    return out, *torch.autograd.grad(out, leaves, seed)


def test_graph_replays_forward_and_backward():
    leaves, seed = qkv(grad=True), torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            both(leaves, seed)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = both(leaves, seed)
    with torch.no_grad():
        for x in leaves:
            x.copy_(torch.randn_like(x))
    graph.replay()
    kept = [x.clone() for x in kept]
    for replayed, called in zip(kept, both(leaves, seed), strict=True):
        assert torch.equal(replayed, called)


def test_cold_call_in_a_capture_is_refused_and_poisons_nothing():
    other = qkv((1, 2, 333, 64))
    with pytest.raises(UnsupportedError, match="captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        weft.attention(*other, MASK)
    torch.cuda.synchronize()
    assert weft.attention(*other, MASK).isfinite().all()


@pytest.mark.parametrize("mask, dim", [(MASK, 64), (MASK, 96), (weft.causal(), 128)])
def test_gradients_that_take_launches_alone(mask, dim, monkeypatch):
    """By the same kernels, told the same: no bit differs from what calls with more to do get, wherever tensors are."""
    leaves, seed = qkv((2, 4, 500, dim), grad=True), torch.randn(2, 4, 500, dim, device="cuda", dtype=torch.bfloat16)
    usual, alone = eager.Call.at_once, []

    def gradients():
        out = weft.attention(*leaves, mask, deterministic=True)
        return [*torch.autograd.grad(out, leaves, seed, retain_graph=True), *torch.autograd.grad(out.sum(), leaves)]

    def watched(call, *given):
        alone.append(usual(call, *given))
        return alone[-1]

    monkeypatch.setattr(eager.Call, "at_once", lambda call, *given: None)
    expected = gradients()
    monkeypatch.setattr(eager.Call, "at_once", watched)
    for here in (nullcontext(), nullcontext(), torch.autograd.graph.save_on_cpu()):
        with here:
            assert all(map(torch.equal, gradients(), expected))
    assert len(alone) == 6
    assert alone[2] is not None


def test_on_another_stream():
    q, k, v = qkv()
    expected = weft.attention(q, k, v, MASK)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)  # what runs on the default stream would be done long before
        doubled = v * 2
        found = weft.attention(q, k, doubled, MASK)
    stream.synchronize()
    assert torch.equal(found, expected * 2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_on_another_gpu():
    tensors = qkv()
    there = [x.to("cuda:1") for x in tensors]
    assert torch.equal(weft.attention(*there, MASK).cpu(), weft.attention(*tensors, MASK).cpu())


def test_a_million_tokens_take_little_memory_besides_their_own():
    """A window of 1023 over 2^20 tokens: less than 5 % beyond q, k, v, out and gradients."""
    length, mask = 1 << 20, weft.causal() & weft.window(left=1023)
    leaves = qkv((1, 1, length, 128), grad=True)
    seed = torch.randn_like(leaves[0])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = weft.attention(*leaves, mask)
    gradients = torch.autograd.grad(out, leaves, seed)
    own = sum(x.nbytes for x in (*leaves, seed, out, *gradients))
    beyond = torch.cuda.max_memory_allocated() - before - sum(x.nbytes for x in (out, *gradients))
    assert beyond <= 0.05 * own, f"{beyond / own:.3f}"
    rows = torch.tensor([0, 1, 1000, 500_000, length - 1], device="cuda")
    q, k, v = (x[0, 0].double() for x in leaves)
    for row in rows.tolist():
        keys = slice(max(0, row - 1023), row + 1)
        p = (k[keys] @ q[row] * 128**-0.5).softmax(0)
        assert (out[0, 0, row].double() - p @ v[keys]).norm() <= 0.01 * (p @ v[keys]).norm()


@pytest.fixture
def tf32_switch():
    before = torch.backends.cuda.matmul.allow_tf32
    yield lambda allowed: setattr(torch.backends.cuda.matmul, "allow_tf32", allowed)
    torch.backends.cuda.matmul.allow_tf32 = before


def test_tf32_when_torch_may(tf32_switch):
    """Faster and less exact than float32, from the next call on, and within its own tolerance."""
    leaves = [torch.randn(SHAPE, device="cuda", requires_grad=True) for _ in range(3)]
    seed, names = torch.randn(SHAPE, device="cuda"), ("out", "dq", "dk", "dv")
    live = torch.from_numpy(MASK.to_dense(SHAPE[2], SHAPE[2])).cuda()

    def dense(dtype):
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in leaves)
        out = (q @ k.mT * SHAPE[3] ** -0.5).masked_fill(~live, -torch.inf).softmax(-1) @ v
        return dict(zip(names, (out, *torch.autograd.grad(out, (q, k, v), seed.to(dtype))), strict=True))

    tf32_switch(False)
    truth, plain = dense(torch.float64), dense(torch.float32)
    exact = dict(zip(names, both(leaves, seed), strict=True))
    tf32_switch(True)
    cut = dict(zip(names, both(leaves, seed), strict=True))
    tf32_switch(False)
    for name, again in zip(names, both(leaves, seed), strict=True):
        assert torch.equal(again, exact[name]), name
        assert_close(name, exact[name], truth[name], plain[name])
        assert_close(name, cut[name], truth[name], plain[name], tf32=True)
        assert (cut[name] - truth[name]).norm() > 10 * (exact[name] - truth[name]).norm(), name
