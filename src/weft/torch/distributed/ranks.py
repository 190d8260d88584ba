"""What a rank computes on its own device: parts of its rows over keys that it has, and how they are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.distributed.local import Part
from weft.distributed.plan import Plan
from weft.score.value import Score
from weft.torch import call
from weft.torch.distributed.exchange import Rows, rows_at, taken, tensor_of
from weft.torch.distributed.scores import extras_of, of_part, own_tables, tokens_of, told_of
from weft.torch.extras import Extras

Result = tuple[Tensor, Tensor]
EVERY = slice(None)
JOINED, ADDED = 32, 4  # slices that are joined, or added to, one by one; more go by an index


@dataclass(frozen=True)
class Rank:
    """One rank of one call. options: scale, softcap, backend and deterministic, as `weft.attention` has them. drop: the
    rate of dropout and its seed, None without; head: the first head's number, of which dropout is.
    """

    plan: Plan
    group: Any
    rank: int
    options: tuple[Any, ...]
    score: Score | None = None
    drop: tuple[float, Tensor] | None = None
    head: int = 0

    def attend(
        self, tensors: Sequence[Tensor], part: Part, sinks: Tensor | None = None, peer: int | None = None
    ) -> Result:  # fmt: skip
        """(out, lse) of a part's rows over its keys. peer: whose rows they are, if not this rank's."""
        q, k, v = tensors
        return call.attend((q, k, v), part.pattern, (sinks, None), self.given, True, self._extras(part, peer, q))

    def _extras(self, part: Part, peer: int | None, q: Tensor) -> Extras | None:
        if self.score is None and self.drop is None:
            return None
        place = self.plan, self.rank, part, self.rank if peer is None else peer
        rows, keys = tokens_of(*place)
        score = None if self.score is None else of_part(self.score, rows, keys, q.device)
        return extras_of(score, self.drop, told_of(place, self.head, q.device) if self.drop else None)

    def gradients(
        self, tensors: Sequence[Tensor], part: Part, results: Result, grads: Sequence[Tensor | None],
        sinks: tuple[Tensor | None, bool] = (None, False), peer: int | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """(dq, dk, dv, dsinks, dtables) of a part, from the out and lse that its rows have in the end. sinks: and
        whether their gradient is wanted; dtables: as those of the score function, None without one.
        """
        saved, extras = (*tensors, *results), self._extras(part, peer, tensors[0])
        options, both = ((sinks[0], None), self.given), (grads[0], grads[1])
        *found, dtables = call.backward(saved, part.pattern, options, both, sinks[1], extras)
        return *found, None if self.score is None else own_tables(self.score, dtables)

    @property
    def given(self) -> tuple[Any, ...]:
        """The options in the order of `call.attend`."""
        scale, softcap, backend, deterministic = self.options
        return scale, softcap, 0, backend, deterministic


# ---- rows and keys of parts ------------------------------------------------------------------------------------------
@lru_cache(maxsize=512)
def rows_of(part: Part, device: torch.device) -> Rows:
    """A part's rows among the rank's own."""
    return rows_at(part.rows, device)


def put(x: Tensor, rows: Rows, values: Tensor) -> None:
    """Write some rows of x."""
    if isinstance(rows, slice):
        x[:, :, rows].copy_(values)
    else:
        x.index_copy_(2, rows, values.to(x.dtype))


def merged_into(whole: Result, rows: Rows, more: Sequence[tuple[Rows, Result]]) -> None:
    """Merge results over other keys into some rows of (out, lse), in place; as `weft.merge`, by few operations.

    more: each result with the rows that it is of, among these. Rows without keys have out 0 and lse -inf.
    """
    low = taken(whole[1], rows)
    mine = taken(whole[0], rows).to(low.dtype)
    for at, (out, lse) in more:
        every = isinstance(at, slice)
        some, least = (mine, low) if every else (taken(mine, at), taken(low, at))
        share = (lse - least).sigmoid_().nan_to_num_(0.0).unsqueeze(-1)  # NaN where neither side has keys
        some, least = torch.lerp(some, out.to(share.dtype), share), torch.logaddexp(least, lse)
        if every:
            mine, low = some, least
        else:
            put(mine, at, some)
            put(low, at, least)
    put(whole[0], rows, mine)
    put(whole[1], rows, low)


def gathered(tensors: Sequence[Tensor], part: Part, behind: int = 0) -> Tensor:
    """The keys of a part from the rank's own tensor (B, H, S, D) and those of each peer; where nothing is needed, 0.

    behind: how many of the rank's own keys stand before those of the tensors, where it is none of them.
    """
    first = tensors[0]

    def nothing(rows: int) -> Tensor:
        return first.new_zeros(()).expand(*first.shape[:2], rows, first.shape[3])

    found = _sources(part, tuple(x.shape[2] for x in tensors), behind, (JOINED, first.device))
    if isinstance(found, Tensor):
        return torch.cat([*tensors, nothing(1)], dim=2).index_select(2, found)
    pieces = [nothing(b - a) if i == len(tensors) else tensors[i][:, :, a:b] for i, a, b in found]
    return torch.cat(pieces, dim=2)


def scattered(grad: Tensor, part: Part, into: Sequence[Tensor], behind: int = 0) -> None:
    """Add gradients of a part's keys where the keys came from: the way back of `gathered`."""
    sizes = [x.shape[2] for x in into]
    found = _sources(part, tuple(sizes), behind, (ADDED, grad.device))
    if isinstance(found, Tensor):
        whole = grad.new_zeros((*grad.shape[:2], sum(sizes) + 1, grad.shape[3])).index_copy_(2, found, grad)
        for x, values in zip(into, whole.split([*sizes, 1], dim=2), strict=False):
            if x.shape[2]:
                x.add_(values)
        return
    at = 0
    for i, a, b in found:
        if i < len(into):
            into[i][:, :, a:b].add_(grad[:, :, at : at + b - a])
        at += b - a


@lru_cache(maxsize=512)
def _sources(
    part: Part, sizes: tuple[int, ...], behind: int, most: tuple[int, torch.device]
) -> Tensor | tuple[tuple[int, int, int], ...]:  # fmt: skip
    """A part's keys among tensors of some sizes: (tensor, first, after) one after the other, or an index of all.

    The tensor after the last one is of zeros. most: slices before they are an index, and its device.
    """
    ends = np.cumsum([0, *sizes])
    places = np.asarray(part.keys) - behind
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    if len(runs) > most[0]:
        return tensor_of(np.minimum(places, ends[-1]), most[1])
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
