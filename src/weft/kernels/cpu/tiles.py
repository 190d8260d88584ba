"""Tiles of queries with their steps: what the CPU computes together, and how pieces of keys become steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
import torch

from weft.kernels.cpu.boxes import StridedBox
from weft.pattern.bounds import Ints
from weft.planning.families.cpu import CHUNK


@dataclass(frozen=True, eq=False)
class Piece:
    """Keys that one step visits: columns [column, column + keys.size) of its scores, and masks added to some of them.

    masks: (first column, last column + 1, (rows, columns) of 0 and -inf), columns counted inside the piece.
    """

    keys: StridedBox
    column: int
    masks: tuple[tuple[int, int, torch.Tensor], ...]


@dataclass(frozen=True, eq=False)
class Step:
    """Scores of one query tile against at most about CHUNK keys. dead: rows without a live key here, or None."""

    pieces: tuple[Piece, ...]
    width: int
    dead: torch.Tensor | None

    @property
    def count(self) -> int:
        """Tiles that take this step, as `Tile.count`."""
        return self.pieces[0].keys.count


@dataclass(frozen=True, eq=False)
class Tile:
    """One query tile and its steps; or a run of tiles that have the same masks and lie evenly apart."""

    queries: StridedBox
    steps: tuple[Step, ...]

    @property
    def count(self) -> int:
        """How many tiles."""
        return self.queries.count

    @property
    def pairs(self) -> int:
        """Pairs computed over all tiles of the run."""
        return self.count * self.queries.size * sum(step.width for step in self.steps)

    @cached_property
    def dead(self) -> torch.Tensor | None:
        """Rows without a live key in any step, or None."""
        dead = [step.dead.numpy() for step in self.steps if step.dead is not None]
        if len(dead) < len(self.steps):
            return None
        rows = reduce(np.intersect1d, dead)
        return torch.from_numpy(rows) if rows.size else None

    @property
    def shape(self) -> tuple[object, ...]:
        """Tiles of one nest with the same shape (sizes and masks) can be computed together."""
        if len(self.steps) > 1 or self.steps[0].dead is not None:
            return (id(self),)
        masks = (tuple((a, b, id(mask)) for a, b, mask in p.masks) for p in self.steps[0].pieces)
        return (*((box.sizes, box.strides, box.listed is None) for box in self.boxes), *masks)

    @cached_property
    def boxes(self) -> tuple[StridedBox, ...]:
        """Of the queries, and of the keys of every piece."""
        return (self.queries, *(piece.keys for step in self.steps for piece in step.pieces))

    @cached_property
    def slides(self) -> bool:
        """Whether the queries of one head over all tiles of the run are one strided view, and its keys another."""
        (first, *others), boxes = self.steps, self.boxes
        return not others and len(first.pieces) == 1 and all(box.slides for box in boxes)

    def part(self, first: int, last: int) -> Tile:
        """Tiles first to last - 1 of a run."""
        return self.with_boxes(box.part(first, last) for box in self.boxes)

    def repeated(self, count: int, gaps: tuple[int, ...]) -> Tile:
        """The first tile `count` times, its boxes each so many tokens apart."""
        return self.with_boxes(replace(b, count=count, pitch=gap) for b, gap in zip(self.boxes, gaps, strict=True))

    def gaps_to(self, other: Tile) -> tuple[int, ...] | None:
        """Tokens from each box of the run to the next one, if those of the other run of this shape go on as evenly."""
        pairs = list(zip(self.boxes, other.boxes, strict=True))
        if any(a.listed is not b.listed for a, b in pairs):
            return None
        gaps = tuple(b.first - a.first - a.pitch * (a.count - 1) for a, b in pairs)
        even = all(box.count == 1 or box.pitch == gap for pair, gap in zip(pairs, gaps, strict=True) for box in pair)
        return gaps if even and min(gaps) >= 0 else None

    def with_boxes(self, boxes: Iterable[StridedBox]) -> Tile:
        """The same steps elsewhere."""
        rest = iter(boxes)
        queries = next(rest)
        steps = (replace(s, pieces=tuple(replace(p, keys=next(rest)) for p in s.pieces)) for s in self.steps)
        return Tile(queries, tuple(steps))


@dataclass(frozen=True, eq=False)
class Draft:
    """A piece before it has a column: `alive` says which rows have a live key in it, None if all do."""

    keys: StridedBox
    masks: tuple[tuple[int, int, torch.Tensor], ...]
    alive: np.ndarray | None


class Masks:
    """Additive masks, and lists of tokens, by content."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.known: dict[bytes, torch.Tensor] = {}
        self.lists: dict[bytes, torch.Tensor] = {}

    def gathered(self, tokens: Ints) -> StridedBox:
        """The box of listed tokens."""
        listed = self.lists.setdefault(tokens.tobytes(), torch.from_numpy(tokens))
        return StridedBox(0, (tokens.size,), (1,), listed=listed)

    def additive(self, live: np.ndarray) -> torch.Tensor:
        """0 where live, -inf where not."""
        key = live.tobytes() + live.shape[1].to_bytes(8, "little")
        if key not in self.known:
            self.known[key] = torch.from_numpy(np.where(live, 0.0, -np.inf)).to(self.dtype)
        return self.known[key]


def steps_of(drafts: list[Draft]) -> Iterator[Step]:
    """Pieces packed into steps of about CHUNK keys."""
    batch: list[Draft] = []
    for draft in drafts:
        if batch and sum(d.keys.size for d in batch) + draft.keys.size > CHUNK:
            yield _step(batch)
            batch = []
        batch.append(draft)
    yield _step(batch)


def _step(drafts: list[Draft]) -> Step:
    pieces, column = [], 0
    for draft in drafts:
        pieces.append(Piece(draft.keys, column, draft.masks))
        column += draft.keys.size
    known = [draft.alive for draft in drafts if draft.alive is not None]
    dead = None
    if len(known) == len(drafts):
        rows = np.flatnonzero(~reduce(np.logical_or, known))
        dead = torch.from_numpy(rows) if rows.size else None
    return Step(tuple(pieces), column, dead)
