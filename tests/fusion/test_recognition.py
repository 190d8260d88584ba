"""Attention as users write it: each spelling is found, computed by weft, and has the value and gradients it had."""

from unittest import mock

import pytest
import torch
from tests.fusion.helpers import TRAINED, M, added, agree, fused, near, qkv
from tests.tiers import sample

import weft
from weft.fusion import operator
from weft.torch.call import attend

F = torch.nn.functional
LEAST = torch.finfo(torch.float32).min


def sdpa(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def sdpa_by_name(q, k, v, mask):
    return F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=mask, dropout_p=0.0, scale=0.5)


def plain(q, k, v, mask):
    return torch.softmax(q @ k.transpose(-1, -2) / 4 + mask, dim=-1) @ v


def eager_of_transformers(q, k, v, mask):
    weights = torch.matmul(q, k.transpose(2, 3)) * 0.25
    weights = weights + mask
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    weights = F.dropout(weights, p=0.0, training=False)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def filled(q, k, v, mask):
    scores = torch.matmul(q * 0.25, k.mT)
    return scores.masked_fill(mask == 0, float("-inf")).softmax(-1).matmul(v)


def chosen(q, k, v, mask):
    scores = torch.where(mask, q @ k.permute(0, 1, 3, 2), LEAST)
    return F.softmax(scores, -1) @ v


def mask_first(q, k, v, mask):
    return F.softmax(mask + 0.3 * (q @ k.transpose(2, 3)), -1) @ v


def two_masks(q, k, v, mask):
    ahead = torch.ones(M, M, dtype=torch.bool).tril()
    scores = (q @ k.transpose(2, 3) + mask).masked_fill(~ahead, -torch.inf)
    return F.softmax(scores, -1) @ v


def capped(q, k, v, mask):
    scores = 3.0 * torch.tanh(q @ k.transpose(2, 3) * 0.25 / 3.0)
    return F.softmax(scores + mask, -1) @ v


def flat(q, k, v, mask):
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    return torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)) / 4 + mask, -1), v).view(2, 3, M, -1)


def in_place(q, k, v, mask):
    scores = q @ k.transpose(2, 3)
    scores *= 0.25
    scores += mask
    return F.softmax(scores, -1) @ v


def viewed(q, k, v, mask):
    """The result is seen through a view that its memory must allow."""
    return (F.softmax(q @ k.transpose(2, 3) + mask, -1) @ v).view(6, M, -1)


def with_sinks(q, k, v, mask):
    scores = q @ k.transpose(2, 3) * 0.25 + mask
    sinks = torch.arange(3.0).reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    both = torch.cat([scores, sinks], dim=-1)
    both = both - both.max(dim=-1, keepdim=True).values
    return F.softmax(both, dim=-1)[..., :-1] @ v


LIVE = near()
CASES = [
    (sdpa, LIVE), (sdpa, added(LIVE)), (sdpa, added(LIVE, LEAST)), (sdpa, LIVE.expand(2, 3, M, M)),
    (sdpa, LIVE[None, None] & (torch.arange(M) < 40)), (sdpa, torch.stack([near(), near(left=3)])[:, None]),
    (sdpa_by_name, LIVE), (plain, added(LIVE)), (plain, added(LIVE, LEAST)),
    (eager_of_transformers, added(LIVE, LEAST)),
    (filled, LIVE), (filled, LIVE.long()), (chosen, LIVE), (mask_first, added(LIVE)),
    (two_masks, added(torch.arange(M) < M - 1).expand(M, M)), (capped, added(LIVE, LEAST)), (flat, added(LIVE)),
    (in_place, added(LIVE)), (viewed, added(LIVE)), (with_sinks, added(LIVE)),
]  # fmt: skip


NAMES = [f"{function.__name__}-{i}" for i, (function, _) in enumerate(CASES)]


@pytest.mark.parametrize("case", sample(NAMES, NAMES[0], NAMES[9]))
def test_replaced_with_equal_values_and_gradients(case):
    function, mask = CASES[NAMES.index(case)]
    tensors = qkv(grad=True)
    made, explanation = fused(function, *tensors, mask, options=TRAINED)
    assert len(explanation.replaced) == len(explanation.seen) == 1, str(explanation)
    expected = function(*tensors, mask)
    found = made(*tensors, mask)
    assert found.stride() == expected.stride() or function not in (viewed, flat)
    agree(found, expected)
    dout = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    agree(torch.autograd.grad(found, tensors, dout), torch.autograd.grad(expected, tensors, dout))


@pytest.mark.more
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types(dtype):
    tensors = qkv(dtype=dtype)
    made, explanation = fused(sdpa, *tensors, LIVE)
    assert len(explanation.replaced) == 1
    exact = sdpa(*(x.double() for x in tensors), LIVE)
    wrong = (sdpa(*tensors, LIVE) - exact).abs().max()
    assert (made(*tensors, LIVE) - exact).abs().max() <= 2 * wrong + 1e-12


@pytest.mark.more
def test_grouped_heads_by_repetition():
    def grouped(q, k, v, mask):
        k, v = (x[:, :, None].expand(2, 1, 3, M, 16).reshape(2, 3, M, 16) for x in (k, v))
        return sdpa(q, k, v, mask)

    def interleaved(q, k, v, mask):
        k, v = k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)
        return F.softmax(q @ k.transpose(2, 3) + added(mask), -1) @ v

    q, k, v = qkv(grad=True)
    tensors = q, k[:, :1].detach().requires_grad_(), v[:, :1].detach().requires_grad_()
    for function in (grouped, interleaved):
        with mock.patch.object(operator, "attend", side_effect=attend) as attended:
            made, explanation = fused(function, *tensors, LIVE, options=TRAINED)
            assert len(explanation.replaced) == 1
            found, expected = made(*tensors, LIVE), function(*tensors, LIVE)
        assert {call.args[0][1].shape[1] for call in attended.call_args_list} == {1}  # heads are not repeated
        agree(found, expected)
        agree(torch.autograd.grad(found.sin().sum(), tensors), torch.autograd.grad(expected.sin().sum(), tensors))


@pytest.mark.more
def test_what_is_broadcast_stays():
    q, k, v = qkv()
    for tensors in ((q, k[:1], v[:1]), (q, k, v[:1])):
        made, explanation = fused(sdpa, *tensors, LIVE)
        assert "broadcast" in explanation.left[0].reason
        agree(made(*tensors, LIVE), sdpa(*tensors, LIVE))


@pytest.mark.more
def test_sinks_have_gradients():
    def attend(q, k, v, sinks, mask):
        scores = q @ k.transpose(2, 3) * 0.25 + mask
        column = sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
        return F.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1] @ v

    inputs = [*qkv(grad=True), torch.tensor([0.5, -1.0, 2.0], requires_grad=True)]
    made, explanation = fused(attend, *inputs, added(LIVE), options=TRAINED)
    assert len(explanation.replaced) == 1
    found, expected = (torch.autograd.grad(f(*inputs, added(LIVE)).sin().sum(), inputs) for f in (made, attend))
    agree(found, expected)


@pytest.mark.more
def test_rows_without_a_live_key_are_zero_where_the_graph_has_zero():
    """scaled_dot_product_attention gives 0 there for booleans and for -inf."""
    live = near()
    live[5] = False
    tensors = qkv(grad=True)
    for mask in (live, added(live)):
        made, explanation = fused(sdpa, *tensors, mask, options=TRAINED)
        assert len(explanation.replaced) == 1
        found = made(*tensors, mask)
        assert not found[:, :, 5].any()
        agree(found, sdpa(*tensors, mask))


def test_the_pattern_is_named():
    _, explanation = fused(sdpa, *qkv(), LIVE)
    assert "causal() & window(left=7)" in explanation.replaced[0].mask
    assert isinstance(explanation, weft.fusion.Explanation)


@pytest.mark.more
def test_attention_of_attention():
    def twice(q, k, v, mask):
        return plain(sdpa(q, k, v, mask), k, sdpa(k, v, q, mask), added(mask))

    tensors = qkv(grad=True)
    made, explanation = fused(twice, *tensors, LIVE, options=TRAINED)
    assert len(explanation.replaced) == 3
    found, expected = made(*tensors, LIVE), twice(*tensors, LIVE)
    agree(found, expected)
    agree(torch.autograd.grad(found.sin().sum(), tensors), torch.autograd.grad(expected.sin().sum(), tensors))
