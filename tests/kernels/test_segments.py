"""Modules whose products, gates and rotations the templates compute, through weft.fuse, interpreted in float32."""

import pytest
import torch

import weft
from weft.settings import interpreted

from .compare import BACKENDS, generator

pytestmark = [
    pytest.mark.skipif("triton" not in BACKENDS, reason="other backends take torch's operations"),
    pytest.mark.skipif(not interpreted(), reason="on a card products of float32 stay apart"),
]
DEVICE = BACKENDS.get("triton")
F = torch.nn.functional
OPTIONS = {"weft.inner": "eager", "weft.templates": "always"}
WIDE, INNER, D, TOKENS = 64, 96, 32, 40


class Block(torch.nn.Module):
    """A layer as Llama has it, but for norms."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(WIDE, n, bias=False) for n in (WIDE, D, D))
        self.out, self.down = torch.nn.Linear(WIDE, WIDE, bias=False), torch.nn.Linear(INNER, WIDE, bias=False)
        self.gate, self.up = (torch.nn.Linear(WIDE, INNER, bias=False) for _ in range(2))

    def forward(self, x, cos, sin):
        q, k, v = (one(x).view(*x.shape[:2], -1, D).transpose(1, 2) for one in (self.q, self.k, self.v))
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k = ((y * cos) + (torch.cat((-y[..., D // 2 :], y[..., : D // 2]), -1) * sin) for y in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(out.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Normed(Block):
    """The same with heads of query and key that are normed, as Qwen3 has them."""

    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(D, 1e-2) for _ in range(2))

    def forward(self, x, cos, sin):
        q, k, v = (one(x).view(*x.shape[:2], -1, D) for one in (self.q, self.k, self.v))
        q, k, v = (y.transpose(1, 2) for y in (self.norms[0](q), self.norms[1](k), v))
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k = ((y * cos) + (torch.cat((-y[..., D // 2 :], y[..., : D // 2]), -1) * sin) for y in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(out.transpose(1, 2).reshape(x.shape))


class Conv1D(torch.nn.Module):
    """A part of GPT-2, whose weights are (k, n)."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.empty(WIDE, INNER)), torch.nn.Parameter(torch.empty(INNER))

    def forward(self, x):
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], INNER)
        return F.gelu(y, approximate="tanh")


def made(kind):
    module = kind().to(DEVICE)
    random = generator(kind.__name__)
    for one in module.parameters():
        one.data = torch.randn(one.shape, generator=random).to(DEVICE) / 8
    x = torch.randn(2, TOKENS, WIDE, generator=random).to(DEVICE)
    angle = torch.arange(TOKENS)[None, :, None] * torch.rand(1, 1, D // 2, generator=random)
    tables = [f(torch.cat((angle, angle), -1)).to(DEVICE) for f in (torch.cos, torch.sin)]
    return module, (x,) if kind is Conv1D else (x, *tables)


@pytest.mark.parametrize(("kind", "fused"), [(Block, 4), (Normed, 2), (Conv1D, 1)])
def test_fused_modules_give_the_same(kind, fused):
    module, inputs = made(kind)
    torch._dynamo.reset()
    fast = weft.fuse(module, options=OPTIONS, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), module(*inputs), rtol=1e-4, atol=1e-4)
        assert sum(one.fused for one in fast.explanation.graphs[0].segments) == fused, str(fast.explanation)
        next(module.parameters()).mul_(2)  # weights are read at each call
        torch.testing.assert_close(fast(*inputs), module(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activations", ["kept", "recomputed"])
@pytest.mark.parametrize(("kind", "fused"), [(Block, 2), (Conv1D, 1)])
def test_fused_modules_are_trained_alike(kind, fused, activations):
    module, inputs = made(kind)
    torch._dynamo.reset()
    fast = weft.fuse(module, options=OPTIONS | {"weft.activations": activations}, dynamic=False)
    found = []
    for called in (fast, module):
        module.zero_grad()
        x = inputs[0].clone().requires_grad_()
        out = called(x, *inputs[1:])
        out.square().mean().backward()
        found.append([out, x.grad, *(p.grad for p in module.parameters())])
    assert sum(one.fused for one in fast.explanation.graphs[0].segments) == fused, str(fast.explanation)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.fixture
def stopwatch(monkeypatch, tmp_path):
    """Measurements without a card: seconds are said by the test. seconds["kernel"]: of weft's own."""
    from weft.fusion import choice, kernels

    seconds = {"kernel": 1.0, "graph": 2.0, "layers": []}

    def of_call(calls):
        calls[0]()
        return seconds["kernel" if getattr(calls[0], "__name__", "") == "run" else "graph"]

    def of_layer(module, values):
        module(*values)
        seconds["layers"].append(sum("fused_segment" in str(node.target) for node in module.graph.nodes))
        return 10.0 - seconds["layers"][-1]

    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(choice, "seconds_of", of_call)
    monkeypatch.setattr("weft.fusion.place.layer_seconds", of_layer)
    monkeypatch.setattr(choice, "compiled_alone", lambda module, tensors: module)
    monkeypatch.setattr(kernels, "compile_all", lambda launches: ["" for _ in launches])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    choice._chosen.clear()
    yield seconds
    choice._chosen.clear()


def judged_of(module, inputs):
    """What is placed in a graph by measurement, and its results."""
    from weft.fusion.place import place_segments
    from weft.fusion.settings import Settings

    placed = []

    def rewritten(graph, given):
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        placed.extend(place_segments(graph, Settings(), "", dict(zip(nodes, given, strict=True))))
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        return placed, torch.compile(module, backend=rewritten, dynamic=False)(*inputs), module(*inputs)


def test_what_is_faster_is_fused_and_remembered(stopwatch):
    from weft.fusion import choice

    block, inputs = made(Block)
    module = Layers(block)
    for times in ([0, 2, 3, 4], []):  # kernels in the layers that were measured; nothing is measured again
        stopwatch["layers"].clear()
        choice._chosen.clear()
        placed, found, expected = judged_of(module, inputs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert all(one.fused for one in placed) and len(placed) == 4, placed
        assert "takes 1000000.0 us, and the graph 2000000.0" in placed[0].reason
        assert set(stopwatch["layers"]) <= set(times)


def test_what_is_slower_stays(stopwatch):
    stopwatch["kernel"] = 1.99  # within the margin
    module, inputs = made(Conv1D)
    placed, found, expected = judged_of(module, inputs)
    assert not any(one.fused for one in placed), placed
    assert torch.equal(found, expected)


def test_a_residual_that_is_slower_alone_is_judged_in_its_layer(stopwatch):
    stopwatch["kernel"] = 2.05
    block, inputs = made(Block)
    placed, found, expected = judged_of(Layers(block), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert [one.what for one in placed if one.fused] == 2 * ["product, residual"], placed
    placed, found, expected = judged_of(block, inputs)  # which is no numbered layer
    assert torch.equal(found, expected) and not any(one.fused for one in placed)


def test_what_is_off_is_dropped(stopwatch, monkeypatch):
    from weft.fusion.kernels import Prepared

    run = Prepared.run

    def wrong(self):
        return tuple(x.mul_(1.1) for x in run(self))

    wrong.__name__ = "run"
    monkeypatch.setattr(Prepared, "run", wrong)
    module, inputs = made(Block)
    placed, found, expected = judged_of(module, inputs)
    assert torch.equal(found, expected) and not any(one.fused for one in placed)
    assert placed[0].dropped and "it is off by" in placed[0].dropped[0]


class Layers(torch.nn.Module):
    """One numbered layer."""

    def __init__(self, block):
        super().__init__()
        self.layers = torch.nn.ModuleList([block])

    def forward(self, *inputs):
        return self.layers[0](*inputs)
