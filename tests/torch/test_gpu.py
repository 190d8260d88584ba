"""What only a GPU can show: streams, graphs, and long sequences."""

import json
from contextlib import nullcontext

import pytest
import torch
from click.testing import CliRunner

import weft
from weft.cli import main
from weft.errors import InputError, UnsupportedError
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


def test_gradients_on_another_stream():
    """Which autograd makes current for a backward, as it was for the forward."""
    leaves, seed = qkv(grad=True), torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16)
    expected = both(leaves, seed * 2)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        found = both(leaves, seed * 2)
    stream.synchronize()
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("mask", [MASK, weft.causal()])
def test_nothing_waits_for_the_gpu(mask, compiled):
    """Warm calls, forward and backward."""
    leaves, seed = qkv(grad=True), torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16)

    def attention(q, k, v):
        return weft.attention(q, k, v, mask)

    call = torch.compile(attention, fullgraph=True) if compiled else attention
    for _ in range(2):
        torch.autograd.grad(call(*leaves), leaves, seed)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.autograd.grad(call(*leaves), leaves, seed)
    finally:
        torch.cuda.set_sync_debug_mode(before)


LAYOUTS = {
    "tokens first": lambda b, h, n, d: torch.empty(b, n, h, d).transpose(1, 2),
    "inside others": lambda b, h, n, d: torch.empty(b, h, n, 3, d)[:, :, :, 1],
    "rows off 16 bytes": lambda b, h, n, d: torch.empty(b, h, n, d + 1)[..., 1:],
    "packed": lambda b, h, n, d: torch.empty(b, n, 3, h, d)[:, :, 1].transpose(1, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "mask, dim", [(MASK, 64), (weft.causal() | weft.prefix(100), 128), (weft.dilated(50, 50, 4), 64)]
)
@pytest.mark.parametrize("ordered", [True, False])
def test_no_copies_are_made(mask, dim, layout, ordered):
    """Beyond q, k, v, out and gradients there are numbers of rows alone, however tensors lie. Where sums need no order,
    one walk may make all gradients, and adds to dQ in float32, which is two tensors more.
    """
    sizes = 2, 8, 4096, dim

    def made():
        like = LAYOUTS[layout](*sizes)
        found = torch.empty_strided(like.shape, like.stride(), device="cuda", dtype=torch.bfloat16)
        return found.normal_().requires_grad_()

    leaves, seed = [made() for _ in range(3)], made().detach()
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = weft.attention(*leaves, mask, deterministic=ordered)
        forward = torch.cuda.max_memory_allocated() - before - out.nbytes
        gradients = torch.autograd.grad(out, leaves, seed)
        backward = torch.cuda.max_memory_allocated() - before - sum(x.nbytes for x in (out, *gradients))
        del out, gradients
    one = 2 * sizes[0] * sizes[1] * sizes[2] * dim
    more = 0 if ordered else 2
    assert max(forward, backward - more * one) <= 0.5 * one, f"{forward / one:.2f}, {backward / one:.2f} of a tensor"


@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize("heads, dim", [(17, 128), (34, 64)])
def test_more_than_two_to_the_31_elements(heads, dim, tokens_first):
    """The last head's rows are those that the head has alone."""
    if torch.cuda.mem_get_info()[0] < 70 << 30:
        pytest.skip("40 GB of tensors")
    size = (1, heads, 1 << 20, dim) if not tokens_first else (1, 1 << 20, heads, dim)

    def made():
        found = torch.empty(size, device="cuda", dtype=torch.bfloat16).normal_()
        return found.transpose(1, 2) if tokens_first else found

    leaves, seed = [made().requires_grad_() for _ in range(3)], made()
    assert leaves[0].numel() > 1 << 31
    out = weft.attention(*leaves, MASK)
    found = [out, *torch.autograd.grad(out, leaves, seed)]
    alone = [x.detach()[:, -1:].clone().requires_grad_() for x in leaves]
    out = weft.attention(*alone, MASK)
    expected = [out, *torch.autograd.grad(out, alone, seed[:, -1:].clone())]
    for one, other in zip(found, expected, strict=True):
        assert (one[:, -1:].float() - other.float()).norm() <= 2e-3 * other.float().norm()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_on_another_gpu():
    """Called from the first GPU and from the second, cold and warm: what the first computes, on the tensors' own."""
    first, seed = qkv(grad=True), torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16)
    expected = weft.attention(*first, MASK)
    wanted = (expected, *torch.autograd.grad(expected, first, seed))
    there = [x.detach().to("cuda:1").requires_grad_() for x in first]
    for current in (0, 0, 1, 1):
        with torch.cuda.device(current):
            out = weft.attention(*there, MASK)
            found = (out, *torch.autograd.grad(out, there, seed.to("cuda:1")))
            assert all(x.device == there[0].device for x in found)
            assert all(torch.equal(x.cpu(), y.cpu()) for x, y in zip(found, wanted, strict=True)), current


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_tensors_of_two_gpus_are_refused():
    q, k, v = qkv()
    with pytest.raises(InputError, match="device"):
        weft.attention(q, k.to("cuda:1"), v, MASK)
    assert weft.attention(q, k, v, MASK).isfinite().all()


def test_a_million_tokens_take_little_memory_besides_their_own():
    """A window of 1023 over 2^20 tokens: less than 5 % beyond q, k, v, out and gradients, and dQ in float32."""
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
    summed = 4 * leaves[0].numel()  # by warp groups that add to dQ in memory
    assert beyond <= summed + 0.05 * own, f"{beyond / own:.3f}"
    for token in (0, 1, 1000, 500_000, length - 1024):
        near, mine, those = max(0, token - 1023), slice(token, token + 1024), min(token, 1023)
        q, k, v = (x[0, 0, near : token + 1024].detach().double().requires_grad_() for x in leaves)
        i = torch.arange(q.shape[0], device="cuda")
        live = (i[:, None] >= i) & (i[:, None] - i <= 1023)
        dense = ((q @ k.mT * 128**-0.5).masked_fill(~live, -torch.inf).softmax(-1) @ v)[those:]
        assert (out[0, 0, mine].double() - dense).norm() <= 0.01 * dense.norm()
        dq, dk, dv = torch.autograd.grad(dense, (q, k, v), seed[0, 0, mine].double())
        for name, got, true in zip(("dq", "dk", "dv"), gradients, (dq, dk, dv), strict=True):
            rows = slice(token, token + (1024 if name == "dq" else 1))  # of keys, only the first one's queries are here
            error = got[0, 0, rows].double() - true[those : those + (rows.stop - rows.start)]
            assert error.norm() <= 0.01 * true[those : those + (rows.stop - rows.start)].norm(), (name, token)


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


def test_doctor_finds_the_gpu_ready():
    done = CliRunner().invoke(main, ["doctor", "--json"], catch_exceptions=False)
    said = json.loads(done.output)
    assert any(torch.cuda.get_device_name() in name for name in said["machine"]["gpus"])
    assert said["backends"]["triton"]["cuda"] == []
