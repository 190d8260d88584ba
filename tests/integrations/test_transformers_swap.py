"""`swap`: models past the attention interface give what they gave, with the same weights."""

import copy

import pytest
import torch

from weft.errors import UnsupportedError

models = pytest.importorskip("tests.integrations.models", exc_type=ImportError)
dinat = pytest.importorskip("tests.integrations.dinat", exc_type=ImportError)
import transformers

from weft.integrations.transformers import register, swap

pytestmark = pytest.mark.more  # to import transformers takes seconds


@pytest.fixture(scope="module")
def longformer():
    config = transformers.LongformerConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        attention_window=[4, 6], max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LongformerForMaskedLM(config).eval()


@pytest.mark.parametrize("special", [(), (0,), (0, 7)])
@pytest.mark.parametrize("padded", [False, True])
def test_longformer(longformer, special, padded):
    ids, padding = models.tokens(length=24)
    padding = padding.flip(1) if padded else torch.ones_like(padding)
    marked = torch.zeros_like(ids)
    marked[:, list(special)] = 1
    marked[1, 3] = bool(special)  # rows differ
    inputs = {"input_ids": ids, "attention_mask": padding, "global_attention_mask": marked}
    swapped = copy.deepcopy(longformer)
    assert swap(swapped) == "2 x LongformerSelfAttention"
    assert swapped.state_dict().keys() == longformer.state_dict().keys()
    rows, found = padding.bool(), []
    for model in (longformer, swapped):
        model.zero_grad()
        logits = model(**inputs).logits[rows]
        logits.square().sum().backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append((logits.detach(), grads))
    (want, want_grads), (got, grads) = found
    torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6)
    for name, grad in want_grads.items():
        torch.testing.assert_close(grads.get(name, torch.zeros_like(grad)), grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_big_bird(training, padded):
    config = transformers.BigBirdConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, block_size=4,
        num_random_blocks=2, max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BigBirdModel(config, add_pooling_layer=False).train(training)
    swapped = copy.deepcopy(model)
    assert swap(swapped) == "2 x BigBirdBlockSparseAttention"
    ids, _ = models.tokens(length=60)
    padding = torch.ones_like(ids)
    if padded:
        padding[0, 50:] = 0
    found = []
    for one in (model, swapped):
        hidden = one(ids, attention_mask=padding).last_hidden_state[padding.bool()]
        hidden.square().sum().backward()
        found.append((hidden.detach(), torch.cat([p.grad.flatten() for p in one.parameters() if p.grad is not None])))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=5e-6)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-3, atol=1e-3)


def test_dinat(monkeypatch):
    """With images that are smaller than a neighbourhood among others."""
    model = dinat.small(monkeypatch)
    swapped = copy.deepcopy(model)
    assert swap(swapped) == "4 x NeighborhoodAttention"
    pixels, found = torch.randn(2, 3, 44, 36), []
    for one in (model, swapped):
        hidden = one(pixels).last_hidden_state
        hidden.square().sum().backward()
        found.append([hidden.detach(), *(p.grad for p in one.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1])
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(UnsupportedError, match="weights are never made"):
        swapped(pixels, output_attentions=True)


def test_refusals(longformer):
    with pytest.raises(UnsupportedError, match="set_attn_implementation"):
        swap(models.decoder("Llama"))
    with pytest.raises(UnsupportedError, match="none of its modules"):
        swap(torch.nn.Linear(2, 2))
    swapped = copy.deepcopy(longformer)
    swap(swapped)
    with pytest.raises(UnsupportedError, match="weights are never made"):
        swapped(models.tokens(length=24)[0], output_attentions=True)


@pytest.mark.parametrize(
    ("name", "layer"),
    [("Longformer", "LongformerSelfAttention"), ("MPNet", "MPNetSelfAttention"), ("Doge", "DogeAttention")],
)
def test_models_past_the_interface_are_refused(name, layer):
    register()
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    config = getattr(transformers, f"{name}Config")(**sizes, num_attention_heads=4)
    with pytest.raises(UnsupportedError, match=layer):
        transformers.AutoModel.from_config(config, attn_implementation="weft")
    model = transformers.AutoModel.from_config(config, attn_implementation="eager")
    with pytest.raises(UnsupportedError, match=layer):
        model.set_attn_implementation("weft")
    with pytest.raises(UnsupportedError, match=layer):
        model.set_attn_implementation(attn_implementation="weft")
    model.set_attn_implementation(attn_implementation="eager")


def test_swin_goes_through_the_interface():
    config = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, drop_path_rate=0.0
    )
    torch.manual_seed(0)
    register()
    model = transformers.SwinModel._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "relative_position_bias_table" in name:
                p.normal_()
    pixels = torch.randn(2, 3, 32, 32)
    want, got = (
        models.under(model, name, lambda model: model(pixel_values=pixels).last_hidden_state)
        for name in ("eager", "weft")
    )
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
