"""Forty-three published kinds of scores and masks: values, lse and every gradient beside torch's own, in float64."""

import inspect

import pytest
import torch
from tests.tiers import every
from torch.nn.attention import flex_attention as theirs

from weft.integrations.flex import AuxRequest, create_block_mask, flex_attention
from weft.torch.tracing import score_of

from .helpers import gradients, reference, tensors
from .published import MASKS, SCORES, B, H, S, made

LISTS = theirs.BlockMask._TENSOR_ATTRS


@pytest.mark.parametrize("name", every(4, [*SCORES, *MASKS]))
def test_values_and_gradients(name):
    score_mod, mask_mod, learned = made(name)
    x = tensors(B, H, S)
    mask = None if mask_mod is None else create_block_mask(mask_mod, B, H, S, S, device="cpu")
    out, aux = flex_attention(*x, score_mod, mask, return_aux=AuxRequest(lse=True))
    expected, lse = reference(*x, score_mod, mask_mod)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(aux.lse, lse)
    leaves = [*x, *learned]
    for ours, wanted in zip(gradients(out, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(ours, wanted)


@pytest.mark.more
@pytest.mark.parametrize("name", [*SCORES, *MASKS])
def test_beside_the_public_call(name):
    """torch's flex_attention itself, which has no gradients on the CPU."""
    score_mod, mask_mod, _ = made(name)
    x = tensors(B, H, S, grad=False)
    mask = None if mask_mod is None else theirs.create_block_mask(mask_mod, B, H, S, S, device="cpu")
    torch._dynamo.reset()
    with torch.no_grad():
        expected = theirs.flex_attention(*x, score_mod, mask)
        torch.testing.assert_close(flex_attention(*x, score_mod, mask), expected)


@pytest.mark.more
@pytest.mark.parametrize("name", [*SCORES, *MASKS])
def test_compiled(name):
    score_mod, mask_mod, learned = made(name)
    x = tensors(B, H, S)
    mask = None if mask_mod is None else create_block_mask(mask_mod, B, H, S, S, device="cpu")
    torch._dynamo.reset()
    out = torch.compile(flex_attention, fullgraph=True, backend="aot_eager")(*x, score_mod, mask)
    expected = flex_attention(*x, score_mod, mask)
    torch.testing.assert_close(out, expected)
    leaves = [*x, *learned]
    for ours, wanted in zip(gradients(out, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize("name", every(5, MASKS))
@pytest.mark.parametrize("size", [128, (16, 32)])
@pytest.mark.parametrize("separate", [True, False])
def test_blocks(name, size, separate):
    """The lists that torch makes of all pairs."""
    _, mask_mod, _ = made(name)
    ours = create_block_mask(mask_mod, B, H, S, S, BLOCK_SIZE=size, separate_full_blocks=separate, device="cpu")
    told = {} if separate else {"separate_full_blocks": False}
    if told and "separate_full_blocks" not in inspect.signature(theirs.create_block_mask).parameters:
        pytest.skip("this torch always lists full blocks apart")
    wanted = theirs.create_block_mask(mask_mod, B, H, S, S, "cpu", size, **told)
    for name in LISTS:
        x, y = getattr(ours, name), getattr(wanted, name)
        assert (x is None) == (y is None)
        assert x is None or (torch.equal(x, y) and x.dtype == y.dtype)


def test_softplus_far_from_zero():
    score = score_of(lambda score, b, h, q, k: torch.nn.functional.softplus(score))
    x = [(t.detach() * 60).requires_grad_() for t in tensors(1, 1, 12)]
    out = flex_attention(*x, lambda s, b, h, q, k: torch.nn.functional.softplus(s))
    expected, _ = reference(*x, lambda s, b, h, q, k: torch.nn.functional.softplus(s))
    torch.testing.assert_close(out, expected)
    for ours, wanted in zip(gradients(out, x), gradients(expected, x), strict=True):
        torch.testing.assert_close(ours, wanted)
    assert score.tables == ()
