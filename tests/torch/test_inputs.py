"""Bad input: one clear exception each, naming what was asked, what is wrong and what to do; nothing is left behind."""

import numpy as np
import pytest
import torch

import weft
import weft.torch
from weft.errors import (
    AlignmentError,
    InputError,
    LengthError,
    OptionError,
    PatternError,
    UnsupportedError,
    UnsupportedKernel,
)
from weft.testing.refusals import refuse

from .helpers import qkv

Q, K, V = qkv(16)
CAUSAL = weft.causal()


def call(q=Q, k=K, v=V, mask=CAUSAL, **options):
    return lambda: weft.attention(q, k, v, mask, **options)


def rows(*table):
    return pytest.mark.parametrize("asked,error,words", [pytest.param(*row[1:], id=row[0]) for row in table])


@rows(
    ("rank of q", call(q=Q[0]), InputError, ("q has 3 dimensions", "(B, Hq, M, D)")),
    ("rank of k", call(k=K[None]), InputError, ("k has 5 dimensions", "(B, Hkv, N, D)")),
    ("rank of v", call(v=V[0, 0]), InputError, ("v has 2 dimensions", "(B, Hkv, N, Dv)")),
    ("no tensor", call(q=Q.numpy()), InputError, ("q", "ndarray", "tensor")),
    ("none", call(v=None), InputError, ("v", "None", "tensor")),
    ("heads that do not divide", call(q=Q[:, :3]), InputError, ("3 query heads", "2 key heads", "multiple")),
    ("fewer query heads", call(q=Q[:, :1]), InputError, ("1 query heads", "2 key heads", "multiple")),
    ("no key heads", call(k=K[:, :0], v=V[:, :0]), InputError, ("0 key heads", "multiple")),
    ("heads of k and v", call(v=V[:, :1]), InputError, ("k is (2, 2, 16, 8)", "v is (2, 1, 16, 8)", "same heads")),
    ("lengths of k and v", call(v=V[:, :, :9]), InputError, ("(2, 2, 16, 8)", "(2, 2, 9, 8)", "length")),
    ("head dimensions", call(k=K[..., :5]), InputError, ("dimension 8", "k has 5", "one head dimension")),
    ("no head dimension", call(q=Q[..., :0], k=K[..., :0]), InputError, ("dimension", "0", "1 or more")),
    ("batch of k", call(k=K[:1]), InputError, ("2 batch rows", "k has 1", "one batch size")),
    ("batch of v", call(v=torch.cat([V, V])), InputError, ("2 batch rows", "v has 4", "one batch size")),
    ("dtype of k", call(k=K.double()), InputError, ("float32", "k is torch.float64", "one dtype")),
    ("dtype of v", call(v=V.half()), InputError, ("float32", "v is torch.float16", "one dtype")),
    ("device", call(k=K.to("meta")), InputError, ("q is on cpu", "k on meta", "one device")),
    ("integers", call(Q.long(), K.long(), V.long()), InputError, ("int64", "float32")),
    ("bools", call(Q > 0, K > 0, V > 0), InputError, ("bool", "float32")),
    ("complex", call(*(x.to(torch.complex64) for x in (Q, K, V))), InputError, ("complex64", "float32")),
    ("sparse", call(q=Q.to_sparse()), InputError, ("q is torch.sparse_coo", "strides")),
    ("nested", call(q=torch.nested.nested_tensor([Q[0], Q[1]])), InputError, ("q is nested", "padded")),
    (
        "a dtype of no backend",
        call(*(x.to(torch.float8_e4m3fn) for x in (Q, K, V))),
        UnsupportedKernel,
        ("cpu", "float8_e4m3fn", "bfloat16"),
    ),
)
def test_tensors(asked, error, words):
    refuse(asked, error, words)


@rows(
    ("tensor of numbers", call(mask=torch.ones(16, 16)), InputError, ("mask", "float32", "mask == 0")),
    ("bool array", call(mask=np.ones((16, 16), bool)), InputError, ("mask", "ndarray", "weft.causal")),
    ("function of numbers", call(mask=lambda q, k: q - k), InputError, ("not booleans",)),
    ("library function", call(mask=weft.causal), InputError, ("mask=weft.causal", "not called", "weft.causal(...)")),
    ("padding, not called", call(mask=weft.padding), InputError, ("mask=weft.padding", "not called")),
    ("none", call(mask=None), InputError, ("mask", "None", "weft.causal")),
    ("word", call(mask="causal"), InputError, ("mask", "str", "weft.causal")),
    ("a leaf", call(mask=CAUSAL.body), InputError, ("mask", "bare leaf", "weft.causal")),
    ("heads", call(mask=weft.per_head([CAUSAL] * 3)), InputError, ("per_head", "3 heads", "has 4", "each of the 4")),
    ("key heads", call(mask=weft.per_head([CAUSAL] * 2)), InputError, ("per_head", "2 heads", "has 4")),
    ("batch rows", call(mask=weft.padding([1, 2, 3])), InputError, ("padding", "3 batch rows", "has 2")),
    ("document lengths", call(mask=weft.documents([7, 8])), LengthError, ("documents", "15", "M=16")),
    ("document ids", call(mask=weft.documents(ids=[0] * 17)), LengthError, ("documents", "17", "M=16")),
    ("documents, keys", call(k=K[:, :, :9], v=V[:, :, :9], mask=weft.documents([16])), LengthError, ("16", "N=9")),
    ("grid", call(mask=weft.neighborhood((3, 5), 3)), LengthError, ("neighborhood", "3x5", "15", "M=16")),
    ("segments", call(mask=weft.segments([3], [[CAUSAL]])), LengthError, ("segments", "3", "M=16")),
    ("alignment", call(k=K[:, :, :9], v=V[:, :, :9]), AlignmentError, ("causal", "M=16, N=9", "align=")),
    (
        "alignment in a part",
        call(k=K[:, :, :9], v=V[:, :, :9], mask=weft.prefix(2) | weft.chunks(3)),
        AlignmentError,
        ("chunks", "M=16, N=9", "bottom-right"),
    ),
    ("window < 0", lambda: weft.attention(Q, K, V, weft.window(left=-1)), PatternError, ("window", "left", "-1")),
    (
        "neighborhood larger than its grid",
        lambda: weft.attention(Q, K, V, weft.neighborhood((4, 4), 5)),
        PatternError,
        ("5 keys", "grid of 4", "size"),
    ),
    (
        "stride > window",
        lambda: weft.attention(Q, K, V, weft.neighborhood((4, 4), 2, stride=3)),
        PatternError,
        ("stride 3", "windows of 2"),
    ),
    (
        "negative document",
        lambda: weft.attention(Q, K, V, weft.documents([17, -1])),
        PatternError,
        ("lengths[1]", "-1"),
    ),
)
def test_masks(asked, error, words):
    refuse(asked, error, words)


@rows(
    ("scale nan", call(scale=float("nan")), OptionError, ("scale=nan", "finite", "D ** -0.5")),
    ("scale inf", call(scale=float("inf")), OptionError, ("scale=inf", "finite")),
    ("softcap 0", call(softcap=0.0), OptionError, ("softcap=0.0", "positive", "None")),
    ("softcap < 0", call(softcap=-2.0), OptionError, ("softcap=-2.0", "positive")),
    ("softcap nan", call(softcap=float("nan")), OptionError, ("softcap=nan", "finite")),
    ("softcap inf", call(softcap=float("inf")), OptionError, ("softcap=inf", "finite")),
    ("sinks, heads", call(sinks=torch.zeros(2)), OptionError, ("sinks", "(2,)", "4 query heads", "(4,)")),
    ("sinks, rank", call(sinks=torch.zeros(4, 1)), OptionError, ("sinks", "(4, 1)", "(4,)")),
    ("sinks, sparse", call(sinks=torch.zeros(4).to_sparse()), OptionError, ("sinks", "without strides")),
    ("sinks, complex", call(sinks=torch.zeros(4, dtype=torch.complex64)), OptionError, ("sinks", "complex64", "real")),
    ("scale beyond float32", call(scale=1e39), OptionError, ("scale=1e+39", "finite", "1e+38")),
    ("scale beyond float64", call(scale=10**400), OptionError, ("scale=1000", "finite")),
    ("softcap beyond float32", call(softcap=1e39), OptionError, ("softcap=1e+39", "finite")),
    ("softcap below float32", call(softcap=1e-46), OptionError, ("softcap=1e-46", "1e+38", "larger")),
    ("scale over softcap", call(scale=1e20, softcap=1e-20), OptionError, ("scale=1e+20, softcap=1e-20", "1e+38")),
    ("sinks, list", call(sinks=[0.0] * 4), OptionError, ("sinks", "list", "(4,)")),
    ("sinks, device", call(sinks=torch.zeros(4, device="meta")), OptionError, ("sinks", "meta", "cpu")),
    ("slopes, heads", call(alibi_slopes=torch.zeros(8)), OptionError, ("alibi_slopes", "(8,)", "(4,)")),
    ("slopes, number", call(alibi_slopes=0.5), OptionError, ("alibi_slopes", "float", "(4,)")),
    ("slopes, device", call(alibi_slopes=torch.zeros(4, device="meta")), OptionError, ("alibi_slopes", "meta")),
    ("backend", call(backend="cuda"), OptionError, ("backend='cuda'", "no such backend", "'auto'", "'cpu'")),
    ("dropout", call(dropout=1.0), OptionError, ("dropout=1.0", "below 1")),
    ("dropout below 0", call(dropout=-0.1), OptionError, ("dropout=-0.1", "at least 0")),
    ("dropout of nan", call(dropout=float("nan")), OptionError, ("dropout=nan", "at least 0")),
    ("dropout of a tensor", call(dropout=torch.tensor(0.5)), OptionError, ("dropout=Tensor", "a number of Python's")),
    ("seed of another kind", call(dropout=0.5, seed=0.5), OptionError, ("seed=float", "an integer")),
    (
        "seeds",
        call(dropout=0.5, seed=torch.zeros(2, dtype=torch.int64)),
        OptionError,
        ("seed=tensor", "one int64 number"),
    ),
    ("seed of 65 bits", call(dropout=0.5, seed=2**64), OptionError, ("64 bits",)),
    ("bias of booleans", call(bias=torch.ones(16, 16).bool()), OptionError, ("bias=torch.bool", "as mask=")),
    ("bias of another shape", call(bias=torch.ones(15, 16)), OptionError, ("bias=(15, 16)", "(16, 16)")),
    ("bias elsewhere", call(bias=torch.ones(16, 16, device="meta")), OptionError, ("on meta", "table.to('cpu')")),
    ("bias of numpy", call(bias=[1.0]), OptionError, ("bias=list", "weft.bias.relative")),
    ("a table of numpy", call(bias=weft.bias.dense(torch.ones(16, 16).numpy())), OptionError, ("ndarray", "no tensor")),
    ("a table of even length", lambda: weft.bias.relative(torch.ones(4, 8)), OptionError, ("8 entries", "2R + 1")),
    ("a table of another rank", lambda: weft.bias.relative(torch.ones(9)), OptionError, ("shape (9,)", "(Hq, 2R + 1)")),
    ("a table of integers", lambda: weft.bias.alibi(torch.ones(4).long()), OptionError, ("int64", "floating")),
    (
        "a table of other heads",
        call(bias=weft.bias.relative(torch.ones(3, 9))),
        OptionError,
        ("(3, 9)", "beyond its end"),
    ),
    (
        "a grid of other tokens",
        call(bias=weft.bias.grid(torch.ones(4, 3, 3), (3, 5))),
        OptionError,
        ("15 tokens", "16"),
    ),
    ("no grid", lambda: weft.bias.grid(torch.ones(4, 3), (0,)), OptionError, ("shape=(0,)",)),
    (
        "a dilation of other axes",
        lambda: weft.bias.grid(torch.ones(4, 3), (4,), (1, 1)),
        OptionError,
        ("dilation=(1, 1)",),
    ),
    ("odd buckets", lambda: weft.bias.buckets(torch.ones(7, 4)), OptionError, ("7 buckets", "even")),
    ("near buckets", lambda: weft.bias.buckets(torch.ones(32, 4), max_distance=8), OptionError, ("max_distance=8",)),
    ("a dense bias of one axis", lambda: weft.bias.dense(torch.ones(4)), OptionError, ("(M, N)",)),
    (
        "a bias by distance where M != N and nothing is aligned",
        call(k=K[:, :, :9], v=V[:, :, :9], mask=weft.full(), bias=weft.bias.relative(torch.ones(4, 9))),
        AlignmentError,
        ("bias", "M=16", "N=9"),
    ),
    (
        "a bias by distance on a grid",
        call(mask=weft.neighborhood((4, 4), (3, 3)), bias=weft.bias.relative(torch.ones(4, 9))),
        UnsupportedError,
        ("bias", "weft.bias.grid"),
    ),
    (
        "slopes where M != N and nothing is aligned",
        call(k=K[:, :, :9], v=V[:, :, :9], mask=weft.full(), alibi_slopes=torch.rand(4)),
        AlignmentError,
        ("alibi_slopes", "full()", "M=16, N=9", "align"),
    ),
    (
        "slopes where M != N and parts are aligned apart",
        call(
            k=K[:, :, :9],
            v=V[:, :, :9],
            mask=weft.causal(align="top-left") & weft.chunks(3, align="bottom-right"),
            alibi_slopes=torch.rand(4),
        ),
        AlignmentError,
        ("alibi_slopes", "one alignment"),
    ),
)
def test_options(asked, error, words):
    refuse(asked, error, words)


@rows(
    ("scale", call(scale="large"), OptionError, ("scale", "large")),
    ("softcap", call(softcap="large"), OptionError, ("softcap", "large")),
    ("backend", call(backend=None), OptionError, ("backend", "None")),
    ("deterministic", call(deterministic="yes"), OptionError, ("deterministic", "yes")),
)
def test_options_of_a_wrong_type(asked, error, words):
    refuse(asked, error, words)


def test_a_scale_that_needs_gradients():
    scale = torch.tensor(0.5, requires_grad=True)
    refuse(lambda: weft.attention(*qkv(16, grad=True), CAUSAL, scale=scale), UnsupportedError, ("scale", "gradient"))


def test_meta_tensors_give_shapes():
    q, k, v = (x.to("meta") for x in qkv(16, dims=(8, 5)))
    out, lse = weft.attention(q, k, v, CAUSAL, return_lse=True)
    assert out.is_meta and lse.is_meta
    assert (out.shape, lse.shape) == ((2, 4, 16, 5), (2, 4, 16))


def test_a_refused_call_leaves_nothing_behind():
    """The same pattern at lengths that fit, the same tensors with options that fit; also in backward."""
    mask, x = weft.documents([10, 6]), qkv(16, grad=True)
    for bad in (call(*qkv(15), mask), call(mask=mask, scale=float("nan")), call(mask=mask, dropout=1.5)):
        with pytest.raises((LengthError, OptionError, UnsupportedError)):
            bad()
        assert all(t.grad is None for t in x)
        out = weft.attention(*x, mask)
        assert out.isfinite().all()
    out.sum().backward()
    assert all(t.grad.isfinite().all() for t in x)


@pytest.mark.parametrize("function", [weft.torch.plan, weft.torch.explain])
def test_plan_and_explain_refuse_the_same(function):
    refuse(lambda: function(weft.documents([7, 8]), Q, K, V), LengthError, ("documents", "15"))
    refuse(lambda: function(CAUSAL, Q[0], K, V), InputError, ("q has 3 dimensions",))
    refuse(lambda: function(None, Q, K, V), InputError, ("mask", "None"))
    refuse(lambda: function(CAUSAL, Q, K, V, backend="cuda"), OptionError, ("backend='cuda'",))
    refuse(lambda: function(CAUSAL, Q, K, V, backend=["cpu"]), OptionError, ("backend=['cpu']",))
    refuse(lambda: function(weft.per_head([CAUSAL] * 3), Q, K, V), InputError, ("3 heads",))


def test_plan_and_explain():
    mask = weft.causal() & weft.window(left=3)
    plan = weft.torch.plan(mask, Q, K, V)
    plan.verify()
    out, *_ = plan.interpret(Q.double().numpy(), K.double().numpy(), V.double().numpy())
    np.testing.assert_allclose(out, weft.attention(Q.double(), K.double(), V.double(), mask).numpy(), atol=1e-13)
    text = str(weft.torch.explain(mask, Q, K, V))
    for word in ("causal() & window(left=3)", "M=16", "live"):
        assert word in text


def test_plan_is_found_twice():
    for _ in range(2):
        assert weft.plan(CAUSAL, Q, K, V).nnz == 2 * 4 * 16 * 17 // 2
