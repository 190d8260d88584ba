"""Captures of compiled graphs: when they are made, what they are found by, and what is refused.

A stand-in for CUDA's graphs records what a call read and where its results lie, and replays it there.
"""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from tests.fusion.helpers import EAGER, M, agree, near, qkv

import weft
from weft.fusion import captured

F = torch.nn.functional


class Recorded:
    """A function whose calls are seen, and repeated by replays."""

    def __init__(self, function):
        self.function, self.calls, self.replays = function, 0, 0

    def __call__(self, *args):
        self.calls += 1
        self.last = args, self.function(*args)
        return self.last[1]


@pytest.fixture
def card(monkeypatch):
    """CUDA without a card: card.made is what is captured."""
    found = SimpleNamespace(made=None)

    class Graph:
        def replay(self):
            args, results = self.held
            found.made.replays += 1
            for old, new in zip(results, found.made.function(*args), strict=True):
                old.copy_(new)

    @contextmanager
    def recording(graph):
        yield
        graph.held = found.made.last

    stream = SimpleNamespace(cuda_stream=0, wait_stream=lambda _: None)
    for name, stand_in in (
        ("CUDAGraph", Graph), ("graph", recording), ("Stream", lambda: stream), ("current_stream", lambda: stream),
        ("stream", lambda _: nullcontext()),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return found


@torch.no_grad()
def test_the_second_call_captures_and_the_third_replays(card):
    weight = torch.nn.Parameter(torch.ones(4))
    made = card.made = Recorded(lambda x, w: (x * w,))
    call = captured.Captured(made, [])
    for i in range(4):
        (found,) = call(torch.full((3, 4), float(i)), weight)
        agree(found, torch.full((3, 4), float(i)))
    assert (made.calls, made.replays) == (3, 3)  # as it is; warm and captured; the rest is replayed
    weight.mul_(2)
    agree(call(torch.ones(3, 4), weight)[0], torch.full((3, 4), 2.0))
    call(torch.ones(2, 4), weight)
    assert made.calls == 4 and len(call.captures) == 2


@torch.no_grad()
def test_results_are_the_callers(card):
    made = card.made = Recorded(lambda x: (x + 1, [x + 2]))
    made.function = lambda x: (x + 1, x + 2)
    call = captured.Captured(made, [])
    results = [call(torch.full((2,), float(i))) for i in range(4)]
    for i, (one, two) in enumerate(results):
        agree((one, two), (torch.full((2,), i + 1.0), torch.full((2,), i + 2.0)))


@torch.no_grad()
def test_another_mask_has_a_capture_of_its_own(card):
    seen = []

    def function(x, mask):
        seen.append(int(mask.sum()))
        return (x * int(mask.sum()),)  # as what is decided on the host

    made = card.made = Recorded(function)
    call = captured.Captured(made, [1])
    x, masks = torch.ones(2), [torch.ones(5, 5).tril(), torch.ones(5, 5)]
    for mask in (*masks * 3, masks[0].clone()):
        agree(call(x, mask)[0], torch.full((2,), float(mask.sum())))
    assert len(call.captures) == 2
    masks[0].fill_(1)
    agree(call(x, masks[0])[0], torch.full((2,), 25.0))
    assert len(call.captures) == 2


@torch.no_grad()
def test_what_cannot_be_captured_runs_as_it_is(card):
    made = card.made = Recorded(lambda x: (x + 1,))
    call = captured.Captured(made, [])
    call(torch.zeros(2))

    def fails(_):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    torch.cuda.graph = fails  # the fixture puts it back
    for _ in range(3):
        agree(call(torch.zeros(2))[0], torch.ones(2))
    assert call.refused == "operation not permitted when stream is capturing" and not made.replays
    with torch.enable_grad():
        assert call(torch.zeros(2))[0].sum() == 2


def graph_of(function, *inputs):
    """What Dynamo makes of it."""
    found = []
    torch._dynamo.reset()
    torch.compile(function, backend=lambda module, _: found.append(module) or module.forward)(*inputs)
    return found[0]


def test_reasons_against(monkeypatch):
    x = torch.ones(4)
    with torch.no_grad():
        assert captured.reason_against(graph_of(lambda x: x + 1, x), []) == "it has tensors on cpu"
        # what follows holds on any device
        monkeypatch.setattr(captured, "DEVICE", "cpu")
        assert captured.reason_against(graph_of(lambda x: x + 1, x), []) == ""
        assert "writes into" in captured.reason_against(graph_of(lambda x: x.add_(1).sum(), x), [])
        assert "part of its inputs" in captured.reason_against(graph_of(lambda x: (x[1:], x + 1), x), [])
    assert "gradients" in captured.reason_against(graph_of(lambda x: x + 1, x), [])


@torch.no_grad()
def test_the_mode_that_asks_for_captures(card, monkeypatch):
    monkeypatch.setattr(captured, "DEVICE", "cpu")
    torch._dynamo.reset()
    q, k, v = qkv()
    fast = weft.fuse(lambda q, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), mode="reduce-overhead",
                     options=EAGER)  # fmt: skip
    card.made = Recorded(None)
    monkeypatch.setattr(captured.Captured, "_captured", lambda self, args: None)
    for left in (3, 3, 9):
        agree(fast(q, near(left=left)), F.scaled_dot_product_attention(q, k, v, attn_mask=near(left=left)))
    assert "CUDA graphs: from the second call" in str(fast.explanation) and M
    fast = weft.fuse(lambda q: q + 1, q.requires_grad_(), mode="reduce-overhead", options=EAGER)
    with torch.enable_grad():
        fast(q)
    assert "CUDA graphs: none, because gradients are enabled" in str(fast.explanation)
