"""What a rank computes on its own device: parts of its rows over keys that it has, and how they are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import weft
from weft.distributed.local import Part
from weft.distributed.plan import Plan
from weft.pattern.bounds import Ints

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
        rows = part.rows
        if rows.size < q.shape[2]:
            run = rows.size and rows[-1] - rows[0] + 1 == rows.size
            first = int(rows[0]) if run else 0
            q = q[:, :, first : first + rows.size] if run else q.index_select(2, torch.as_tensor(rows, device=q.device))
        k, v = (
            keys[0] if isinstance(part.keys, str) else (gathered([one[i] for one in keys], part.keys) for i in (0, 1))
        )
        return weft.attention(q, k, v, part.pattern, return_lse=True, **self.options)

    def partial(self, rows: Tensor, k: Tensor, v: Tensor, part: Part) -> Result:
        """(out, lse) of a peer's rows over this rank's keys, without sinks: who merges them adds these once."""
        return weft.attention(rows, k, v, part.pattern, return_lse=True, **{**self.options, "sinks": None})


def joined(parts: Sequence[Part], results: Sequence[Result]) -> Result:
    """All rows of the parts, in their order."""
    if len(results) == 1:
        return results[0]
    order = sorted(range(len(parts)), key=lambda i: int(parts[i].rows[:1].sum()))
    rows = np.concatenate([parts[i].rows for i in order])
    out, lse = (torch.cat([results[i][side] for i in order], dim=2) for side in (0, 1))
    if (np.diff(rows) == 1).all():
        return out, lse
    inverse = torch.as_tensor(np.argsort(rows, kind="stable"), device=out.device)
    return out.index_select(2, inverse), lse.index_select(2, inverse)


def gathered(parts: Sequence[Tensor], places: Ints) -> Tensor:
    """Rows of tensors (B, H, S, D) by their places among all of them, one after the other; beyond them rows are 0."""
    ends = np.cumsum([0, *(x.shape[2] for x in parts)])
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    zero = parts[0].new_zeros(()).expand(*parts[0].shape[:2], 1, parts[0].shape[3])
    if len(runs) > RUNS:
        index = torch.as_tensor(np.minimum(places, ends[-1]), device=zero.device)
        return torch.cat([*parts, zero], dim=2).index_select(2, index)
    found = []
    for run in runs:
        first, after = int(run[0]), int(run[-1]) + 1
        for part, begin, end in zip(parts, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            low, high = max(first, begin), min(after, end)
            if low < high:
                found.append(part[:, :, low - begin : high - begin])
        if after > ends[-1]:
            found.append(zero.expand(-1, -1, after - max(first, int(ends[-1])), -1))
    return torch.cat(found, dim=2)
