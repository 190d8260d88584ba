"""The last tokens against a cache of keys, on the CPU: every row by its formula, as `split_kv` kernels have it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.kernels.options import ACCUMULATE, rows_in_order_of
from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool
from weft.planning.heads import Heads
from weft.planning.rowwise import RowPlan, RowShare
from weft.torch.paged_keys import Pages

Caches = tuple[Tensor, Tensor, Tensor]
Rows = tuple[Tensor | None, Tensor | None]  # sinks, slopes


class Scores(NamedTuple):
    """What scores become."""

    scale: float
    softcap: float | None


class Counted(NamedTuple):
    """Of one batch row: keys so far, the token of the first query, and where limited how many tokens a query sees.

    pages: where its keys lie in pages, the row of the block table.
    """

    keys: int
    offset: int
    window: int | None
    pages: Pages | None = None


class Masked(NamedTuple):
    """(M, keys) of one batch row and plan: which pairs are seen, and how far their tokens are apart."""

    seen: Tensor
    distance: Tensor


def attend(
    plan: RowPlan, scores: Scores, caches: Caches, counted: list[Counted], rows: Rows, ring: bool
) -> tuple[Tensor, Tensor]:
    """(out (B, Hq, M, Dv), lse (B, Hq, M)) of q and the caches; counted: of each batch row. See `decode_attention`.

    Keys that no query sees are not read.
    """
    q, k, v = caches
    out = rows_in_order_of(q, v.shape[3], q.dtype)
    lse = torch.empty(q.shape[:3], dtype=ACCUMULATE[q.dtype])
    for batch, one in enumerate(counted):
        pages = one.pages
        room = k.shape[2] if pages is None else pages.room
        query, place, key = tokens_of(one, q.shape[2], room, ring)
        for share in plan.shares:
            masked, some = _masked(share, one, query, key)
            at = (batch, torch.from_numpy(place[some])) if pages is None else pages.of(place[some])
            for heads in [x for x in share.heads if x.batch[0] <= batch < x.batch[1]]:
                for kv in range(*heads.kv):
                    mine = _query_heads(heads, kv, plan.problem.group)
                    tensors = q[batch, mine], k[at[0], kv, at[1]], v[at[0], kv, at[1]]
                    sinks, slopes = (x if x is None else x[mine] for x in rows)
                    found = _rows(tensors, masked, scores, (sinks, slopes))
                    out[batch, mine], lse[batch, mine] = found[0].to(q.dtype), found[1]
    return out, lse


def tokens_of(one: Counted, m: int, capacity: int, ring: bool) -> tuple[Ints, Ints, Ints]:
    """(tokens of queries (M,), places of the cache that hold keys, their tokens)"""
    query = one.offset + np.arange(m)
    if not ring:
        place = np.arange(max(0, min(one.keys, capacity)))
        return query, place, place
    place = np.arange(capacity)
    key = one.keys - 1 - (one.keys - 1 - place) % capacity
    return query, place[key >= 0], key[key >= 0]


def _masked(share: RowShare, one: Counted, query: Ints, key: Ints) -> tuple[Masked, NDBool]:
    """What is seen of the keys that some query sees, and which of all keys these are."""
    i, k = query[:, None], key[None, :]
    seen = np.zeros((query.size, key.size), np.bool_)
    for relation in share.relations:
        seen |= relation.contains(i, k)
    seen &= i >= 0
    if one.window is not None:
        seen &= k > i - one.window
    some: NDBool = np.logical_or.reduce(seen, 0)
    return Masked(torch.from_numpy(seen[:, some]), torch.from_numpy(np.abs(i - k)[:, some])), some


def _query_heads(heads: Heads, kv: int, group: int) -> slice:
    return slice(kv * group + heads.group[0], kv * group + heads.group[1])


def _rows(qkv: Caches, masked: Masked, scores: Scores, rows: Rows) -> tuple[Tensor, Tensor]:
    """(out, lse) of query heads (heads, M, D) that share keys (keys, D)."""
    wide = ACCUMULATE[qkv[0].dtype]
    q, k, v = (x.to(wide) for x in qkv)
    s = (q @ k.T) * scores.scale
    if scores.softcap is not None:
        s = torch.tanh(s / scores.softcap) * scores.softcap
    sinks, slopes = rows
    if slopes is not None:
        s = s - slopes.to(wide)[:, None, None] * masked.distance.to(wide)
    s = s.masked_fill(~masked.seen, -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.to(wide)[:, None, None].expand(*s.shape[:2], 1)], dim=2)
    lse = torch.logsumexp(s, 2) if s.shape[2] else s.new_full(s.shape[:2], -torch.inf)
    weights = (s - lse.clamp(min=torch.finfo(wide).min)[..., None]).exp()
    return weights[..., : k.shape[0]] @ v, lse
