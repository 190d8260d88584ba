"""Where entries of tables lie that score functions read: tensors on a device, kept from call to call.

They depend on expressions and sizes. Some twenty small kernels make them, and a number that the host copies to a GPU
makes it wait.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from weft.score.expression import Expression, Ref
from weft.torch.device_tables import is_capturing

Places = TypeVar("Places", bound=torch.Tensor | tuple[torch.Tensor, ...])
KEPT: dict[Hashable, Any] = {}
LIMIT = 64  # of these
PLACE = frozenset(("b", "h", "q", "k", "shift"))


def kept(key: Hashable, device: torch.device, make: Callable[[], Places]) -> Places:
    """What `make` gave for a key before; a tensor of the capture of a graph is not kept."""
    key = (key, device)
    if key in KEPT:
        known: Places = KEPT[key]
        return known
    found = make()
    every = (found,) if isinstance(found, torch.Tensor) else found
    if all(type(x) is torch.Tensor for x in every) and not (device.type == "cuda" and is_capturing()):
        if len(KEPT) >= LIMIT:
            KEPT.clear()
        KEPT[key] = found
    return found


def leaves_of(expression: Expression, ref: Ref) -> frozenset[str]:
    """Leaves that the operands of a step depend on, and "read" where a table is one."""
    found: set[Ref] = set()
    waiting = list(expression.steps[ref].args)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += expression.steps[one].args
    return frozenset({expression.steps[one].op for one in found} & (PLACE | {"read"}))
