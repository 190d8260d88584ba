"""One graph, many masks: each call computes with the mask that it was given."""

import gc
from unittest import mock

import pytest
import torch
from tests.fusion.helpers import EAGER, TRAINED, M, added, agree, fused, near, qkv
from torch._dynamo.testing import CompileCounter

import weft
from weft.errors import UnsupportedError
from weft.fusion import decide, operator

F = torch.nn.functional
pytestmark = pytest.mark.more
Q, K, V = qkv()


def sdpa(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def plain(q, k, v, mask):
    return F.softmax(q @ k.transpose(-1, -2) / 4 + mask, dim=-1) @ v


def made_how_often():
    return mock.patch.object(decide, "recognize_mask", side_effect=decide.recognize_mask)


def test_another_mask_is_another_mask():
    made, _ = fused(sdpa, Q, K, V, near())
    for left in (7, 3, 20, 7):
        agree(made(Q, K, V, near(left=left)), sdpa(Q, K, V, near(left=left)))


def test_a_mask_that_was_changed_in_place():
    mask = near()
    made, _ = fused(sdpa, Q, K, V, mask)
    before = made(Q, K, V, mask)
    mask[:, 0] = True
    found = made(Q, K, V, mask)
    agree(found, sdpa(Q, K, V, mask))
    assert not torch.allclose(found, before)


def test_recognised_once():
    mask, q2 = near(left=9), torch.randn(2, 3, M, 16)
    with made_how_often() as made_it:
        made, _ = fused(sdpa, Q, K, V, mask)
        for _ in range(3):
            agree(made(q2, K, V, mask), sdpa(q2, K, V, mask))
        assert made_it.call_count == 1
        agree(made(Q, K, V, mask.clone()), sdpa(Q, K, V, mask))  # another object with the same content
        assert made_it.call_count == 1
        made(Q, K, V, near(left=2))
        assert made_it.call_count == 2


def test_a_bias_after_a_mask():
    made, explanation = fused(plain, Q, K, V, added(near()))
    assert explanation.replaced
    bias = torch.randn(M, M)
    agree(made(Q, K, V, bias), plain(Q, K, V, bias))
    assert "so it is a bias" in str(explanation)


def test_a_row_without_keys_after_a_mask():
    least = torch.finfo(torch.float32).min
    made, _ = fused(plain, Q, K, V, added(near(), least))
    live = near()
    live[4] = False
    agree(made(Q, K, V, added(live, least)), plain(Q, K, V, added(live, least)))


def test_gradients_of_what_stays_at_run_time():
    tensors = qkv(grad=True)
    made, _ = fused(plain, *tensors, added(near()), options=TRAINED)
    for mask in (added(near()), torch.randn(M, M), added(near(left=2))):
        found, expected = (torch.autograd.grad(f(*tensors, mask).sin().sum(), tensors) for f in (made, plain))
        agree(found, expected)


def test_masks_that_always_change_are_not_recognised_for_ever():
    made, explanation = fused(sdpa, Q, K, V, near())
    with made_how_often() as made_it:
        for i in range(decide.CHANGING + 5):
            mask = near() | (torch.arange(M * M).view(M, M) == i)
            agree(made(Q, K, V, mask), sdpa(Q, K, V, mask))
        assert made_it.call_count <= decide.CHANGING
    assert "was a new one" in str(explanation)


def test_forgotten_with_its_tensors_and_with_the_plans():
    decide.forget()
    mask = near(left=11)
    made, _ = fused(sdpa, Q, K, V, mask)
    made(Q, K, V, mask)
    assert len(decide._met) == 1
    del mask
    torch._dynamo.reset()
    gc.collect()
    made, _ = fused(sdpa, Q, K, V, near())
    made(Q, K, V, near())
    weft_caches = len(decide._by_content)
    assert weft_caches
    from weft import caching

    caching.clear()
    assert not decide._by_content and not len(decide._met)


def test_a_capture_holds_a_mask_that_was_met_and_refuses_others():
    mask = near()
    made, _ = fused(sdpa, Q, K, V, mask)
    expected = made(Q, K, V, mask)
    with mock.patch.object(decide, "is_capturing", return_value=True):
        agree(made(Q, K, V, mask), expected)
        with pytest.raises(UnsupportedError, match="run the model once before the capture"):
            made(Q, K, V, near(left=4))


def test_inference_mode():
    with torch.inference_mode():
        made, explanation = fused(sdpa, Q, K, V, near())
        assert explanation.replaced
        for left in (7, 3):
            mask = near(left=left)
            agree(made(Q, K, V, mask), sdpa(Q, K, V, mask))
            mask[:, 0] = True  # no version counts this
            agree(made(Q, K, V, mask), sdpa(Q, K, V, mask))


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_one_graph_for_batches_and_lengths(inner):
    """The mask is made in the graph, of sizes and of an input."""

    def model(x, kept, w):
        batch, tokens, _ = x.shape
        q, k, v = (y.view(batch, tokens, 3, 16).transpose(1, 2) for y in (x @ w).chunk(3, -1))
        at = torch.arange(tokens)
        live = (at[:, None] >= at) & (at[:, None] - at < 8) & kept[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=live).transpose(1, 2).reshape(batch, tokens, 48)

    torch._dynamo.reset()
    counter = CompileCounter()
    reports = []

    def counted(module, inputs):
        from weft.fusion.backend import compiled

        counter(module, inputs)
        return compiled(module, inputs, reports.append, None, EAGER | {"weft.inner": inner})

    made = torch.compile(model, backend=counted, dynamic=True)
    w = torch.randn(32, 144) / 6
    for batch, tokens in ((2, 40), (3, 56), (2, 64), (5, 24)):
        x, kept = torch.randn(batch, tokens, 32), torch.ones(batch, tokens, dtype=torch.bool)
        kept[0, tokens // 2 :] = False
        agree(made(x, kept, w), model(x, kept, w))
    assert counter.frame_count == 1
    assert len(reports) == 1 and reports[0].replaced == 1


def test_weft_fuse_of_a_module_shares_its_parameters():
    layer = torch.nn.Linear(4, 4)
    made = weft.fuse(layer, options=EAGER)
    assert [id(x) for x in made.parameters()] == [id(x) for x in layer.parameters()]
    assert made.in_features == 4 and made.training
    assert list(made.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
    made.eval()
    assert not layer.training
    with torch.no_grad():
        layer.weight.zero_()
    x = torch.randn(2, 4)
    agree(made(x), layer.bias.expand(2, 4))


def test_what_weft_refuses_when_it_runs_is_dropped():
    tensors, mask = qkv(grad=True), near()
    made, _ = fused(sdpa, *tensors, mask, options=TRAINED)
    refusal = UnsupportedError("attention", "this card has no room", "use another")
    with mock.patch.object(operator, "attend", side_effect=refusal) as asked:
        for _ in range(2):
            found, expected = made(*tensors, mask), sdpa(*tensors, mask)
            agree(found, expected)
            agree(torch.autograd.grad(found.sum(), tensors), torch.autograd.grad(expected.sum(), tensors))
        assert asked.call_count == 1
    assert "this card has no room" in str(made.explanation)
    decide.forget()
