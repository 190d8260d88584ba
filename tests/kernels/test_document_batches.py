"""Packed documents in batch rows, beside the same documents one after the other and dense attention in float64."""

import pytest
import torch
from tests.gpu.test_oracle_documents import sums

import weft
from weft.errors import UnsupportedError
from weft.testing.refusals import refuse
from weft.testing.tolerance import assert_close
from weft.torch import device_documents

from .compare import BACKENDS
from .documents import DEVICE, NAMES, by_dense, tensors_of

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends have no such kernels")
ROWS, TOKENS = 2, 20
LENGTHS = [13, 7, 0, 20]  # two rows
NEAR = weft.causal() & weft.window(left=4)


def attention(tensors, ends, tables=None, pattern=NEAR, longest=TOKENS, backend="triton", **options):
    """out (B, N, Hq, Dv) of documents with these running sums, (documents + 1,)."""
    given = device_documents.Sums(ends, ends, True, (longest, longest))
    chosen = device_documents.Chosen(options.get("scale"), options.get("softcap"), backend, False)
    return device_documents.attention(tuple(tensors), given, pattern, (None, None), chosen, tables)[0]


def ends_of(lengths):
    return torch.tensor(sums(lengths), dtype=torch.int32, device=DEVICE)


def laid_out(x, how):
    """(T, H, D) as (B, H, N, D), in some order in memory."""
    found = x.unflatten(0, (ROWS, TOKENS)).transpose(1, 2)
    if how == "heads first":
        return found.contiguous()
    if how == "a part of more":  # as q of a product that makes q, k and v
        wide = torch.cat([found.transpose(1, 2), found.transpose(1, 2)], -1)
        return wide[..., : x.shape[-1]].transpose(1, 2)
    return found


def found(tensors, how, lengths=LENGTHS, **options):
    """{name: tensor} of out and gradients, (T, H, D)."""
    q, k, v, dout = (laid_out(x.to(DEVICE), how) for x in tensors[:4])
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = attention(leaves, ends_of(lengths), {}, **options)
    assert out.shape == (ROWS, TOKENS, *q.shape[1:2], v.shape[3])
    grads = torch.autograd.grad(out, leaves, dout.transpose(1, 2))
    named = zip(("out", *NAMES[2:]), (out.transpose(1, 2), *grads), strict=False)
    return {name: x.detach().transpose(1, 2).flatten(0, 1).cpu() for name, x in named}


@pytest.mark.parametrize(
    ("how", "dtype", "options"),
    [
        ("tokens first", torch.float32, {}),
        ("heads first", torch.float32, {"scale": 0.4, "softcap": 1.5}),
        ("a part of more", torch.bfloat16, {}),
    ],
    ids=["tokens first", "heads first", "a part of more"],
)
def test_beside_dense_attention(how, dtype, options):
    tensors = tensors_of((LENGTHS, LENGTHS), dtype)
    truth, plain = (
        by_dense((LENGTHS, LENGTHS), [*tensors[:4], torch.zeros_like(tensors[4]), tensors[5]], NEAR, options, one)
        for one in (torch.float64, dtype)
    )
    for name, x in found(tensors, how, **options).items():
        assert_close(name, x, truth[name], plain[name])


def test_other_lengths_are_one_call():
    device_documents._calls.clear()
    tensors = tensors_of((LENGTHS, LENGTHS))
    first = found(tensors, "tokens first")
    other = found(tensors, "tokens first", [1, 19, 20, 0])
    (call,) = device_documents._calls.values()
    assert len(call.programs) == 2  # forward and backward
    assert not torch.equal(first["out"], other["out"])
    again = found(tensors, "tokens first")
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_layers_share_tables():
    """Two layers make each table once; a step with other documents makes its own."""
    leaves = [laid_out(x.to(DEVICE), "tokens first").requires_grad_() for x in tensors_of((LENGTHS, LENGTHS))[:3]]
    ends, tables = ends_of(LENGTHS), {}
    first = attention(leaves, ends, tables)
    made = list(tables.values())
    second = attention(leaves, ends, tables)
    torch.autograd.grad(first.sum() + second.sum(), leaves)
    assert torch.equal(first, second) and len(made) == 1
    again = list(tables.values())
    assert len(again) == 2 and again[0] is made[0]  # and those of both gradients


def unpacked_contiguous(x):
    """As torch.autograd.graph.save_on_cpu gives a saved tensor back."""
    return x.contiguous()


def test_saved_tensors_that_come_back_in_another_order_in_memory():
    tensors = tensors_of((LENGTHS, LENGTHS))
    wanted = found(tensors, "tokens first")
    with torch.autograd.graph.saved_tensors_hooks(unpacked_contiguous, unpacked_contiguous):
        got = found(tensors, "tokens first")
    for name, x in got.items():
        torch.testing.assert_close(x, wanted[name])


def test_double_backward_is_refused():
    q = laid_out(tensors_of((LENGTHS, LENGTHS))[0].to(DEVICE), "tokens first").requires_grad_()
    k = torch.ones(ROWS, 2, TOKENS, 16, device=DEVICE)
    out = attention((q, k, k), ends_of(LENGTHS))
    refuse(lambda: torch.autograd.grad(out.sum(), q, create_graph=True), UnsupportedError, ["double backward"])


@pytest.mark.skipif(DEVICE.type == "cpu", reason="warp groups are Hopper's")
@pytest.mark.parametrize("dim", [64, 128])
def test_two_layers_beside_packed_tokens(dim):
    """Whatever kernels are chosen, the second layer has the tables of the first."""
    random = torch.Generator(DEVICE).manual_seed(0)
    shapes = [(2, 1024, heads, dim) for heads in (8, 4, 4, 8)]
    made = [torch.randn(shape, generator=random, device=DEVICE).bfloat16() for shape in shapes]
    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in made[:3])
    counted, tables = ends_of([300, 724, 1, 1023]), {}
    flat = [x.transpose(1, 2).flatten(0, 1).detach().requires_grad_() for x in (q, k, v)]
    most = {"max_seqlen_q": 1024, "max_seqlen_k": 1024}
    want = weft.varlen_attention(*flat, counted, None, weft.causal(), **most)
    wanted = torch.autograd.grad(want, flat, made[3].flatten(0, 1))
    for _ in range(2):
        out = attention((q, k, v), counted, tables, weft.causal(), 1024, "auto")
        assert torch.equal(out.flatten(0, 1), want)
        for x, y in zip(torch.autograd.grad(out, (q, k, v), made[3]), wanted, strict=True):
            assert (x.transpose(1, 2).flatten(0, 1) - y).float().norm() <= 1e-2 * y.float().norm()
    assert len(tables) == 2
