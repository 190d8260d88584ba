"""Each rank computes the rows it holds: keys come from peers, and rows that many keys see go to where these are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

import weft
from weft.distributed.local import Local, local_of
from weft.distributed.plan import Plan
from weft.torch.device_tables import kept
from weft.torch.distributed.exchange import Message, Pending, pick, tie
from weft.torch.distributed.ranks import Rank, Result, joined


def alone(at: Rank, q: Tensor, k: Tensor, v: Tensor) -> Result:
    """Attention of this rank's tokens where no rank needs anything of others."""
    local = local_of(at.plan, at.rank)
    return joined(local.before, [at.attend(q, [(k, v)], part) for part in local.before])


def by_tokens(at: Rank, q: Tensor, k: Tensor, v: Tensor) -> Result:
    """Attention of this rank's tokens. Parts that need nothing of others are computed while keys are on their way."""
    local = local_of(at.plan, at.rank)
    pending = _begun(at, q, k, v)
    results = [at.attend(q, [(k, v)], part) for part in local.before]
    scalar, came = pending.arrived()
    rows = [[x.permute(1, 2, 0, 3) for x in peer] for peer in came]
    results += [at.attend(q, [(k, v), *(peer[:2] for peer in rows)], part) for part in local.after]
    parts, scalars = [*local.before, *local.after], [scalar]
    if any(map(len, at.plan.moved)):
        more, merged = _moved(at, local, [peer[2] for peer in rows], (q, k, v))
        scalars += more
        if merged is not None and local.moved is not None:
            parts.append(local.moved)
            results.append(merged)
    out, lse = joined(parts, results)
    return tie(out, scalars), lse


def _begun(at: Rank, q: Tensor, k: Tensor, v: Tensor) -> Pending:
    """Keys, values and moved queries on their way to each peer."""
    keys, queries = _rows(at.plan, at.rank, q.device)
    blocks = list(zip(pick(k, keys), pick(v, keys), pick(q, queries), strict=True))
    received = []
    for halo, asked in zip(at.plan.halo[at.rank], at.plan.asked[at.rank], strict=True):
        counts = len(halo), len(halo), len(asked)
        received.append(
            tuple(torch.Size((n, *x.shape[:2], x.shape[3])) for n, x in zip(counts, (k, v, q), strict=True))
        )
    return Pending(Message(tuple(tuple(x.shape for x in peer) for peer in blocks), tuple(received)), blocks, at.group)


def _moved(
    at: Rank, local: Local, theirs: Sequence[Tensor], own: tuple[Tensor, Tensor, Tensor]
) -> tuple[list[Tensor], Result | None]:
    """(scalars of the exchanges, this rank's moved rows over all keys). theirs: rows of each peer, whose parts over
    this rank's keys go back.
    """
    q, k, v = own
    mine = None if local.moved is None else at.attend(q, [(k, v)], local.moved)
    nothing = q[:, :, :0, :1].expand(-1, -1, -1, v.shape[3]), q[:, :, :0, 0].to(_lse_dtype(q))
    made = [
        nothing if part is None else at.partial(rows, k, v, part)
        for rows, part in zip(theirs, local.asked, strict=True)
    ]
    counts = [len(asked[at.rank]) for asked in at.plan.asked]
    scalars, came = [], []
    for blocks in ([out for out, _ in made], [lse.unsqueeze(3) for _, lse in made]):
        sent = [[x.permute(2, 0, 1, 3)] for x in blocks]
        received = tuple((torch.Size((n, *q.shape[:2], blocks[0].shape[3])),) for n in counts)
        scalar, arrived = Pending(Message(tuple((x.shape,) for (x,) in sent), received), sent, at.group).arrived()
        scalars.append(scalar)
        came.append([x.permute(1, 2, 0, 3) for (x,) in arrived])
    return scalars, None if mine is None else _merged(at, mine, list(zip(*came, strict=True)))


def _merged(at: Rank, mine: Result, came: Sequence[tuple[Tensor, Tensor]]) -> Result:
    """Moved rows over this rank's keys, merged with what peers that saw some of them sent back."""
    held, moved = at.plan.shards.tokens[at.rank], at.plan.moved[at.rank]
    outs, lses = [mine[0]], [mine[1]]
    for asked, (out, wide) in zip(at.plan.asked, came, strict=True):
        if not len(asked[at.rank]):
            continue
        places = np.searchsorted(held.places(moved), held.places(asked[at.rank]))
        index = torch.as_tensor(places, device=out.device)
        outs.append(torch.zeros_like(mine[0]).index_copy(2, index, out))
        lses.append(torch.full_like(mine[1], float("-inf")).index_copy(2, index, wide.squeeze(3)))
    return weft.merge(outs, lses)


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


@lru_cache(maxsize=256)
def _rows(plan: Plan, rank: int, device: torch.device) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """(places of the keys, places of the queries) that a rank sends to each peer."""
    held = plan.shards.tokens[rank]
    keys, queries = (
        tuple(kept(partial(torch.as_tensor, held.places(to[rank]), device=device), device) for to in side)
        for side in (plan.halo, plan.asked)
    )
    return keys, queries
