"""Products with what follows them, and rotations, in traced graphs: what is recognised, by values, and what is not."""

import math

import pytest
import torch
from tests.fusion.helpers import EAGER, agree

import weft
from weft.errors import UnsupportedError
from weft.fusion import evidence
from weft.fusion.choice import Choice
from weft.fusion.epilogues import products_in
from weft.fusion.kernels import Library, LibraryCall, ProductSpec, libraries
from weft.fusion.place import place_segments
from weft.fusion.rotations import projections_in
from weft.fusion.segment import FUSED
from weft.fusion.settings import Settings
from weft.fusion.whole import Settled, settle
from weft.kernels.gpu.gemm.config import Config
from weft.testing.refusals import refuse

F = torch.nn.functional
WIDE, D, TOKENS = 16, 8, 5
X = torch.randn(2, TOKENS, WIDE, generator=torch.Generator().manual_seed(0))
TILE = Config(32, 32, 32, 4, 2)


def graph_of(module, *inputs):
    """The graph that Dynamo traces."""
    found = []
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(module, backend=lambda graph, _: found.append(graph) or graph.forward, dynamic=False)(*inputs)
    return found[0]


class Product(torch.nn.Module):
    """A product, and a function of it and of x."""

    def __init__(self, after, products=1, bias=True):
        super().__init__()
        torch.manual_seed(1)
        self.after = after
        self.products = torch.nn.ModuleList(torch.nn.Linear(WIDE, WIDE, bias=bias) for _ in range(products))

    def forward(self, x):
        return self.after(x, *(one(x) for one in self.products))


def gelu_new(x, y):
    return 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))))


ACTIVATIONS = {
    "gelu": (lambda x, y: F.gelu(y), "gelu"),
    "gelu by erf": (lambda x, y: y * 0.5 * (1.0 + torch.erf(y / math.sqrt(2.0))), "gelu"),
    "gelu by tanh": (lambda x, y: F.gelu(y, approximate="tanh"), "gelu_tanh"),
    "gelu_new": (gelu_new, "gelu_tanh"),
    "silu": (lambda x, y: F.silu(y), "silu"),
    "swish": (lambda x, y: y * torch.sigmoid(y), "silu"),
    "relu": (lambda x, y: torch.relu(y), "relu"),
    "in float32": (lambda x, y: F.silu(y.float()), "silu"),
    "quick gelu": (lambda x, y: y * torch.sigmoid(1.702 * y), None),
    "leaky": (lambda x, y: F.leaky_relu(y), None),
    "twice": (lambda x, y: F.silu(F.gelu(y)), "gelu"),  # the inner one
    "read elsewhere": (lambda x, y: F.gelu(y) + y.sum(), None),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_known_by_their_values(name):
    function, expected = ACTIVATIONS[name]
    found = [one.spec.activation for one in products_in(graph_of(Product(function), X).graph)]
    assert found == ([expected] if expected else [])


def test_gates_and_residuals():
    gated = list(products_in(graph_of(Product(lambda x, y, z: F.silu(y) * z, 2, bias=False), X).graph))
    assert [one.spec for one in gated] == [ProductSpec("silu", gated=True)]
    assert len(gated[0].inner) == 4
    added = list(products_in(graph_of(Product(lambda x, y: x + y), X).graph))
    assert [one.spec for one in added] == [ProductSpec(biased=True, residual=True)]
    for after in (lambda x, y: x + F.dropout(y, 0.1, False), lambda x, y: x + F.dropout(y, 0.0, True)):
        assert [one.spec for one in products_in(graph_of(Product(after), X).graph)] == [added[0].spec]
    for after in (lambda x, y: x[:1] + y, lambda x, y: y + y, lambda x, y: y + 1, lambda x, y: x + F.dropout(y),
                  lambda x, y: F.layer_norm(x + y, [WIDE])):  # fmt: skip
        assert not list(products_in(graph_of(Product(after), X).graph))


class Conv1D(torch.nn.Module):
    """GPT-2's product of rows, with a residual."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.weight, self.bias = (torch.nn.Parameter(torch.randn(*n) / 4) for n in ((WIDE, WIDE), (WIDE,)))
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x, shape=None):
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return x.sin() + self.drop(y.view(x.shape))


def test_a_product_of_rows_with_a_residual():
    module = Conv1D().eval()
    (found,) = products_in(graph_of(module, X).graph)
    assert found.spec == ProductSpec(biased=True, residual=True, by_rows=True) and found.inputs[0].name == "l_x_"
    agree(found.unfused(X, module.weight, module.bias, X.sin())[0], module(X))
    assert not list(products_in(graph_of(Conv1D(), X).graph))  # which drops


@pytest.mark.parametrize("name", [name for name, (_, known) in ACTIVATIONS.items() if known])
def test_the_unfused_graph_is_its_meaning(name):
    module = Product(ACTIVATIONS[name][0])
    (found,) = products_in(graph_of(module, X).graph)
    y = module.products[0](X)
    known = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "relu": F.relu}
    agree(found.unfused(X, module.products[0].weight, module.products[0].bias)[0], known[found.spec.activation](y))


# ---- rotations -------------------------------------------------------------------------------------------------------
def halves(x):
    return torch.cat((-x[..., D // 2 :], x[..., : D // 2]), -1)


def neighbours(x):
    return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)


def wrong_sign(x):
    return torch.cat((x[..., D // 2 :], -x[..., : D // 2]), -1)


class Rotated(torch.nn.Module):
    """Attention's products with a rotation, and a causal window as a mask."""

    def __init__(self, turn, biased=False):
        super().__init__()
        torch.manual_seed(2)
        self.turn = turn
        self.q, self.k, self.v = (torch.nn.Linear(WIDE, n, bias=biased) for n in (2 * D, 2 * D, 2 * D))

    def forward(self, x, cos, sin):
        q, k, v = (one(x).view(*x.shape[:2], -1, D).transpose(1, 2) for one in (self.q, self.k, self.v))
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        if self.turn is not None:
            q, k = ((y * cos) + (self.turn(y) * sin) for y in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(2)


def tables(batch=1):
    angle = torch.arange(TOKENS)[None, :, None] * torch.rand(batch, 1, D // 2)
    return [f(torch.cat((angle, angle), -1)) for f in (torch.cos, torch.sin)]


@pytest.mark.parametrize(("turn", "interleaved"), [(halves, False), (neighbours, True)])
@pytest.mark.parametrize("batch", [1, 2])
def test_rotations_are_known_by_their_values(turn, interleaved, batch):
    (found,) = projections_in(graph_of(Rotated(turn), X, *tables(batch)).graph)
    assert (found.spec.tables, found.spec.interleaved, found.spec.d) == (True, interleaved, D)


def test_what_is_no_rotation_stays():
    assert not list(projections_in(graph_of(Rotated(wrong_sign), X, *tables()).graph))
    (plain,) = projections_in(graph_of(Rotated(None, biased=True), X, *tables()).graph)
    assert not plain.spec.tables and plain.spec.biased


# ---- in their places -------------------------------------------------------------------------------------------------
def chosen(found, settings):
    return Choice(TILE, "the test wants it")


MODULES = {
    "gated": (lambda: Product(lambda x, y, z: F.silu(y) * z, 2), lambda: (X,)),
    "two after each other": (
        lambda: torch.nn.Sequential(*(Product(lambda x, y: x + y) for _ in range(2))),
        lambda: (X,),
    ),
    "rotated": (lambda: Rotated(halves), lambda: (X, *tables())),
    "plain": (lambda: Rotated(None, biased=True), lambda: (X, *tables())),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_rewritten_graph_gives_the_same(name, monkeypatch):
    """The operator runs the unfused graph here, laid out as the kernel would."""
    monkeypatch.setattr("weft.fusion.kernels.reason_against", lambda *_: "there is no card")
    module, inputs = MODULES[name][0](), MODULES[name][1]()
    graph = graph_of(module, *inputs)
    given = [x for node in graph.graph.nodes if node.op == "placeholder" for x in [node.meta["example_value"]]]
    with torch.no_grad():
        placed = place_segments(graph, Settings(inner="eager"), "", None, chosen)
    assert placed and all(one.fused for one in placed)

    def rewritten(module, real):
        return place_segments(module, Settings(inner="eager"), "", None, chosen) and module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        agree(torch.compile(module, backend=rewritten, dynamic=False)(*inputs), module(*inputs))
    assert given


def test_what_stays_is_said():
    module = Product(lambda x, y: F.gelu(y))
    torch._dynamo.reset()
    fast = weft.fuse(module, options=EAGER)
    agree(fast(X), module(X))  # with gradients
    assert "because its tensors are on cpu" in str(fast.explanation)
    torch._dynamo.reset()
    fast = weft.fuse(module, options=EAGER)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        fast(X)
    assert "because autocast" in str(fast.explanation)
    torch._dynamo.reset()
    fast = weft.fuse(module, options=EAGER)
    with torch.no_grad():
        agree(fast(X), module(X))
    assert "because its tensors are on cpu" in str(fast.explanation)
    torch._dynamo.reset()
    fast = weft.fuse(module, options=EAGER | {"weft.templates": "off"})
    with torch.no_grad():
        fast(X)
    assert not fast.explanation.graphs[0].segments


def test_writes_in_between_leave_a_product_as_it_is():
    def written(x, y):
        x.add_(1)
        return F.gelu(y)

    assert not list(products_in(graph_of(Product(written), X.clone()).graph))


def test_a_chooser_that_fails_leaves_the_graph():
    def fails(found, settings):
        raise RuntimeError("CUDA error: out of memory\nmore")

    graph = graph_of(Product(lambda x, y: F.gelu(y)), X)
    (placed,) = place_segments(graph, Settings(), "", None, fails)
    assert not placed.fused and placed.reason == "it could not be measured: RuntimeError: CUDA error: out of memory"


def test_evidence_is_kept_and_checked(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    subject = {"card": "a card", "triton": "3", "segment": "x"}
    assert evidence.known(subject) is None
    for config, reason in ((None, "slow"), (TILE, "fast"), (Library(rank=1), "faster")):
        row = {"config": config, "reason": reason, "unfused": 2e-3, "fused": 1e-3, "dropped": ("one",)}
        assert evidence.keep(subject, "a product", row)
        assert evidence.known(subject) == row
    assert evidence.known(subject | {"card": "another"}) is None
    evidence.opened().record(evidence.key_of(subject), [{"config": {"rows": -1}}])
    assert evidence.known(subject) is None


@pytest.mark.parametrize("by_rows", [False, True])
def test_the_library_computes_what_it_is_asked(by_rows):
    weight, bias = torch.randn(24, WIDE), torch.randn(24)
    spec = ProductSpec("relu", biased=True, by_rows=by_rows)  # on a CPU its GELU is exact, on a card by tanh
    assert libraries(spec) == [Library()] and not libraries(ProductSpec("gelu", biased=True))
    (found,) = LibraryCall(spec, [X, weight.t().contiguous() if by_rows else weight, bias]).run()
    agree(found, torch.relu(F.linear(X, weight, bias)))


# ---- a whole layer ---------------------------------------------------------------------------------------------------
class Layered(torch.nn.Module):
    """Layers of a gate and a residual."""

    def __init__(self):
        super().__init__()
        layer = lambda: torch.nn.Sequential(Product(lambda x, y, z: F.silu(y) * z, 2), Product(lambda x, y: x + y))  # noqa: E731
        self.layers = torch.nn.ModuleList(layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


SECONDS = {"both": 1.0, "gate": 2.0, "residual": 3.0, "none": 4.0}


@pytest.mark.parametrize("best", ["both", "gate", "none"])
def test_what_slows_its_layer_down_is_left(best, monkeypatch):
    """Layers are measured with both kinds of segments, without the residual, and with none."""
    asked = []

    def seconds(module, values):
        fused = [node for node in module.graph.nodes if node.target is FUSED]
        gates = sum(len(node.args[0]) == 5 for node in fused)  # x, two weights, two biases
        name = "both" if len(fused) == 2 else "none" if not fused else "gate" if gates else "residual"
        agree(module(*values)[0], expected.append(module(*values)[0]) or expected[0])
        asked.append(name)
        return 0.5 if name == best else SECONDS[name]

    expected = []
    monkeypatch.setattr("weft.fusion.kernels.reason_against", lambda *_: "there is no card")
    monkeypatch.setattr("weft.fusion.place.layer_seconds", seconds)
    monkeypatch.setattr("weft.fusion.place.settle_once", lambda code, configs, values, settle, again: settle())
    module = Layered()
    placed = []

    def rewritten(graph, inputs):
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        placed.extend(place_segments(graph, Settings(), "", dict(zip(nodes, inputs, strict=True)), chosen))
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        agree(torch.compile(module, backend=rewritten, dynamic=False)(X), module(X))
    kinds = {"both": {"gate", "residual"}, "none": set()}.get(best, {best})
    assert len(placed) == 6
    for one in placed:
        kind = "residual" if "residual" in one.what else "gate"
        assert one.fused == (kind in kinds), (one, asked)
        assert one.fused or "its layer takes 500000 us without it" in one.reason
    assert len(asked) == len(set(asked)) == 3


def test_settling_asks_for_few_and_stops():
    def seconds(kinds):
        return 10.0 + sum(-1.0 if kind % 2 else 1.0 for kind in kinds)

    found = settle(range(6), seconds)
    assert found.kept == {1, 3, 5} and len(found.seconds) <= 64 // 3
    assert settle(range(6), lambda kinds: 10.0 - len(kinds)).kept == set(range(6))
    assert settle(range(6), seconds, joined=[0]).kept == {1, 2, 3, 4, 5}
    late = settle(range(6), seconds, until=0.0)
    assert len(late.seconds) == 2  # all of them, and none
    assert not settle([0], lambda kinds: 1.0).kept  # as fast without


def test_evidence_of_layers(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    subject = {"card": "a card", "triton": "3", "layer": "x"}
    assert evidence.known_layer(subject) is None
    found = Settled(frozenset((1,)), {frozenset((0, 1)): 2.0, frozenset((1,)): 1.0, frozenset(): 3.0})
    assert evidence.keep_layer(subject, found) and evidence.known_layer(subject) == found
    evidence.opened().record(evidence.key_of(subject), [{"kept": [7], "seconds": []}])
    assert evidence.known_layer(subject) is None


def test_an_operator_of_another_process_is_refused():
    """Whose graph this one does not have."""
    refuse(lambda: FUSED([X], "segment_of_nobody"), UnsupportedError, ("segment_of_nobody", "another process"))
