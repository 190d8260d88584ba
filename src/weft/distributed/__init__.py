"""Attention over a sequence that many ranks hold: planned from the pattern, exchanged by torch.distributed.

`plan` needs numpy alone; `attention` needs torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.distributed.model import Link
from weft.distributed.plan import STRATEGIES, Plan, plan

if TYPE_CHECKING:
    from weft.torch.distributed.call import attention

__all__ = ["STRATEGIES", "Link", "Plan", "attention", "plan"]


def __getattr__(name: str) -> Any:
    """`attention` is loaded when it is first asked for: it imports torch."""
    if name == "attention":
        return globals().setdefault(name, import_module("weft.torch.distributed.call").attention)
    raise AttributeError(f"module 'weft.distributed' has no attribute {name!r}", name=name)
