"""What stays as the graph has it: with its reason, and with the value that it had."""

import pytest
import torch
from tests.fusion.helpers import EAGER, M, added, agree, fused, near, qkv
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from weft.fusion.nodes import Unsized, hint

F = torch.nn.functional
pytestmark = pytest.mark.more
LEAST = torch.finfo(torch.float32).min
LIVE = near()
Q, K, V = qkv()


def sdpa(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def plain(q, k, v, mask):
    return F.softmax(q @ k.transpose(-1, -2) / 4 + mask, dim=-1) @ v


def stays(reason, function, *inputs, options=EAGER, equal=True):
    made, explanation = fused(function, *inputs, options=options)
    assert [one.reason for one in explanation.left] and not explanation.replaced, str(explanation)
    assert reason in explanation.left[0].reason, str(explanation)
    if equal:
        found, expected = made(*inputs), function(*inputs)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_a_bias():
    stays("so it is a bias", sdpa, Q, K, V, torch.randn(M, M))
    stays("so it is a bias", plain, Q, K, V, added(LIVE, -1e4))


def test_a_mask_with_a_gradient():
    bias = torch.zeros(M, M, requires_grad=True)
    stays("has a gradient", lambda q, k, v, b: sdpa(q, k, v, b + added(LIVE)), Q, K, V, bias)
    stays("has a gradient", sdpa, Q, K, V, bias)


def test_no_mask_and_causal():
    stays("has no mask", F.scaled_dot_product_attention, Q, K, V)
    stays("has no mask", lambda q, k, v: F.softmax(q @ k.mT, -1) @ v, Q, K, V)
    stays("is causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), Q, K, V)


def test_dropout():
    def dropped(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.5)

    def dropped_plainly(q, k, v, mask):
        return F.dropout(F.softmax(q @ k.mT + mask, -1), 0.5, True) @ v

    for function, mask in ((dropped, LIVE), (dropped_plainly, added(LIVE))):
        made, explanation = fused(function, Q, K, V, mask)
        assert "drops weights" in explanation.left[0].reason
        torch.manual_seed(3)
        found = made(Q, K, V, mask)
        torch.manual_seed(3)
        agree(found, function(Q, K, V, mask))


def test_rows_that_the_graph_averages():
    live = LIVE.clone()
    live[5] = False
    stays("no live key", sdpa, Q, K, V, added(live, LEAST))
    stays("no live key", plain, Q, K, V, added(live, LEAST))
    stays("no live key", plain, Q, K, V, added(live))  # NaN there


def test_weights_and_scores_that_are_used_elsewhere():
    def weights(q, k, v, mask):
        found = F.softmax(q @ k.mT + mask, -1)
        return found @ v, found

    def scores(q, k, v, mask):
        found = q @ k.mT
        return F.softmax(found + mask, -1) @ v, found

    stays("weights are used", weights, Q, K, V, added(LIVE))
    stays("scores are used", scores, Q, K, V, added(LIVE))


def test_scores_that_are_something_else():
    def after_mask(q, k, v, mask):
        return F.softmax((q @ k.mT + mask) * 0.25, -1) @ v

    def temperature(q, k, v, mask):
        return F.softmax(q @ k.mT * q.mean() + mask, -1) @ v

    def over_queries(q, k, v, mask):
        return F.softmax(q @ k.mT + mask, -2) @ v

    def filled_with_zero(q, k, v, mask):
        return F.softmax((q @ k.mT).masked_fill(mask != 0, 0.0), -1) @ v

    stays("scaled after a mask", after_mask, Q, K, V, added(LIVE))
    stays("scaled by what is no number", temperature, Q, K, V, added(LIVE))
    stays("not over the last axis", over_queries, Q, K, V, torch.zeros(M, M))
    stays("not the least of their type", filled_with_zero, Q, K, V, added(LIVE))


def test_masks_made_of_activations():
    def by_values(q, k, v, mask):
        return sdpa(q, k, v, (q.mean(-1, keepdim=True) > 0) | mask)

    def by_chance(q, k, v, mask):
        return sdpa(q, k, v, (torch.rand(M, M) > 0.5) | mask)

    stays("its mask comes of mean", by_values, Q, K, V, LIVE)
    _, explanation = fused(by_chance, Q, K, V, LIVE)
    assert "its mask comes of rand" in explanation.left[0].reason


def test_a_mask_that_the_graph_writes_into():
    def written(q, k, v, mask):
        mask = mask.clone()
        mask[:, 0] = True
        return sdpa(q, k, v, mask)

    def written_later(q, k, v, mask):
        found = sdpa(q, k, v, mask)
        mask.logical_not_()
        return found

    made, explanation = fused(written, Q, K, V, LIVE)
    assert "writes into what its mask is made of" in explanation.left[0].reason
    agree(made(Q, K, V, LIVE), written(Q, K, V, LIVE))
    made, explanation = fused(written_later, Q, K, V, LIVE.clone())
    assert "writes into what its mask is made of" in explanation.left[0].reason
    agree(made(Q, K, V, LIVE.clone()), written_later(Q, K, V, LIVE.clone()))


def test_too_dense_and_too_small():
    stays("more than 10%", sdpa, Q, K, V, LIVE, options=EAGER | {"weft.share": 0.1})
    stays("more than 60%", sdpa, Q, K, V, LIVE, options={"weft.inner": "eager"})
    q, k, v = qkv(512, heads=1, batch=1)
    stays("it is small", sdpa, q, k, v, near(512), options={"weft.inner": "eager"})


def test_autocast():
    def inside(q, k, v, mask):
        with torch.autocast("cpu", torch.bfloat16):
            return sdpa(q, k, v, mask)

    stays("autocast is entered", inside, Q, K, V, LIVE)
    with torch.autocast("cpu", torch.bfloat16):
        stays("autocast is enabled", sdpa, Q, K, V, LIVE)


def test_types_and_shapes_that_weft_has_not():
    stays("(batch, heads, tokens, width)", sdpa, Q[:, None], K[:, None], V[:, None], LIVE)
    stays(
        "of several types",
        lambda q, k, v, m: F.softmax((q @ k.mT).double() + m, -1) @ v.double(),
        Q,
        K,
        V,
        LIVE.double().log(),
    )


def test_flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    block_mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, M, M, device="cpu")
    _, explanation = fused(lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask), Q, K, V)
    assert "FlexAttention" in explanation.left[0].reason


def test_softmax_without_attention_is_not_named():
    def router(x, w):
        return F.softmax(x @ w, -1)

    _, explanation = fused(router, torch.randn(4, 8), torch.randn(8, 3))
    assert not explanation.seen


def test_sizes_that_depend_on_values():
    def cut(q, k, v, count):
        n = count.item()
        torch._check(n >= 8)
        torch._check(n <= M)
        at = torch.arange(n)
        return sdpa(q, k[:, :, :n], v[:, :, :n], torch.arange(M)[:, None] >= at)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        made, explanation = fused(cut, Q, K, V, torch.tensor(32))
        assert len(explanation.seen) == 1
        for count in (32, 20, 45):
            inputs = Q, K, V, torch.tensor(count)
            agree(made(*inputs), cut(*inputs))


def test_a_size_without_an_example_is_refused():
    with pytest.raises(Unsized, match="depend on the values of tensors"):
        hint(ShapeEnv().create_unbacked_symint())
    assert hint(3) == 3
