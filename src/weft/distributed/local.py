"""What one rank computes: parts, each of some of its rows, of keys side by side, and of what the rows see of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from weft.acsr.needs import needed
from weft.acsr.tokens import Tokens, union
from weft.distributed.plan import Plan, boxes_of
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints
from weft.pattern.composites import segments
from weft.pattern.excerpt import Box, excerpt

GAP, MOST = 1024, 4  # tokens between runs of keys that are one piece nevertheless; pieces at most
PASSES = 8  # times that the bytes of a merged row go through memory, forward and backward, and launches
SLAB = 3.5  # times that a pair takes in a narrow slab of a grid, whose tiles are mostly empty (on an H200)
OPERATIONS = 112  # of products in the time that a byte goes through memory
PIECES, LEAST = 4, 1 << 23  # groups of heads that travel alone, at most, and bytes of one at least
SLOWER = 10  # how many times slower bytes come from a peer than from memory


@dataclass(frozen=True, eq=False)
class Part:
    """rows: places of the part's queries among the rank's own, ascending. pattern: of these and the part's keys.

    keys: "own" if the part's keys are the rank's own, in their order. Else for each key its place among the rank's own
    keys, followed by the received ones, by peer, and one that is nothing.
    """

    rows: Ints
    pattern: Pattern
    keys: Literal["own"] | Ints


@dataclass(frozen=True, eq=False)
class Local:
    """A rank's work. main: all of its rows. edges: where main has the rank's own keys alone, some rows over received
    keys, to be merged. asked: for each peer the part of its rows that this rank computes with its own keys.
    """

    main: Part
    edges: tuple[Part, ...]
    asked: tuple[Part | None, ...]


@lru_cache(maxsize=256)
def local_of(plan: Plan, rank: int) -> Local:
    """The work of one rank, by halo, moved queries or all-gather."""
    maker = _Maker(plan, rank)
    asked = tuple(
        maker.of_own_keys(boxes_of(rows, plan.shards.shape), rows.places(rows)) if len(rows) else None
        for rows in plan.asked[rank]
    )
    boxes, held = plan.shards.boxes[rank], plan.shards.tokens[rank]
    own = maker.of_own_keys(boxes, held.places(held))
    if not any(map(len, plan.halo[rank])):
        return Local(own, (), asked)
    edges = maker.edges()
    # rows that are moved see received keys elsewhere, so that they cannot be in one part with the others
    if len(plan.moved[rank]) or maker.merging_is_cheaper(edges):
        return Local(own, edges, asked)
    return Local(maker.part(boxes), (), asked)


@lru_cache(maxsize=256)
def pieces_of(plan: Plan) -> int:
    """In how many groups of heads keys travel, of all ranks alike. There is one where the rank that receives most needs
    no wait, since it merges results. Else there are some, so that it waits for the first alone.
    """
    received = plan.chosen.received.sum(axis=1)
    if any(map(len, plan.moved)) or isinstance(local_of(plan, int(received.argmax())).main.keys, str):
        return 1
    most = min(PIECES, int(received.max()) // LEAST)
    return next((n for n in range(most, 1, -1) if plan.heads.kv % n == 0), 1)


@lru_cache(maxsize=256)
def whole_of(plan: Plan, rank: int) -> Part:
    """The work of one rank as a single part, by halo or all-gather: for who merges nothing."""
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

    # ---- received keys alone
    def edges(self) -> tuple[Part, ...]:
        """Parts of received keys: one for each region around the rank's own tokens, of the rows that see any there."""
        rest, found = self.held - self.plan.moved[self.rank], []
        turned = self.plan.acsr.transpose()
        need = union(self.plan.halo[self.rank])
        for region in self._regions(need):
            seeing = needed(turned, [region]) & rest
            if len(seeing):
                boxes = self._around(seeing, rest)
                rows = self.held.places(union(map(Tokens.of_box, boxes)))
                found.append(Part(rows, self._pattern(boxes, [region]), self._sources([region], need)))
        return tuple(found)

    def _regions(self, need: Tokens) -> list[Box]:
        """Boxes without any own token that hold the needed keys."""
        if len(self.shape) > 1 and len(self.boxes) == 1:
            return list(slabs(_box_around(need | self.held, self.shape), self.boxes[0]))
        return list(boxes_of(need.closed(GAP, MOST) - self.held, self.shape))

    def _around(self, rows: Tokens, rest: Tokens) -> tuple[Box, ...]:
        """A few boxes of own rows, which hold these."""
        if len(self.shape) == 1:
            return boxes_of(rows.closed(GAP, 1) & rest, self.shape)
        box = _box_around(rows, self.shape)
        inside = Tokens.of_box(box)
        return (box,) if inside == inside & rest else boxes_of(rows, self.shape)

    def merging_is_cheaper(self, edges: Sequence[Part]) -> bool:
        """Whether results of edges are merged for less than it takes to wait for all keys and put them together."""
        heads = self.plan.heads
        merging = sum(part.rows.size for part in edges) * heads.result_row * PASSES
        if len(self.shape) > 1:
            pairs = sum(part.pattern.acsr(part.rows.size, np.size(part.keys)).nnz for part in edges)
            merging += int((SLAB - 1) * pairs * 2 * (heads.d + heads.dv) * heads.q / OPERATIONS)
        came = sum(map(len, self.plan.halo[self.rank]))
        waiting = (2 * (len(self.held) + came) + came * SLOWER) * heads.key_row
        return merging < waiting

    # ---- patterns
    def _pieces(self, need: Tokens) -> tuple[Box, ...]:
        """Boxes that hold the needed keys: runs of a line; of a grid the smallest box around them."""
        if len(self.shape) == 1:
            return boxes_of(need.closed(GAP, MOST), self.shape)
        return (_box_around(need, self.shape),)

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


def _box_around(tokens: Tokens, shape: tuple[int, ...]) -> Box:
    """The smallest box that holds some tokens of a grid."""
    at = np.unravel_index(tokens.array(), shape)
    first = tuple(int(x.min()) for x in at)
    return Box(shape, first, tuple(int(x.max()) + 1 - a for x, a in zip(at, first, strict=True)))


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
