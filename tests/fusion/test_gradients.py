"""Gradients of fused products: in float64 against those of the unfused graph, and through a compiled module."""

import itertools

import pytest
import torch
from tests.fusion.helpers import agree
from tests.fusion.test_segments import Product, Rotated, X, chosen, halves, neighbours, tables

import weft
from weft.errors import OptionError, UnsupportedError
from weft.fusion import segment
from weft.fusion.gradients import gradients
from weft.fusion.kernels import ProductSpec, ProjectionsSpec
from weft.fusion.place import place_segments
from weft.fusion.segment import TRAINED, Fused
from weft.fusion.settings import Settings
from weft.testing.refusals import refuse

F = torch.nn.functional
K, N, D, HEADS, TOKENS = 12, 16, 8, 2, 5
ACTIVATIONS = {
    "": lambda x: x, "relu": F.relu, "gelu": F.gelu, "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}  # fmt: skip


def double(*sizes):
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)


def product_by_torch(spec, x, weight, *rest):
    """(the result, what is before its activation), as its meaning is."""
    rest = list(rest)
    gate = rest.pop(0) if spec.gated else None
    biases = [rest.pop(0) if spec.biased else None for _ in range(1 + spec.gated)]
    residual = rest.pop(0) if spec.residual else 0
    before = [F.linear(x, w.t() if spec.by_rows else w, b) for w, b in zip((weight, gate), biases, strict=False)]
    act = ACTIVATIONS[spec.activation]
    return (act(before[1]) * before[0] if spec.gated else act(before[0])) + residual, torch.stack(before)


SPECS = [
    ProductSpec(activation, gated, biased, residual, by_rows)
    for activation in ACTIVATIONS
    for gated, biased, residual, by_rows in itertools.product((False, True), repeat=4)
]


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "recomputed"])
def test_gradients_of_products(kept):
    for spec in SPECS:
        if spec.gated and not spec.activation:
            continue
        torch.manual_seed(1)
        x, residual = double(2, 3, K), double(2, 3, N)
        weights = [double(*((K, N) if spec.by_rows else (N, K))) for _ in range(1 + spec.gated)]
        biases = [double(N) for _ in range((1 + spec.gated) * spec.biased)]
        tensors = [x, *weights, *biases, *([residual] if spec.residual else [])]
        out, before = product_by_torch(spec, *tensors)
        dout = torch.randn_like(out)
        expected = torch.autograd.grad(out, tensors, dout)
        with torch.no_grad():
            found = gradients(spec, tensors, before if kept and spec.activation else None, dout)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("turn", [None, halves, neighbours])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_gradients_of_query_key_and_value(turn, batch, biased):
    torch.manual_seed(2)
    spec = ProjectionsSpec(D, biased, turn is not None, turn is neighbours)
    x, weights = double(2, TOKENS, K), [double(n * D, K) for n in (2 * HEADS, HEADS, HEADS)]
    biases = [double(w.shape[0]) for w in weights] if biased else []
    cos, sin = (torch.randn(batch, 1, TOKENS, D, dtype=torch.float64) for _ in range(2))
    made = []
    for i, (w, b) in enumerate(zip(weights, biases or [None] * 3, strict=True)):
        y = F.linear(x, w, b).unflatten(-1, (-1, D)).transpose(1, 2)
        made.append((y * cos + turn(y) * sin if turn is not None and i < 2 else y).transpose(1, 2).flatten(2))
    out = torch.cat(made, -1)
    dout, tensors = torch.randn_like(out), [x, *weights, *biases]
    expected = torch.autograd.grad(out, tensors, dout)
    found = gradients(spec, [*tensors, *((cos, sin) if turn is not None else ())], None, dout)
    for one, other in zip(found, expected, strict=False):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert found[len(expected) :] == [None] * (2 * spec.tables)


MODULES = {
    "gelu": (lambda: Product(lambda x, y: F.gelu(y)), lambda: (X,)),
    "gated": (lambda: Product(lambda x, y, z: F.silu(y) * z, 2), lambda: (X,)),
    "rotated": (lambda: Rotated(halves), lambda: (X, *tables())),
    "neighbours": (lambda: Rotated(neighbours), lambda: (X, *tables())),
    "plain": (lambda: Rotated(None, biased=True), lambda: (X, *tables())),
}


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
@pytest.mark.parametrize("activations", ["kept", "recomputed"])
@pytest.mark.parametrize("name", MODULES)
def test_training_gives_the_same(name, activations, inner, monkeypatch):
    """The operator runs the unfused graph here, and its own gradients."""
    monkeypatch.setattr("weft.fusion.kernels.reason_against", lambda *_: "there is no card")
    module, inputs = MODULES[name][0](), MODULES[name][1]()
    settings, placed = Settings(inner="eager", activations=activations), []

    def rewritten(graph, given):
        placed.extend(place_segments(graph, settings, "", None, chosen))
        assert any(node.target is TRAINED for node in graph.graph.nodes)
        return torch._dynamo.lookup_backend(inner)(graph, given)

    torch._dynamo.reset()
    found = []
    for called in (torch.compile(module, backend=rewritten, dynamic=False), module):
        module.zero_grad()
        x = inputs[0].clone().requires_grad_()
        out = called(x, *inputs[1:])
        out.square().sum().backward()
        found.append([out, x.grad, *(p.grad for p in module.parameters())])
    assert placed and all(one.fused for one in placed)
    if settings.activations == "kept" and name in ("gelu", "gated"):
        assert "what gradients need" in placed[0].what
    agree(*found)


def test_a_residual_stays_in_training():
    module = Product(lambda x, y: x + y)
    graphs = []
    torch._dynamo.reset()
    torch.compile(module, backend=lambda graph, _: graphs.append(graph) or graph.forward, dynamic=False)(X)
    (placed,) = place_segments(graphs[0], Settings(), "", None, chosen)
    assert not placed.fused and "the compiler joins the sum" in placed.reason


def fused_gelu():
    """The name of an operator, and what it takes."""
    module = Product(lambda x, y: F.gelu(y))
    graphs = []
    torch._dynamo.reset()
    torch.compile(module, backend=lambda graph, _: graphs.append(graph) or graph.forward, dynamic=False)(X)
    (found,) = segment_of(graphs[0])
    one = segment.registered(Fused(found.spec, found.unfused, chosen(found, Settings()).config))
    linear = module.products[0]
    return one.name, [X.clone().requires_grad_(), linear.weight, linear.bias]


def segment_of(graph):
    from weft.fusion.place import _founds

    return [found for found, why in _founds(graph.graph, Settings()) if not why]


def test_what_has_no_rule_is_refused(monkeypatch):
    monkeypatch.setattr("weft.fusion.kernels.reason_against", lambda *_: "there is no card")
    name, tensors = fused_gelu()
    out, kept = TRAINED(tensors, name)
    assert not kept.requires_grad and kept.shape == (1, *out.shape)
    (dx,) = torch.autograd.grad(out.square().sum(), tensors[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dx.sum().backward()
    refuse(
        lambda: torch.func.grad(lambda x: TRAINED([x, *tensors[1:]], name)[0].sum())(X),
        UnsupportedError,
        ("torch.func",),
    )
    with torch.autograd.forward_ad.dual_level():
        refuse(lambda: TRAINED(tensors, name), UnsupportedError, ("forward-mode",))


def test_unknown_ways_are_refused():
    with pytest.raises(OptionError, match="kept, recomputed"):
        weft.fuse(torch.nn.Linear(2, 2), options={"weft.activations": "dropped"})
