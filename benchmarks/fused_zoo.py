"""Models and masks of benchmarks/fused_models.py: random weights, the same in every process."""

from __future__ import annotations

BLOCK, RANDOM_BLOCKS = 64, 3
GRID, NEAR = 64, (7, 7)  # columns of a ViT's map of tokens; keys that each token sees of it
SMALL = {
    "bert-base": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4},
    "llama-1b": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    "t5-base encoder": {"d_model": 64, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 96},
}
SMALL["llama-1b"]["intermediate_size"] = 96
SMALL["bert-large"] = SMALL["bert-base"]
LARGE = {
    "bert-large": {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
    },
    "llama-1b": {
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 8192,
    },
    "t5-base encoder": {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_kv": 64, "d_ff": 3072},
}  # fmt: skip


def configured(name, small):
    """(class of the model, its configuration). What follows a comma names a mask."""
    import transformers as t

    name = name.partition(",")[0]
    sizes = (SMALL if small else LARGE).get(name, {})
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if name in ("bert-base", "bert-large"):
        return t.BertModel, t.BertConfig(**sizes, **none, max_position_embeddings=2048)
    if name == "gpt2":
        return t.GPT2Model, t.GPT2Config(**sizes, n_positions=2048, use_cache=False)
    if name == "t5-base encoder":
        return t.T5EncoderModel, t.T5Config(**sizes)
    return t.LlamaModel, t.LlamaConfig(**sizes, vocab_size=32000, max_position_embeddings=2048, use_cache=False)


def pattern_of(name, tokens):
    """The mask of a model; STOF's others have widths of the root of the length."""
    import weft

    model, _, mask = name.partition(", ")
    width = int(tokens**0.5)
    if mask == "causal":
        return weft.causal()
    if mask == "sliding":
        return weft.window(width // 2, width // 2)
    if mask == "Longformer":
        return weft.longformer(width, global_tokens=width)
    if model == "ViT-base":
        return weft.neighborhood((tokens // GRID, GRID), NEAR)
    one = weft.bigbird(BLOCK, random=RANDOM_BLOCKS)
    return one & weft.causal() if model in ("gpt2", "llama-1b") else one


def made(name, small, implementation):
    """The model, under one attention implementation of transformers."""
    import torch

    torch.manual_seed(0)
    with torch.device("cpu" if small else "cuda"):
        if name == "ViT-base":
            return vit(*((64, 4, 2) if small else (768, 12, 12)), implementation).eval()
        kind, config = configured(name, small)
        config._attn_implementation = implementation
        return kind(config).eval()


def vit(hidden, heads, layers, implementation):
    """A ViT's layers, which transformers has without a mask: tokens are looked up in place of patches."""
    import torch
    from torch import nn
    from transformers import AttentionInterface

    attend = torch.nn.functional.scaled_dot_product_attention

    class Block(nn.Module):
        is_causal = False

        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

        def forward(self, x, mask):
            q, k, v = (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in self.qkv(self.norm_1(x)).chunk(3, -1))
            if implementation == "sdpa":
                out = attend(q, k, v, mask).transpose(1, 2)
            else:
                out = AttentionInterface()[implementation](self, q, k, v, mask)[0]
            x = x + self.out(out.flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))

    class Result:
        def __init__(self, x):
            self.last_hidden_state = x

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedded = nn.Embedding(1000, hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(hidden)

        def forward(self, input_ids, attention_mask):
            x = self.embedded(input_ids)
            for block in self.blocks:
                x = block(x, attention_mask)
            return Result(self.norm(x))

    return Vit()
