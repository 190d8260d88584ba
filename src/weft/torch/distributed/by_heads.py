"""Ulysses: each rank computes some heads over all tokens. q, k and v travel there, out and lse come back."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

import weft
from weft.distributed.plan import Plan
from weft.torch.distributed.exchange import Message, Pending, tensor_of, tie
from weft.torch.distributed.ranks import Rank, Result


def by_heads(at: Rank, q: Tensor, k: Tensor, v: Tensor) -> Result:
    """Attention of this rank's tokens."""
    order, tokens = _order(at.plan, q.device), q.shape[2]
    scalar, whole = _to_heads(at, (q, k, v))
    if order is not None:
        whole = [x.index_select(2, order[0]) for x in whole]
    sinks = at.options["sinks"]
    mine = heads_of(at.plan)[at.rank][0]
    options = {**at.options, "sinks": None if sinks is None else sinks[mine]}
    q, k, v = whole
    out, lse = weft.attention(q, k, v, at.plan.pattern, return_lse=True, **options)
    scalars, found = [scalar], []
    for x in (out, lse.unsqueeze(3)):
        scalar, back = _to_tokens(at, x if order is None else x.index_select(2, order[1]), tokens)
        scalars.append(scalar)
        found.append(back)
    return tie(found[0], scalars), found[1].squeeze(3)


def heads_of(plan: Plan) -> list[tuple[slice, slice]]:
    """For each rank its heads of q, and those of k and v that these read; a key head may go to several ranks."""
    own, group = plan.heads.q // plan.ranks, plan.heads.q // plan.heads.kv
    found = []
    for r in range(plan.ranks):
        first = r * own // group
        found.append((slice(r * own, (r + 1) * own), slice(first, max(first + 1, (r + 1) * own // group))))
    return found


def _to_heads(at: Rank, tensors: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """(the exchange's scalar, q, k and v of this rank's heads with the tokens of all ranks, one after the other)."""
    q, k, v = tensors
    blocks = [[_rows_first(x) for x in (q[:, of_q], k[:, of_kv], v[:, of_kv])] for of_q, of_kv in heads_of(at.plan)]
    shapes = [x.shape for x in blocks[at.rank]]
    received = tuple(tuple(torch.Size((len(held), *shape[1:])) for shape in shapes) for held in at.plan.shards.tokens)
    message = Message(tuple(tuple(x.shape for x in peer) for peer in blocks), received)
    scalar, came = Pending(message, blocks, at.group).arrived()
    return scalar, [_heads_first(torch.cat([peer[i] for peer in came])) for i in range(3)]


def _to_tokens(at: Rank, x: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """(the exchange's scalar, all heads of this rank's tokens), of some heads of all tokens."""
    blocks = [[_rows_first(some)] for some in x.split([len(held) for held in at.plan.shards.tokens], dim=2)]
    shape = torch.Size((tokens, x.shape[0], x.shape[1], x.shape[3]))
    message = Message(tuple((one.shape,) for (one,) in blocks), ((shape,),) * at.plan.ranks)
    scalar, came = Pending(message, blocks, at.group).arrived()
    return scalar, _heads_first(torch.cat([one for (one,) in came], dim=2))


def _rows_first(x: Tensor) -> Tensor:
    return x.permute(2, 0, 1, 3)


def _heads_first(x: Tensor) -> Tensor:
    return x.permute(1, 2, 0, 3)


@lru_cache(maxsize=64)
def _order(plan: Plan, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Where the tokens of the whole stand among those of all ranks, one after the other, and back; None: in place."""
    tokens = np.concatenate([held.array() for held in plan.shards.tokens])
    if (np.diff(tokens) == 1).all():
        return None
    return tensor_of(np.argsort(tokens), device), tensor_of(tokens, device)
