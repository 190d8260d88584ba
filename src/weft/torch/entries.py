"""Gradients of tables that score functions read, from what kernels sum: by rows, columns, diagonals, offsets or pairs.

A sum is of all pairs whose read has one index. So few numbers are left to bring to their entries, with torch and in a
fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.kernels.cpu.rules import Applied, Rule
from weft.kernels.gpu.layout import Options
from weft.kernels.gpu.score.slots import number_of
from weft.planning.attention_plan import AttentionPlan
from weft.planning.families.components import Components
from weft.score.reads import Kind, Read, reads_of
from weft.score.value import composed
from weft.torch.kept_places import kept, leaves_of

Tokens = tuple[torch.Tensor, torch.Tensor]  # of queries and of keys


def gradients_of_tables(
    options: Options, tables: tuple[torch.Tensor, ...], sums: Mapping[str, torch.Tensor], plan: AttentionPlan
) -> tuple[torch.Tensor | None, ...]:
    """The gradient of each table, None of one that is not wanted. sums: by slots, see
    `weft.kernels.gpu.score.slots.entries_of` and `weft.kernels.gpu.programs.components`.
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
        if name.startswith("tiles"):
            _bring_tiles(into, rule, read, total, plan.components, options.shift)
        elif name.startswith("offsets"):
            tokens = partial(_of_offsets, tuple(total.shape[2:]))
            _bring(into, rule, read, total.flatten(2), tokens, options.shift)
        elif read.kind in ("dense", "pairs", "offsets"):
            into.add_(total.view(into.shape))
        else:
            whole = total.sum(2) if name.startswith("programs") else total
            _bring(into, rule, read, whole, partial(_indices, read.kind, whole.shape[2], plan.problem.m), options.shift)
    return tuple(None if x is None else x.to(table.dtype) for x, table in zip(found, tables, strict=True))


def _bring(
    into: torch.Tensor, rule: Rule, read: Read, total: torch.Tensor, tokens: partial[Tokens], shift: int
) -> None:  # fmt: skip
    """into += the sums (B, Hq, rows, columns or diagonals), at the indices of a read. tokens: makes the query and the
    key of each. shift: what alignment adds to queries.
    """

    def made() -> torch.Tensor:
        return _places(into, rule, read, _where(total, *tokens(total.device), shift))

    if "read" in leaves_of(rule.expression, read.step):
        places = made()
    else:
        shapes = tuple(tuple(x.shape) for x in rule.tables)
        key = rule.expression, read, shapes, tuple(total.shape[:2]), into.stride(), tokens.args, shift
        places = kept(key, total.device, made)
    part = total.sum_to_size(places.shape)
    into.view(-1).index_put_((places.reshape(-1),), part.reshape(-1), accumulate=True)


# ---- sums of the pairs of tiles --------------------------------------------------------------------------------------
class Gathered(NamedTuple):
    """Sums by entries. order: places of sums (heads, tiles, pairs), those of one entry side by side. lengths: how many
    each entry has. entries: where these lie in the table.
    """

    order: torch.Tensor
    lengths: torch.Tensor
    entries: torch.Tensor


def _bring_tiles(
    into: torch.Tensor, rule: Rule, read: Read, total: torch.Tensor, tiles: Components | str, shift: int
) -> None:  # fmt: skip
    """into += sums (parts, heads, tiles, SIZE, SIZE) of pairs; each entry is summed in one order."""
    assert isinstance(tiles, Components), "or there are no such sums"

    heads = total.shape[1]
    if "read" in leaves_of(rule.expression, read.step):  # which entries these are, a table says
        places = _of_pairs(into, rule, read, tiles, (heads, shift))
        part = total.sum(0).view(heads, -1).sum_to_size(places.shape[1:])
        into.view(-1).index_put_((places.reshape(-1),), part.reshape(-1), accumulate=True)
        return
    shapes = tuple(tuple(x.shape) for x in rule.tables)
    key = rule.expression, read, shapes, heads, into.stride(), tiles, shift
    found = kept(key, total.device, lambda: _gathered(into, rule, read, tiles, (heads, shift)))
    values = total.sum(0).reshape(-1)[found.order]
    sums = torch.segment_reduce(values, "sum", lengths=found.lengths, unsafe=True)
    into.view(-1).index_add_(0, found.entries, sums)


def _gathered(
    into: torch.Tensor, rule: Rule, read: Read, tiles: Components, asked: tuple[int, int]
) -> Gathered:  # fmt: skip
    """Made on the host, which knows how many live pairs there are. asked: heads, and what alignment adds to queries."""
    here, heads = torch.empty_like(into, device="cpu"), asked[0]
    places = _of_pairs(here, rule, read, tiles, asked)[0].expand(heads, tiles.live.size).reshape(-1)
    sums = torch.from_numpy(np.flatnonzero(np.broadcast_to(tiles.live.reshape(1, -1), (heads, tiles.live.size))))
    ordered, order = torch.sort(places[sums], stable=True)
    entries, lengths = torch.unique_consecutive(ordered, return_counts=True)
    return Gathered(*(x.to(into.device) for x in (sums[order], lengths, entries)))


def _of_pairs(
    into: torch.Tensor, rule: Rule, read: Read, tiles: Components, asked: tuple[int, int]
) -> torch.Tensor:  # fmt: skip
    """Places of the entries of all pairs of tiles (1, heads or 1, pairs), live or not."""
    shape, device = tiles.live.shape, into.device
    q, k = (torch.from_numpy(np.maximum(x, 0)).to(device) for x in (tiles.queries, tiles.keys))
    q, k = q[:, :, None].expand(shape).flatten(), k[:, None, :].expand(shape).flatten()
    return _places(into, rule, read, _where(into.new_empty((1, asked[0])), q, k, asked[1]))


# ---- places ----------------------------------------------------------------------------------------------------------
def _places(into: torch.Tensor, rule: Rule, read: Read, where: dict[str, torch.Tensor]) -> torch.Tensor:
    """Where the entries lie that sums (B, Hq, n) are added to; of axes that they do not depend on there is 1."""
    applied, device = Applied.to(rule, where), into.device
    places: Any = torch.zeros((), dtype=torch.int64, device=device)
    for ref, length, pace in zip(rule.expression.steps[read.step].args, into.shape, into.stride(), strict=True):
        index = torch.as_tensor(applied.value(ref), device=device)
        places = places + index.clamp(0, length - 1) * pace
    found: torch.Tensor = places.view((1,) * (3 - places.dim()) + places.shape)
    return found


def _indices(kind: Kind, length: int, queries: int, device: torch.device) -> Tokens:
    """A query and a key of each of so many sums."""
    at, zero = torch.arange(length, device=device), torch.zeros((), dtype=torch.int64, device=device)
    if kind == "rows":
        return at, zero
    if kind == "columns":
        return zero, at
    return (queries - 1 - at).clamp(min=0), (at - (queries - 1)).clamp(min=0)  # k - q rises from 1 - queries on


def _of_offsets(shape: tuple[int, ...], device: torch.device) -> Tokens:
    """The same for sums (2 X - 1, 2 Y - 1) over offsets on a grid: two tokens that are so far apart."""
    q = k = torch.zeros((), dtype=torch.int64, device=device)
    for length in shape:
        apart, tokens = torch.arange(length, device=device) - length // 2, length // 2 + 1
        q, k = ((x[..., None] * tokens + far.clamp(min=0)) for x, far in ((q, -apart), (k, apart)))
    return q.flatten(), k.flatten()


def _where(total: torch.Tensor, q: torch.Tensor, k: torch.Tensor, shift: int) -> dict[str, torch.Tensor]:
    b, h = (torch.arange(size, device=total.device) for size in total.shape[:2])
    where = {"b": b[:, None, None], "h": h[:, None], "q": q, "k": k}
    return {**where, "shift": torch.tensor(shift, device=total.device), "score": total.new_zeros(())}


__all__ = ["gradients_of_tables"]
