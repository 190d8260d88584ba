"""Every language model of transformers under weft beside eager attention, as far as a small configuration can be made.

    PYTHONPATH=src python -m tests.integrations.every_model {causal,masked,seq2seq,image} [NAME ...]

Run by hand, for it takes a quarter of an hour. Each line has a model and what became of it: `same`, with the largest
relative difference of logits, of steps of generation and of gradients; `as sdpa`, where that is not what eager gives;
`apart`, from both, by more than 1e-4; `refused`, by one of weft's errors; `unknown`, where no small configuration was
found, or eager attention failed too. The process ends with 1 if anything is apart.
"""

import argparse
import signal
import sys
import warnings
from contextlib import contextmanager

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from weft.errors import WeftError
from weft.integrations.transformers import register

KINDS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "image": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}
LIMIT, SECONDS = 1e-4, 60
# Names of configurations for one thing, and a small value of it.
SMALL = [
    (32, ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim")),
    (48, ("intermediate_size", "ffn_dim", "d_ff", "decoder_ffn_dim", "encoder_ffn_dim", "hidden_dim",
         "ffn_hidden_size")),
    (4, ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_attention_heads", "n_head", "n_heads",
         "num_heads", "encoder_attention_heads", "decoder_attention_heads", "num_experts", "n_routed_experts",
         "moe_num_experts", "mamba_n_heads")),
    (2, ("encoder_layers", "decoder_layers", "num_decoder_layers", "num_key_value_heads", "eos_token_id",
         "num_local_experts", "num_experts_per_tok", "max_window_layers", "type_vocab_size")),
    (64, ("vocab_size", "vocab_size_per_layer_input")),
    (128, ("max_position_embeddings", "n_positions")),
    (8, ("head_dim", "d_kv", "kv_channels", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "global_head_dim",
         "hidden_size_per_layer_input", "query_pre_attn_scalar", "mamba_d_state")),
    (5, ("sliding_window", "attention_chunk_size")),
    (16, ("kv_lora_rank", "q_lora_rank", "moe_intermediate_size", "shared_expert_intermediate_size", "mamba_d_head")),
    (1, ("bos_token_id", "decoder_start_token_id", "n_group", "topk_group", "n_shared_experts",
         "first_k_dense_replace")),
    (0, ("pad_token_id",)),
    (0.0, ("attention_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob", "hidden_dropout", "dropout",
           "activation_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "layerdrop", "encoder_layerdrop",
           "decoder_layerdrop", "dropout_rate")),
]  # fmt: skip
ALWAYS = {"pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "head_dim"}


def small(kind):
    """A configuration of few and narrow layers, of all kinds that the model has."""
    usual = kind()
    have, told = usual.to_dict(), {}
    for value, names in SMALL:
        for name in names:
            known = name in have or name in getattr(kind, "attribute_map", {})
            if known and (have.get(name) is not None or name in ALWAYS):
                told[name] = value
    if "kv_lora_rank" in told:  # heads of their own, whose keys are made of fewer numbers
        told["num_key_value_heads"] = told["num_attention_heads"]
    if "use_sliding_window" in have:
        told["use_sliding_window"] = True
    if have.get("layer_types"):
        told["layer_types"] = (list(dict.fromkeys(have["layer_types"])) * 4)[: told.get("num_hidden_layers", 4)]
    for part in getattr(kind, "sub_configs", {}):
        if hasattr(getattr(usual, part, None), "to_dict"):
            told[part] = small(type(getattr(usual, part)))
    return kind(**told)


def logits(model, ids, **told):
    """Of all tokens, without gradients."""
    if model.config.is_encoder_decoder:
        told["decoder_input_ids"] = ids.flip(1)
    with torch.no_grad():
        return model(ids, **told).logits


def steps(model, ids, padding, **told):
    """Logits of twelve steps of greedy generation."""
    made = model.generate(
        ids, attention_mask=padding, max_new_tokens=12, min_new_tokens=12, do_sample=False, output_logits=True,
        return_dict_in_generate=True, pad_token_id=0, **told,
    )  # fmt: skip
    return torch.stack(made.logits)


def gradients(model, ids):
    """Of all parameters, in training without dropout."""
    for module in model.train().modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.manual_seed(0)
    told = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    model(ids, labels=ids, **told).loss.backward()
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    model.eval()
    return found


def questions(model, generates):
    """{name: what a model is asked}"""
    torch.manual_seed(1)
    ids = torch.randint(3, 60, (3, 12))
    left = torch.ones_like(ids)
    left[0, :3] = left[2, :5] = 0
    rows = slice(None) if model.config.is_encoder_decoder else left.bool()
    rows_right = slice(None) if model.config.is_encoder_decoder else left.flip(1).bool()
    asked = {
        "plain": lambda: logits(model, ids),
        "left": lambda: logits(model, ids, attention_mask=left)[rows],
        "right": lambda: logits(model, ids, attention_mask=left.flip(1))[rows_right],
        "gradients": lambda: gradients(model, ids),
    }
    if generates:
        asked["dynamic"] = lambda: steps(model, ids, left)
        asked["static"] = lambda: steps(model, ids, left, cache_implementation="static")
    return asked


def judged(name, kind, generates):
    """(what became of a model, details)"""
    with within(SECONDS):
        torch.manual_seed(0)
        model = (
            getattr(transformers, name)._from_config(small(CONFIG_MAPPING[kind]), attn_implementation="eager").eval()
        )
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3 if p.dim() > 1 else 1)  # so that attention matters
    asked = questions(model, generates)
    wanted = {}
    for question, answer in asked.items():
        try:
            wanted[question] = answer()
        except Exception as error:
            if question == "plain":
                return "unknown", f"{type(error).__name__}: {error}"
    model.set_attn_implementation("weft")
    got = {question: asked[question]() for question in wanted}
    found = {question: apart(got[question], want) for question, want in wanted.items()}
    said, result = " ".join(f"{question}={x:.0e}" for question, x in found.items()), "same"
    if max(found.values()) >= LIMIT:
        model.set_attn_implementation("sdpa")
        worst = max(apart(x, asked[question]()) for question, x in got.items())
        result = "as sdpa" if worst < LIMIT else "apart"
    return result, said


def apart(got, want):
    """The largest difference, relative to the largest number."""
    return ((got - want).abs().max() / want.abs().max()).item()


@contextmanager
def within(seconds):
    """Raise TimeoutError after so long: a few configurations that were not made small are of billions of numbers."""

    def late(*_):
        raise TimeoutError(f"no model after {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("names", nargs="*", help="model types, such as llama; all if there are none")
    told = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    register()
    wrong = 0
    for kind, names in KINDS[told.kind].items():
        if told.names and kind not in told.names:
            continue
        name = names if isinstance(names, str) else names[0]
        try:
            result, said = judged(name, kind, told.kind != "masked")
        except WeftError as error:
            result, said = "refused", error.asked
        except Exception as error:
            result, said = "unknown", f"{type(error).__name__}: {error}"
        wrong += result == "apart"
        print(f"{result:8} {kind:24} {' '.join(said.split())[:150]}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
