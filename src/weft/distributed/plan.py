"""Who sends what to whom, so that each rank computes the rows it holds: from the pattern, the same on every rank.

Sizes are of one batch row. Bytes are those that a rank receives in a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from weft.acsr.format import Acsr, Term
from weft.acsr.needs import needed, of_term
from weft.acsr.tokens import EMPTY, Tokens, boxes_of_run, union
from weft.distributed.model import Cost, Link, cost_of
from weft.distributed.shards import Shards, pairs_between, pairs_of, row_work, shards_of
from weft.errors import OptionError, PatternError
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints
from weft.pattern.excerpt import Box
from weft.planning.problem import DTYPES

STRATEGIES = ("halo", "halo+queries", "ulysses", "ulysses+halo", "all-gather")
EXCHANGES = {"halo": 1, "ulysses+halo": 3}  # that follow each other; of others two
DRAWN = 16  # ranks that are drawn
MOVED = 1 << 14  # rows of a rank that may be sent to where their keys are


@dataclass(frozen=True)
class Heads:
    """Heads and sizes of a layer: query and key heads, head dimensions of q and k and of v, bytes of an element."""

    q: int
    kv: int
    d: int
    dv: int
    nbytes: int

    @property
    def key_row(self) -> int:
        """Bytes of a token's keys and values."""
        return self.kv * (self.d + self.dv) * self.nbytes

    @property
    def query_row(self) -> int:
        """Bytes of a token's queries."""
        return self.q * self.d * self.nbytes

    @property
    def result_row(self) -> int:
        """Bytes of a token's partial results: out, and lse in float32."""
        return self.q * (self.dv * self.nbytes + 4)


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to compute the layer. received: bytes by [rank, peer]; work: live pairs that each rank computes.

    nodes: of "ulysses+halo" the plan between nodes, of a rank's share of the heads.
    """

    strategy: str
    received: Ints
    work: Ints
    halo: tuple[Tokens, ...] = ()
    moved: tuple[Tokens, ...] = ()
    nodes: Plan | None = None
    cost: Cost = field(default=Cost(0.0, 0.0))

    @property
    def imbalance(self) -> float:
        """The largest share of work over the mean one."""
        return float(self.work.max() / self.work.mean()) if self.work.any() else 1.0

    @property
    def most_bytes(self) -> int:
        """Bytes that the rank receives that receives most."""
        return int(self.received.sum(axis=1).max(initial=0))

    @property
    def most_peers(self) -> int:
        """Peers of the rank that receives from most."""
        return int((self.received > 0).sum(axis=1).max(initial=0))


@dataclass(frozen=True, eq=False)
class Plan:
    """A layer over ranks: `candidates` are all ways that were weighed, `chosen` the one that is run."""

    pattern: Pattern
    acsr: Acsr
    shards: Shards
    heads: Heads
    candidates: tuple[Candidate, ...]
    chosen: Candidate

    @property
    def ranks(self) -> int:
        return self.shards.ranks

    def among(self, strategies: Sequence[str]) -> Plan:
        """The same layer by the cheapest of some strategies; OptionError where none of them was weighed."""
        found = [one for one in self.candidates if one.strategy in strategies]
        if not found:
            raise OptionError(
                f"distributed.plan(strategy={' or '.join(map(repr, strategies))})",
                _why_not(strategies[0], self.heads, self.ranks),
                f"use one of {', '.join(repr(one.strategy) for one in self.candidates)}",
            )
        return replace(self, chosen=min(found, key=lambda one: one.cost.total))

    @property
    def strategy(self) -> str:
        """One of STRATEGIES."""
        return self.chosen.strategy

    @property
    def imbalance(self) -> float:
        """The largest share of live pairs that a rank computes over the mean one."""
        return self.chosen.imbalance

    def comm_bytes(self, rank: int) -> int:
        """Bytes that a rank receives in a forward."""
        return int(self.chosen.received[rank].sum())

    def peers(self, rank: int) -> list[int]:
        """The ranks from which a rank receives."""
        return np.flatnonzero(self.chosen.received[rank]).tolist()

    @property
    def silent(self) -> bool:
        """Whether no rank receives anything, so that no collective is called."""
        return not self.chosen.received.any()

    @property
    def moved(self) -> tuple[Tokens, ...]:
        """Of each rank the rows that are computed where their keys are."""
        return self.chosen.moved or (EMPTY,) * self.ranks

    @cached_property
    def halo(self) -> tuple[tuple[Tokens, ...], ...]:
        """[rank][peer]: the keys that a rank receives from a peer."""
        needs = self.chosen.halo or (EMPTY,) * self.ranks
        return tuple(map(self.shards.parted, needs))

    @cached_property
    def asked(self) -> tuple[tuple[Tokens, ...], ...]:
        """[rank][peer]: the rows of a peer that a rank computes a part of."""
        found = []
        for r, held in enumerate(self.shards.tokens):
            found.append(
                tuple(EMPTY if p == r else _rows_seeing(self.acsr, rows, held) for p, rows in enumerate(self.moved))
            )
        return tuple(found)

    def draw(self) -> str:
        """Who sends what to whom: bytes that each rank (a line) receives from each peer (a column), in a forward."""
        shown = range(min(self.ranks, DRAWN))
        widest = max(8, len(f"{self.chosen.received.max(initial=0):,}") + 2)
        lines = [" " * 10 + "".join(f"{f'from {p}':>{widest}}" for p in shown)]
        for r in shown:
            row = (f"{x:,}" if x else "." for x in self.chosen.received[r, : len(shown)].tolist())
            lines.append(f"{f'rank {r}':10}" + "".join(f"{x:>{widest}}" for x in row))
        more = self.ranks - len(shown)
        return "\n".join([*lines, *([f"and {more} ranks more"] if more else [])])

    def __str__(self) -> str:
        lines = [
            f"{self.pattern} over {self.ranks} ranks, {self.shards.size} tokens",
            f"  shards: {self.shards}",
            f"  {'strategy':14}{'MB received':>12}{'peers':>7}{'imbalance':>11}{'ms predicted':>14}",
        ]
        for one in self.candidates:
            mark = "->" if one is self.chosen else "  "
            lines.append(
                f"{mark}{one.strategy:14}{one.most_bytes / 1e6:12.3f}{one.most_peers:7}{one.imbalance:11.2f}"
                f"{one.cost.total * 1e3:14.3f}"
            )
        return "\n".join(lines)


def plan(  # noqa: PLR0913 - the public face
    pattern: Pattern, m: int, n: int | None = None, *, heads: tuple[int, int], head_dim: int | tuple[int, int],
    dtype: str = "bfloat16", ranks: int, shards: Any = "contiguous", strategy: str | None = None,
    link: Link | None = None,
) -> Plan:  # fmt: skip
    """How ranks that hold parts of one sequence compute attention together, from the pattern alone; needs no torch.

    - pattern: on the indices of the whole sequence of m tokens; n, if given, equals m.
    - heads: (query heads, key heads). head_dim: of q, k and v, or (that of q and k, that of v).
    - shards: "contiguous" (equal runs), "work" (runs of equal live pairs), "zigzag" (runs r and -1 - r of twice as
      many). Or "boxes" (the split of the grid that needs fewest bytes), "2x4" (ranks along the axes of the grid). Or
      for each rank the ranges [(first, after), ...] that it holds.
    - strategy: one of STRATEGIES, or None: the one that is predicted to take least time.

    Raises OptionError for shards and strategies that do not fit, PatternError for a pattern that tells heads or batch
    rows apart. Example::

        p = weft.distributed.plan(weft.causal() & weft.window(left=127), 131072, heads=(64, 8), head_dim=64, ranks=8)
        p.comm_bytes(0), p.comm_bytes(1)  # (0, 260096)
    """
    if n is not None and n != m:
        raise OptionError(
            f"distributed.plan(M={m}, N={n})", "it is not said which rank holds which keys where M != N",
            "pass sequences of one length, or keep the shorter side whole on every rank and use weft.attention",
        )  # fmt: skip
    if pattern.extent() != (None, None):
        raise PatternError(
            f"distributed.plan({pattern})", "it tells heads or batch rows apart",
            "plan each of its patterns alone: pattern.at(batch, head)",
        )  # fmt: skip
    if ranks < 1:
        raise OptionError(f"distributed.plan(ranks={ranks})", "there is no such number of ranks", "pass 1 or more")
    if dtype not in DTYPES and dtype != "float64":
        raise OptionError(
            f"distributed.plan(dtype={dtype!r})", f"it is none of {', '.join(DTYPES)}", "pass one of them"
        )
    if strategy is not None and strategy not in STRATEGIES:
        raise OptionError(
            f"distributed.plan(strategy={strategy!r})", f"it is none of {', '.join(STRATEGIES)}", "pass one, or None"
        )
    d, dv = (head_dim, head_dim) if isinstance(head_dim, int) else head_dim
    sizes = Heads(int(heads[0]), int(heads[1]), d, dv, 8 if dtype == "float64" else DTYPES[dtype])
    acsr = pattern.acsr(m)
    held = shards_of(shards, acsr, ranks)
    found = _candidates(acsr, held, sizes)
    by_nodes = _by_nodes(pattern, acsr, held, sizes, (link or Link()).node)
    found = [_costed(one, sizes, link or Link()) for one in [*found[:-1], *by_nodes, found[-1]]]
    made = Plan(pattern, acsr, held, sizes, tuple(found), found[0])
    return made.among(STRATEGIES if strategy is None else (strategy,))


def _why_not(strategy: str, heads: Heads, ranks: int) -> str:
    if strategy == "ulysses+halo":
        return f"{ranks} ranks are no whole nodes on a line whose ranks divide {heads.q} and {heads.kv} heads"
    if strategy == "ulysses":
        return f"{heads.q} query heads and {heads.kv} key heads do not divide over {ranks} ranks"
    return "no rank has rows that are cheaper to move than the keys they see"


def _costed(one: Candidate, heads: Heads, link: Link) -> Candidate:
    return replace(one, cost=cost_of(one.received, one.work, heads, link, EXCHANGES.get(one.strategy, 2)))


# ---- the ways --------------------------------------------------------------------------------------------------------
def _candidates(acsr: Acsr, shards: Shards, heads: Heads) -> list[Candidate]:
    """All ways that this layer and these shards allow."""
    work = _work(acsr, shards)
    needs = tuple(needed(acsr, boxes) - held for boxes, held in zip(shards.boxes, shards.tokens, strict=True))
    found = [Candidate("halo", _received(needs, shards, heads), work, needs)]
    moved = _moved_rows(acsr, shards, heads, needs)
    if any(len(one) for one in moved):
        found.append(_with_moved(acsr, shards, heads, (moved, needs), work))
    if _divides(heads, shards.ranks):
        found.append(_ulysses(shards, heads, work))
    found.append(_all_gather(shards, heads, work))
    return found


def _work(acsr: Acsr, shards: Shards) -> Ints:
    """Live pairs of the rows that each rank holds."""
    if len(acsr.remainder):
        rows = row_work(acsr)
        return np.array([rows[held.array()].sum() for held in shards.tokens], np.int64)
    return np.array([pairs_of(acsr, boxes) for boxes in shards.boxes], np.int64)


def _received(needs: tuple[Tokens, ...], shards: Shards, heads: Heads) -> Ints:
    """Bytes of keys and values by [rank, peer]."""
    return np.array([shards.counts(need) for need in needs]) * heads.key_row


def _moved_rows(acsr: Acsr, shards: Shards, heads: Heads, needs: tuple[Tokens, ...]) -> tuple[Tokens, ...]:
    """Of each rank the rows of terms of which fewer bytes travel if the rows do: rows out, partial results back."""
    there_and_back = (shards.ranks - 1) * (heads.query_row + heads.result_row)
    seeing = [(term, _rows_of(term)) for term in acsr.terms]
    found = []
    for boxes, held, need in zip(shards.boxes, shards.tokens, needs, strict=True):
        mine = [EMPTY]
        for term, all_rows in seeing:
            rows = all_rows & held
            cost = len(rows) * there_and_back
            # what the rank needs in all is more than what these rows do, and is known already
            few = 0 < len(rows) <= MOVED and cost < len(need) * heads.key_row
            if few and cost < len(of_term(term, boxes) - held) * heads.key_row:
                mine.append(rows)
        found.append(union(mine))
    return tuple(found)


def _rows_of(term: Term) -> Tokens:
    """The rows that see some key by a term."""
    if term.is_ordered:
        return of_term(term.transpose(), Tokens.listed(term.k.tokens(np.arange(term.k.size, dtype=np.int64))))
    return of_term(term.transpose(), Tokens.of(np.array([term.k.origin]), np.array([term.k.origin + term.k.size])))


def _rows_seeing(acsr: Acsr, rows: Tokens, keys: Tokens) -> Tokens:
    """Those of some rows that see any of the keys."""
    return needed(acsr.transpose(), keys) & rows if len(rows) else EMPTY


def _with_moved(
    acsr: Acsr, shards: Shards, heads: Heads, sets: tuple[tuple[Tokens, ...], tuple[Tokens, ...]], work: Ints
) -> Candidate:  # fmt: skip
    """Moved rows are computed where their keys are; the other rows' keys come. sets: moved rows; what ranks need."""
    moved, every = sets
    needs = tuple(
        needed(acsr, held - rows) - held if len(rows) else need
        for held, rows, need in zip(shards.tokens, moved, every, strict=True)
    )
    received, work = _received(needs, shards, heads), work.copy()
    for r, rows in enumerate(moved):
        if not len(rows):
            continue
        boxes = boxes_of(rows, shards.shape)
        some_terms = replace(acsr, terms=tuple(term for term in acsr.terms if len(_rows_of(term) & rows)))
        turned = some_terms.transpose()
        for p in range(shards.ranks):
            some = len(needed(turned, shards.tokens[p]) & rows) if p != r else 0
            if some:
                pairs = pairs_between(some_terms, boxes, shards.boxes[p])
                received[p, r] += some * heads.query_row
                received[r, p] += some * heads.result_row
                work[p] += pairs
                work[r] -= pairs
    return Candidate("halo+queries", received, work, needs, moved)


def boxes_of(tokens: Tokens, shape: tuple[int, ...]) -> tuple[Box, ...]:
    """Tokens as boxes of a grid, in their order."""
    runs = zip(tokens.starts.tolist(), tokens.stops.tolist(), strict=True)
    return tuple(box for first, after in runs for box in boxes_of_run(first, after, shape))


def _all_gather(shards: Shards, heads: Heads, work: Ints) -> Candidate:
    """Every rank receives all keys."""
    received = np.tile(np.array([len(held) for held in shards.tokens], np.int64) * heads.key_row, (shards.ranks, 1))
    np.fill_diagonal(received, 0)
    every = Tokens.of(np.array([0]), np.array([shards.size]))
    return Candidate("all-gather", received, work, tuple(every - held for held in shards.tokens))


def _divides(heads: Heads, ranks: int) -> bool:
    """Whether each rank can have whole query heads, and the key heads that these read."""
    return heads.q % ranks == 0 and (heads.kv % ranks == 0 or ranks % heads.kv == 0)


def _ulysses(shards: Shards, heads: Heads, work: Ints) -> Candidate:
    """Each rank has all tokens of some heads: q, k and v travel there, out comes back."""
    own = heads.q // shards.ranks
    kv = max(heads.kv // shards.ranks, 1)
    there = own * heads.d + kv * (heads.d + heads.dv)
    tokens = np.array([len(held) for held in shards.tokens], np.int64)
    received = (tokens[None, :] * there + tokens[:, None] * own * heads.dv) * heads.nbytes
    np.fill_diagonal(received, 0)
    even = np.full(shards.ranks, work.sum() // max(1, shards.ranks), np.int64)
    return Candidate("ulysses", received, even)


def _by_nodes(pattern: Pattern, acsr: Acsr, shards: Shards, heads: Heads, size: int) -> list[Candidate]:
    """Ulysses inside nodes of so many ranks, halo between them: of whole nodes, on a line, where heads divide."""
    count = shards.ranks // size
    if count < 2 or size < 2 or shards.ranks % size or len(shards.shape) > 1 or not _divides(heads, size):
        return []
    held = [union(shards.tokens[size * i : size * (i + 1)]) for i in range(count)]
    nodes = Shards(shards.shape, tuple(boxes_of(tokens, shards.shape) for tokens in held), shards.kind)
    own = replace(heads, q=heads.q // size, kv=max(heads.kv // size, 1))
    needs = tuple(needed(acsr, boxes) - mine for boxes, mine in zip(nodes.boxes, nodes.tokens, strict=True))
    work = _work(acsr, nodes)
    between = Candidate("halo", _received(needs, nodes, own), work, needs)
    received = np.zeros((shards.ranks, shards.ranks), np.int64)
    for i in range(count):
        ranks = slice(size * i, size * (i + 1))
        some = Shards(shards.shape, shards.boxes[ranks], shards.kind)
        received[ranks, ranks] = _ulysses(some, heads, work[:1]).received
    for slot in range(size):
        received[slot::size, slot::size] += between.received
    plan = Plan(pattern, acsr, nodes, own, (between,), between)
    return [Candidate("ulysses+halo", received, np.repeat(work // size, size), nodes=plan)]


_kept = lru_cache(maxsize=64)(plan)


def planned(pattern: Pattern, m: int, *, shards: Any, **layer: Any) -> Plan:
    """`plan`, kept for calls that ask the same again."""
    if not isinstance(shards, str):
        shards = tuple(tuple((int(a), int(b)) for a, b in ranges) for ranges in shards)
    return _kept(pattern, m, shards=shards, **layer)
