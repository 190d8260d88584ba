"""Models of transformers with random weights: through the backend with equal results, replaced or left with the reason.

Each is asked for in both ways in which transformers writes attention, as far as it has them.
"""

import pytest
import torch
from tests.fusion.helpers import EAGER, TRAINED, agree

transformers = pytest.importorskip("transformers", reason="its models: pip install '.[transformers]'")

import weft  # noqa: E402

TOKENS = 64
SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
SLIDING = GROUPED | {"sliding_window": 16}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
BERT_LIKE = SMALL | {"local_attention": 16, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 50}
VIT = SMALL | {"image_size": 32, "patch_size": 8}
# name: (class of its configuration, class of the model, configuration, whether rows are padded, how many are replaced)
MODELS = {
    "bert": ("BertConfig", "BertModel", SMALL, True, 2),
    "gpt2": ("GPT2Config", "GPT2Model", GPT2, True, 2),
    "llama": ("LlamaConfig", "LlamaModel", GROUPED, True, 2),
    "t5 encoder": ("T5Config", "T5EncoderModel", T5, True, 0),
    "vit": ("ViTConfig", "ViTModel", VIT, False, 0),
    "modernbert": ("ModernBertConfig", "ModernBertModel", BERT_LIKE, True, 1),
    "mistral": ("MistralConfig", "MistralModel", SLIDING, False, 2),
    "gemma2": ("Gemma2Config", "Gemma2Model", SLIDING, False, 2),
    "gemma3": ("Gemma3TextConfig", "Gemma3TextModel", SLIDING, False, 2),
    "gpt-oss": ("GptOssConfig", "GptOssModel", SLIDING | {"num_local_experts": 2, "num_experts_per_tok": 1}, False, 2),
    "qwen3": ("Qwen3Config", "Qwen3Model", SLIDING | {"use_sliding_window": True, "max_window_layers": 1}, False, 1),
    "phi3": ("Phi3Config", "Phi3Model", SLIDING, False, 2),
}  # fmt: skip
MODELS |= {
    "llama4": ("Llama4TextConfig", "Llama4TextModel", GROUPED | {
        "layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 16, "num_local_experts": 2,
        "intermediate_size_mlp": 48, "no_rope_layers": [1, 0], "attn_temperature_tuning": False,
        "num_experts_per_tok": 1,
    }, False, 1),
    "gemma4": ("Gemma4TextConfig", "Gemma4TextModel", SLIDING | {
        "layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 8, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 50, "num_kv_shared_layers": 0,
    }, False, 1),
}  # fmt: skip
LONG = BERT_LIKE | {"attention_window": [16, 16], "max_position_embeddings": 514}
# Those that compute sparse attention themselves: in slices, gathered blocks, or windows of an image.
OWN = {
    "longformer": ("LongformerConfig", "LongformerModel", LONG | {"pad_token_id": 1}, True),
    "bigbird": ("BigBirdConfig", "BigBirdModel", SMALL | {"block_size": 4, "num_random_blocks": 1}, True),
    "swin": ("SwinConfig", "SwinModel", {
        "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
    }, False),
    "gemma3 with images": ("Gemma3Config", "Gemma3Model", {
        "text_config": SLIDING | {"layer_types": ["sliding_attention", "full_attention"]}, "image_token_index": 49,
        "vision_config": VIT | {"num_channels": 3, "image_size": 32, "patch_size": 8}, "mm_tokens_per_image": 4,
    }, False),
}  # fmt: skip
MODELS |= OWN
WITHOUT_SDPA = ("gemma2", "gpt-oss")
WAYS = [
    (name, way)
    for name in MODELS
    if name not in OWN
    for way in ("sdpa", "eager")
    if way == "eager" or name not in WITHOUT_SDPA
]
pytestmark = pytest.mark.more


def made(name, way, **more):
    config, model, given, *_ = MODELS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    return getattr(transformers, model)(getattr(transformers, config)(**given, **more, attn_implementation=way)).eval()


def inputs(name, batch=2, tokens=TOKENS):
    if name in ("vit", "swin"):
        return {"pixel_values": torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(1))}
    given = {"input_ids": torch.randint(3, 50, (batch, tokens), generator=torch.Generator().manual_seed(1))}
    if MODELS[name][3]:
        given["attention_mask"] = torch.ones(batch, tokens, dtype=torch.long)
        given["attention_mask"][0, tokens // 2 :] = 0
    return given


@pytest.mark.parametrize(("name", "way"), WAYS, ids=[f"{name}-{way}" for name, way in WAYS])
def test_equal_results_and_no_attention_unnamed(name, way):
    model, given = made(name, way), inputs(name)
    fast = weft.fuse(model, options=EAGER)
    with torch.no_grad():
        agree(fast(**given).last_hidden_state, model(**given).last_hidden_state)
    seen = fast.explanation.seen
    assert len(seen) == 2, str(fast.explanation)
    assert all(one.where and (one.replaced is not None or one.reason) for one in seen)
    least = MODELS[name][4]
    assert len(fast.explanation.replaced) >= least, str(fast.explanation)


@pytest.mark.filterwarnings("ignore:To copy construct")  # BigBird's
@pytest.mark.parametrize("name", OWN)
def test_models_with_sparse_attention_of_their_own(name):
    config, model, given, _ = OWN[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    made = getattr(transformers, model)(getattr(transformers, config)(**given)).eval()
    given = inputs(name)
    if name == "gemma3 with images":
        given["input_ids"][:, 5:9] = 49
        given["pixel_values"] = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
        given["token_type_ids"] = (given["input_ids"] == 49).long()
    agrees(made, given)


def agrees(model, given):
    """The explanation of a fused model, whose results are those of the model."""
    fast = weft.fuse(model, options=EAGER)
    with torch.no_grad():
        agree(fast(**given).last_hidden_state, model(**given).last_hidden_state)
    assert fast.explanation.graphs
    assert all(one.replaced is not None or one.reason for one in fast.explanation.seen), str(fast.explanation)
    return fast.explanation


@pytest.mark.parametrize("way", ["sdpa", "eager"])
def test_t5_with_its_decoder(way):
    """Its own attention has a bias that is learned; what reads the encoder has the mask of padding."""
    model, given = made("t5 encoder", way), inputs("t5 encoder")
    model = transformers.T5Model(model.config).eval()
    found = agrees(model, {**given, "decoder_input_ids": given["input_ids"][:, :16]})
    assert [one.where.rpartition(".")[2] for one in found.replaced] == 2 * ["EncDecAttention"], str(found)
    assert len(found.seen) == 6


def test_dinat_by_its_definition_and_swapped(monkeypatch):
    from tests.integrations import dinat

    from weft.integrations.transformers import swap

    torch._dynamo.reset()
    model, given = dinat.small(monkeypatch), {"pixel_values": torch.randn(2, 3, 44, 36)}
    agrees(model, given)
    expected = model(**given).last_hidden_state
    swap(model)
    torch._dynamo.reset()
    agrees(model, given)
    with torch.no_grad():
        agree(model(**given).last_hidden_state, expected)


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("name", ["longformer", "bigbird"])
def test_swapped_models(name):
    from weft.integrations.transformers import swap

    config, model, given, _ = OWN[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    made = getattr(transformers, model)(getattr(transformers, config)(**given)).eval()
    swap(made)
    agrees(made, inputs(name))


@pytest.mark.parametrize("name", ["bert", "mistral", "gpt-oss"])
def test_training_has_equal_gradients(name):
    way = "eager" if name == "gpt-oss" else "sdpa"
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if name == "bert" else {}
    model, given = made(name, way, **no_dropout).train(), inputs(name)
    fast = weft.fuse(model, options=TRAINED)
    results = []
    for called in (fast, model):
        model.zero_grad()
        called(**given).last_hidden_state.square().mean().backward()
        results.append([torch.zeros_like(x) if x.grad is None else x.grad.clone() for x in model.parameters()])
    assert len(fast.explanation.replaced) == 2, str(fast.explanation)
    agree(*results)


def test_dropout_in_training_keeps_its_random_order():
    model, given = made("bert", "eager").train(), inputs("bert")
    fast = weft.fuse(model, options=EAGER)
    torch.manual_seed(5)
    found = fast(**given).last_hidden_state
    torch.manual_seed(5)
    agree(found, model(**given).last_hidden_state)
    assert all("drops weights" in one.reason for one in fast.explanation.seen)


@pytest.mark.parametrize("options", [EAGER, TRAINED], ids=["eager", "aot_eager"])
def test_dynamic_batch_and_length(options):
    model = made("mistral", "sdpa")
    fast = weft.fuse(model, options=options, dynamic=True)
    with torch.no_grad():
        for batch, tokens in ((2, 64), (3, 40), (2, 96)):
            given = inputs("mistral", batch, tokens)
            agree(fast(**given).last_hidden_state, model(**given).last_hidden_state)
    assert len(fast.explanation.graphs) == 1, str(fast.explanation)
    assert fast.explanation.graphs[0].replaced == 2


def test_heads_of_qwen3_are_normed_with_their_products():
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[0, : TOKENS // 2] = 0
    model, given = made("qwen3", "sdpa"), inputs("qwen3") | {"use_cache": False, "attention_mask": mask}
    (graph,) = agrees(model, given).graphs
    assert sum(one.what == "query, key and value, normed by head, rotated by position" for one in graph.segments) == 2
