"""weft: a just-in-time compiler for regular sparse attention."""

from weft.pattern.algebra import Pattern
from weft.pattern.library import (
    bigbird, blocks, causal, chunks, dilated, documents, fixed, full, global_tokens, longformer, neighborhood, nothing,
    padding, per_batch, per_head, periodic_keys, prefix, product, random_blocks, segments, sparse_transformer, strided,
    window,
)  # fmt: skip


def __getattr__(name: str):
    """The front end is loaded when it is first asked for, so that patterns and plans need no framework."""
    if name in ("attention", "explain"):
        from weft import torch

        return getattr(torch, name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")
