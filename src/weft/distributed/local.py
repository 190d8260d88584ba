"""What one rank computes: parts, each of some of its rows, of keys side by side, and of what the rows see of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from weft.acsr.format import Acsr
from weft.acsr.needs import needed
from weft.acsr.tokens import Tokens, union
from weft.distributed.plan import Plan, boxes_of
from weft.distributed.shards import pairs_between
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints
from weft.pattern.composites import segments
from weft.pattern.excerpt import Box, excerpt
from weft.pattern.relation import Relation

GAP, MOST = 1024, 4  # tokens between runs of keys that are one piece nevertheless; pieces at most
WORTH = 0.3  # share of a rank's pairs that must be free of received keys, for these to be computed first


@dataclass(frozen=True, eq=False)
class Part:
    """rows: places of the part's queries among the rank's own, ascending. pattern: of these and the part's keys.

    keys: "own" if the part's keys are the rank's own, in their order; else for each key its place among the rank's own
    keys followed by the received ones, by peer, followed by one that is nothing.
    """

    rows: Ints
    pattern: Pattern
    keys: Literal["own"] | Ints


@dataclass(frozen=True, eq=False)
class Local:
    """A rank's work. before: parts without received keys; after: those with. early: rows of the rank that are moved,
    with its own keys. asked: for each peer the part of its rows that this rank computes with its own keys.
    """

    before: tuple[Part, ...]
    after: tuple[Part, ...]
    moved: Part | None
    asked: tuple[Part | None, ...]


@lru_cache(maxsize=256)
def local_of(plan: Plan, rank: int) -> Local:
    """The work of one rank, by halo, moved queries or all-gather."""
    held, moved = plan.shards.tokens[rank], plan.moved[rank]
    maker = _Maker(plan, rank)
    rest = boxes_of(held - moved, plan.shards.shape) if len(moved) else plan.shards.boxes[rank]
    before: list[Part] = []
    after: list[Part] = []
    for boxes in _split(plan, rank, rest):
        part = maker.part(boxes)
        (before if isinstance(part.keys, str) else after).append(part)
    asked = tuple(
        maker.of_own_keys(boxes_of(rows, plan.shards.shape), rows.places(rows)) if len(rows) else None
        for rows in plan.asked[rank]
    )
    own = None
    if len(moved):
        boxes = boxes_of(moved, plan.shards.shape)
        own = maker.of_own_keys(boxes, held.places(moved))
    return Local(tuple(before), tuple(after), own, asked)


@lru_cache(maxsize=256)
def whole_of(plan: Plan, rank: int) -> Part:
    """The work of one rank as a single part, by halo or all-gather: for who computes nothing before keys arrive."""
    return _Maker(plan, rank).part(plan.shards.boxes[rank])


class _Maker:
    """Parts of one rank."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self.held, self.boxes = plan.shards.tokens[rank], plan.shards.boxes[rank]
        self.shape = plan.shards.shape

    def part(self, boxes: Sequence[Box]) -> Part:
        """A part with all keys that its rows see."""
        tokens = union(map(Tokens.of_box, boxes))
        need = needed(self.plan.acsr, boxes)
        rows = self.held.places(tokens)
        if not len(need - self.held):
            return self.of_own_keys(boxes, rows)
        pieces = self._pieces(need)
        return Part(rows, self._pattern(boxes, pieces), self._sources(pieces, need))

    def of_own_keys(self, boxes: Sequence[Box], rows: Ints) -> Part:
        """A part with the rank's own keys."""
        return Part(rows, self._pattern(boxes, self.boxes), "own")

    def _pieces(self, need: Tokens) -> tuple[Box, ...]:
        """Boxes that hold the needed keys: runs of a line; of a grid the smallest box around them."""
        if len(self.shape) == 1:
            return boxes_of(need.closed(GAP, MOST), self.shape)
        at = np.unravel_index(need.array(), self.shape)
        first = tuple(int(x.min()) for x in at)
        return (Box(self.shape, first, tuple(int(x.max()) + 1 - a for x, a in zip(at, first, strict=True))),)

    def _sources(self, pieces: Sequence[Box], need: Tokens) -> Ints:
        """Where each key of the pieces comes from."""
        tokens = np.concatenate([box.tokens(np.arange(box.size, dtype=np.int64)) for box in pieces])
        nothing = len(self.held) + sum(map(len, self.plan.halo[self.rank]))
        source = np.full(tokens.shape, nothing, np.int64)
        at = len(self.held)
        for some, first in [(self.held, 0), *_received(self.plan, self.rank, at)]:
            here = some.holds(tokens) & need.holds(tokens)
            source[here] = first + _places(some, tokens[here])
        return source

    def _pattern(self, q: Sequence[Box], k: Sequence[Box]) -> Pattern:
        cells = [[self._excerpt(a, b) for b in k] for a in q]
        if len(q) == len(k) == 1:
            return cells[0][0]
        return segments([a.size for a in q], cells, key_lengths=[b.size for b in k])

    def _excerpt(self, q: Box, k: Box) -> Pattern:
        queries, keys = ([(a, a + n) for a, n in zip(box.first, box.sizes, strict=True)] for box in (q, k))
        if len(self.shape) == 1:
            return excerpt(self.plan.pattern, self.shape[0], queries[0], keys[0])
        return excerpt(self.plan.pattern, self.shape, queries, keys)


def _received(plan: Plan, rank: int, at: int) -> Iterator[tuple[Tokens, int]]:
    """The keys from each peer, and the place of the first."""
    for tokens in plan.halo[rank]:
        if len(tokens):
            yield tokens, at
            at += len(tokens)


def _places(of: Tokens, tokens: Ints) -> Ints:
    at = np.searchsorted(of.starts, tokens, side="right") - 1
    return tokens - of.starts[at] + of.before[at]


# ---- rows that see own keys alone ------------------------------------------------------------------------------------
def _split(plan: Plan, rank: int, boxes: tuple[Box, ...]) -> list[tuple[Box, ...]]:
    """A rank's rows in groups: rows that see own keys alone, if they are worth it, and slabs of the others."""
    if len(boxes) != 1 or len(plan.shards.boxes[rank]) != 1 or not any(map(len, plan.halo[rank])):
        return [boxes]
    (box,), (own,) = boxes, plan.shards.boxes[rank]
    inner = interior(plan.acsr, box, own)
    if inner is None or inner == box:
        return [boxes]
    whole = (Box(own.shape, (0,) * len(own.shape), own.shape),)
    if pairs_between(plan.acsr, (inner,), whole) < WORTH * pairs_between(plan.acsr, (box,), whole):
        return [boxes]
    return [(inner,), *((slab,) for slab in slabs(box, inner))]


def interior(acsr: Acsr, box: Box, own: Box) -> Box | None:
    """The largest box of rows that see keys of the box `own` alone, as far as bounds of single axes say; None: none is
    known.
    """
    if len(acsr.remainder) or any(
        t.is_ordered or t.q.shape != box.shape or t.k.shape != box.shape or t.q.origin for t in acsr.terms
    ):
        return None
    first, sizes = [], []
    for a, (begin, count) in enumerate(zip(box.first, box.sizes, strict=True)):
        rows = np.arange(begin, begin + count, dtype=np.int64)
        inside = np.ones(count, np.bool_)
        for term in acsr.terms:
            inside &= _sees_within(term.axes[a], rows, (own.first[a], own.first[a] + own.sizes[a]), own.shape[a])
        at, length = _longest(inside)
        if not length:
            return None
        first.append(begin + at)
        sizes.append(length)
    return Box(box.shape, tuple(first), tuple(sizes))


def _sees_within(axis: Relation, rows: Ints, own: tuple[int, int], n: int) -> np.ndarray:
    start, step, count = axis.affine_rows(rows, n)
    return np.asarray((count == 0) | ((start >= own[0]) & (start + step * (count - 1) < own[1])))


def _longest(flags: np.ndarray) -> tuple[int, int]:
    """(first, length) of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    if not edges.size:
        return 0, 0
    starts, stops = edges[::2], edges[1::2]
    best = int(np.argmax(stops - starts))
    return int(starts[best]), int(stops[best] - starts[best])


def slabs(box: Box, inner: Box) -> Iterator[Box]:
    """The rest of a box around a box in it, as boxes: below and above it, an axis after the other."""
    first, sizes = list(box.first), list(box.sizes)
    for a in range(len(first)):
        ends = (first[a], inner.first[a]), (inner.first[a] + inner.sizes[a], first[a] + sizes[a])
        for begin, after in ends:
            if begin < after:
                at, many = list(first), list(sizes)
                at[a], many[a] = begin, after - begin
                yield Box(box.shape, tuple(at), tuple(many))
        first[a], sizes[a] = inner.first[a], inner.sizes[a]
