"""FlexAttention's functions with weft underneath: `import weft.integrations.flex as flex_attention`.

Masks are recognised when they are made; score functions are traced. docs/coming-flex.md says what is not the same.
"""

from typing import Any

from torch.nn.attention import flex_attention as _torchs
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    FlexKernelOptions,
    and_masks,
    create_mask,
    noop_mask,
    or_masks,
)

from weft.integrations.flex.block_mask import BlockMask
from weft.integrations.flex.call import flex_attention
from weft.integrations.flex.create import create_block_mask

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "flex_attention",
    "noop_mask",
    "or_masks",
]


def __getattr__(name: str) -> Any:
    """torch's private names, such as _mask_mod_signature, which annotations of mask functions import."""
    if name.startswith("_") and not name.startswith("__") and hasattr(_torchs, name):
        return getattr(_torchs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
