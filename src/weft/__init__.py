"""weft: a just-in-time compiler for regular sparse attention.

Say which query may see which key, as a pattern. The library finds the affine structure in it, plans tiles, and computes
attention, forward and backward, at the cost of the pairs that are live. `import weft` needs numpy only; the front end
is loaded when `attention`, `plan` or `explain` is first used.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from weft import errors
from weft.pattern.algebra import Pattern
from weft.pattern.composites import (
    bigbird,
    longformer,
    neighborhood,
    per_batch,
    per_head,
    product,
    random_blocks,
    segments,
)
from weft.pattern.excerpt import excerpt
from weft.pattern.families import (
    block_diffusion,
    radial,
    rotating_anchors,
    shared_prefix,
    sliding_tile,
    streaming_chunks,
    svg_spatial,
    svg_temporal,
)
from weft.pattern.library import (
    blocks,
    causal,
    chunks,
    dilated,
    documents,
    fixed,
    full,
    global_tokens,
    nothing,
    periodic_keys,
    prefix,
    sparse_transformer,
    strided,
    window,
)
from weft.pattern.padded import padding
from weft.pattern.pieces import bits, coarse, diagonals, folded, keys, queries, sized, staircase, steps
from weft.pattern.tables import block_table, tree

if TYPE_CHECKING:
    from weft import bias
    from weft.fusion.fuse import fuse
    from weft.recognition import recognize
    from weft.torch.attention import attention, explain, plan
    from weft.torch.key_cache import decode_attention
    from weft.torch.merging import merge
    from weft.torch.tracing import trace_score
    from weft.torch.varlen import varlen_attention

__version__ = "0.1.0"
__all__ = [
    "Pattern",
    "attention",
    "decode_attention",
    "errors",
    "explain",
    "fuse",
    "merge",
    "plan",
    "trace_score",
    "varlen_attention",
    "bias",
    "recognize",
    "full",
    "nothing",
    "causal",
    "window",
    "dilated",
    "periodic_keys",
    "strided",
    "fixed",
    "sparse_transformer",
    "chunks",
    "blocks",
    "documents",
    "padding",
    "prefix",
    "global_tokens",
    "random_blocks",
    "segments",
    "longformer",
    "bigbird",
    "neighborhood",
    "per_head",
    "per_batch",
    "product",
    "block_table",
    "tree",
    "block_diffusion",
    "shared_prefix",
    "streaming_chunks",
    "sliding_tile",
    "svg_spatial",
    "svg_temporal",
    "radial",
    "rotating_anchors",
    "keys",
    "queries",
    "diagonals",
    "staircase",
    "steps",
    "coarse",
    "folded",
    "bits",
    "sized",
    "excerpt",
]  # fmt: skip


TORCH = (
    "attention",
    "decode_attention",
    "explain",
    "merge",
    "plan",
    "trace_score",
    "varlen_attention",
)  # of weft.torch


def __getattr__(name: str) -> Any:
    """The front end is loaded when it is first asked for, so that patterns and plans need no framework; then kept."""
    if name in ("bias", "distributed", "fusion", "integrations", "jax"):
        return import_module(f"weft.{name}")
    if name == "recognize":
        home = import_module("weft.recognition")
    elif name in ("torch", "fuse") or name in TORCH:
        try:
            home = import_module("weft.torch" if name != "fuse" else "weft.fusion.fuse")
            import_module("weft.fusion")  # gives torch.compile the backend
        except ModuleNotFoundError as missing:
            if missing.name != "torch":
                raise
            raise ModuleNotFoundError(
                f"weft.{name} needs torch: {errors.install_line('torch')}", name="torch"
            ) from None
    else:
        raise AttributeError(f"module 'weft' has no attribute {name!r}{_near(name)}", name=name)
    return home if name == "torch" else globals().setdefault(name, getattr(home, name))


def __dir__() -> list[str]:
    """The public names, also those that are loaded when they are first asked for, and what Python itself has."""
    modules = ("distributed", "errors", "fusion", "integrations", "torch", *(("jax",) if find_spec("jax") else ()))
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *modules})


def _near(name: str) -> str:
    """The public name that is spelled most alike, as the end of a message; nothing if none is."""
    if name.startswith("_"):
        return ""
    from difflib import get_close_matches

    found = get_close_matches(name, [*__all__, "torch"], n=1)
    return f"; did you mean weft.{found[0]}?" if found else ""


if sys.modules.get("torch") is not None:  # patterns may be made while a graph is traced: the front end knows how
    import_module("weft.torch")
    import_module("weft.fusion")
