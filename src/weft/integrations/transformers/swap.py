"""`swap`: weft in models that compute attention past transformers' interface, class by class."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

import torch

from weft.errors import UnsupportedError

# module of transformers: {class of it: (module here, class here)}
SWAPPED = {
    "transformers.models.longformer.modeling_longformer": {
        "LongformerSelfAttention": ("weft.integrations.transformers.longformer", "SparseLongformerSelfAttention"),
    },
    "transformers.models.big_bird.modeling_big_bird": {
        "BigBirdBlockSparseAttention": ("weft.integrations.transformers.big_bird", "SparseBigBirdAttention"),
    },
    "transformers.models.dinat.modeling_dinat": {
        "NeighborhoodAttention": ("weft.integrations.transformers.dinat", "SparseNeighborhoodAttention"),
    },
}
KNOWN = "Longformer, BigBird and DiNAT"


def swap(model: torch.nn.Module) -> str:
    """Let weft compute the attention of a model that transformers' attention interface does not reach.

    Modules of attention become those of a class here, in place: parameters, their names, buffers and hooks are kept.
    Returns what was replaced, as a line. Models that go through the interface need none of this: `register()` and
    attn_implementation="weft" serve them. Raises UnsupportedError for a model of neither kind. Example::

        model = LongformerModel.from_pretrained(name)
        print(swap(model))  # 12 x LongformerSelfAttention
    """
    replaced: Counter[str] = Counter()
    for module in model.modules():
        known = SWAPPED.get(type(module).__module__, {}).get(type(module).__name__)
        if known is None:
            continue
        ours: Any = getattr(import_module(known[0]), known[1])
        replaced[type(module).__name__] += 1
        module.__class__ = ours
    if not replaced:
        through = getattr(model, "_can_set_attn_implementation", None)
        cure = f"take one of {KNOWN}, or the attention that the model has"
        if through is not None and through():
            cure = 'call register() and model.set_attn_implementation("weft"): it goes through the interface'
        raise UnsupportedError(f"swap({type(model).__name__})", "weft has none of its modules of attention", cure)
    return ", ".join(f"{count} x {name}" for name, count in replaced.items())
