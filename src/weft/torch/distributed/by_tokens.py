"""Each rank computes the rows it holds: keys come from peers, and rows that many keys see go to where these are.

Results of parts are merged in place, and gradients of each part start from the merged out and lse. No part's rows are
copied, and a peer touches only the rows that it adds to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.distributed.local import Part, local_of, pieces_of
from weft.torch.distributed import moved
from weft.torch.distributed.exchange import Pending
from weft.torch.distributed.lists import Edge, lists_of
from weft.torch.distributed.ranks import Rank, Result
from weft.torch.distributed.rows import EVERY, Rows, added, merged_into, take, taken
from weft.torch.distributed.scores import of_heads, with_tables

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
        pieces = _pieces(at, (q, k, v))
        sent = [work.send() for work, _ in pieces]
        made = [_attended(work, pair, _of(sinks, heads)) for (work, heads), pair in zip(pieces, sent, strict=True)]
        whole = _joined([out for (out, _), _ in made]), _joined([lse for (_, lse), _ in made])
        kept = [x for _, kept in made for x in kept]
        rows = None if sent[0][1] is None else sent[0][1].buffer
        buffers = [keys.buffer for keys, _ in sent]
        ctx.save_for_backward(q, k, v, sinks, *whole, rows, *buffers, *tables, *kept)
        return whole

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
        q, k, v, sinks, out, lse, rows, *kept = ctx.saved_tensors
        count = pieces_of(ctx.at.plan)
        at, rest = _with_tables(ctx.at, kept[count:])
        made = []
        for (work, heads), buffer in zip(_pieces(at, (q, k, v)), kept[:count], strict=True):
            results, grads = (_of(out, heads), _of(lse, heads)), (_of(dout, heads), _of(dlse, heads))
            saved = _Saved(results, grads, (_of(sinks, heads), ctx.wanted), (buffer, rows), rest)
            made.append(_gradients(work, saved))
        # what comes home is added when all is computed
        dq, dk, dv = (_joined(list(x)) for x in zip(*(finish() for _, _, finish in made), strict=True))
        dsinks = torch.cat([x for x, _, _ in made]) if ctx.wanted else None
        every = [x for _, some, _ in made for x in some if x is not None]
        return None, dq, dk, dv, dsinks, *_summed(every, ctx.needs_input_grad[5:])


# ---- a piece: some heads ---------------------------------------------------------------------------------------------
class _Saved(NamedTuple):
    """Of some heads: (out, lse) and their gradients; sinks, and whether their gradient is wanted; keys with values and
    queries that came; what `moved` kept.
    """

    results: Result
    grads: tuple[Tensor | None, Tensor | None]
    sinks: tuple[Tensor | None, bool]
    came: tuple[Tensor, Tensor | None]
    kept: Sequence[Tensor]


def _pieces(at: Rank, tensors: Three) -> list[tuple[_Work, slice]]:
    """The heads in the groups that travel alone: while one's keys are on their way, others are computed."""
    count, (q, k, v) = pieces_of(at.plan), tensors
    if count == 1:
        return [(_Work(at, tensors), slice(None))]
    found = []
    for n in range(count):
        of_q, of_k = (slice(x.shape[1] * n // count, x.shape[1] * (n + 1) // count) for x in (q, k))
        score = None if at.score is None else of_heads(at.score, of_q.start)
        one = replace(at, score=score, head=at.head + of_q.start)
        found.append((_Work(one, (q[:, of_q], k[:, of_k], v[:, of_k])), of_q))
    return found


def _of(x: Tensor | None, heads: slice) -> Any:
    """Some heads of (B, H, ...), or of sinks (H,)."""
    return x if x is None else x[heads] if x.ndim == 1 else x[:, heads]


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


def _attended(work: _Work, sent: tuple[Pending, Pending | None], sinks: Tensor | None) -> tuple[Result, list[Tensor]]:
    """((out, lse), what the backward needs of moved rows)."""
    at, (q, k, v), (keys, queries) = work.at, work.tensors, sent
    main = local_of(at.plan, at.rank).main
    whole = None
    if isinstance(main.keys, str):
        keys.begins_first()
        whole = at.attend((q, k, v), main, sinks)
    partial = [] if queries is None else moved.partial(at, work.queries(queries.arrived()), (k, v))
    back = None if queries is None else moved.send(at, q, partial)
    came = keys.arrived()
    if whole is None:
        whole = at.attend((q, *work.all_keys(came)), main, sinks)
    for part, edge in work.edges():
        given = taken(q, edge.rows), *work.halves(came, edge.keys)
        merged_into(whole, edge.rows, at.attend(given, part))
    arrived = [] if back is None else moved.merge(at, whole, back)
    return whole, [x for pair in (*partial, *arrived) for x in pair]


def _gradients(work: _Work, saved: _Saved) -> tuple[Tensor | None, list[Any], Callable[[], Three]]:
    """(dsinks, dtables of each part, what adds what comes home and returns dq, dk and dv)."""
    at, (q, k, v), (buffer, rows), pair = work.at, work.tensors, saved.came, (saved.results, saved.grads)
    main = local_of(at.plan, at.rank).main
    flat = torch.empty_like(buffer) if work.lists.covered else torch.zeros_like(buffer)
    # exchanges have one order on all ranks, whatever each of them computes meanwhile
    pending = None if rows is None else moved.send_gradients(at, *pair, saved.kept)
    of_rows = [work.of_edge(*each, pair, (buffer, flat)) for each in work.edges()]
    of_asked = [] if pending is None else moved.of_asked(at, work.queries(rows), (k, v), saved.kept, pending)
    of_queries = work.send_queries_back([x[0] for x in of_asked]) if of_asked else None
    if isinstance(main.keys, str):
        home = work.send_back(flat)  # on its way while the rank's own keys are computed
        home.begins_first()
        dq, dk, dv, dsinks, of_tables = at.gradients((q, k, v), main, *pair, saved.sinks)
    else:
        dq, *of_all, dsinks, of_tables = at.gradients((q, *work.all_keys(buffer)), main, *pair, saved.sinks)
        dk, dv = work.own(of_all, flat)
        home = work.send_back(flat)

    def finish() -> Three:
        for edge, grad, _ in of_rows:
            added(dq, edge.rows, grad)
        for more in of_asked:
            for grad, part in zip((dk, dv), more[1:3], strict=True):
                if part is not None:
                    grad.add_(part)
        if of_queries is not None:
            work.add_queries(dq, of_queries)
        work.add((dk, dv), home)
        return dq, dk, dv

    return dsinks, [of_tables, *(x[2] for x in of_rows), *(x[3] for x in of_asked)], finish


# ---- score functions' tables -----------------------------------------------------------------------------------------
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
    """A rank's tensors and what travels of them. A token's keys and values travel as one row (B, Hkv, D + Dv)."""

    def __init__(self, at: Rank, tensors: Three) -> None:
        self.at, self.tensors = at, tensors
        self.lists = lists_of(at.plan, at.rank, tensors[0].device)
        q, k, v = tensors
        self.of_key, self.of_query = prod(k.shape[:2]) * (k.shape[3] + v.shape[3]), prod(q.shape[:2]) * q.shape[3]

    # ---- what travels
    def send(self) -> tuple[Pending, Pending | None]:
        """Keys with values, and moved queries where there are any, on their way to each peer."""
        (q, k, v), lists = self.tensors, self.lists
        flat = k.new_empty(sum(lists.keys.to) * self.of_key)
        for x, rows in zip((k, v), self.halves(flat), strict=True):
            take(rows, (x,), lists.keys.rows)
        keys = self._pending(flat, self.of_key, lists.keys.to, lists.keys.of)
        if not moved.are_any(self.at.plan):
            return keys, None
        flat = q.new_empty(sum(lists.queries.to) * self.of_query)
        take(self.rows(flat, q), (q,), lists.queries.rows)
        return keys, self._pending(flat, self.of_query, lists.queries.to, lists.queries.of)

    def send_back(self, flat: Tensor) -> Pending:
        """Gradients of keys and values that came, on their way to where these came from."""
        return self._pending(flat, self.of_key, self.lists.keys.of, self.lists.keys.to)

    def send_queries_back(self, grads: Sequence[Tensor]) -> Pending:
        """Gradients of queries that came from each peer, on their way to where these came from."""
        flat = torch.cat([x.permute(2, 0, 1, 3).flatten() for x in grads])
        return self._pending(flat, self.of_query, self.lists.queries.of, self.lists.queries.to)

    def _pending(self, flat: Tensor, width: int, to: Sequence[int], of: Sequence[int]) -> Pending:
        return Pending(flat, [n * width for n in to], [n * width for n in of], self.at.group)

    def rows(self, flat: Tensor, like: Tensor) -> Tensor:
        """Rows that travel as (B, H, rows, D)."""
        shape = *like.shape[:2], like.shape[3]
        return flat.view(flat.numel() // prod(shape), *shape).permute(1, 2, 0, 3)

    def halves(self, flat: Tensor, at: Rows = EVERY) -> Sequence[Tensor]:
        """Of keys and values that travel the keys (B, Hkv, rows, D) and the values (B, Hkv, rows, Dv); or some rows."""
        _, k, v = self.tensors
        rows = flat.view(flat.numel() // self.of_key, *k.shape[:2], k.shape[3] + v.shape[3]).permute(1, 2, 0, 3)
        return taken(rows, at).split((k.shape[3], v.shape[3]), dim=3)

    def queries(self, flat: Tensor) -> Sequence[Tensor]:
        """By peer the queries that came (B, Hq, rows, D)."""
        return self.rows(flat, self.tensors[0]).split(self.lists.queries.of, dim=2)

    # ---- parts
    def edges(self) -> Iterator[tuple[Part, Edge]]:
        """The parts of received keys, with their lists."""
        return zip(local_of(self.at.plan, self.at.rank).edges, self.lists.edges, strict=True)

    def all_keys(self, came: Tensor) -> list[Tensor]:
        """Keys and values of the main part: the rank's own and those that came."""
        assert self.lists.main is not None
        places, found = self.lists.main.keys, []
        for x, y in zip(self.tensors[1:], self.halves(came), strict=True):
            found.append(x.new_empty((*x.shape[:2], len(places.into), x.shape[3])))
            take(found[-1], (x, y), places)
        return found

    def of_edge(
        self, part: Part, edge: Edge, results: tuple[Result, Any], flat: tuple[Tensor, Tensor]
    ) -> tuple[Edge, Tensor, Any]:  # fmt: skip
        """(edge, dq of its rows, dtables). results: (out, lse) and their gradients; flat: keys and values that came,
        and where their gradients are written.
        """
        given = taken(self.tensors[0], edge.rows), *self.halves(flat[0], edge.keys)
        some, both = ([None if x is None else taken(x, edge.rows) for x in pair] for pair in results)
        dq, *of_keys, _, dtables = self.at.gradients(given, part, (some[0], some[1]), both)
        for rows, grad in zip(self.halves(flat[1]), of_keys, strict=True):
            take(rows, (grad,), edge.back)
        return edge, dq, dtables

    def own(self, grads: Sequence[Tensor], flat: Tensor) -> list[Tensor]:
        """Gradients of the rank's own keys and values, of those of the main part; those of others go into flat."""
        assert self.lists.main is not None
        found = []
        for x, grad, rows in zip(self.tensors[1:], grads, self.halves(flat), strict=True):
            found.append(torch.empty_like(x))
            take(found[-1], (grad,), self.lists.main.own)
            take(rows, (grad,), self.lists.main.came)
        return found

    def add(self, grads: Sequence[Tensor], home: Pending) -> None:
        """Add what comes back to gradients of keys and values."""
        for grad, rows in zip(grads, self.halves(home.arrived()), strict=True):
            take(grad, (rows,), self.lists.keys.home, adds=True)

    def add_queries(self, dq: Tensor, home: Pending) -> None:
        """Add what comes back to gradients of queries."""
        take(dq, (self.rows(home.arrived(), dq),), self.lists.queries.home, adds=True)
