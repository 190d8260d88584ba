"""Attention over parts of the keys, merged: the numbers and gradients of attention over all of them."""

import pytest
import torch

import weft
from weft.errors import InputError, OptionError
from weft.testing.refusals import refuse
from weft.testing.tolerance import assert_close
from weft.torch import SparseAttention

from . import oracle
from .helpers import qkv

MINUS_INFINITY = float("-inf")
DTYPE = {"dtype": torch.float64}


def seeds_of(tensors):
    q, _, v = tensors
    random = torch.Generator().manual_seed(3)
    return [torch.randn(*q.shape[:3], *last, generator=random, dtype=torch.float64) for last in ((v.shape[3],), ())]


def parts_of(mask, count, n, seed):
    """Disjoint patterns whose union is `mask`: keys are dealt out at random, some parts may get none."""
    owner = torch.randint(count, (n,), generator=torch.Generator().manual_seed(seed))
    return [mask & weft.global_tokens((owner == i).nonzero()[:, 0].numpy(), rows=False) for i in range(count)]


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "thd"])
@pytest.mark.parametrize("count", range(1, 10))
def test_parts_of_keys(count, layout):
    """Rows without keys in some parts, and (keys later than all queries see) in all."""
    mask, n = weft.causal(offset=-3), 24
    batch = 1 if layout == "thd" else 2
    tensors = qkv(n, batch=batch, dims=(4, 3), **DTYPE)
    expected = oracle.attention(tensors, mask, seeds_of(tensors))
    leaves = [x.clone().requires_grad_() for x in tensors]
    given = [x.transpose(1, 2) if layout == "bshd" else x[0].transpose(0, 1) if layout == "thd" else x for x in leaves]
    found = [
        weft.attention(*given, part, return_lse=True, layout=layout) for part in parts_of(mask, count, n, seed=count)
    ]
    out, lse = weft.merge(*zip(*found, strict=True))
    out, lse = (x[None] if layout == "thd" else x for x in (out, lse))
    out, lse = (x if layout == "bhsd" else x.transpose(1, 2) for x in (out, lse))
    grads = torch.autograd.grad((out, lse), leaves, seeds_of(tensors))
    oracle.assert_close(dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), strict=True)), expected)
    dead = expected["lse"] == MINUS_INFINITY
    assert dead.any() and (out[dead] == 0).all() and (grads[0][dead] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    """To rounding of one dtype: parts are rounded once each, sums are in float32."""
    n, mask = 64, weft.causal()
    tensors = qkv(n, dtype=dtype)
    found = [weft.attention(*tensors, part, return_lse=True) for part in parts_of(mask, 4, n, seed=1)]
    out, lse = weft.merge(*zip(*found, strict=True))
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    whole = weft.attention(*tensors, mask, return_lse=True)
    wide = weft.attention(*(x.double() for x in tensors), mask, return_lse=True)
    assert_close("out", out, wide[0], whole[0])
    torch.testing.assert_close(lse.double(), wide[1], rtol=1e-5, atol=1e-5)


def test_gradients_by_differences():
    """Of every out and lse, some of them -inf, whose out may be anything."""
    random = torch.Generator().manual_seed(0)
    outs = [torch.randn(3, 5, 2, generator=random, **DTYPE).requires_grad_() for _ in range(3)]
    lses = [torch.randn(3, 5, generator=random, **DTYPE).requires_grad_() for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *x: weft.merge(x[:3], x[3:]), (*outs, *lses))
    assert torch.autograd.gradgradcheck(lambda *x: weft.merge(x[:3], x[3:]), (*outs, *lses))


def test_minus_infinity():
    """In one part, in all parts; what stands in out there is not read, and no gradient is NaN."""
    nan = float("nan")
    outs = [torch.tensor([[1.0], [nan], [nan]]), torch.tensor([[nan], [4.0], [nan]])]
    lses = [torch.tensor([0.5, MINUS_INFINITY, MINUS_INFINITY]), torch.tensor([MINUS_INFINITY, -3.0, MINUS_INFINITY])]
    leaves = [x.requires_grad_() for x in (*outs, *lses)]
    out, lse = weft.merge(outs, lses)
    assert out.flatten().tolist() == [1.0, 4.0, 0.0]
    assert lse.tolist() == [0.5, -3.0, MINUS_INFINITY]
    grads = torch.autograd.grad((out, lse), leaves, (torch.full((3, 1), 2.0), torch.tensor([1.0, 1.0, nan])))
    assert [g.flatten().tolist() for g in grads] == [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


def test_scores_far_apart():
    """No overflow, and no part that is 1e-40 of the whole takes digits off the other."""
    out, lse = weft.merge(
        [torch.ones(2, 1), torch.full((2, 1), 3.0)], [torch.tensor([4e4, -4e4]), torch.tensor([-4e4, 4e4])]
    )
    assert out.flatten().tolist() == [1.0, 3.0]
    assert lse.tolist() == [4e4, 4e4]


def test_compiled_and_mapped():
    torch._dynamo.reset()
    x = [torch.randn(2, 3, 4, requires_grad=True) for _ in range(3)], [torch.randn(2, 3) for _ in range(3)]
    compiled = torch.compile(weft.merge, backend="aot_eager", fullgraph=True)
    for got, expected in zip(compiled(*x), weft.merge(*x), strict=True):
        torch.testing.assert_close(got, expected)
    mapped = torch.vmap(lambda a, b: weft.merge([a, a + 1], [b, b])[0])(x[0][0], x[1][0])
    torch.testing.assert_close(mapped, x[0][0] + 0.5)


OUT, LSE = torch.zeros(2, 4, 8, 3), torch.zeros(2, 4, 8)


@pytest.mark.parametrize(
    ("outs", "lses", "words"),
    [
        ([], [], ("0 outs",)),
        ([OUT], [], ("1 outs and 0 lses",)),
        (OUT, LSE, ("outs is Tensor", "weft.merge([out, more]")),
        ([OUT, None], [LSE, LSE], ("outs is list",)),
        ([OUT, OUT[:1]], [LSE, LSE[:1]], ("outs[1] is (1, 4, 8, 3)",)),
        ([OUT, OUT], [LSE, LSE.mT], ("lses[1] is (2, 8, 4)", "transpose")),
        ([OUT, OUT.double()], [LSE, LSE], ("outs[1] is torch.float64",)),
        ([OUT, OUT], [LSE, LSE.bfloat16()], ("lses[1] is torch.bfloat16",)),
        ([OUT.long(), OUT.long()], [LSE, LSE], ("torch.int64",)),
        ([OUT, OUT.to("meta")], [LSE, LSE], ("meta",)),
    ],
)  # fmt: skip
def test_refused(outs, lses, words):
    refuse(lambda: weft.merge(outs, lses), InputError, ("merge", *words))


# ---- keys that every query sees -------------------------------------------------------------------------------------
SINKS = torch.linspace(-1, 1, 4, dtype=torch.float64)
SLOPES = torch.linspace(0.1, 0.4, 4, dtype=torch.float64)


def reference(tensors, extra, mask, options):
    """Out, lse and gradients of dense attention in float64: extra keys first, seen by all, without slopes."""
    q, k, v, ek, ev = (x.clone().requires_grad_() for x in (*tensors, *extra))
    group = q.shape[1] // k.shape[1]
    keys, values = (torch.cat(x, 2).repeat_interleave(group, 1) for x in ((ek, k), (ev, v)))
    scores = q @ keys.mT * options.get("scale", q.shape[3] ** -0.5)
    if options.get("softcap"):
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    m, n, e = q.shape[2], k.shape[2], ek.shape[2]
    if options.get("alibi_slopes") is not None:
        distance = (torch.arange(m)[:, None] - torch.arange(n)).abs().double()
        scores = scores - torch.nn.functional.pad(SLOPES[:, None, None] * distance, (e, 0))
    live = torch.from_numpy(mask.to_dense(m, n)).expand(q.shape[0], q.shape[1], m, n)
    scores = scores.masked_fill(~torch.nn.functional.pad(live, (e, 0), value=True), MINUS_INFINITY)
    leaves = [q, k, v, ek, ev]
    if options.get("sinks") is not None:
        leaves.append(options["sinks"].clone().requires_grad_())
        scores = torch.cat([scores, leaves[-1][None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    lse = scores.logsumexp(-1)
    out = scores.softmax(-1)[..., : e + n] @ values
    return [out, lse, *torch.autograd.grad((out, lse), leaves, seeds_of(tensors))]


EXTRA_OPTIONS = {
    "none": {},
    "scale and softcap": {"scale": 0.4, "softcap": 1.5},
    "sinks": {"sinks": SINKS},
    "slopes": {"alibi_slopes": SLOPES},
}
EXTRA_MASKS = {
    "window": weft.causal() & weft.window(3),
    "no keys of their own": weft.nothing(),
    "some rows without": weft.causal(offset=-4),
    "per head": weft.per_head([weft.causal(), weft.full(), weft.nothing(), weft.window(2)]),
}


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("option", EXTRA_OPTIONS)
@pytest.mark.parametrize("mask", EXTRA_MASKS)
def test_extra_keys(mask, option, layout):
    mask, options = EXTRA_MASKS[mask], EXTRA_OPTIONS[option]
    tensors, extra = qkv(12, dims=(4, 3), **DTYPE), qkv(5, dims=(4, 3), seed=2, **DTYPE)[1:]
    expected = reference(tensors, extra, mask, options)
    if "sinks" in options:
        options = options | {"sinks": options["sinks"].clone().requires_grad_()}
    leaves = [x.clone().requires_grad_() for x in (*tensors, *extra)]
    given = [x.transpose(1, 2) for x in leaves] if layout == "bshd" else leaves
    out, lse = weft.attention(
        *given[:3], mask, extra_keys=given[3], extra_values=given[4], return_lse=True, layout=layout, **options
    )
    out, lse = (x.transpose(1, 2) if layout == "bshd" else x for x in (out, lse))
    wanted = [*leaves, *([options["sinks"]] if "sinks" in options else [])]
    found = [out, lse, *torch.autograd.grad((out, lse), wanted, seeds_of(tensors))]
    for name, got, x in zip(("out", "lse", "dq", "dk", "dv", "dek", "dev", "dsinks"), found, expected, strict=False):
        torch.testing.assert_close(got, x, rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extra_keys_of_a_neighbourhood_on_its_grid(dtype):
    """As NATTEN takes them: (B, E, H, D) beside (B, X, Y, H, D)."""
    mask = weft.neighborhood((4, 5), 3)
    tensors = [torch.randn(2, 4, 5, 2, 8, dtype=dtype) for _ in range(3)]
    extra = [torch.randn(2, 7, 2, 8, dtype=dtype) for _ in range(2)]
    out, lse = weft.attention(
        *tensors, mask, extra_keys=extra[0], extra_values=extra[1], layout="bshd", return_lse=True
    )
    assert (out.shape, out.dtype, lse.shape) == ((2, 4, 5, 2, 8), dtype, (2, 4, 5, 2))
    flat = [x.flatten(1, -3).transpose(1, 2).double() for x in (*tensors, *extra)]
    truth, _, *_ = reference(flat[:3], flat[3:], mask, {})
    atol = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.flatten(1, 2).transpose(1, 2).double(), truth, rtol=0, atol=atol)


def test_no_extra_keys_are_none():
    x = qkv(9)
    nothing = [t[:, :, :0] for t in x[1:]]
    assert torch.equal(
        weft.attention(*x, weft.causal(), extra_keys=nothing[0], extra_values=nothing[1]),
        weft.attention(*x, weft.causal()),
    )


def test_extra_keys_compiled_and_in_a_module():
    torch._dynamo.reset()
    x, (ek, ev) = qkv(12), qkv(5, seed=2)[1:]
    module = SparseAttention(weft.causal())
    expected = weft.attention(*x, weft.causal(), extra_keys=ek, extra_values=ev)
    assert torch.equal(module(*x, extra_keys=ek, extra_values=ev), expected)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*x, extra_keys=ek, extra_values=ev), expected)


@pytest.mark.parametrize(
    ("keys", "values", "words"),
    [
        ((2, 2, 5, 8), None, ("extra_keys", "extra_values is missing")),
        (None, (2, 2, 5, 8), ("extra_values", "extra_keys is missing")),
        ((2, 4, 5, 8), (2, 4, 5, 8), ("4 heads", "k has 2")),
        ((1, 2, 5, 8), (1, 2, 5, 8), ("1 batch rows", "k has 2")),
        ((2, 2, 5, 4), (2, 2, 5, 8), ("4 numbers", "k has 8")),
        ((2, 2, 5, 8), (2, 2, 5, 4), ("4 numbers", "v has 8")),
        ((2, 2, 5, 8), (2, 2, 6, 8), ("5 keys and 6 values",)),
        ((2, 5, 8), (2, 5, 8), ("extra_keys has 3 dimensions", "(B, Hkv, E, D)")),
    ],
)
def test_extra_keys_refused(keys, values, words):
    keys, values = (None if shape is None else torch.zeros(shape) for shape in (keys, values))
    refuse(lambda: weft.attention(*qkv(9), weft.causal(), extra_keys=keys, extra_values=values), InputError, words)


def test_extra_keys_of_another_dtype_or_kind():
    keys = torch.zeros(2, 2, 5, 8)
    for bad, words in ((keys.double(), ("float64",)), (keys.to("meta"), ("meta",)), ([1.0], ("extra_keys is list",))):
        refuse(
            lambda bad=bad: weft.attention(*qkv(9), weft.causal(), extra_keys=bad, extra_values=keys), InputError, words
        )
    refuse(lambda: SparseAttention(weft.causal(), extra_keys=keys), OptionError, ("extra_keys",))
