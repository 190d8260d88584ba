"""The operators around attention: `fuse`, and the backend "weft" of torch.compile, which this import registers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.fusion.registration import register

if TYPE_CHECKING:
    from weft.fusion.backend import explanation
    from weft.fusion.fuse import fuse
    from weft.fusion.report import Explanation

__all__ = ["Explanation", "explanation", "fuse"]
HOMES = {"Explanation": "report", "explanation": "backend", "fuse": "fuse"}


def __getattr__(name: str) -> Any:
    """torch is loaded when something of it is first asked for."""
    if name not in HOMES:
        raise AttributeError(f"module 'weft.fusion' has no attribute {name!r}", name=name)
    return getattr(import_module(f"weft.fusion.{HOMES[name]}"), name)


register()
