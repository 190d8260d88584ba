"""Keywords that models pass beside q, k, v and the mask: those without effect, and refusals that name the layer."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from transformers.utils import logging

from weft.errors import OptionError, WeftError

# What `forward` reads.
READ = frozenset({
    "dropout", "scaling", "sliding_window", "softcap", "s_aux", "is_causal", "position_bias", "deterministic",
})  # fmt: skip
# They change no value of attention: what they say is in the mask, in q and k, or in what comes after.
WITHOUT_EFFECT = frozenset({
    "position_ids", "cache_position", "cache_positions", "position_embeddings", "use_cache", "past_key_values",
    "past_key_value", "cache", "return_dict", "logits_to_keep", "num_items_in_batch", "output_hidden_states",
    "output_router_logits", "router_logits", "labels", "token_type_ids", "mm_token_type_ids", "input_ids",
    "inputs_embeds", "head_dim", "layer_idx", "seq_idx", "local_attention", "max_length_q", "max_length_k",
})  # fmt: skip
_PACKED = "leave it out: position_ids that begin anew say the same, as collators write without return_flash_attn_kwargs"
CURES = {
    "cu_seq_lens_q": _PACKED,
    "cu_seq_lens_k": _PACKED,
    "indices": "the model chooses keys itself: take the attention that it has",
    "block_indices": "the model chooses keys itself: take the attention that it has",
}
PAGED = ("read_index", "write_index", "block_table", "k_cache")  # keywords of continuous batching alone
logger = logging.get_logger(__name__)


def refuse_unknown(told: dict[str, Any]) -> None:
    """Raise an OptionError for a keyword that is not known and says something."""
    paged = next((name for name in PAGED if told.get(name) is not None), None)
    if paged is not None:
        cure = 'take attn_implementation="sdpa" for continuous batching, or generate()'
        raise OptionError(f"{paged}=...", "continuous batching keeps keys in pages, which are not served here", cure)
    for name, x in told.items():
        if x is None or name in READ or name in WITHOUT_EFFECT:
            continue
        if name == "output_attentions":
            if x:  # as `sdpa` does: what attention gives is right, and weights are None
                logger.warning_once('weft makes no attention weights: take attn_implementation="eager" to see them')
            continue
        said = repr(x) if isinstance(x, (bool, int, float, str)) else type(x).__name__
        cure = CURES.get(name, f'leave it out, or call model.set_attn_implementation("eager"), which may know {name}')
        raise OptionError(f"{name}={said}", f"weft does not know what {name} does to attention", cure)


def renamed(error: WeftError, module: torch.nn.Module) -> NoReturn:
    """Raise the error again, with model and layer."""
    model = getattr(getattr(module, "config", None), "model_type", None)
    layer = getattr(module, "layer_idx", None)
    where = f"{type(module).__name__}{'' if layer is None else f' of layer {layer}'}{f' of {model}' if model else ''}"
    raise type(error)(f"attn_implementation='weft', {where}: {error.asked}", error.wrong, error.cure) from error
