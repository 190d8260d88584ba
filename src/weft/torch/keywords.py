"""Keywords of other libraries, each with weft's own.

Names are those of torch's scaled_dot_product_attention, MultiheadAttention, FlexAttention and varlen_attn, of
FlashAttention, NATTEN, xFormers and transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from weft.errors import OptionError

OWN = (
    "mask", "scale", "softcap", "sinks", "alibi_slopes", "return_lse", "backend", "deterministic", "dropout", "layout",
    "extra_keys", "extra_values", "score", "bias", "seed",
)  # fmt: skip

_MASK = "pass it as mask: {f}(q, k, v, {name}), booleans with True = may attend"
_CAUSAL = (
    'pass mask=weft.causal(); where M != N also align=, "top-left" for torch\'s, "bottom-right" for FlashAttention\'s'
)
_WINDOW = (
    "pass mask=weft.causal() & weft.window(left=...), or weft.window(left, right); left counts keys before the query"
)
_SCALE = "pass scale={name}"
_SOFTCAP = "pass softcap={name}"
_SINKS = "pass sinks={name}, (Hq,)"
_LSE = "pass return_lse=True for (out, lse); weights are never made"
_PADDING = "join weft.padding(mask=...) to the mask: booleans (B, S), True for a token"
_EXTRA = "pass extra_{side}=..., (B, Hkv, E, D)"
_VARLEN = "use weft.varlen_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, pattern)"
_PAGED = (
    "use weft.decode_attention(q, k_pages, v_pages, mask, lengths, block_table={name}) for the last tokens of each "
    "row, weft.varlen_attention(..., block_table={name}) for a prefill"
)
_HEADS = "leave it out: heads are grouped where k and v have fewer of them than q"
_NEIGHBOURS = 'pass mask=weft.neighborhood(shape, size, stride, dilation, causal) with layout="bshd"'
_BLOCKS = "leave it out: tiles are planned, weft tune measures them"

CURES = {
    "attn_mask": _MASK + "; an additive one as bias={name}, with mask=weft.full()",
    "attn_bias": "pass bias={name}, with the mask that says which keys are seen, e.g. weft.full()",
    "attention_mask": _PADDING + "; attention_mask.bool() of a tokenizer's, or pass a boolean (B, H, M, N) as mask",
    "key_padding_mask": _PADDING + "; ~key_padding_mask where True is padding",
    "block_mask": _MASK.replace(", booleans with True = may attend", ""),
    "mask_mod": "pass it as mask: {f}(q, k, v, {name})",
    "is_causal": _CAUSAL,
    "causal": _CAUSAL,
    "window_size": _WINDOW,
    "sliding_window": _WINDOW + "; of a window of w keys, the query's own among them, left=w - 1",
    "local_window_size": _WINDOW,
    "attention_chunk": "pass mask=weft.causal() & weft.chunks(size)",
    "enable_gqa": _HEADS,
    "num_key_value_groups": _HEADS,
    "pack_gqa": _HEADS,
    "dropout_p": "pass dropout={name}",
    "softmax_scale": _SCALE,
    "sm_scale": _SCALE,
    "scaling": _SCALE,
    "qk_scale": _SCALE,
    "logits_soft_cap": _SOFTCAP,
    "logit_softcapping": _SOFTCAP,
    "s_aux": _SINKS,
    "learnable_sink": _SINKS,
    "sink": _SINKS,
    "score_mod": "pass score={name}, a function of (score, b, h, q, k)",
    "need_weights": _LSE,
    "average_attn_weights": _LSE,
    "return_attn_probs": _LSE,
    "return_softmax_lse": _LSE,
    "return_residual": _LSE,
    "return_aux": _LSE,
    "output_attentions": _LSE,
    "kernel_options": _BLOCKS,
    "num_splits": _BLOCKS,
    "implementation": 'pass backend="auto", "cpu" or "triton"',
    "kernel_size": _NEIGHBOURS,
    "dilation": _NEIGHBOURS,
    "stride": _NEIGHBOURS,
    "additional_keys": _EXTRA.format(side="keys"),
    "additional_values": _EXTRA.format(side="values"),
    "cu_seqlens_q": _VARLEN,
    "cu_seqlens_k": _VARLEN,
    "cu_seq_q": _VARLEN,
    "cu_seq_k": _VARLEN,
    "max_seqlen_q": _VARLEN,
    "max_seqlen_k": _VARLEN,
    "block_table": _PAGED,
    "block_tables": _PAGED,
    "page_table": _PAGED,
    "input_layout": 'pass layout="bhsd", "bshd" or "thd"',
    "tensor_layout": 'pass layout="bhsd", "bshd" or "thd"',
    "is_bhsd": 'pass layout="bhsd" or "bshd"',
}


def refuse_unknown(function: str, unknown: Mapping[str, Any], known: tuple[str, ...] = OWN) -> None:
    """Raise an OptionError that names weft's own for keywords that a function does not take; nothing if there are
    none.
    """
    for name in unknown:
        asked = f"{function}({name}=...)"
        if name in CURES:
            cure = CURES[name].format(f="weft.attention", name=name)
            raise OptionError(asked, f"{name} is a keyword of other libraries, and not weft's", cure)
        near = get_close_matches(name, known, n=1)
        cure = f"pass {near[0]}=..." if near else f"use {', '.join(known)}"
        raise OptionError(asked, f"it takes no {name}", cure)
