"""The kernels of `weft.torch.distributed.rows`, bound to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from weft.kernels.gpu.compile.source import POINTERS
from weft.kernels.gpu.programs.rows import merge_program, take_program
from weft.torch.bind import Bound
from weft.torch.distributed.rows import Places, Result, Rows, listed


def has_kernels(tensors: Sequence[Tensor]) -> bool:
    """Whether kernels have the dtype, and rows are dense."""
    return _dtype(tensors[0]) in POINTERS and all(x.stride(3) == 1 or x.shape[3] == 1 for x in tensors)


def take(out: Tensor, sources: Sequence[Tensor], lists: Places, adds: bool) -> None:
    """See `weft.torch.distributed.rows.take`."""
    every = out, sources[0], sources[-1]
    places = tuple(lists.places.shape)
    bound = _taking(_dtype(out), tuple(map(_lies, every)), places, _aligned(every), adds, out.device)
    bound((*every, lists.places, lists.into))


def merge(whole: Result, rows: Rows, more: Result) -> None:
    """See `weft.torch.distributed.rows.merged_into`."""
    into = listed(rows, whole[0].device).back.into
    every = *whole, *more
    aligned = _aligned(every[::2])
    _merging(_dtype(whole[0]), tuple(map(_lies, every)), len(into), aligned, into.device)((*every, into))


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _lies(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(x.shape), x.stride()


def _aligned(tensors: Sequence[Tensor]) -> bool:
    return not any(x.data_ptr() % 16 for x in tensors)


@lru_cache(maxsize=512)
def _taking(dtype: str, lies: Any, places: Any, aligned: bool, adds: bool, device: torch.device) -> Bound:
    return Bound(take_program(dtype, lies, places, aligned, adds), device)


@lru_cache(maxsize=512)
def _merging(dtype: str, lies: Any, rows: int, aligned: bool, device: torch.device) -> Bound:
    return Bound(merge_program(dtype, lies, rows, aligned), device)
