"""Each rank computes the rows it holds: keys come from peers, and rows that many keys see go to where these are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

import weft
from weft.distributed.local import Local, local_of
from weft.distributed.plan import Plan
from weft.torch.distributed.exchange import Message, Pending, Sent, pick, tensor_of, tie
from weft.torch.distributed.ranks import Rank, Result, joined


def alone(at: Rank, q: Tensor, k: Tensor, v: Tensor) -> Result:
    """Attention of this rank's tokens where no rank needs anything of others."""
    local = local_of(at.plan, at.rank)
    return joined(local.before, [at.attend(q, [(k, v)], part) for part in local.before])


def by_tokens(at: Rank, q: Tensor, k: Tensor, v: Tensor) -> Result:
    """Attention of this rank's tokens. Parts that need nothing of others are computed while keys are on their way."""
    local = local_of(at.plan, at.rank)
    (q, k, v), pending = _begun(at, q, k, v)
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


def _begun(at: Rank, q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Pending]:
    """((q, k, v), keys, values and moved queries on their way to each peer)."""
    keys, queries = _rows(at.plan, at.rank, q.device)
    (k, of_k), (v, of_v) = pick(k, keys), pick(v, keys)
    q, of_q = (
        pick(q, queries)
        if any(map(len, at.plan.moved))
        else (q, (q.new_empty((0, *q.shape[:2], q.shape[3])),) * at.plan.ranks)
    )
    blocks = list(zip(of_k, of_v, of_q, strict=True))
    received = []
    for halo, asked in zip(at.plan.halo[at.rank], at.plan.asked[at.rank], strict=True):
        counts = len(halo), len(halo), len(asked)
        received.append(
            tuple(torch.Size((n, *x.shape[:2], x.shape[3])) for n, x in zip(counts, (k, v, q), strict=True))
        )
    message = Message(tuple(tuple(x.shape for x in peer) for peer in blocks), tuple(received))
    return (q, k, v), Pending(message, blocks, at.group)


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
    outs, lses = [mine[0]], [mine[1]]
    for index, (out, wide) in zip(_among_moved(at.plan, at.rank, mine[0].device), came, strict=True):
        if index is None:
            continue
        outs.append(torch.zeros_like(mine[0]).index_copy(2, index, out))
        lses.append(torch.full_like(mine[1], float("-inf")).index_copy(2, index, wide.squeeze(3)))
    return weft.merge(outs, lses)


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


@lru_cache(maxsize=256)
def _among_moved(plan: Plan, rank: int, device: torch.device) -> tuple[Tensor | None, ...]:
    """For each peer where the rows that it computed a part of are among the moved ones; None: it computed none."""
    held = plan.shards.tokens[rank]
    moved = held.places(plan.moved[rank])
    rows = [asked[rank] for asked in plan.asked]
    return tuple(tensor_of(np.searchsorted(moved, held.places(x)), device) if len(x) else None for x in rows)


@lru_cache(maxsize=256)
def _rows(plan: Plan, rank: int, device: torch.device) -> tuple[Sent, Sent]:
    """(places of the keys, places of the queries) that a rank sends to each peer."""
    held = plan.shards.tokens[rank]
    keys, queries = (
        Sent.of([held.places(side[p][rank]) for p in range(plan.ranks)], device) for side in (plan.halo, plan.asked)
    )
    return keys, queries
