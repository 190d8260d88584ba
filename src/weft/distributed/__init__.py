"""Attention over a sequence that many ranks hold: planned from the pattern, exchanged by torch.distributed.

`plan` needs numpy alone; `attention` and `decode_attention` need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.distributed.model import Link
from weft.distributed.plan import STRATEGIES, Plan, plan

if TYPE_CHECKING:
    from weft.torch.distributed.call import attention
    from weft.torch.distributed.decode import decode_attention

__all__ = ["STRATEGIES", "Link", "Plan", "attention", "decode_attention", "plan"]

TORCH = {"attention": "call", "decode_attention": "decode"}


def __getattr__(name: str) -> Any:
    """What imports torch is loaded when it is first asked for."""
    if name in TORCH:
        return globals().setdefault(name, getattr(import_module(f"weft.torch.distributed.{TORCH[name]}"), name))
    raise AttributeError(f"module 'weft.distributed' has no attribute {name!r}", name=name)
