"""Autocast, no_grad, inference mode, checkpointing and torch's defaults."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import weft
from weft.errors import InputError
from weft.testing.refusals import refuse

from .helpers import qkv

MASK = weft.causal() & weft.window(left=9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_for_torch_s_own_attention(dtype):
    q, k, v = qkv(40)
    with torch.autocast("cpu", dtype=dtype):
        out, lse = weft.attention(q, k, v, MASK, return_lse=True)
        own = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert out.dtype == own.dtype == dtype
    assert lse.dtype == torch.float32
    assert torch.equal(out, weft.attention(q.to(dtype), k.to(dtype), v.to(dtype), MASK))


def test_autocast_casts_what_is_mixed():
    q, k, v = qkv(40)
    expected = weft.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), MASK)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(weft.attention(q.bfloat16(), k, v, MASK), expected)
    refuse(lambda: weft.attention(q.bfloat16(), k, v, MASK), InputError, ("bfloat16", "float32"))


def test_autocast_leaves_float64_alone():
    x = qkv(40, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = weft.attention(*x, MASK)
        own = torch.nn.functional.scaled_dot_product_attention(*x[:1], x[0], x[0])
    assert out.dtype == own.dtype == torch.float64
    assert torch.equal(out, weft.attention(*x, MASK))


def test_autocast_makes_no_integers_into_floats():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        refuse(lambda: weft.attention(*(x.long() for x in qkv(8)), MASK), InputError, ("int64",))


def test_autocast_disabled_inside():
    q, k, v = qkv(40)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert torch.equal(weft.attention(q, k, v, MASK), weft.attention(q, k, v, MASK))
        assert weft.attention(q, k, v, MASK).dtype == torch.float32


def test_gradients_come_back_in_the_dtype_of_the_leaves():
    x = qkv(40, grad=True)
    sinks = torch.zeros(4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = weft.attention(*x, MASK, sinks=sinks)
    out.sum().backward()
    low = [t.detach().bfloat16().requires_grad_() for t in x]
    weft.attention(*low, MASK, sinks=torch.zeros(4)).sum().backward()
    for leaf, other in zip(x, low, strict=True):
        assert leaf.grad.dtype == torch.float32
        assert torch.equal(leaf.grad, other.grad.float())
    assert sinks.grad.dtype == torch.float32


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    x = qkv(40, grad=True)
    expected = weft.attention(*x, MASK, return_lse=True)
    assert expected[0].requires_grad and expected[1].requires_grad
    with mode():
        got = weft.attention(*x, MASK, return_lse=True)
    for one, other in zip(got, expected, strict=True):
        assert not one.requires_grad and one.grad_fn is None
        assert torch.equal(one, other)


def test_nothing_made_in_inference_mode_is_in_the_way_of_training():
    """Plans and masks of a first call are kept; a later call trains with them."""
    mask = weft.longformer(10, global_tokens=3, dilation=2)
    with torch.inference_mode():
        first = weft.attention(*qkv(77), mask)
    x = qkv(77, grad=True)
    out = weft.attention(*x, mask)
    out.sum().backward()
    assert torch.equal(out, first)
    assert all(t.grad.isfinite().all() for t in x)


def test_tensors_made_in_inference_mode():
    with torch.inference_mode():
        x = qkv(20)
    assert torch.equal(weft.attention(*x, MASK), weft.attention(*qkv(20), MASK))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    def block(q, k, v):
        return weft.attention(q, k, v, MASK).sin()

    found = []
    for run in (block, lambda *x: checkpoint(block, *x, use_reentrant=reentrant)):
        x = qkv(40, grad=True)
        out = run(*x)
        out.square().sum().backward()
        found.append([out.detach(), *(t.grad for t in x)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_torch_s_defaults_do_not_leak_in():
    """Neither the default dtype nor the default device decides where weft computes."""
    mask = weft.causal() | weft.random_blocks(8, 2)
    x, sinks, slopes = qkv(41), torch.zeros(4), torch.rand(4)
    expected = weft.attention(*x, mask, sinks=sinks, alibi_slopes=slopes, return_lse=True)
    other = mask | weft.nothing()  # the same pairs, planned again
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            leaves = [t.clone().requires_grad_() for t in x]
            got = weft.attention(*leaves, other, sinks=sinks, alibi_slopes=slopes, return_lse=True)
            gradients = torch.autograd.grad(got, leaves, [torch.ones_like(t) for t in got])
    finally:
        torch.set_default_dtype(torch.float32)
    for one, two in zip(got, expected, strict=True):
        assert one.dtype == torch.float32 and one.device.type == "cpu"
        torch.testing.assert_close(one, two)
    assert all(g.dtype == torch.float32 and g.device.type == "cpu" for g in gradients)


def test_deterministic_algorithms_mode():
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (weft.attention(*qkv(90), MASK) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)
