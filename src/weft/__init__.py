"""weft: a just-in-time compiler for regular sparse attention.

Say which query may see which key, as a pattern; weft finds the affine structure in it, plans tiles, and computes
attention, forward and backward, at the cost of the pairs that are live. `import weft` needs numpy only; the front end
is loaded when `attention`, `plan` or `explain` is first used.
"""

import sys
from importlib import import_module
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
    padding,
    periodic_keys,
    prefix,
    sparse_transformer,
    strided,
    window,
)
from weft.pattern.pieces import bits, coarse, diagonals, folded, keys, queries, sized, staircase, steps
from weft.pattern.tables import block_table, tree

if TYPE_CHECKING:
    from weft.recognition import recognize
    from weft.torch import attention, explain, plan

__version__ = "0.1.0"
__all__ = [
    "Pattern",
    "attention",
    "errors",
    "explain",
    "plan",
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
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The front end is loaded when it is first asked for, so that patterns and plans need no framework; then kept."""
    if name == "recognize":
        home = import_module("weft.recognition")
    elif name in ("attention", "plan", "explain"):
        try:
            home = import_module("weft.torch")
        except ModuleNotFoundError as missing:
            if missing.name != "torch":
                raise
            raise ModuleNotFoundError(f"weft.{name} needs torch: pip install 'weft[torch]'", name="torch") from None
    else:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return globals().setdefault(name, getattr(home, name))


if sys.modules.get("torch") is not None:  # patterns may be made while a graph is traced: the front end knows how
    import_module("weft.torch")
