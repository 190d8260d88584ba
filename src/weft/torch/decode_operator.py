"""`weft::decode_steady`: a step of decoding as one node of a compiled graph, which reads its counts on the device.

Nothing in it is a CPU tensor, so that inductor may capture it in a CUDA graph. It is no part of the public face:
`weft.decode_attention` is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.caching import cached
from weft.kernels.options import rows_in_order_of
from weft.pattern.algebra import Pattern
from weft.pattern.parse import parse
from weft.torch.key_cache import decode_attention

LIB = torch.library.Library("weft", "FRAGMENT")  # kept: the operator goes when it goes
LIB.define(
    "decode_steady(Tensor q, Tensor k_cache, Tensor v_cache, str mask, Tensor key_count, Tensor? window, "
    "Tensor? sinks, float? scale, float? softcap) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)  # fmt: skip


def decode_steady(
    caches: tuple[Tensor, Tensor, Tensor], mask: str, counts: tuple[Tensor, Tensor | None], sinks: Tensor | None = None,
    scale: float | None = None, softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """`weft.decode_attention` of a mask that is written down, also inside a compiled function.

    caches: q, k_cache, v_cache. mask: the text of a pattern. counts: key_count, window.
    """
    return torch.ops.weft.decode_steady(*caches, mask, *counts, sinks, scale, softcap)


@cached(256)
def _pattern(text: str) -> Pattern:
    """The pattern of a text: one object, whose plan is found by its identity."""
    return parse(text)


def _real(q: Tensor, k: Tensor, v: Tensor, mask: str, keys: Tensor, *rest: Any) -> Tensor:
    window, sinks, scale, softcap = rest
    options = {"window": window, "sinks": sinks, "scale": scale, "softcap": softcap}
    found = decode_attention(q, k, v, _pattern(mask), keys, **options)
    assert isinstance(found, Tensor)
    return found


def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> Tensor:
    return rows_in_order_of(q, v.shape[3], q.dtype)


LIB.impl("decode_steady", _real, "CompositeExplicitAutograd")
torch.library.register_fake("weft::decode_steady", _fake, lib=LIB)
