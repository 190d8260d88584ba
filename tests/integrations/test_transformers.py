"""Models of transformers under weft give what they give under eager attention: logits and gradients."""

import pytest
import torch

models = pytest.importorskip("tests.integrations.models", exc_type=ImportError)

from weft.errors import WeftError
from weft.integrations.transformers import register

pytestmark = pytest.mark.more  # to import transformers takes seconds
register()
PACKED = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]] * 3)


def same(model, run, rows=None, tolerance=2e-6):
    want, got = (models.under(model, name, run) for name in ("eager", "weft"))
    if rows is not None:
        want, got = want[rows], got[rows]
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert want.abs().max() > 1e-3


@pytest.mark.parametrize("name", models.DECODERS)
@pytest.mark.parametrize("side", ["none", "left", "right", "holes"])
def test_decoders_padded(name, side):
    ids, padding = models.tokens()
    padding = {"none": torch.ones_like(padding), "left": padding, "right": padding.flip(1)}.get(side, padding)
    if side == "holes":
        padding = (torch.arange(ids.numel()).view(ids.shape) % 5 != 2).long()
    live = padding.bool().cumsum(1) > 0  # rows with a live key: eager averages all values in the others
    if "sliding_window" in models.DECODERS[name] or "attention_chunk_size" in models.DECODERS[name]:
        live = padding.bool()
    same(models.decoder(name), lambda model: model(ids, attention_mask=padding).logits, live & padding.bool())


@pytest.mark.parametrize("name", models.DECODERS)
def test_decoders_packed(name):
    ids, _ = models.tokens()
    same(models.decoder(name), lambda model: model(ids, position_ids=PACKED, use_cache=False).logits)


def gradients(model, **inputs):
    model.zero_grad()
    model(**inputs).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", models.DECODERS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_decoders_gradients(name, checkpointing):
    ids, padding = models.tokens()
    model = models.decoder(name)
    # the token after the padding is foretold by a row without a live key
    labels = torch.where(padding.bool() & (padding.cumsum(1) > 1), ids, -100)
    if checkpointing:
        model.activation_checkpointing_enable()
        model.train()
    try:
        same(model, lambda model: gradients(model, input_ids=ids, attention_mask=padding, labels=labels), None, 1e-5)
    finally:
        model.activation_checkpointing_disable()
        model.eval()


@pytest.mark.parametrize("name", models.ENCODERS)
@pytest.mark.parametrize("padded", [False, True])
def test_encoders(name, padded):
    ids, padding = models.tokens()
    padding = padding.flip(1) if padded else torch.ones_like(padding)
    same(models.encoder(name), lambda model: model(ids, attention_mask=padding).logits, padding.bool())


@pytest.mark.parametrize("padded", [False, True])
def test_t5(padded):
    ids, padding = models.tokens()
    padding = padding.flip(1) if padded else torch.ones_like(padding)
    labels = models.tokens(length=7, seed=1)[0]
    same(models.t5(), lambda model: model(input_ids=ids, attention_mask=padding, labels=labels).logits)
    inputs = {"input_ids": ids, "attention_mask": padding, "labels": labels}
    same(models.t5(), lambda model: gradients(model, **inputs), None, 1e-5)
    bias = models.t5().encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    assert bias.grad.abs().sum() > 0


def test_vit():
    torch.manual_seed(0)
    pixels = torch.randn(2, 3, 16, 16)
    same(models.vit(), lambda model: model(pixel_values=pixels).last_hidden_state)


def test_masks_of_four_axes():
    ids, _ = models.tokens()
    torch.manual_seed(1)
    seen = torch.rand(3, 1, 12, 12) < 0.6
    seen |= torch.eye(12, dtype=torch.bool)
    added = torch.zeros(3, 1, 12, 12).masked_fill(~seen, torch.finfo(torch.float32).min)
    model = models.decoder("Llama")
    want = models.under(model, "eager", lambda model: model(ids, attention_mask=added).logits)
    for mask in (seen, added):
        got = models.under(model, "weft", lambda model, mask=mask: model(ids, attention_mask=mask).logits)
        torch.testing.assert_close(got, want, rtol=2e-6, atol=2e-6)


def test_dropout_of_bert():
    ids, padding = models.tokens()
    model = models.encoder("Bert").train()
    try:
        out = models.under(model, "weft", lambda model: model(ids, attention_mask=padding.flip(1)).logits)
        assert out.isfinite().all()
    finally:
        model.eval()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"head_bias": 1}, "head_bias"),
        ({"cu_seq_lens_q": torch.tensor([0, 12])}, "position_ids"),
        ({"block_indices": torch.tensor([0])}, "chooses keys itself"),
        ({"cu_seq_lens_q": torch.tensor([0, 12]), "read_index": [0]}, "continuous batching"),
    ],
)
def test_keywords_that_are_refused(told, said):
    ids, _ = models.tokens()
    with pytest.raises(WeftError, match="LlamaAttention of layer 0 of llama") as raised:
        models.under(models.decoder("Llama"), "weft", lambda model: model(ids, **told))
    assert said in str(raised.value)


def test_weights_are_none():
    ids, _ = models.tokens()
    model = models.decoder("Llama")
    want = models.under(model, "eager", lambda model: model(ids).logits)
    got = models.under(model, "weft", lambda model: model(ids, output_attentions=True))
    torch.testing.assert_close(got.logits, want, rtol=2e-6, atol=2e-6)
    assert all(weights is None for weights in got.attentions or ())


def test_images_in_text():
    """Gemma 3: images see all of themselves."""
    model = models.gemma3_with_images()
    torch.manual_seed(0)
    ids = torch.randint(3, 100, (2, 14))
    ids[:, 3:7] = 120
    pixels = torch.randn(2, 3, 16, 16)
    inputs = {"input_ids": ids, "pixel_values": pixels, "token_type_ids": (ids == 120).long()}
    same(model, lambda model: model(**inputs, attention_mask=torch.ones_like(ids)).logits)
    for cache in ("dynamic", "static"):
        want, got = (
            models.under(
                model,
                under,
                lambda model, cache=cache: model.generate(
                    **inputs, attention_mask=torch.ones_like(ids), max_new_tokens=24, min_new_tokens=24,
                    do_sample=False, cache_implementation=cache,
                ),
            )
            for under in ("eager", "weft")
        )  # fmt: skip
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["flash", "a/b", "eager", "", 3])
def test_names_that_are_refused(name):
    with pytest.raises(WeftError, match="register"):
        register(name)
