"""The registered operators: torch's own checks of them, and what is refused by name."""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft.errors import UnsupportedError
from weft.testing.cases import CASES, HEADS, At
from weft.testing.refusals import refuse
from weft.torch.operator import Options

from .helpers import qkv, tokens_first

OPS = torch.ops.weft
MASK = weft.causal() & weft.window(left=3)


def arguments(tensors, mask, with_lse=True, **options):
    """What weft::attention takes, as weft.attention gives it."""
    defaults = {
        "sinks": None,
        "slopes": None,
        "scale": None,
        "softcap": None,
        "backend": "auto",
        "deterministic": False,
    }
    options = Options(**defaults | options)
    return (*tensors, mask.structure, torch.from_numpy(mask.numbers), *options, with_lse)


def dims_first(x):
    grad, x = x.requires_grad, x.detach().mT.contiguous().mT
    return x.requires_grad_(grad)


LAYOUTS = {"contiguous": lambda x: x, "tokens_first": tokens_first, "dims_first": dims_first}
CHECKED = {
    "window, training": ("window", "contiguous", True, {}),
    "packed, as projections lie": ("packed", "tokens_first", True, {"softcap": 2.0}),
    "random blocks, odd strides": ("random_blocks", "dims_first", True, {}),
    "per head, sinks and slopes": ("per_head", "contiguous", True, {"sinks": True, "slopes": True}),
    "neighborhood, inference": ("neighborhood_2d", "contiguous", False, {}),
    "no keys": ("nothing", "tokens_first", False, {"sinks": True}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CHECKED)
def test_opcheck(name, dtype):
    """Schema, autograd registration, fake tensors and AOT dispatch with static and dynamic shapes."""
    workload, layout, grad, options = CHECKED[name]
    tensors = [LAYOUTS[layout](x) for x in qkv(12, dtype=dtype, grad=grad)]
    options = dict(options)
    for tensor in ("sinks", "slopes"):
        if options.get(tensor):
            options[tensor] = torch.rand(HEADS, requires_grad=grad and tensor == "sinks")
    mask = CASES[workload].make(At(12, 12))
    found = torch.library.opcheck(OPS.attention.default, arguments(tensors, mask, with_lse=grad, **options))
    assert set(found.values()) == {"SUCCESS"}


def test_opcheck_of_the_backward():
    q, k, v = (tokens_first(x) for x in qkv(12))
    *rest, _ = arguments((), MASK, sinks=torch.rand(HEADS))
    out, lse = weft.attention(q, k, v, MASK, sinks=rest[2], return_lse=True)
    given = (torch.randn_like(out), torch.randn_like(lse), q, k, v, out, lse, *rest, [])
    assert set(torch.library.opcheck(OPS.attention_backward.default, given).values()) == {"SUCCESS"}


def test_opcheck_of_the_record():
    given = ([13, 1, 2], [torch.arange(4), torch.arange(6)])
    assert set(torch.library.opcheck(OPS.record.default, given).values()) == {"SUCCESS"}
    assert OPS.record(*given).tolist() == [13, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("with_lse", [False, True])
def test_fake_tensors_have_the_shapes_and_strides_of_real_ones(layout, with_lse):
    real = [LAYOUTS[layout](x) for x in qkv(9, dims=(8, 5), dtype=torch.float16)]
    outputs = OPS.attention(*arguments(real, MASK, with_lse))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = OPS.attention(*arguments([mode.from_tensor(x) for x in real], MASK, with_lse))
    for fake, true in zip(fakes, outputs, strict=True):
        assert (fake.shape, fake.stride(), fake.dtype) == (true.shape, true.stride(), true.dtype)


@pytest.mark.parametrize("inside", [True, False], ids=["in their mode", "outside of it"])
def test_attention_of_fake_tensors(inside):
    """The numbers of a pattern are real, as constants are, and become fake beside them; gradients are fake too."""
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x).requires_grad_() for x in qkv(9)]
    with mode if inside else nullcontext():
        out = weft.attention(*fakes, MASK)
        gradients = torch.autograd.grad(out.sum(), fakes)
    for fake, x in zip((out, *gradients), (fakes[0], *fakes), strict=True):
        assert isinstance(fake, FakeTensor) and fake.shape == x.shape


def test_a_pattern_made_beside_fake_tensors_is_a_real_one():
    with FakeTensorMode():
        mask = weft.causal() & weft.window(left=2)
    compiled = torch.compile(lambda q, k, v: weft.attention(q, k, v, mask), fullgraph=True, backend="eager")
    expected = weft.attention(*qkv(9), weft.causal() & weft.window(left=2))
    assert torch.equal(compiled(*qkv(9)), expected)
    assert torch.equal(weft.attention(*qkv(9), mask), expected)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.functionalize])
def test_a_pattern_made_inside_a_transform_outlives_it(transform):
    masks = []
    transform(lambda x: masks.append(weft.causal() & weft.window(left=2)) or x.sum())(torch.ones(3))
    compiled = torch.compile(lambda q, k, v: weft.attention(q, k, v, masks[0]), fullgraph=True, backend="eager")
    assert torch.equal(compiled(*qkv(9)), weft.attention(*qkv(9), weft.causal() & weft.window(left=2)))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode):
    x = qkv(9)
    traced = make_fx(lambda q, k, v: weft.attention(q, k, v, MASK), tracing_mode=mode)(*x)
    assert torch.equal(traced(*x), weft.attention(*x, MASK))


def test_the_record_is_read_when_the_operator_runs():
    """Its tensor is data: other numbers of the same structure are another mask."""
    args = list(arguments(qkv(9), MASK))
    other = weft.causal() & weft.window(left=0)
    assert other.structure == MASK.structure
    args[4] = torch.from_numpy(other.numbers)
    assert torch.equal(OPS.attention(*args)[0], weft.attention(*qkv(9), other))


# ---- refused by name -------------------------------------------------------------------------------------------------
Q, K, V = qkv(9)


def attend(x):
    """Attention as a function of q alone."""
    return weft.attention(x, K, V, MASK)


def operator(x):
    return OPS.attention(*arguments((x, K, V), MASK))[0]


def twice():
    q, k, v = qkv(9, grad=True)
    (first,) = torch.autograd.grad(weft.attention(q, k, v, MASK).sum(), q, create_graph=True)
    return torch.autograd.grad(first.sum(), k)


def twice_through_lse():
    q, k, v = qkv(9, grad=True)
    _, lse = weft.attention(q, k, v, MASK, return_lse=True)
    (first,) = torch.autograd.grad(lse.sum(), k, create_graph=True)
    return first.sum().backward()


def dual(which):
    inputs = {"q": Q, "k": K, "v": V, "sinks": torch.rand(HEADS)}
    with forward_ad.dual_level():
        inputs[which] = forward_ad.make_dual(inputs[which], torch.ones_like(inputs[which]))
        return weft.attention(mask=MASK, **inputs)


def hessian():
    return torch.autograd.functional.hessian(lambda x: attend(x).sum(), Q)


REFUSED = {
    "double backward": (twice, "double backward"),
    "double backward through lse": (twice_through_lse, "double backward"),
    "hessian": (hessian, "double backward"),
    "forward mode in q": (lambda: dual("q"), "forward-mode"),
    "forward mode in v": (lambda: dual("v"), "forward-mode"),
    "forward mode in sinks": (lambda: dual("sinks"), "forward-mode"),
    "torch.vmap of the operator": (lambda: torch.vmap(operator)(Q[None]), "torch.vmap"),
    "torch.func.grad of the operator": (lambda: torch.func.grad(lambda x: operator(x).sum())(Q), "torch.func"),
    "torch.func.functionalize": (lambda: torch.func.functionalize(attend)(Q), "torch.func.functionalize"),
    "torch.func.grad twice": (
        lambda: torch.func.grad(lambda x: torch.func.grad(lambda y: attend(y).sum())(x).sum())(Q),
        "double backward",
    ),
    "torch.func.hessian": (lambda: torch.func.hessian(lambda x: attend(x).sum())(Q), "weft.attention"),
    "torch.func.jvp": (lambda: torch.func.jvp(attend, (Q,), (Q,)), "forward-mode"),
    "ALiBi on a grid": (
        lambda: weft.attention(Q, K, V, weft.neighborhood((3, 3), 2), alibi_slopes=torch.rand(HEADS)),
        "ALiBi",
    ),
    "ALiBi on a grid in a segment": (
        lambda: weft.attention(
            *(Q, K, V),
            weft.segments([5, 4], [[True, False], [True, weft.neighborhood((2, 2), 1)]]),
            alibi_slopes=torch.rand(HEADS),
        ),
        "ALiBi",
    ),
    "ALiBi on a grid in a union": (
        lambda: weft.attention(
            *(Q, K, V), weft.causal() | weft.product([weft.full()] * 2, (3, 3)), alibi_slopes=torch.rand(HEADS)
        ),
        "ALiBi",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, word = REFUSED[name]
    refuse(call, UnsupportedError, (word,))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_refused_in_a_compiled_function_too(backend):
    """Forward mode inside a graph: an error of some kind, never a tangent of zeros."""
    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    with forward_ad.dual_level(), pytest.raises(Exception, match=r"forward-mode|forward AD|forward mode"):
        compiled(forward_ad.make_dual(Q, torch.ones_like(Q)))


def test_double_backward_of_a_compiled_function_is_refused_by_torch():
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    q = qkv(9, grad=True)[0]
    (first,) = torch.autograd.grad(compiled(q).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()


def test_a_batch_of_gradients_is_the_gradients_one_by_one():
    q, k, v = qkv(9, grad=True)
    out = weft.attention(q, k, v, MASK)
    seeds = torch.randn(3, *out.shape)
    batched = torch.autograd.grad(out, (q, k, v), seeds, is_grads_batched=True, retain_graph=True)
    for i, seed in enumerate(seeds):
        for x, y in zip(batched, torch.autograd.grad(out, (q, k, v), seed, retain_graph=True), strict=True):
            assert torch.equal(x[i], y)


def test_after_a_refusal_everything_works():
    expected = attend(Q)
    for call, _ in REFUSED.values():
        with pytest.raises(UnsupportedError):
            call()
    assert torch.equal(attend(Q), expected)
