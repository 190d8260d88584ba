"""Ranks that call alike: what they ask is compared before the first exchange of each kind."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import InputError, UnsupportedError
from weft.pattern.algebra import Pattern

KNOWN = 256  # kinds of calls that are remembered for a group
NAMES = ("pattern", "batch", "heads of q", "heads of k", "head dimension", "head dimension of v", "dtype", "options")
_known: WeakKeyDictionary[Any, OrderedDict[Any, int]] = WeakKeyDictionary()  # what a group compared ends with it


def agreed(tensors: tuple[Tensor, Tensor, Tensor], pattern: Pattern, options: tuple[Any, ...], group: Any) -> int:
    """The tokens of all ranks together.

    Raises InputError on every rank where one differs from the first in anything but its number of tokens. What was
    compared once is not compared again, so that a warm call exchanges nothing but rows.
    """
    q, k, v = tensors
    known = _known.setdefault(group, OrderedDict())
    sizes = q.shape[0], q.shape[1], k.shape[1], q.shape[3], v.shape[3], str(q.dtype), repr(options)
    tokens = q.shape[2], k.shape[2], v.shape[2]
    key = pattern, sizes, tokens
    if key in known:
        known.move_to_end(key)
        return known[key]
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            f"distributed.attention(..., {pattern}) while a CUDA graph is captured",
            "ranks compare what they ask when they call so for the first time, which no graph can hold",
            "call it once with these shapes before the capture",
        )  # fmt: skip
    wrong = "" if len(set(tokens)) == 1 else "q has {} tokens, k {}, v {}".format(*tokens)
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, ((repr(pattern), *sizes), tokens[0], wrong), group=group)
    _compare(found)
    known[key] = sum(count for _, count, _ in found)
    if len(known) > KNOWN:
        known.popitem(last=False)
    return known[key]


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
