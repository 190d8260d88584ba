"""Packed documents in batch rows, beside the same documents one after the other and dense attention in float64."""

import pytest
import torch
from tests.gpu.test_oracle_documents import sums

import weft
from weft.errors import UnsupportedError
from weft.testing.refusals import refuse
from weft.testing.tolerance import assert_close
from weft.torch import document_batches

from .compare import BACKENDS
from .documents import DEVICE, NAMES, by_dense, tensors_of

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends have no such kernels")
ROWS, TOKENS = 2, 20
LENGTHS = [13, 7, 0, 20]  # two rows
NEAR = weft.causal() & weft.window(left=4)


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
    counted = torch.tensor(sums(lengths), dtype=torch.int32, device=DEVICE)
    packing = document_batches.Packing(counted, TOKENS, NEAR, {}, **options, backend="triton")
    out = document_batches.attention(*leaves, packing)
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
    document_batches.forget()
    tensors = tensors_of((LENGTHS, LENGTHS))
    first = found(tensors, "tokens first")
    other = found(tensors, "tokens first", [1, 19, 20, 0])
    assert len(document_batches._prepared) == 1
    assert not torch.equal(first["out"], other["out"])
    again = found(tensors, "tokens first")
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_layers_share_tables():
    """Two layers make each table once; a step with other documents makes its own."""
    leaves = [laid_out(x.to(DEVICE), "tokens first").requires_grad_() for x in tensors_of((LENGTHS, LENGTHS))[:3]]
    counted = torch.tensor(sums(LENGTHS), dtype=torch.int32, device=DEVICE)
    packing = document_batches.Packing(counted, TOKENS, NEAR, {}, backend="triton")
    first = document_batches.attention(*leaves, packing)
    made = list(packing.tables.values())
    second = document_batches.attention(*leaves, packing)
    torch.autograd.grad(first.sum() + second.sum(), leaves)
    assert torch.equal(first, second) and len(made) == 1
    again = list(packing.tables.values())
    assert len(again) == 2 and again[0] is made[0]  # and those of both gradients


def test_double_backward_is_refused():
    q = laid_out(tensors_of((LENGTHS, LENGTHS))[0].to(DEVICE), "tokens first").requires_grad_()
    k = torch.ones(ROWS, 2, TOKENS, 16, device=DEVICE)
    counted = torch.tensor(sums(LENGTHS), dtype=torch.int32, device=DEVICE)
    out = document_batches.attention(q, k, k, document_batches.Packing(counted, TOKENS, NEAR, {}, backend="triton"))
    refuse(lambda: torch.autograd.grad(out.sum(), q, create_graph=True), UnsupportedError, ["double backward"])


@pytest.mark.skipif(DEVICE.type == "cpu", reason="warp groups are Hopper's")
@pytest.mark.parametrize("dim", [64, 128])
def test_two_layers_beside_packed_tokens(dim):
    """Whatever kernels are chosen, the second layer has the tables of the first."""
    random = torch.Generator(DEVICE).manual_seed(0)
    shapes = [(2, 1024, heads, dim) for heads in (8, 4, 4, 8)]
    made = [torch.randn(shape, generator=random, device=DEVICE).bfloat16() for shape in shapes]
    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in made[:3])
    counted = torch.tensor(sums([300, 724, 1, 1023]), dtype=torch.int32, device=DEVICE)
    packing = document_batches.Packing(counted, 1024, weft.causal(), {})
    flat = [x.transpose(1, 2).flatten(0, 1).detach().requires_grad_() for x in (q, k, v)]
    most = {"max_seqlen_q": 1024, "max_seqlen_k": 1024}
    want = weft.varlen_attention(*flat, counted, None, weft.causal(), **most)
    wanted = torch.autograd.grad(want, flat, made[3].flatten(0, 1))
    for _ in range(2):
        out = document_batches.attention(q, k, v, packing)
        assert torch.equal(out.flatten(0, 1), want)
        for x, y in zip(torch.autograd.grad(out, (q, k, v), made[3]), wanted, strict=True):
            assert (x.transpose(1, 2).flatten(0, 1) - y).float().norm() <= 1e-2 * y.float().norm()
    assert len(packing.tables) == 2
