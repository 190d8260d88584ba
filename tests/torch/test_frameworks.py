"""In torch's own tools: fx, torch.load, FlopCounterMode, many structures under one compiled function, subclasses."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import weft
from weft.errors import InputError, UnsupportedError
from weft.pattern import crossing
from weft.testing.cases import BATCH, CASES, HEADS, At
from weft.testing.refusals import refuse
from weft.torch import SparseAttention, frameworks

from .helpers import EARLY_DYNAMO, qkv

M = 24


# ---- torch.fx --------------------------------------------------------------------------------------------------------
class Model(torch.nn.Module):
    def __init__(self, layout="bhsd", mask=None):
        super().__init__()
        self.project = torch.nn.Linear(16, 3 * 32)
        self.attend = SparseAttention(
            weft.causal() & weft.window(5) if mask is None else mask, sinks=torch.zeros(4), layout=layout
        )
        self.layout = layout

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).unbind(-3)
        if self.layout == "bshd":
            return self.attend(q, k, v).flatten(-2)
        return self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2).flatten(-2)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_symbolic_trace_keeps_the_call(layout):
    model, x = Model(layout), torch.randn(2, M, 16)
    traced = torch.fx.symbolic_trace(model)
    calls = [node for node in traced.graph.nodes if node.target is weft.attention]
    assert len(calls) == 1
    assert set(calls[0].kwargs) == {"sinks"} | ({"layout"} if layout == "bshd" else set())
    for again in (traced, copy.deepcopy(traced), pickle.loads(pickle.dumps(traced))):
        torch.testing.assert_close(again(x), model(x))
    torch.testing.assert_close(traced(x[:, :7]), model(x[:, :7]))  # nothing of the shapes is in the graph
    traced(x).sum().backward()
    assert model.attend.sinks.grad.abs().sum() > 0


def test_a_graph_that_is_traced_again_and_two_masks():
    class Two(torch.nn.Module):
        def forward(self, q, k, v):
            out, lse = weft.attention(q, k, v, NEAR, return_lse=True)
            more, more_lse = weft.attention(q, k, v, FAR, return_lse=True, scale=0.5)
            again = weft.attention(q, k, v, NEAR)
            return weft.merge([out, more], [lse, more_lse])[0] + again

    x, traced = qkv(M), torch.fx.symbolic_trace(torch.fx.symbolic_trace(Two()))
    torch.testing.assert_close(traced(*x), Two()(*x))
    held = [node.target for node in traced.graph.nodes if node.op == "get_attr"]
    assert len(set(held)) == 2


NEAR, FAR = weft.causal() & weft.window(3), weft.causal(offset=-4)


def test_masks_that_a_traced_graph_can_hold():
    class Other(torch.nn.Module):
        def __init__(self, mask):
            super().__init__()
            self.mask = mask

        def forward(self, q, k, v):
            return weft.attention(q, k, v, self.mask)

    x, live = qkv(M), torch.ones(M, M, dtype=torch.bool).tril()
    tensor = Other(None)
    del tensor.mask
    tensor.register_buffer("mask", live)
    for model in (tensor, Other(weft.recognize(lambda q, k: q >= k))):
        torch.testing.assert_close(torch.fx.symbolic_trace(model)(*x), weft.attention(*x, weft.causal()))
    refuse(
        lambda: torch.fx.symbolic_trace(Other(lambda q, k: q >= k)),
        InputError,
        ("torch.fx", "weft.recognize(mask).pattern"),
    )


# ---- torch.load ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CASES)
def test_patterns_load_as_weights(name):
    pattern = CASES[name].make(At(M, M))
    file = io.BytesIO()
    torch.save({"mask": pattern, "layers": [pattern, ~pattern]}, file)
    file.seek(0)
    found = torch.load(file, weights_only=True)
    assert found == {"mask": pattern, "layers": [pattern, ~pattern]}
    assert found["mask"].structure == pattern.structure


def test_recognised_patterns_load_as_weights():
    noise = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    for pattern in (weft.recognize(noise).pattern, weft.recognize(lambda q, k: (q >= k) & (q // 7 == k // 7)).pattern):
        file = io.BytesIO()
        torch.save(pattern, file)
        file.seek(0)
        assert torch.load(file, weights_only=True) == pattern


def test_copies_of_patterns_and_of_their_parts():
    pattern = CASES["sliding_window"].make(At(M, M))
    for again in (copy.deepcopy(pattern), copy.copy(pattern), pickle.loads(pickle.dumps(pattern))):
        assert again == pattern and torch.equal(again.tensor, pattern.tensor)
    leaf = weft.causal().body
    assert pickle.loads(pickle.dumps(leaf)) == leaf  # which does not cross


# ---- FlopCounterMode -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CASES)
def test_live_pairs_are_counted(name):
    pattern = CASES[name].make(At(M, M))
    q, k, v = qkv(M, batch=BATCH, heads=(HEADS, 2), dims=(8, 4), grad=True)
    with FlopCounterMode(display=False) as counter:
        out = weft.attention(q, k, v, pattern)
    pairs = int(torch.from_numpy(pattern.to_dense(M)).expand(BATCH, HEADS, M, M).sum())
    assert counter.get_total_flops() == 2 * pairs * (8 + 4)
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 2 * pairs * (3 * 8 + 2 * 4)


def test_dense_attention_counts_as_torch_s_own():
    q, k, v = qkv(M, heads=(4, 4), grad=True)
    totals = []
    for attend in (lambda: weft.attention(q, k, v, weft.full()), lambda: dense(q, k, v)):
        with FlopCounterMode(display=False) as counter:
            attend().sum().backward()
        totals.append(counter.get_total_flops())
    forward = 2 * 2 * 4 * M * M * (8 + 8)
    assert totals[0] == forward + forward * 5 // 2
    assert totals[1] == forward + forward * 2  # plain products: scores are kept


def dense(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def test_counted_by_module():
    model = Model()
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(2, M, 16)).sum().backward()
    of_attention = counter.get_flop_counts()["Model.attend"]
    pairs = 2 * 4 * weft.plan(model.attend.pattern, *qkv(M)).nnz // 8
    assert of_attention[torch.ops.weft.attention] == 2 * pairs * 16
    assert of_attention[torch.ops.weft.attention_backward] == 2 * pairs * 40


def test_counted_without_numbers():
    """Fake tensors and the meta device: nothing runs, and pairs are counted all the same."""
    expected = 2 * 8 * (M * (M + 1) // 2) * 16
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        weft.attention(*(torch.empty(2, h, M, 8) for h in (4, 2, 2)), weft.causal())
    assert counter.get_total_flops() == expected
    with FlopCounterMode(display=False) as counter:
        weft.attention(*(torch.empty(2, h, M, 8, device="meta") for h in (4, 2, 2)), weft.causal())
    assert counter.get_total_flops() == expected


def test_numbers_that_are_fake_are_not_guessed():
    with FakeTensorMode():
        q = torch.empty(1, 1, 4, 4)
        numbers = torch.empty(13, dtype=torch.int64)
        refuse(lambda: frameworks._forward_flops(q, q, q, "causal()", numbers), UnsupportedError, ("fake", "meta"))


# ---- one compiled function for many structures -----------------------------------------------------------------------
@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


STRUCTURES = [
    weft.causal(), weft.window(3, 3), weft.causal() & weft.window(5), weft.causal() | weft.prefix(4), weft.chunks(7),
    weft.documents([10, 14]) & weft.causal(), weft.longformer(6, 2), weft.dilated(2, 2, 3), ~weft.window(2, 2),
    weft.strided(5), weft.neighborhood((4, 6), 3), weft.causal().shift(q=2),
    weft.per_head([weft.causal(), weft.full(), weft.window(1), weft.chunks(3)]), weft.fixed(6), weft.full(),
]  # fmt: skip


@pytest.mark.skipif(EARLY_DYNAMO, reason="this Dynamo compiles a graph for each structure")
@pytest.mark.parametrize("dynamic", [None, True])
def test_layers_of_unlike_patterns_under_one_compiled_forward(fresh_dynamo, dynamic):
    """Each is compiled by itself, as regional compilation does; all share one forward, and one graph for each kind of
    expression: a call, and, or, not, shift.
    """
    counter, x = CompileCounter(), qkv(M)
    layers = [SparseAttention(pattern) for pattern in STRUCTURES]
    for layer in layers:
        layer.compile(backend=counter, fullgraph=True, dynamic=dynamic)
    for _ in range(2):
        for layer, pattern in zip(layers, STRUCTURES, strict=True):
            assert torch.equal(layer(*x), weft.attention(*x, pattern)), pattern
    assert counter.frame_count <= 5


@pytest.mark.skipif(EARLY_DYNAMO, reason="this Dynamo compiles a graph for each structure")
def test_one_function_of_many_structures_and_lengths(fresh_dynamo):
    counter = CompileCounter()
    compiled = torch.compile(weft.attention, backend=counter, fullgraph=True, dynamic=True)
    for m in (24, 48):
        x = qkv(m)
        for pattern in (weft.causal(), weft.window(3), weft.chunks(5), weft.strided(4), weft.longformer(4, 1)):
            assert torch.equal(compiled(*x, pattern), weft.attention(*x, pattern))
    assert counter.frame_count == 1


def test_gradients_of_a_structure_that_is_data(fresh_dynamo):
    compiled = torch.compile(weft.attention, backend="aot_eager", fullgraph=True)
    for pattern in (weft.causal() & weft.window(3), weft.full() & weft.chunks(5)):
        grads = []
        for function in (compiled, weft.attention):
            x = qkv(M, grad=True)
            grads.append(torch.autograd.grad(function(*x, pattern).square().sum(), x))
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b)


def test_what_travels_is_the_expression():
    for pattern in STRUCTURES:
        assert crossing.decode("", pattern.tensor.numpy().tobytes()) == pattern
        assert crossing.decode(pattern.structure, pattern.tensor.numpy().tobytes()) == pattern
        assert len(pattern.tensor) % 64 == 13


@pytest.mark.parametrize("damage", ["short", "long", "no expression", "no mark", "empty"])
def test_damaged_records(damage):
    numbers = STRUCTURES[2].tensor.numpy().copy()
    at = int(numbers[0])
    if damage == "short":
        numbers = numbers[: at + 2]
    elif damage == "long":
        numbers[0] = len(numbers) + 1
    elif damage == "no expression":
        numbers[at + 1] = 0
    elif damage == "no mark":
        numbers[at] = 0
    else:
        numbers = numbers[:0]
    refuse(lambda: crossing.decode("", numbers.tobytes()), InputError, ("record", "damaged"))


# ---- tensors that mean more than their numbers -----------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore")  # a prototype, and says so
def test_masked_tensors_are_refused():
    x = [torch.masked.masked_tensor(t, torch.ones_like(t, dtype=torch.bool)) for t in qkv(M)]
    refuse(
        lambda: weft.attention(*x, weft.causal()),
        UnsupportedError,
        ("q=MaskedTensor", "get_data()", "weft.padding(mask="),
    )
    plain = qkv(M)
    refuse(lambda: weft.attention(plain[0], *x[1:], weft.causal()), UnsupportedError, ("k=MaskedTensor",))
    refuse(
        lambda: weft.attention(*(t.transpose(1, 2) for t in plain[:2]), x[2], weft.causal(), layout="bshd"),
        UnsupportedError, ("v=MaskedTensor",),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and tells so
def test_torchscript_is_refused():
    def calls(q: torch.Tensor) -> torch.Tensor:
        return weft.attention(q, q, q, weft.causal())

    holds = torch.nn.Sequential(weft.torch.SparseAttention(weft.causal()))
    for thing, name in (
        (weft.attention, "attention"), (weft.merge, "merge"), (weft.torch.SparseAttention(weft.causal()), "Sparse"),
        (holds, "SparseAttention"), (calls, "attention"),
    ):  # fmt: skip
        refuse(partial(torch.jit.script, thing), UnsupportedError, (f"torch.jit.script({name}", "torch.compile(model"))


def test_distributed_tensors_are_refused():
    class DTensor(torch.Tensor):
        """Of that name, since none can be made without a process group."""

    x = [t.as_subclass(DTensor) for t in qkv(M)]
    refuse(lambda: weft.attention(*x, weft.causal()), UnsupportedError, ("q=DTensor", "to_local()", "from_local"))
