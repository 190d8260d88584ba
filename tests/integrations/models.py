"""Small models of transformers with random weights, by configuration."""

import functools

import pytest

transformers = pytest.importorskip("transformers")
import torch

SHARED = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "head_dim": 8,
}  # fmt: skip
HYBRID = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
DECODERS = {
    "Llama": {},
    "Mistral": {"sliding_window": 5},
    "Qwen3": {},
    "Phi3": {"sliding_window": 6},
    "Gemma2": {**HYBRID, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 20.0},
    "Gemma3Text": {**HYBRID, "query_pre_attn_scalar": 8},
    "Gemma4Text": {  # of which the last layers have no keys of their own
        "layer_types": HYBRID["layer_types"] * 2, "sliding_window": 5, "num_hidden_layers": 4, "global_head_dim": 8,
        "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64,
    },
    "GptOss": {**HYBRID, "num_local_experts": 2, "num_experts_per_tok": 1},
    "Llama4Text": {
        "layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 5, "num_local_experts": 2,
        "intermediate_size_mlp": 48, "no_rope_layers": [1, 0], "attn_temperature_tuning": False,
    },
}  # fmt: skip


@functools.cache
def decoder(name):
    """A causal language model, float32, in evaluation."""
    options = {**SHARED, **DECODERS[name]}
    if name == "Phi3":
        del options["head_dim"]
    config = getattr(transformers, f"{name}Config")(**options)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


ENCODERS = {
    "Bert": {},
    "ModernBert": {"local_attention": 6, "global_attn_every_n_layers": 2, "reference_compile": False},
}


@functools.cache
def encoder(name):
    """A model that sees both sides, float32, in evaluation."""
    options = {key: x for key, x in SHARED.items() if key not in ("num_key_value_heads", "head_dim")}
    config = getattr(transformers, f"{name}Config")(**options, **ENCODERS[name])
    torch.manual_seed(0)
    return transformers.AutoModelForMaskedLM.from_config(config, attn_implementation="eager").eval()


@functools.cache
def t5():
    """An encoder and a decoder with relative biases that are learned."""
    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "relative_attention_bias"):
                module.relative_attention_bias.weight.normal_()
    return model


@functools.cache
def vit():
    """Patches of an image, without a mask."""
    config = transformers.ViTConfig(
        image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    torch.manual_seed(0)
    return transformers.AutoModel.from_config(config, attn_implementation="eager").eval()


@functools.cache
def gemma3_with_images():
    """Text of 14 tokens, of which four stand for an image."""
    text = {**SHARED, **HYBRID, "query_pre_attn_scalar": 8, "vocab_size": 128}
    vision = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 16, "patch_size": 4,
    }  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=120, boi_token_index=121,
        eoi_token_index=122,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()


def tokens(batch=3, length=12, seed=0):
    """Random tokens, and a mask that pads the first and the last row on the left."""
    torch.manual_seed(seed)
    ids = torch.randint(3, 64, (batch, length))
    padding = torch.ones_like(ids)
    padding[0, :3] = 0
    padding[-1, :5] = 0
    return ids, padding


def under(model, implementation, run):
    """What `run` gives under an implementation of attention."""
    model.set_attn_implementation(implementation)
    try:
        return run(model)
    finally:
        model.set_attn_implementation("eager")
