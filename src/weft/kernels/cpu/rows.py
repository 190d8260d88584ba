"""A few queries against many keys: every row by its formula, through torch's own kernel. Nothing is planned for a
number of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from weft.kernels.cpu.flash import FORWARD, as_it_reads
from weft.kernels.cpu.forward import merge
from weft.kernels.options import ACCUMULATE, join_sinks, rows_in_order_of
from weft.pattern.bounds import Ints
from weft.pattern.relation import Relation
from weft.planning.heads import Heads
from weft.planning.rowwise import RowPlan

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
WASTE = 2  # times as many keys as the longest row has, in one masked call of rows that share keys; else one by one


class Visit(NamedTuple):
    """Queries [first, last) that see keys of `keys`: all of them, or where `mask` (queries, keys) is 0 and not -inf."""

    first: int
    last: int
    keys: slice
    mask: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """A step of decoding on a CPU: a steady plan serves any number of keys up to `capacity`."""

    plan: RowPlan
    scale: float

    @property
    def capacity(self) -> int:
        """Keys that there may be."""
        return self.plan.capacity

    def __call__(
        self, qkv: Tensors, sinks: torch.Tensor | None = None, slopes: None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse (B, Hq, M), as it accumulates) of q (B, Hq, M, D), k and v (B, Hkv, N, D); without slopes."""
        q, k, v = qkv
        shift = k.shape[2] - q.shape[2] if self.plan.steady else 0  # the last query is beside the last key
        dtype = ACCUMULATE[q.dtype]
        rows = np.arange(shift, shift + q.shape[2], dtype=np.int64)
        out = rows_in_order_of(q, v.shape[3], dtype)
        lse = torch.empty(q.shape[:3], dtype=dtype)
        for share in self.plan.shares:
            visits = [x for relation in share.relations for x in _visits(relation, rows, k.shape[2], dtype)]
            for heads in share.heads:
                self._attend(qkv, (out, lse), heads, visits)
        if sinks is not None:
            lse = join_sinks(out, lse, sinks)
        return out.to(q.dtype), lse

    def _attend(
        self, qkv: Tensors, result: tuple[torch.Tensor, torch.Tensor], heads: Heads, visits: list[Visit]
    ) -> None:
        """Write the rows of some heads."""
        group, dtype = self.plan.problem.group, result[0].dtype
        q, out, lse = (_of_heads(x, heads, group) for x in (qkv[0], *result))
        k, v = (x[slice(*heads.batch), slice(*heads.kv)] for x in qkv[1:])
        m = q.shape[3]
        alone = len(visits) == 1 and visits[0][:2] == (0, m)
        if not alone:
            out.zero_()
            lse.fill_(-torch.inf)
        for first, last, keys, mask in visits:
            several = slice(first, last)
            q_ = as_it_reads(q[:, :, :, several].flatten(2, 3), dtype)
            k_, v_ = (as_it_reads(x[:, :, keys], dtype) for x in (k, v))
            bias = mask if mask is None else mask.repeat(q.shape[2], 1)
            o, new = FORWARD(q_, k_, v_, attn_mask=bias, scale=self.scale)
            places = out[:, :, :, several], lse[:, :, :, several, None]
            found = (
                o.view_as(places[0]) if o.is_contiguous() else o.reshape(places[0].shape),
                new.reshape(places[1].shape),
            )
            if not alone:
                found = merge(*found, *places)
            for place, values in zip(places, found, strict=True):
                place.copy_(values)


def _of_heads(x: torch.Tensor, heads: Heads, group: int) -> torch.Tensor:
    """x (B, Hq, M, ...) as (batch rows, key/value heads, query heads of each, M, ...)."""
    return x.unflatten(1, (-1, group))[slice(*heads.batch), slice(*heads.kv), slice(*heads.group)]


def _visits(relation: Relation, rows: Ints, n: int, dtype: torch.dtype) -> Iterator[Visit]:
    """What the rows of a relation see: together where their keys are alike or nearly so, else row by row."""
    first, step, count = relation.affine_rows(rows, n)
    firsts, counts = first.tolist(), count.tolist()
    m, least, most = len(counts), min(counts), max(counts)
    if most == 0:
        return
    start = min(firsts)
    stop = max(a + step * (c - 1) for a, c in zip(firsts, counts, strict=True)) + 1
    if least == most and start == max(firsts):
        yield Visit(0, m, slice(start, stop, step))
    elif least and step == 1 and stop - start <= WASTE * most and (first[1:] < (first + count)[:-1]).all():
        columns = torch.arange(start, stop)
        lo, hi = (torch.from_numpy(x)[:, None] for x in (first, first + count))
        live = (columns >= lo) & (columns < hi)
        yield Visit(0, m, slice(start, stop), torch.zeros(live.shape, dtype=dtype).masked_fill_(~live, -torch.inf))
    else:
        spans = zip(firsts, counts, strict=True)
        yield from (Visit(i, i + 1, slice(a, a + step * (c - 1) + 1, step)) for i, (a, c) in enumerate(spans) if c)
