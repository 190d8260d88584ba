"""Each rank computes the rows it holds: keys come from peers, and rows that many keys see go to where these are.

Results of parts are merged in place, and gradients of each part start from the merged out and lse. No part's rows are
copied, and a peer touches only the rows that it adds to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.distributed.local import Part, local_of
from weft.distributed.plan import Plan
from weft.torch.distributed import moved
from weft.torch.distributed.exchange import Peers, Pending, Rows, Sent, added, rows_first, taken, unpacked
from weft.torch.distributed.ranks import EVERY, Rank, Result, gathered, merged_into, rows_of, scattered
from weft.torch.distributed.scores import with_tables

Three = tuple[Tensor, Tensor, Tensor]


def by_tokens(at: Rank, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Result:
    """Attention of this rank's tokens. What needs nothing of others is computed while keys are on their way."""
    if at.plan.silent:
        return at.attend((q, k, v), local_of(at.plan, at.rank).main, sinks)
    out, lse = _Layer.apply(at, q, k, v, sinks, *(() if at.score is None else at.score.tables))
    return out, lse


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, at: Rank, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *tables: Tensor) -> Result:
        ctx.at, ctx.wanted = at, sinks is not None and ctx.needs_input_grad[4]
        ctx.set_materialize_grads(False)
        work, moves = _Work(at, (q, k, v)), moved.are_any(at.plan)
        pending = work.send()
        main, whole = work.local.main, None
        if isinstance(main.keys, str):
            whole = at.attend((q, k, v), main, sinks)
        came = work.unpacked(pending.arrived())
        partial = moved.partial(at, (q, k, v), came) if moves else []
        back = moved.send(at, q, partial) if moves else None
        if whole is None:
            whole = at.attend((q, *work.keys(came)), main, sinks)
        for part in work.local.edges:
            rows = rows_of(part, q.device)
            merged_into(whole, rows, [(EVERY, at.attend((taken(q, rows), *work.received(part, came)), part))])
        arrived = [] if back is None else moved.merge(at, whole, back)
        kept = [x for pair in (*partial, *arrived) for x in pair]
        ctx.save_for_backward(q, k, v, sinks, *whole, pending.buffer, *tables, *kept)
        return whole

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
        q, k, v, sinks, out, lse, buffer, *kept = ctx.saved_tensors
        at, kept = _with_tables(ctx.at, kept)
        work, results, grads = _Work(at, (q, k, v)), (out, lse), (dout, dlse)
        flat = torch.zeros_like(buffer)
        came, back = work.unpacked(buffer), work.unpacked(flat)
        pairs = list(zip(kept[::2], kept[1::2], strict=True))
        partial, arrived = pairs[: at.plan.ranks], pairs[at.plan.ranks :]
        pending = moved.send_gradients(at, results, grads, arrived) if arrived else None
        of_rows = [work.of_edge(part, results, grads, (came, back)) for part in work.local.edges]
        of_keys = [] if pending is None else moved.of_asked(at, (q, k, v), partial, pending, (came, back))
        main = work.local.main
        if isinstance(main.keys, str):
            home = work.send_back(flat)  # on its way while the rank's own keys are computed
            dq, dk, dv, dsinks, of_tables = at.gradients((q, k, v), main, results, grads, (sinks, ctx.wanted))
        else:
            given = q, *work.keys(came)
            dq, *of_all, dsinks, of_tables = at.gradients(given, main, results, grads, (sinks, ctx.wanted))
            dk, dv = torch.zeros_like(k), torch.zeros_like(v)
            for i, (grad, own) in enumerate(zip(of_all, (dk, dv), strict=True)):
                scattered(grad, main, [own, *(peer[i] for peer in back)])
            home = work.send_back(flat)
        for rows, grad, _ in of_rows:
            added(dq, rows, grad)
        for more in of_keys:
            dk, dv = dk + more[0], dv + more[1]
        work.add((dq, dk, dv), home)
        dtables = _summed([of_tables, *(x[2] for x in of_rows), *(x[2] for x in of_keys)], ctx.needs_input_grad[5:])
        return None, dq, dk, dv, dsinks, *dtables


def _with_tables(at: Rank, kept: Sequence[Tensor]) -> tuple[Rank, Sequence[Tensor]]:
    """(the rank with the tables that were saved, what was saved behind them)."""
    if at.score is None:
        return at, kept
    count = len(at.score.tables)
    return replace(at, score=with_tables(at.score, tuple(kept[:count]))), kept[count:]


def _summed(parts: Sequence[Any], wanted: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of tables, added over parts."""
    return [sum(part[i] for part in parts) if want else None for i, want in enumerate(wanted)]


class _Work:
    """A rank's tensors and what travels of them."""

    def __init__(self, at: Rank, tensors: Three) -> None:
        self.at, self.tensors = at, tensors
        self.local = local_of(at.plan, at.rank)
        self.of_keys, self.of_queries = _rows(at.plan, at.rank, tensors[0].device)

    def send(self) -> Pending:
        """Keys, values and moved queries on their way to each peer."""
        q, k, v = self.tensors
        shapes = self._sent()
        flat = k.new_empty(sum(prod(shape) for peer in shapes for shape in peer))
        blocks = unpacked(flat, shapes)
        for i, (of, x) in enumerate(((self.of_keys, k), (self.of_keys, v), (self.of_queries, q))):
            of.write(x, [peer[i] for peer in blocks])
        return Pending(flat, shapes, self._received(), self.at.group)

    def send_back(self, flat: Tensor) -> Pending:
        """Gradients of what came on their way to where it came from."""
        return Pending(flat, self._received(), self._sent(), self.at.group)

    def _sent(self) -> list[list[torch.Size]]:
        """Shapes of the keys, values and moved queries that go to each peer."""
        q, k, v = self.tensors
        counts = zip(self.of_keys.counts, self.of_keys.counts, self.of_queries.counts, strict=True)
        return [[rows_first(x, n) for n, x in zip(each, (k, v, q), strict=True)] for each in counts]

    def _received(self) -> list[list[torch.Size]]:
        """Shapes of the keys, values and moved queries that come from each peer."""
        (q, k, v), plan, rank = self.tensors, self.at.plan, self.at.rank
        counts = [
            (len(halo), len(halo), len(rows)) for halo, rows in zip(plan.halo[rank], plan.asked[rank], strict=True)
        ]
        return [[rows_first(x, n) for n, x in zip(each, (k, v, q), strict=True)] for each in counts]

    def unpacked(self, flat: Tensor) -> list[list[Tensor]]:
        """By peer keys, values and moved queries (B, H, rows, D)."""
        return [[x.permute(1, 2, 0, 3) for x in peer] for peer in unpacked(flat, self._received())]

    def keys(self, came: Peers) -> tuple[Tensor, Tensor]:
        """All keys and values of the main part: the rank's own and those that came."""
        (_, k, v), main = self.tensors, self.local.main
        return gathered([k, *(peer[0] for peer in came)], main), gathered([v, *(peer[1] for peer in came)], main)

    def received(self, part: Part, came: Peers) -> tuple[Tensor, Tensor]:
        """Keys and values of an edge, which came all."""
        own = self.tensors[1].shape[2]
        return gathered([peer[0] for peer in came], part, own), gathered([peer[1] for peer in came], part, own)

    def of_edge(
        self, part: Part, results: Result, grads: tuple[Tensor | None, Tensor | None], peers: tuple[Peers, Peers]
    ) -> tuple[Rows, Tensor, Any]:  # fmt: skip
        """(rows, their dq, dtables) of received keys. peers: what came, and where its gradients are added."""
        (q, k, _), (came, back) = self.tensors, peers
        rows = rows_of(part, q.device)
        given = taken(q, rows), *self.received(part, came)
        some = taken(results[0], rows), taken(results[1], rows)
        both = [None if x is None else taken(x, rows) for x in grads]
        dq, dk, dv, _, dtables = self.at.gradients(given, part, some, both)
        for i, grad in enumerate((dk, dv)):
            scattered(grad, part, [peer[i] for peer in back], behind=k.shape[2])
        return rows, dq, dtables

    def add(self, grads: Three, home: Pending) -> None:
        """Add what comes back to gradients of q, k, v."""
        dq, dk, dv = grads
        of_k, of_v, of_q = zip(*unpacked(home.arrived(), home.shapes), strict=True)
        self.of_keys.add(dk, of_k)
        self.of_keys.add(dv, of_v)
        self.of_queries.add(dq, of_q)


@lru_cache(maxsize=256)
def _rows(plan: Plan, rank: int, device: torch.device) -> tuple[Sent, Sent]:
    """(places of the keys, places of the queries) that a rank sends to each peer."""
    held = plan.shards.tokens[rank]
    keys, queries = (
        Sent.of([held.places(side[p][rank]) for p in range(plan.ranks)], device) for side in (plan.halo, plan.asked)
    )
    return keys, queries
