"""Attention over a sequence that the ranks of a process group hold together, on torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import weft
from weft.distributed.agreement import agreed
from weft.distributed.exchange import Message, Pending, pick, tie
from weft.distributed.local import Local, Part, local_of
from weft.distributed.plan import Plan, planned
from weft.errors import InputError, OptionError
from weft.pattern.algebra import Pattern

LAYOUTS = ("bhsd", "bshd")
Result = tuple[Tensor, Tensor]


def attention(  # noqa: PLR0913 - the public face; every option by name
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, *, group: Any = None, mesh: Any = None, dim: int | str = 0,
    shards: Any = "contiguous", strategy: str | None = None, scale: float | None = None, softcap: float | None = None,
    sinks: Tensor | None = None, return_lse: bool = False, backend: str = "auto", deterministic: bool | None = None,
    layout: str = "bhsd",
) -> Tensor | Result:  # fmt: skip
    """`weft.attention` of a sequence of which each rank holds some tokens; called by all ranks of a group alike.

    - q (B, Hq, S, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv): this rank's tokens, in ascending order; "bshd": heads after
      tokens. pattern: on the indices of the whole sequence.
    - group: a ProcessGroup, None: the default one; or mesh and dim: a DeviceMesh and one of its dimensions.
    - shards, strategy: see `weft.distributed.plan`. The other options are those of `weft.attention`; sinks are the same
      on all ranks, and their gradient is of this rank's rows alone: add it up as any replicated parameter's.

    Returns out for this rank's tokens, as `weft.attention` does. Gradients of k and v come back to the ranks that hold
    them, and are added in float32 in the order of ranks.

    Raises InputError where ranks disagree about anything (compared once for each kind of call), OptionError for shards
    that do not fit; a peer that dies ends the call with torch.distributed's own error. Example::

        out = weft.distributed.attention(q, k, v, weft.causal() & weft.window(left=1023), group=group)
    """
    group = _group(group, mesh, dim)
    if layout not in LAYOUTS:
        raise OptionError(
            f"distributed.attention(layout={layout!r})", f"it is none of {', '.join(LAYOUTS)}", "pass one of them"
        )
    q, k, v = (x.transpose(1, 2) if layout == "bshd" else x for x in (q, k, v))
    options = {"scale": scale, "softcap": softcap, "backend": backend, "deterministic": deterministic}
    whole = agreed((q, k, v), pattern, (shards, strategy, sinks is not None, *options.values()), group)
    plan = planned((pattern, whole, _described(q, k, v, shards, strategy, dist.get_world_size(group))))
    call = _Call(plan, group, dist.get_rank(group), {**options, "sinks": sinks})
    _check_sizes(plan, call.rank, q)
    if plan.silent and plan.strategy != "ulysses":
        out, lse = call.alone(q, k, v)
    elif plan.strategy == "ulysses":
        out, lse = call.by_heads(q, k, v)
    else:
        out, lse = call.by_tokens(q, k, v)
    if layout == "bshd":
        out, lse = out.transpose(1, 2), lse.transpose(1, 2)
    return (out, lse) if return_lse else out


def _group(group: Any, mesh: Any, dim: int | str) -> Any:
    if mesh is not None:
        if group is not None:
            raise OptionError(
                "distributed.attention(group=..., mesh=...)", "both say which ranks hold the sequence", "pass one of them"
            )
        return mesh.get_group(dim)
    if not dist.is_initialized():
        raise OptionError(
            "distributed.attention(...)", "there is no process group",
            'call torch.distributed.init_process_group("nccl") first ("gloo" on CPUs), or use weft.attention',
        )  # fmt: skip
    return dist.group.WORLD if group is None else group


def _described(q: Tensor, k: Tensor, v: Tensor, shards: Any, strategy: str | None, ranks: int) -> tuple[Any, ...]:
    """What a plan depends on beside the pattern and the length, hashable."""
    if not isinstance(shards, (str, dict)):
        shards = tuple(tuple((int(a), int(b)) for a, b in ranges) for ranges in shards)
    return (
        ("heads", (q.shape[1], k.shape[1])), ("head_dim", (q.shape[3], v.shape[3])),
        ("dtype", str(q.dtype).removeprefix("torch.")), ("ranks", ranks), ("strategy", strategy),
        ("shards", _Frozen(shards) if isinstance(shards, dict) else shards),
    )  # fmt: skip


class _Frozen(dict):  # type: ignore[type-arg]
    """A dictionary that may be a key: shards={"boxes": (2, 4)}."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted((key, tuple(value)) for key, value in self.items())))


def _check_sizes(plan: Plan, rank: int, q: Tensor) -> None:
    held = len(plan.shards.tokens[rank])
    if q.shape[2] != held:
        raise InputError(
            "distributed.attention(q, k, v)", f"rank {rank} passed {q.shape[2]} tokens, and holds {held} of "
            f"{plan.shards.size} by {plan.shards}",
            "pass the tokens of the shard, or shards=[[(first, after)], ...] as they are held",
        )  # fmt: skip


@dataclass(frozen=True)
class _Rows:
    """Indices on a device: of a rank's rows for each peer, and those of a part."""

    keys: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]


@dataclass(frozen=True)
class _Call:
    """One call of one rank."""

    plan: Plan
    group: Any
    rank: int
    options: dict[str, Any]

    # ---- nothing travels ------------------------------------------------------------------------------------------
    def alone(self, q: Tensor, k: Tensor, v: Tensor) -> Result:
        """All keys are the rank's own."""
        local = local_of(self.plan, self.rank)
        return self._joined(local, [self._attend(q, [(k, v)], part) for part in local.before], q)

    # ---- keys and queries travel ----------------------------------------------------------------------------------
    def by_tokens(self, q: Tensor, k: Tensor, v: Tensor) -> Result:
        """Keys come from peers, and rows that are moved go to theirs; what needs neither is computed meanwhile."""
        local, ranks = local_of(self.plan, self.rank), range(self.plan.ranks)
        rows = _rows(self.plan, self.rank, q.device)
        sent = zip(*(pick(x, some) for x, some in ((k, rows.keys), (v, rows.keys), (q, rows.queries))), strict=True)
        pending = Pending(*self._outward(list(sent), (k, v, q)), self.group)
        results = [self._attend(q, [(k, v)], part) for part in local.before]
        scalar, came = pending.arrived()
        keys = [tuple(x.permute(1, 2, 0, 3) for x in peer[:2]) for peer in came]
        results += [self._attend(q, [(k, v), *keys], part) for part in local.after]
        if not any(map(len, self.plan.moved)):
            return self._tied(self._joined(local, results, q), [scalar])
        theirs = [came[p][2].permute(1, 2, 0, 3) for p in ranks]
        own, scalars = self._moved(local, theirs, (q, k, v))
        return self._tied(self._joined(local, [*results, *own], q), [scalar, *scalars])

    def _outward(self, sent: list[tuple[Tensor, ...]], like: Sequence[Tensor]) -> tuple[Message, list[Sequence[Tensor]]]:
        counts = [
            (len(self.plan.halo[self.rank][p]),) * 2 + (len(self.plan.asked[self.rank][p]),) for p in range(self.plan.ranks)
        ]
        received = tuple(
            tuple(torch.Size((n, x.shape[0], x.shape[1], x.shape[3])) for n, x in zip(peer, like, strict=True))
            for peer in counts
        )
        return Message(tuple(tuple(x.shape for x in peer) for peer in sent), received), list(sent)

    def _moved(self, local: Local, theirs: list[Tensor], own: tuple[Tensor, ...]) -> tuple[list[Result], list[Tensor]]:
        """Parts of peers' rows go back to them; this rank's moved rows are merged of what comes back."""
        q, k, v = own
        made = [
            self._attend(rows, [(k, v)], part, sinks=False, chosen=True) if part is not None else None
            for rows, part in zip(theirs, local.asked, strict=True)
        ]
        mine = None if local.moved is None else self._attend(q, [(k, v)], local.moved)
        empty = q[:, :, :0, :1].expand(-1, -1, -1, v.shape[3]), q[:, :, :0, 0].to(_lse_dtype(q))
        parts = [empty if one is None else one for one in made]
        scalars, came = [], []
        for i, width in ((0, v.shape[3]), (1, 1)):
            blocks = [x[i].reshape(*x[i].shape[:3], width).permute(2, 0, 1, 3) for x in parts]
            counts = [len(rows) for rows in (self.plan.asked[p][self.rank] for p in range(self.plan.ranks))]
            received = tuple((torch.Size((n, q.shape[0], q.shape[1], width)),) for n in counts)
            message = Message(tuple((x.shape,) for x in blocks), received)
            scalar, arrived = Pending(message, [[x] for x in blocks], self.group).arrived()
            scalars.append(scalar)
            came.append([peer[0].permute(1, 2, 0, 3) for peer in arrived])
        if mine is None:
            return [], scalars
        return [self._merged(mine, came)], scalars

    def _merged(self, mine: Result, came: list[list[Tensor]]) -> Result:
        """The rank's moved rows over its own keys, and over those of each peer that saw some of them."""
        held, moved = self.plan.shards.tokens[self.rank], self.plan.moved[self.rank]
        outs, lses = [mine[0]], [mine[1]]
        for p, (out, lse) in enumerate(zip(*came, strict=True)):
            some = self.plan.asked[p][self.rank]
            if not len(some):
                continue
            if len(some) < len(moved):
                at = torch.as_tensor(np.searchsorted(held.places(moved), held.places(some)), device=out.device)
                out = torch.zeros_like(mine[0]).index_copy(2, at, out)
                lse = torch.full_like(mine[1], float("-inf")).index_copy(2, at, lse.squeeze(3)).unsqueeze(3)
            outs.append(out)
            lses.append(lse.squeeze(3))
        return weft.merge(outs, lses)

    # ---- heads travel ---------------------------------------------------------------------------------------------
    def by_heads(self, q: Tensor, k: Tensor, v: Tensor) -> Result:
        """Each rank has all tokens of some heads (Ulysses); out comes back to who holds its tokens."""
        ranks, sizes = self.plan.ranks, [len(held) for held in self.plan.shards.tokens]
        heads, order = _heads(q.shape[1], k.shape[1], ranks), _order(self.plan, q.device)
        blocks = [[x[:, some].permute(2, 0, 1, 3) for x, some in zip((q, k, v), heads[p], strict=True)] for p in range(ranks)]
        mine = [(len(range(q.shape[1])[heads[self.rank][0]]), q), *((len(range(x.shape[1])[heads[self.rank][1]]), x) for x in (k, v))]
        received = tuple(
            tuple(torch.Size((size, x.shape[0], count, x.shape[3])) for count, x in mine) for size in sizes
        )
        message = Message(tuple(tuple(x.shape for x in peer) for peer in blocks), received)
        first, came = Pending(message, blocks, self.group).arrived()
        whole = [torch.cat([peer[i] for peer in came]).permute(1, 2, 0, 3) for i in range(3)]
        if order is not None:
            whole = [x.index_select(2, order[0]) for x in whole]
        sinks = self.options["sinks"]
        options = {**self.options, "sinks": None if sinks is None else sinks[heads[self.rank][0]]}
        out, lse = weft.attention(*whole, self.plan.pattern, return_lse=True, **options)
        scalars, found = [first], []
        for x in (out, lse.unsqueeze(3)):
            x = x if order is None else x.index_select(2, order[1])
            back = [[some.permute(2, 0, 1, 3)] for some in x.split(sizes, dim=2)]
            shape = torch.Size((q.shape[2], x.shape[0], x.shape[1], x.shape[3]))
            message = Message(tuple((one.shape,) for (one,) in back), ((shape,),) * ranks)
            scalar, came = Pending(message, back, self.group).arrived()
            scalars.append(scalar)
            found.append(torch.cat([one for (one,) in came], dim=2).permute(1, 2, 0, 3))
        return self._tied((found[0], found[1].squeeze(3)), scalars)

    # ---- on this rank ---------------------------------------------------------------------------------------------
    def _attend(
        self, q: Tensor, keys: list[Any], part: Part, *, sinks: bool = True, chosen: bool = False
    ) -> Result:
        """A part's rows of q (all of them if they were chosen before) over its keys. keys: the rank's own k and v,
        then those of each peer.
        """
        rows = q if chosen else _select(q, part.rows)
        k, v = keys[0] if isinstance(part.keys, str) else (_gathered([peer[i] for peer in keys], part.keys) for i in (0, 1))
        options = self.options if sinks else {**self.options, "sinks": None}
        return weft.attention(rows, k, v, part.pattern, return_lse=True, **options)

    def _joined(self, local: Local, results: list[Result], q: Tensor) -> Result:
        """All rows of the rank, in their order."""
        parts = [*local.before, *local.after, *([local.moved] if local.moved is not None else [])]
        if len(results) == 1:
            return results[0]
        rows = np.concatenate([part.rows for part in parts])
        firsts = sorted(range(len(parts)), key=lambda i: int(parts[i].rows[0]) if parts[i].rows.size else 0)
        in_order = np.concatenate([parts[i].rows for i in firsts])
        some = [results[i] for i in firsts]
        out, lse = (torch.cat([one[i] for one in some], dim=2) for i in (0, 1))
        if (np.diff(in_order) == 1).all():
            return out, lse
        inverse = torch.as_tensor(np.argsort(in_order, kind="stable"), device=q.device)
        assert rows.size == q.shape[2]
        return out.index_select(2, inverse), lse.index_select(2, inverse)

    def _tied(self, found: Result, scalars: list[Tensor]) -> Result:
        return tie(found[0], scalars), found[1]


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _select(x: Tensor, rows: Any) -> Tensor:
    """Rows of x; a run of them is no copy."""
    if rows.size == x.shape[2]:
        return x
    if rows.size and rows[-1] - rows[0] + 1 == rows.size:
        return x[:, :, int(rows[0]) : int(rows[-1]) + 1]
    return x.index_select(2, torch.as_tensor(rows, device=x.device))


RUNS = 32  # pieces that are joined one by one; more are gathered by an index


def _gathered(parts: list[Tensor], places: Any) -> Tensor:
    """Keys by their places among all parts, one after the other; a place beyond them is zero."""
    ends = np.cumsum([0, *(x.shape[2] for x in parts)])
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    empty = parts[0].new_zeros(())
    if len(cuts) < RUNS:
        runs = [(int(some[0]), some.size) for some in np.split(places, cuts) if some.size]
        found = [piece for first, size in runs for piece in _pieces(parts, ends, first, size)]
        return torch.cat(found, dim=2)
    zero = empty.expand(*parts[0].shape[:2], 1, parts[0].shape[3])
    return torch.cat([*parts, zero], dim=2).index_select(2, torch.as_tensor(places, device=empty.device))


def _pieces(parts: list[Tensor], ends: Any, first: int, size: int) -> list[Tensor]:
    """A run of places as slices of the parts."""
    found = []
    for part, begin, end in zip(parts, ends[:-1], ends[1:], strict=True):
        low, high = max(first, int(begin)), min(first + size, int(end))
        if low < high:
            found.append(part[:, :, low - int(begin) : high - int(begin)])
    beyond = max(0, first + size - max(first, int(ends[-1])))
    if beyond:
        found.append(parts[0].new_zeros(()).expand(*parts[0].shape[:2], beyond, parts[0].shape[3]))
    return found


@lru_cache(maxsize=256)
def _rows(plan: Plan, rank: int, device: torch.device) -> _Rows:
    """Places of the rows that this rank sends to each peer."""
    held = plan.shards.tokens[rank]
    keys, queries = (
        tuple(torch.as_tensor(held.places(side[p][rank]), device=device) for p in range(plan.ranks))
        for side in (plan.halo, plan.asked)
    )
    return _Rows(keys, queries)


@lru_cache(maxsize=64)
def _order(plan: Plan, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Where the tokens of the whole stand among those of all ranks, one after the other, and back; None: in place."""
    tokens = np.concatenate([held.array() for held in plan.shards.tokens])
    if (np.diff(tokens) == 1).all():
        return None
    return torch.as_tensor(np.argsort(tokens), device=device), torch.as_tensor(tokens, device=device)


def _heads(q_heads: int, kv_heads: int, ranks: int) -> list[tuple[slice, slice, slice]]:
    """For each rank its heads of q, k and v; key heads go to every rank whose query heads read them."""
    own, group = q_heads // ranks, q_heads // kv_heads
    found = []
    for r in range(ranks):
        first = r * own // group
        kv = slice(first, max(first + 1, (r + 1) * own // group))
        found.append((slice(r * own, (r + 1) * own), kv, kv))
    return found
