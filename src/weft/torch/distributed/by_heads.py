"""Ulysses: each rank computes some heads over all tokens. q, k and v travel there, out and lse come back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from weft.distributed.plan import Plan
from weft.torch.call import attend
from weft.torch.distributed.exchange import travelled
from weft.torch.distributed.ranks import Rank, Result
from weft.torch.distributed.scores import extras_of, of_heads, whole_of_heads
from weft.torch.extras import Extras


def by_heads(at: Rank, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, with_lse: bool) -> Result:
    """Attention of this rank's tokens; lse is anything if it is not wanted."""
    order, tokens = order_of(at.plan, q.device), q.shape[2]
    whole = to_heads(at, (q, k, v))
    if order is not None:
        whole = [x.index_select(2, order[0]) for x in whole]
    mine = heads_of(at.plan)[at.rank][0]
    q, k, v = whole
    rows = None if sinks is None else sinks[mine], None
    out, lse = attend((q, k, v), at.plan.pattern, rows, at.given, True, _extras(at, mine.start, q))

    def back(x: Tensor) -> Tensor:
        return to_tokens(at, x if order is None else x.index_select(2, order[1]), tokens)

    return back(out), back(lse.unsqueeze(3)).squeeze(3) if with_lse else lse


def _extras(at: Rank, first: int, q: Tensor) -> Extras | None:
    """Score functions and dropout of heads from `first` on."""
    if at.score is None and at.drop is None:
        return None
    score = None if at.score is None else of_heads(at.score, first)
    return extras_of(score, at.drop, whole_of_heads(first, q.shape[2], q.device) if at.drop else None)


def heads_of(plan: Plan) -> list[tuple[slice, slice]]:
    """For each rank its heads of q, and those of k and v that these read; a key head may go to several ranks."""
    own, group = plan.heads.q // plan.ranks, plan.heads.q // plan.heads.kv
    found = []
    for r in range(plan.ranks):
        first = r * own // group
        found.append((slice(r * own, (r + 1) * own), slice(first, max(first + 1, (r + 1) * own // group))))
    return found


def to_heads(at: Rank, tensors: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    """q, k and v of this rank's heads with the tokens of all ranks, one after the other."""
    sides = zip(*heads_of(at.plan), strict=True)
    of_q, of_kv = (list(heads) for heads in sides)
    each = [_heads(x, heads) for x, heads in zip(tensors, (of_q, of_kv, of_kv), strict=True)]
    blocks = [list(peer) for peer in zip(*each, strict=True)]
    shapes = [x.shape for x in blocks[at.rank]]
    received = [[torch.Size((*x[:2], len(held), x[3])) for x in shapes] for held in at.plan.shards.tokens]
    came = travelled(blocks, received, at.group)
    return [torch.cat([peer[i] for peer in came], dim=2) for i in range(3)]


def _heads(x: Tensor, heads: list[slice]) -> Sequence[Tensor]:
    """Some heads for each rank: at once where no two ranks have the same, since gradients are then one copy."""
    sizes = [of.stop - of.start for of in heads]
    return x.split(sizes, dim=1) if sum(sizes) == x.shape[1] else [x[:, of] for of in heads]


def to_tokens(at: Rank, x: Tensor, tokens: int) -> Tensor:
    """All heads of this rank's tokens, of some heads of all tokens."""
    blocks = [[some] for some in x.split([len(held) for held in at.plan.shards.tokens], dim=2)]
    shape = torch.Size((x.shape[0], x.shape[1], tokens, x.shape[3]))
    came = travelled(blocks, [[shape]] * at.plan.ranks, at.group)
    return torch.cat([one for (one,) in came], dim=1)


@lru_cache(maxsize=64)
def order_of(plan: Plan, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Where ascending tokens stand among those of all ranks, one after the other, and back; None: in place."""
    tokens = np.concatenate([held.array() for held in plan.shards.tokens])
    if (np.diff(tokens) > 0).all():
        return None
    order = np.argsort(tokens)
    return torch.as_tensor(order, device=device), torch.as_tensor(np.argsort(order), device=device)
