"""`weft::decode_causal`: a step of decoding as one node of a compiled graph, which reads its counts on the device.

Nothing in it is a CPU tensor, so that inductor may capture it in a CUDA graph. It is no part of the public face:
`weft.decode_attention` is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.kernels.options import rows_in_order_of
from weft.pattern.library import causal
from weft.torch.key_cache import decode_attention

LAST = causal(align="bottom-right")
LIB = torch.library.Library("weft", "FRAGMENT")  # kept: the operator goes when it goes
LIB.define(
    "decode_causal(Tensor q, Tensor k_cache, Tensor v_cache, Tensor key_count, Tensor? window, Tensor? sinks, "
    "float? scale, float? softcap) -> Tensor", tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)  # fmt: skip


def decode_causal(
    caches: tuple[Tensor, Tensor, Tensor], counts: tuple[Tensor, Tensor | None], sinks: Tensor | None,
    scale: float | None, softcap: float | None,
) -> Tensor:  # fmt: skip
    """`weft.decode_attention` under weft.causal(align="bottom-right"), also inside a compiled function.

    caches: q, k_cache, v_cache. counts: key_count, window.
    """
    return torch.ops.weft.decode_causal(*caches, *counts, sinks, scale, softcap)


def _real(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, window: Tensor | None, *rest: Tensor | float | None) -> Tensor:
    sinks, scale, softcap = rest
    return decode_attention(q, k, v, LAST, keys, window=window, sinks=sinks, scale=scale, softcap=softcap)


def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> Tensor:
    return rows_in_order_of(q, v.shape[3], q.dtype)


LIB.impl("decode_causal", _real, "CompositeExplicitAutograd")
torch.library.register_fake("weft::decode_causal", _fake, lib=LIB)
