"""What a rank computes on its own device: parts of its rows over keys that it has, and how they are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import weft
from weft.distributed.local import Part
from weft.distributed.plan import Plan
from weft.torch.distributed.exchange import tensor_of

Result = tuple[Tensor, Tensor]
RUNS = 32  # slices that are joined one by one; where there are more, rows are gathered by an index


@dataclass(frozen=True)
class Rank:
    """One rank of one call. options: those of `weft.attention` that all parts share, and sinks."""

    plan: Plan
    group: Any
    rank: int
    options: dict[str, Any]

    def attend(self, q: Tensor, keys: Sequence[Sequence[Tensor]], part: Part) -> Result:
        """(out, lse) of a part's rows of q. keys: the rank's own (k, v), then those of each peer."""
        if part.rows.size < q.shape[2]:
            rows = _rows(part, q.device)
            q = q[:, :, rows] if isinstance(rows, slice) else q.index_select(2, rows)
        k, v = keys[0] if isinstance(part.keys, str) else (gathered([one[i] for one in keys], part) for i in (0, 1))
        return weft.attention(q, k, v, part.pattern, return_lse=True, **self.options)

    def partial(self, rows: Tensor, k: Tensor, v: Tensor, part: Part) -> Result:
        """(out, lse) of a peer's rows over this rank's keys, without sinks: who merges them adds these once."""
        return weft.attention(rows, k, v, part.pattern, return_lse=True, **{**self.options, "sinks": None})


def joined(parts: Sequence[Part], results: Sequence[Result]) -> Result:
    """All rows of the parts, in their order."""
    if len(results) == 1:
        return results[0]
    order, inverse = _order(tuple(parts), results[0][0].device)
    out, lse = (torch.cat([results[i][side] for i in order], dim=2) for side in (0, 1))
    return (out, lse) if inverse is None else (out.index_select(2, inverse), lse.index_select(2, inverse))


def gathered(tensors: Sequence[Tensor], part: Part) -> Tensor:
    """The keys of a part from tensors (B, H, S, D), one after the other; where nothing is needed, 0."""
    first = tensors[0]
    zero = first.new_zeros(()).expand(*first.shape[:2], 1, first.shape[3])
    found = _sources(part, tuple(x.shape[2] for x in tensors), zero.device)
    if isinstance(found, Tensor):
        return torch.cat([*tensors, zero], dim=2).index_select(2, found)
    sources = [*tensors, zero]
    return torch.cat(
        [zero.expand(-1, -1, b - a, -1) if i == len(tensors) else sources[i][:, :, a:b] for i, a, b in found], dim=2
    )


# ---- what is looked at once for each part ----------------------------------------------------------------------------
@lru_cache(maxsize=512)
def _rows(part: Part, device: torch.device) -> slice | Tensor:
    """A part's rows among the rank's own."""
    rows = part.rows
    if rows.size and rows[-1] - rows[0] + 1 == rows.size:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return tensor_of(rows, device)


@lru_cache(maxsize=512)
def _order(parts: tuple[Part, ...], device: torch.device) -> tuple[list[int], Tensor | None]:
    """(parts by their first rows, where each row of the rank then is; None: in its place)."""
    order = sorted(range(len(parts)), key=lambda i: int(parts[i].rows[:1].sum()))
    rows = np.concatenate([parts[i].rows for i in order])
    return order, None if (np.diff(rows) == 1).all() else tensor_of(np.argsort(rows, kind="stable"), device)


@lru_cache(maxsize=512)
def _sources(part: Part, sizes: tuple[int, ...], device: torch.device) -> Tensor | tuple[tuple[int, int, int], ...]:
    """A part's keys among tensors of some sizes: (tensor, first, after) one after the other, or an index of all.

    The tensor after the last one is of zeros.
    """
    ends = np.cumsum([0, *sizes])
    places = np.asarray(part.keys)
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    if len(runs) > RUNS:
        return tensor_of(np.minimum(places, ends[-1]), device)
    found = []
    for run in runs:
        first, after = int(run[0]), int(run[-1]) + 1
        for i, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            low, high = max(first, begin), min(after, end)
            if low < high:
                found.append((i, low - begin, high - begin))
        if after > ends[-1]:
            found.append((len(sizes), 0, after - max(first, int(ends[-1]))))
    return tuple(found)
