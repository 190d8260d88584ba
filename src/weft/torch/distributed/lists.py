"""Which rows a rank sends, gathers, and adds what comes home to: lists of places, made once for a plan and a rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from weft.acsr.tokens import Tokens
from weft.distributed.local import Part, local_of
from weft.distributed.plan import Plan
from weft.pattern.bounds import Ints
from weft.torch.distributed.rows import Places, Rows, rows_at


@dataclass(frozen=True, eq=False)
class Sent:
    """Rows that go to peers, one peer's after the other's. to: how many to each; of: how many come from each. home:
    where what comes back for them is added, all peers' in their order.
    """

    rows: Places
    home: Places
    to: tuple[int, ...]
    of: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Edge:
    """Of a part of received keys: rows of its queries; its keys among what came; where gradients of these belong."""

    rows: Rows
    keys: Rows
    back: Places


class Main(NamedTuple):
    """keys: of a part among the rank's own and then the received ones. own, came: of these two among the part's."""

    keys: Places
    own: Places
    came: Places


@dataclass(frozen=True, eq=False)
class Lists:
    """keys, queries: that are sent. edges: of the parts. covered: whether they have all that came. main: of the main
    part, where its keys are not the rank's own.
    """

    keys: Sent
    queries: Sent
    edges: tuple[Edge, ...]
    covered: bool
    main: Main | None


@lru_cache(maxsize=256)
def lists_of(plan: Plan, rank: int, device: torch.device) -> Lists:
    """The lists of one rank."""
    local, held = local_of(plan, rank), len(plan.shards.tokens[rank])
    count = sum(map(len, plan.halo[rank]))
    edges = [_edge(part, held, count, device) for part in local.edges]
    covered = sum(edge.back.into.numel() for edge in edges) == count
    main = None
    if not isinstance(local.main.keys, str):
        keys = local.main.keys
        places = np.where(keys < held + count, keys, -1)
        own = _inverse(places, held + count)
        main = Main(*(Places.of(x, device) for x in (places, own[:held], own[held:])))
    sent = [_sent(plan, rank, side, device) for side in (plan.halo, plan.asked)]
    return Lists(sent[0], sent[1], tuple(edges), covered, main)


def _sent(plan: Plan, rank: int, side: Sequence[Sequence[Tokens]], device: torch.device) -> Sent:
    held = plan.shards.tokens[rank]
    rows = [held.places(side[p][rank]) for p in range(plan.ranks)]
    every = np.concatenate(rows)
    into, which = np.unique(every, return_inverse=True)
    order = np.argsort(which, kind="stable")
    first = np.searchsorted(which[order], np.arange(into.size))
    column = np.arange(every.size) - first[which[order]]
    home = np.full((into.size, max(1, int(column.max(initial=0)) + 1)), -1, np.int64)
    home[which[order], column] = order
    return Sent(
        Places.of(every, device), Places.of(home, device, into), tuple(map(len, rows)), tuple(map(len, side[rank]))
    )


def _edge(part: Part, held: int, count: int, device: torch.device) -> Edge:
    places = np.asarray(part.keys) - held
    places = np.where(places < count, places, -1)
    real = np.flatnonzero(places >= 0)
    return Edge(rows_at(part.rows, device), rows_at(places, device), Places.of(real, device, places[real]))


def _inverse(places: Ints, size: int) -> Ints:
    """Where each of so many stands among places; -1: nowhere."""
    found = np.full(size, -1, np.int64)
    real = np.flatnonzero(places >= 0)
    found[places[real]] = real
    return found
