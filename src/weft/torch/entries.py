"""Gradients of tables that score functions read, from what kernels sum: by rows, columns, diagonals, offsets or pairs.

A sum is of all pairs whose read has one index. So few numbers are left to bring to their entries, with torch and in a
fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from weft.kernels.cpu.rules import Applied, Rule
from weft.kernels.gpu.layout import Options
from weft.kernels.gpu.score.slots import number_of
from weft.score.reads import Read, reads_of
from weft.score.value import composed


def gradients_of_tables(
    options: Options, tables: tuple[torch.Tensor, ...], sums: Mapping[str, torch.Tensor], queries: int
) -> tuple[torch.Tensor | None, ...]:
    """The gradient of each table, None of one that is not wanted. sums: by slots, see
    `weft.kernels.gpu.score.slots.entries_of`. queries: how many.
    """
    if not options.wanted:
        return (None,) * len(tables)
    dtype = next((x.dtype for x in sums.values()), torch.float32)
    found = [torch.zeros(x.shape, dtype=dtype, device=x.device) if w else None
             for x, w in zip(tables, options.wanted, strict=True)]  # fmt: skip
    rule = Rule(composed(options.score), tables)
    for name, total in sums.items():
        number = number_of(name)
        assert number is not None, "sums are of reads"
        read = reads_of(rule.expression)[number]
        into = found[read.table]
        assert into is not None, "sums are of tables that are wanted"
        if name.startswith("offsets"):
            _bring(into, rule, read, total.flatten(2), _of_offsets(total, options.shift))
        elif read.kind in ("dense", "pairs", "offsets"):
            into.add_(total.view(into.shape))
        else:
            whole = total.sum(2) if name.startswith("programs") else total
            _bring(into, rule, read, whole, _indices(read, whole, queries, options.shift))
    return tuple(None if x is None else x.to(table.dtype) for x, table in zip(found, tables, strict=True))


def _bring(into: torch.Tensor, rule: Rule, read: Read, total: torch.Tensor, where: dict[str, torch.Tensor]) -> None:
    """into += the sums (B, Hq, rows, columns or diagonals), at the indices of a read."""
    applied = Applied.to(rule, where)
    places: Any = torch.zeros((), dtype=torch.int64, device=total.device)
    for ref, length, pace in zip(rule.expression.steps[read.step].args, into.shape, into.stride(), strict=True):
        index = torch.as_tensor(applied.value(ref), device=total.device)
        places = places + index.clamp(0, length - 1) * pace
    places = places.view((1,) * (total.dim() - places.dim()) + places.shape)
    part = total.sum_to_size(places.shape)
    into.view(-1).index_put_((places.reshape(-1),), part.reshape(-1), accumulate=True)


def _indices(read: Read, total: torch.Tensor, queries: int, shift: int) -> dict[str, torch.Tensor]:
    """What the steps of an index read, for sums (B, Hq, length)."""
    length = total.shape[2]
    at, zero = torch.arange(length, device=total.device), torch.zeros((), dtype=torch.int64, device=total.device)
    q, k = zero, zero
    if read.kind == "rows":
        q = at
    elif read.kind == "columns":
        k = at
    else:  # k - q rises from 1 - queries on
        q, k = (queries - 1 - at).clamp(min=0), (at - (queries - 1)).clamp(min=0)
    return _at(total, q, k, shift)


def _of_offsets(total: torch.Tensor, shift: int) -> dict[str, torch.Tensor]:
    """The same for sums (B, Hq, 2 X - 1, 2 Y - 1) over offsets on a grid, of two tokens that are so far apart."""
    q = k = torch.zeros((), dtype=torch.int64, device=total.device)
    for length in total.shape[2:]:
        apart, tokens = torch.arange(length, device=total.device) - length // 2, length // 2 + 1
        q, k = ((x[..., None] * tokens + far.clamp(min=0)) for x, far in ((q, -apart), (k, apart)))
    return _at(total, q.flatten(), k.flatten(), shift)


def _at(total: torch.Tensor, q: torch.Tensor, k: torch.Tensor, shift: int) -> dict[str, torch.Tensor]:
    b, h = (torch.arange(size, device=total.device) for size in total.shape[:2])
    where = {"b": b[:, None, None], "h": h[:, None], "q": q, "k": k}
    return {**where, "shift": torch.tensor(shift, device=total.device), "score": total.new_zeros(())}


__all__ = ["gradients_of_tables"]
