"""Ranks that call alike: what they ask is compared before the first exchange of each kind."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch.distributed as dist
from torch import Tensor

from weft.errors import InputError
from weft.pattern.algebra import Pattern

KNOWN = 256  # kinds of calls that are remembered
NAMES = ("pattern", "batch", "heads of q", "heads of k", "head dimension", "head dimension of v", "dtype", "options")
_known: OrderedDict[Any, int] = OrderedDict()


def agreed(tensors: tuple[Tensor, Tensor, Tensor], pattern: Pattern, options: tuple[Any, ...], group: Any) -> int:
    """The tokens of all ranks together.

    Raises InputError on every rank where one differs from the first in anything but its number of tokens. What was
    compared once is not compared again, so that a warm call exchanges nothing but rows.
    """
    q, k, v = tensors
    said = (
        repr(pattern), q.shape[0], q.shape[1], k.shape[1], q.shape[3], v.shape[3], str(q.dtype), repr(options)
    )  # fmt: skip
    key = (id(group), q.shape[2], said)
    if key in _known:
        _known.move_to_end(key)
        return _known[key]
    wrong = (
        "" if q.shape[2] == k.shape[2] == v.shape[2] else f"q has {q.shape[2]} tokens, k {k.shape[2]}, v {v.shape[2]}"
    )
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, (said, q.shape[2], wrong), group=group)
    _compare(found)
    _known[key] = sum(tokens for _, tokens, _ in found)
    while len(_known) > KNOWN:
        _known.popitem(last=False)
    return _known[key]


def _compare(found: list[Any]) -> None:
    (first, *_), asked = found[0], "distributed.attention(...)"
    for rank, (said, _, wrong) in enumerate(found):
        if wrong:
            raise InputError(asked, f"on rank {rank} {wrong}", "pass q, k and v of the same tokens on each rank")
        for name, here, there in zip(NAMES, said, first, strict=True):
            if here != there:
                raise InputError(
                    asked, f"ranks disagree about the {name}: rank 0 has {there}, rank {rank} has {here}",
                    "pass the same on every rank of the group",
                )  # fmt: skip
