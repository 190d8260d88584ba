"""Rows that see nearly all keys: each peer computes them over its own keys, and who holds them merges what comes back.

Of each exchange, out and lse travel apart, since they differ in dtype. So do their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import weft
from weft.distributed.local import local_of
from weft.distributed.plan import Plan
from weft.torch.distributed.exchange import Pending, Shapes, sent, unpacked
from weft.torch.distributed.ranks import Rank, Result
from weft.torch.distributed.rows import tensor_of

Both = tuple[tuple[Pending, Shapes], tuple[Pending, Shapes]]


def are_any(plan: Plan) -> bool:
    """Whether some rank's rows are moved."""
    return any(map(len, plan.moved))


def partial(at: Rank, came: Sequence[Tensor], keys: tuple[Tensor, Tensor]) -> list[Result]:
    """(out, lse) of each peer's rows over this rank's keys, without sinks: who merges them adds these once."""
    asked = local_of(at.plan, at.rank).asked
    nothing = _nothing(came[0], keys[1].shape[3])
    each = enumerate(zip(came, asked, strict=True))
    return [nothing if part is None else at.attend((rows, *keys), part, peer=p) for p, (rows, part) in each]


def send(at: Rank, q: Tensor, made: Sequence[Result]) -> Both:
    """Such results on their way to who holds the rows."""
    return _sent(at, q, made, [len(asked[at.rank]) for asked in at.plan.asked])


def merge(at: Rank, whole: Result, back: Both) -> list[Result]:
    """Merge what came of this rank's rows into (out, lse), all at once in float32; returns it by peer."""
    came = _arrived(back)
    rows, places = _moved(at.plan, at.rank, whole[0].device)
    if rows.numel():
        low = whole[1].index_select(2, rows)
        outs, lses = [whole[0].index_select(2, rows)], [low]
        for among, (out, lse) in zip(places, came, strict=True):
            if among is not None:
                outs.append(torch.zeros_like(outs[0]).index_copy_(2, among, out))
                lses.append(torch.full_like(low, float("-inf")).index_copy_(2, among, lse))
        for x, merged in zip(whole, weft.merge(outs, lses), strict=True):
            x.index_copy_(2, rows, merged)
    return came


def send_gradients(
    at: Rank, results: Result, grads: tuple[Tensor | None, Tensor | None], kept: Sequence[Tensor]
) -> Both:
    """Gradients of what each peer computed of this rank's rows, on their way there. kept: of `partial` and of `merge`,
    one after the other.
    """
    arrived = _pairs(kept)[at.plan.ranks :]
    rows, places = _moved(at.plan, at.rank, results[0].device)
    out, lse = (x.index_select(2, rows) for x in results)
    dout = torch.zeros_like(out) if grads[0] is None else grads[0].index_select(2, rows)
    dlse = torch.zeros_like(lse) if grads[1] is None else grads[1].index_select(2, rows)
    made = []
    for among, (theirs, low) in zip(places, arrived, strict=True):
        if among is None:
            made.append(_nothing(results[0], out.shape[3]))
            continue
        whole, top, given, of_top = (x.index_select(2, among) for x in (out, lse, dout, dlse))
        weight = torch.where(low == float("-inf"), 0.0, (low - top).exp())
        given = given.to(lse.dtype)
        apart = (given * (theirs.to(lse.dtype) - whole.to(lse.dtype))).sum(-1)
        made.append(((weight.unsqueeze(-1) * given).to(out.dtype), weight * (apart + of_top)))
    return _sent(at, results[0], made, [len(rows) for rows in at.plan.asked[at.rank]])


def of_asked(
    at: Rank, came: Sequence[Tensor], keys: tuple[Tensor, Tensor], kept: Sequence[Tensor], pending: Both
) -> list[tuple[Any, ...]]:
    """By peer (gradients of its rows, dk, dv, dtables) over this rank's keys. kept: as for `send_gradients`."""
    found: list[tuple[Any, ...]] = []
    each = zip(local_of(at.plan, at.rank).asked, _pairs(kept), _arrived(pending), came, strict=False)
    for peer, (part, made, grads, rows) in enumerate(each):
        if part is None:
            found.append((rows, None, None, None))
        else:
            dq, dk, dv, _, dtables = at.gradients((rows, *keys), part, made, grads, peer=peer)
            found.append((dq, dk, dv, dtables))
    return found


def _pairs(kept: Sequence[Tensor]) -> list[Result]:
    return list(zip(kept[::2], kept[1::2], strict=True))


def _sent(at: Rank, q: Tensor, made: Sequence[Result], counts: Sequence[int]) -> Both:
    """Pairs on their way. counts: rows that come from each peer."""
    found = []
    for side in (0, 1):
        wide = [pair[side] if side == 0 else pair[side].unsqueeze(3) for pair in made]
        shapes = [[torch.Size((n, *q.shape[:2], wide[0].shape[3]))] for n in counts]
        found.append((sent([[x.permute(2, 0, 1, 3)] for x in wide], shapes, at.group), shapes))
    return found[0], found[1]


def _arrived(back: Both) -> list[Result]:
    """From each peer (B, H, rows, Dv) and (B, H, rows)."""
    outs, lses = ([x.permute(1, 2, 0, 3) for (x,) in unpacked(one.arrived(), shapes)] for one, shapes in back)
    return [(out, lse.squeeze(3)) for out, lse in zip(outs, lses, strict=True)]


def _nothing(q: Tensor, last: int) -> Result:
    lse = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:2], 0, last)), q.new_empty((*q.shape[:2], 0), dtype=lse)


@lru_cache(maxsize=256)
def _moved(plan: Plan, rank: int, device: torch.device) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """(a rank's moved rows, for each peer where the rows that it computes a part of are among them)."""
    held = plan.shards.tokens[rank]
    rows = held.places(plan.moved[rank])
    theirs = [asked[rank] for asked in plan.asked]
    among = tuple(tensor_of(np.searchsorted(rows, held.places(x)), device) if len(x) else None for x in theirs)
    return tensor_of(rows, device), among
