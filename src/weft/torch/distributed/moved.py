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

from weft.distributed.local import local_of
from weft.distributed.plan import Plan
from weft.torch.distributed.exchange import Peers, Pending, sent, taken, tensor_of, unpacked
from weft.torch.distributed.ranks import Rank, Result, merged_into

Both = tuple[Pending, Pending]


def are_any(plan: Plan) -> bool:
    """Whether some rank's rows are moved."""
    return any(map(len, plan.moved))


def partial(at: Rank, tensors: tuple[Tensor, Tensor, Tensor], came: Peers) -> list[Result]:
    """(out, lse) of each peer's rows over this rank's keys, without sinks: who merges them adds these once."""
    q, k, v = tensors
    asked = local_of(at.plan, at.rank).asked
    nothing = _nothing(q, v.shape[3])
    each = enumerate(zip(came, asked, strict=True))
    return [nothing if part is None else at.attend((rows[2], k, v), part, peer=p) for p, (rows, part) in each]


def send(at: Rank, q: Tensor, made: Sequence[Result]) -> Both:
    """Such results on their way to who holds the rows."""
    return _sent(at, q, made, [len(asked[at.rank]) for asked in at.plan.asked])


def merge(at: Rank, whole: Result, back: Both) -> list[Result]:
    """Merge what came of this rank's rows into (out, lse), all at once; returns it by peer."""
    came = _arrived(back)
    rows, places = _moved(at.plan, at.rank, whole[0].device)
    more = [(among, result) for among, result in zip(places, came, strict=True) if among is not None]
    if more:
        merged_into(whole, rows, more)
    return came


def send_gradients(
    at: Rank, results: Result, grads: tuple[Tensor | None, Tensor | None], arrived: Sequence[Result]
) -> Both:
    """Gradients of what each peer computed of this rank's rows, on their way there: those of `merge`."""
    rows, places = _moved(at.plan, at.rank, results[0].device)
    out, lse = (taken(x, rows) for x in results)
    dout = torch.zeros_like(out) if grads[0] is None else taken(grads[0], rows)
    dlse = torch.zeros_like(lse) if grads[1] is None else taken(grads[1], rows)
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
    at: Rank, tensors: tuple[Tensor, Tensor, Tensor], made: Sequence[Result], pending: Both,
    peers: tuple[Peers, Peers],
) -> list[tuple[Tensor, Tensor, Any]]:  # fmt: skip
    """(dk, dv, dtables) by each peer's rows over this rank's keys; the rows' own gradients are added to `peers[1]`."""
    (_, k, v), (came, back), found = tensors, peers, []
    each = zip(local_of(at.plan, at.rank).asked, made, _arrived(pending), came, back, strict=True)
    for peer, (part, results, grads, rows, into) in enumerate(each):
        if part is not None:
            dq, dk, dv, _, dtables = at.gradients((rows[2], k, v), part, results, grads, peer=peer)
            into[2].add_(dq)
            found.append((dk, dv, dtables))
    return found


def _sent(at: Rank, q: Tensor, made: Sequence[Result], counts: Sequence[int]) -> Both:
    """Pairs on their way. counts: rows that come from each peer."""
    found = []
    for side in (0, 1):
        wide = [pair[side] if side == 0 else pair[side].unsqueeze(3) for pair in made]
        shapes = [[torch.Size((n, *q.shape[:2], wide[0].shape[3]))] for n in counts]
        found.append(sent([[x.permute(2, 0, 1, 3)] for x in wide], shapes, at.group))
    return found[0], found[1]


def _arrived(back: Both) -> list[Result]:
    """From each peer (B, H, rows, Dv) and (B, H, rows)."""
    outs, lses = ([x.permute(1, 2, 0, 3) for (x,) in unpacked(pending.arrived(), pending.shapes)] for pending in back)
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
