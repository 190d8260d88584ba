"""A mask function over copies in memory of the host: tables of a GPU are read once, and no kernel of the GPU runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from weft.tracing.capture import replaced


def hosted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, reading copies of the tensors that it captured on other devices; itself where there are none.

    It is executed on indices in the host's memory, which torch does not compare with what lies elsewhere.
    """
    if "torch" not in sys.modules:
        return function
    made: Callable[..., Any] = replaced(function, _copied)
    return made


def _copied(value: Any) -> Any:
    return value.detach().cpu() if is_elsewhere(value) else value


def is_elsewhere(value: Any) -> bool:
    """Whether it is a tensor of torch's own class with content that the host cannot read."""
    torch: Any = sys.modules["torch"]
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type not in ("cpu", "meta")
