"""FlexAttention's functions with weft underneath: `import weft.integrations.flex as flex_attention`.

Masks are recognised when they are made; score functions are traced. docs/coming-flex.md says what is not the same.
"""

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
