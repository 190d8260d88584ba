"""Calls that go past the dispatcher: the same numbers as the operator's, and no call answered from another one's."""

import copy
import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft.errors import AlignmentError, InputError, OptionError, UnsupportedError
from weft.kernels.cpu import run as cpu
from weft.testing.refusals import refuse
from weft.torch import eager

from .helpers import qkv, tokens_first

MASK = weft.causal() & weft.window(left=5)
SINKS, SLOPES = torch.linspace(-1, 1, 4), torch.linspace(0.1, 0.4, 4)


class Watch(TorchDispatchMode):
    """Writes down which of weft's operators are called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "weft":
            self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def results(tensors, mask=MASK, **options):
    """out, lse, and the gradients of q, k and v."""
    out, lse = weft.attention(*tensors, mask, return_lse=True, **options)
    if not out.requires_grad:
        return out, lse
    seed = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype)
    return out, lse, *torch.autograd.grad((out, lse), tensors, (seed, seed.float().sum(-1).to(lse.dtype)))


def by_operator(tensors, mask=MASK, **options):
    """The same by the operators, of copies, so that nothing of one call is left to the other."""
    copies = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad) for x in tensors]
    with Watch() as watch:
        found = results(copies, copy.deepcopy(mask), **options)
    assert watch.seen == ["attention", "attention_backward"][: 1 + copies[0].requires_grad]
    return found


def assert_same(found, expected):
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)


OPTIONS = {
    "none": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": SINKS},
    "slopes": {"alibi_slopes": SLOPES},
    "all": {"scale": -0.5, "softcap": 1.5, "sinks": SINKS, "alibi_slopes": SLOPES, "deterministic": True},
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_operators_numbers(options, grad):
    for _ in range(2):  # prepared, and found
        tensors = qkv(17, grad=grad)
        assert_same(results(tensors, **OPTIONS[options]), by_operator(tensors, **OPTIONS[options]))


def test_gradients_of_sinks():
    found = []
    for watcher in (mock.MagicMock(), Watch()):
        sinks, tensors = SINKS.clone().requires_grad_(), qkv(9)
        with watcher:
            found.append(torch.autograd.grad(weft.attention(*tensors, MASK, sinks=sinks).sum(), sinks))
    assert_same(*found)


@pytest.mark.parametrize("by_operator", [False, True])
def test_a_gradient_of_sinks_that_nobody_wants_is_not_computed(by_operator):
    tensors = qkv(9, grad=True)
    watcher = Watch() if by_operator else nullcontext()
    with mock.patch.object(cpu, "sink_gradient", side_effect=AssertionError), watcher:
        torch.autograd.grad(weft.attention(*tensors, MASK, sinks=SINKS).sum(), tensors)


@pytest.mark.parametrize("by_operator", [False, True])
def test_sinks_without_a_gradient_are_free_to_change(by_operator):
    """They are in lse, and not saved for the backward."""
    with torch.inference_mode():
        made_there = SINKS.clone()
    for sinks in (SINKS.clone(), made_there):
        tensors, changed = qkv(9, grad=True), not sinks.is_inference()
        with Watch() if by_operator else nullcontext():
            out = weft.attention(*tensors, MASK, sinks=sinks)
        wanted = torch.autograd.grad(weft.attention(*tensors, MASK, sinks=SINKS).sum(), tensors)
        if changed:
            sinks.add_(1)
        assert_same(torch.autograd.grad(out.sum(), tensors), wanted)


# ---- one call is not another -----------------------------------------------------------------------------------------
def offset(x):
    """The same numbers, one element further from where memory begins."""
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def long(x):
    """Every other row of a longer tensor."""
    return x.repeat_interleave(2, 2)[:, :, ::2]


CHANGES = {
    "strides": lambda x, o: ([tokens_first(t) for t in x], o),
    "strides of one": lambda x, o: ([x[0], long(x[1]), x[2]], o),
    "where memory begins": lambda x, o: ([offset(t) for t in x], o),
    "dtype": lambda x, o: ([t.bfloat16() for t in x], o),
    "gradients": lambda x, o: ([t.clone().requires_grad_() for t in x], o),
    "one gradient": lambda x, o: ([x[0], x[1], x[2].clone().requires_grad_()], o),
    "batch": lambda x, o: ([t[:1] for t in x], o),
    "heads": lambda x, o: ([x[0][:, :2], x[1], x[2]], o),
    "queries": lambda x, o: ([x[0][:, :, :9], x[1][:, :, :9], x[2][:, :, :9]], o),
    "values": lambda x, o: ([x[0], x[1], x[2][..., :3]], o),
    "scale": lambda x, o: (x, o | {"scale": 2.0}),
    "whole scale": lambda x, o: (x, o | {"scale": 1}),
    "softcap": lambda x, o: (x, o | {"softcap": 0.5}),
    "sinks": lambda x, o: (x, o | {"sinks": SINKS}),
    "sinks of another dtype": lambda x, o: (x, o | {"sinks": SINKS.double()}),
    "slopes": lambda x, o: (x, o | {"alibi_slopes": SLOPES}),
    "mask": lambda x, o: (x, o | {"mask": weft.causal() & weft.window(left=2)}),
    "backend": lambda x, o: (x, o | {"backend": "cpu"}),
    "deterministic": lambda x, o: (x, o | {"deterministic": True}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_takes_effect_and_goes_again(change):
    first, options = qkv(17), {}
    second, others = CHANGES[change](first, options)
    for tensors, given in ((first, options), (second, others), (first, options), (second, others)):
        leaves = [x for x in tensors if x.requires_grad]
        found, expected = (
            run(tensors, **given) if len(leaves) in (0, 3) else weft.attention(*tensors, given.get("mask", MASK))[None]
            for run in (results, by_operator)
        )
        assert_same(found, expected)


def test_numbers_of_the_same_tensors_are_data():
    tensors, sinks = qkv(17), SINKS.clone()
    for _ in range(3):
        tensors[0].mul_(0.5)
        tensors[1].add_(1)
        sinks.add_(0.25)
        assert_same(results(tensors, sinks=sinks), by_operator(tensors, sinks=sinks))


def test_gradients_switched_on_and_off_in_place():
    q, k, v = qkv(17)
    for _ in range(2):
        assert not weft.attention(q, k, v, MASK).requires_grad
        k.requires_grad_()
        assert weft.attention(q, k, v, MASK).requires_grad
        with torch.no_grad():
            assert not weft.attention(q, k, v, MASK).requires_grad
        with torch.inference_mode():
            assert weft.attention(q, k, v, MASK).is_inference()
        k.requires_grad_(False)


def test_autocast_switched_on_and_off():
    tensors = qkv(17)
    for _ in range(2):
        assert weft.attention(*tensors, MASK).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert weft.attention(*tensors, MASK).dtype == torch.bfloat16


def test_determinism_is_asked_for_at_every_call():
    asked = []

    def backward(*args):
        *_, deterministic, _ = args
        asked.append(deterministic)
        return *map(torch.zeros_like, args[0]), torch.zeros(args[0][0].shape[:3])

    tensors = qkv(17, grad=True)
    with mock.patch.object(cpu, "backward", backward):
        for everywhere in (False, True, False):
            torch.use_deterministic_algorithms(everywhere)
            try:
                outs = [weft.attention(*tensors, MASK, deterministic=one) for one in (None, True, False)]
            finally:
                torch.use_deterministic_algorithms(False)
            for out in outs:
                out.sum().backward()
    assert asked == [False, True, False, True, True, False, False, True, False]


def test_patterns_that_come_and_go():
    """A pattern takes the memory, and so the id, of one that went: it is kept as long as it may be found."""
    tensors = qkv(17)
    gc.freeze()  # what is there by now need not be walked each time
    for left in [1, 2, 3, 4] * 5:
        found = weft.attention(*tensors, weft.window(left=left, right=0))
        gc.collect()
        expected = weft.attention(*tensors, weft.causal() & weft.window(left=left))
        torch.testing.assert_close(found, expected)


def test_few_calls_are_kept():
    tensors = qkv(3)
    with mock.patch.object(eager._calls, "most", 8), mock.patch.dict(eager._calls, clear=True):
        for left in range(30):
            weft.attention(*tensors, weft.window(left=left))
            assert len(eager._calls) <= 8


def test_threads():
    tensors = qkv(9)
    expected = [weft.attention(*tensors, weft.window(left=left)) for left in range(8)]

    def one(i):
        return torch.equal(weft.attention(*tensors, weft.window(left=i % 8)), expected[i % 8])

    with (
        mock.patch.object(eager._calls, "most", 3),
        mock.patch.dict(eager._calls, clear=True),
        ThreadPoolExecutor(4) as go,
    ):
        assert all(go.map(one, range(200)))


# ---- what is refused is refused after its like went well ------------------------------------------------------------
Q, K, V = qkv(16)
BAD = {
    "scale=True": ({"scale": 1.0}, {"scale": True}, OptionError),
    "softcap=True": ({"softcap": 1}, {"softcap": True}, OptionError),
    "scale=tensor": ({"scale": 1.0}, {"scale": torch.tensor(1.0)}, UnsupportedError),
    "scale=array": ({"scale": 1.0}, {"scale": [1.0]}, OptionError),
    "dropout=False": ({"dropout": 0}, {"dropout": False}, OptionError),
    "dropout": ({"dropout": 0.0}, {"dropout": 1.5}, OptionError),
    "deterministic=1": ({"deterministic": True}, {"deterministic": 1}, OptionError),
    "backend=list": ({"backend": "cpu"}, {"backend": ["cpu"]}, OptionError),
    "sinks of other heads": ({"sinks": SINKS}, {"sinks": SINKS[:3]}, OptionError),
    "sinks elsewhere": ({"sinks": SINKS}, {"sinks": SINKS.to("meta")}, OptionError),
    "complex sinks": ({"sinks": SINKS}, {"sinks": SINKS.to(torch.complex64)}, OptionError),
    "complex slopes": ({"alibi_slopes": SLOPES}, {"alibi_slopes": SLOPES.to(torch.complex64)}, OptionError),
    "k elsewhere": ({}, {"k": K.to("meta")}, InputError),
    "v of another dtype": ({}, {"v": V.double()}, InputError),
    "fewer keys": ({}, {"k": K[:, :, :9], "v": V[:, :, :9]}, AlignmentError),
    "a mask of another kind": ({}, {"mask": MASK.to_dense(16)}, InputError),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_after_its_like(name):
    good, bad, error = BAD[name]
    for _ in range(2):
        call = SimpleNamespace(q=Q, k=K, v=V, mask=MASK)
        weft.attention(**(vars(call) | good))
        refuse(lambda call=call: weft.attention(**(vars(call) | bad)), error, ())


# ---- who looks at operators is shown them ----------------------------------------------------------------------------
class Note(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """A subclass that keeps its kind."""


@pytest.mark.parametrize("mode", [Note, Watch])
def test_modes(mode):
    with mock.patch.object(eager, "attend") as direct, mode():
        weft.attention(*qkv(9), MASK)
    direct.assert_not_called()


def test_subclasses_keep_their_kind():
    x = [t.as_subclass(Own) for t in qkv(9)]
    assert type(weft.attention(*x, MASK)) is Own


def test_parameters_go_the_short_way():
    q, k, v = qkv(9)
    with mock.patch.object(eager, "attend", side_effect=eager.attend) as direct:
        weft.attention(torch.nn.Parameter(q), k, v, MASK).sum().backward()
    direct.assert_called_once()


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and tells so
def test_a_trace_holds_the_operator():
    for _ in range(2):
        traced = torch.jit.trace(lambda q, k, v: weft.attention(q, k, v, MASK), qkv(9), check_trace=False)
        assert "weft::attention" in str(traced.graph)
        other = qkv(9, seed=1)
        assert torch.equal(traced(*other), weft.attention(*other, MASK))


def test_numbers_that_are_not_in_memory():
    """A view that is negated when it is read, and a tensor of zeros without memory."""
    q, k, v = qkv(9)
    negated = torch.complex(torch.zeros_like(q), -q).conj().imag
    assert negated.is_neg()
    assert torch.equal(weft.attention(negated, k, v, MASK), weft.attention(q, k, v, MASK))
    nothing = torch._efficientzerotensor(q.shape)
    assert torch.equal(weft.attention(nothing, k, v, MASK), weft.attention(torch.zeros_like(q), k, v, MASK))


def test_a_gradient_that_is_not_in_memory():
    x = qkv(9, grad=True)
    out = weft.attention(*x, MASK)
    seed = torch.randn_like(out)
    negated = torch.complex(torch.zeros_like(seed), -seed).conj().imag
    assert_same(
        torch.autograd.grad(out, x, negated, retain_graph=True), torch.autograd.grad(out, x, seed, retain_graph=True)
    )


def test_saved_tensors_are_saved_as_torch_saves_them():
    packed, x = [], qkv(9, grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
        weft.attention(*x, MASK)
    assert len(packed) == 5


@pytest.mark.parametrize("written", ["out", "k"])
def test_what_a_gradient_needs_is_not_written_meanwhile(written):
    q, k, v = qkv(9, grad=True)
    out = weft.attention(q, k, v, MASK)
    with torch.no_grad():
        {"out": out, "k": k}[written].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_compiled_autograd_is_shown_the_operator():
    """Dynamo would otherwise trace through the kernels' own Python."""
    x = qkv(9, grad=True)
    out = weft.attention(*x, MASK)
    expected = torch.autograd.grad(out.sum(), x, retain_graph=True)
    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    with compiled_autograd._enable(torch.compile(backend=backend)):
        out.sum().backward()
    assert any("weft.attention_backward" in name for name in seen)
    assert_same([t.grad for t in x], expected)
