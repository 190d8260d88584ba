"""Ulysses inside a node, and halo between nodes: a rank computes some heads over its node's tokens.

Heads travel by the fast links inside a node. Between nodes, ranks that have the same heads exchange keys as ranks do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor

from weft.distributed.plan import Plan
from weft.distributed.shards import Shards
from weft.torch.distributed.by_heads import heads_of, order_of, to_heads, to_tokens
from weft.torch.distributed.by_tokens import by_tokens
from weft.torch.distributed.ranks import Rank, Result
from weft.torch.distributed.scores import of_heads

_groups: WeakKeyDictionary[Any, dict[int, tuple[Any, Any]]] = WeakKeyDictionary()  # by ranks of a node


def by_nodes(at: Rank, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, with_lse: bool) -> Result:
    """Attention of this rank's tokens; lse is anything if it is not wanted."""
    nodes = at.plan.chosen.nodes
    assert nodes is not None, "this strategy has a plan of nodes"
    size = at.plan.ranks // nodes.ranks
    node, slot = divmod(at.rank, size)
    inside, between = _groups_of(at.group, at.rank, size)
    within = Rank(_inside(at.plan, node, size), inside, slot, at.options)
    order, tokens = order_of(within.plan, q.device), q.shape[2]
    whole = to_heads(within, (q, k, v))
    if order is not None:
        whole = [x.index_select(2, order[0]) for x in whole]
    mine = heads_of(within.plan)[slot][0]
    score = None if at.score is None else of_heads(at.score, mine.start)
    beside = Rank(nodes, between, node, at.options, score, at.drop, mine.start)
    out, lse = by_tokens(beside, whole[0], whole[1], whole[2], None if sinks is None else sinks[mine])

    def back(x: Tensor) -> Tensor:
        return to_tokens(within, x if order is None else x.index_select(2, order[1]), tokens)

    return back(out), back(lse.unsqueeze(3)).squeeze(3) if with_lse else lse


@lru_cache(maxsize=64)
def _inside(plan: Plan, node: int, size: int) -> Plan:
    """The ranks of a node as those of a plan by heads."""
    shards = plan.shards
    return replace(plan, shards=Shards(shards.shape, shards.boxes[node * size : (node + 1) * size], shards.kind))


def _groups_of(group: Any, rank: int, size: int) -> tuple[Any, Any]:
    """(the ranks of this rank's node, those with its place in every node); made at the first call, by all alike."""
    known = _groups.setdefault(group, {})
    if size not in known:
        every = dist.get_process_group_ranks(group)
        node, slot = divmod(rank, size)
        known[size] = (
            dist.new_group(every[node * size : (node + 1) * size], use_local_synchronization=True),
            dist.new_group(every[slot::size], use_local_synchronization=True),
        )
    return known[size]
