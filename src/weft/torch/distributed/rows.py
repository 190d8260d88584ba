"""Rows of tensors (B, H, rows, D) by lists of places: gathered, added up, and merged into, in place.

On a GPU each is one kernel (`weft.torch.distributed.on_gpu`). What torch's operations do here is its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from weft.pattern.bounds import Ints
from weft.torch.device_tables import kept

Rows: TypeAlias = "slice | Places"
Result = tuple[Tensor, Tensor]
EVERY = slice(None)


@dataclass(frozen=True, eq=False)
class Places:
    """places (R, several): rows of sources, one source's after the other's; negative ones are rows of zeros.
    into (R,): which rows become their sums, no row twice. Both int32, on the device.
    """

    places: Tensor
    into: Tensor

    @staticmethod
    def of(places: Ints, device: torch.device, into: Ints | None = None) -> Places:
        """From numpy: places (R,) or (R, several)."""
        places = places[:, None] if places.ndim == 1 else places
        into = np.arange(len(places)) if into is None else into
        return Places(*(tensor_of(np.ascontiguousarray(x, np.int32), device) for x in (places, into)))

    @cached_property
    def back(self) -> Places:
        """The way back of places that are written one after the other."""
        return Places(self.into.unsqueeze(1), self.places[:, 0].contiguous())


def tensor_of(places: Ints, device: torch.device) -> Tensor:
    """An index that is kept: not one of inference mode, which no graph may save."""
    with torch.inference_mode(False):
        return kept(lambda: torch.as_tensor(places, device=device), device)


def rows_at(places: Ints, device: torch.device) -> Rows:
    """Rows at ascending places: a slice where they are one run."""
    if is_run(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return Places.of(places, device)


def is_run(places: Ints) -> bool:
    """Whether places follow each other."""
    return bool(places.size) and places[0] >= 0 and bool((np.diff(places) == 1).all())


def listed(rows: Rows, device: torch.device) -> Places:
    """Rows as places, written one after the other."""
    return _run(rows.start, rows.stop, device) if isinstance(rows, slice) else rows


@lru_cache(maxsize=256)
def _run(first: int, after: int, device: torch.device) -> Places:
    return Places.of(np.arange(first, after), device)


def taken(x: Tensor, rows: Rows) -> Tensor:
    """Some rows of x (B, H, S, D) or (B, H, S)."""
    if isinstance(rows, slice):
        return x[:, :, rows]
    if x.ndim == 3:
        return taken(x.unsqueeze(3), rows).squeeze(3)
    found = x.new_empty((*x.shape[:2], rows.into.shape[0], x.shape[3]))
    take(found, (x,), rows)
    return found


def added(x: Tensor, rows: Rows, values: Tensor) -> None:
    """Add to some rows of x, no row twice."""
    take(x, (values,), listed(rows, x.device).back, adds=True)


def take(out: Tensor, sources: Sequence[Tensor], lists: Places, adds: bool = False) -> None:
    """Write sums of rows of one or two sources into rows of out; adds: to what is there. In float32 at least."""
    if not lists.into.numel():
        return
    kernels = _kernels(out, *sources)
    if kernels is not None:
        kernels.take(out, sources, lists, adds)
        return
    first = sources[0]
    every = torch.cat([*sources, first.new_zeros(()).expand(*first.shape[:2], 1, first.shape[3])], dim=2)
    columns = torch.where(lists.places < 0, every.shape[2] - 1, lists.places).unbind(1)
    into = lists.into.long()
    parts = [out.index_select(2, into)] if adds else []
    parts += [every.index_select(2, column) for column in columns]
    total = parts[0]
    for part in parts[1:]:
        total = total.to(torch.promote_types(out.dtype, torch.float32)) + part
    out.index_copy_(2, into, total.to(out.dtype))


def merged_into(whole: Result, rows: Rows, more: Result) -> None:
    """Merge results over other keys into some rows of (out, lse), in place; as `weft.merge`, by few operations.

    Rows without keys have out 0 and lse -inf.
    """
    kernels = _kernels(whole[0], more[0])
    if kernels is not None:
        kernels.merge(whole, rows, more)
        return
    low = taken(whole[1], rows)
    mine = taken(whole[0], rows).to(low.dtype)
    share = (more[1] - low).sigmoid_().nan_to_num_(0.0).unsqueeze(-1)  # NaN where neither side has keys
    put(whole[0], rows, torch.lerp(mine, more[0].to(share.dtype), share))
    put(whole[1], rows, torch.logaddexp(low, more[1]))


def put(x: Tensor, rows: Rows, values: Tensor) -> None:
    """Write some rows of x."""
    if isinstance(rows, slice):
        x[:, :, rows].copy_(values)
    else:
        x.index_copy_(2, rows.places[:, 0].long(), values.to(x.dtype))


def _kernels(*tensors: Tensor) -> Any:
    """What has kernels for such tensors; None for torch's operations."""
    if not tensors[0].is_cuda:
        return None
    from weft.torch.distributed import on_gpu

    return on_gpu if on_gpu.has_kernels(tensors) else None
