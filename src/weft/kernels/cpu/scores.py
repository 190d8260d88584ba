"""What forward and backward share: what is computed together, staging, and the scores of one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from math import prod

import torch

from weft.kernels.cpu.boxes import StridedBox
from weft.kernels.cpu.how import How, Pairs
from weft.kernels.cpu.program import TOGETHER, Program
from weft.kernels.cpu.rules import Applied, Rule
from weft.kernels.cpu.tiles import Step, Tile

LOG2E = 1.4426950408889634  # of scores in bits: exp2 costs a third of exp
IN_A_STRIP = 1 << 20  # and of a strip: long steps, since threads wait for each other at the end of every one


class Workspace:
    """Buffers that are made once a call and handed out as views."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.held: dict[str, torch.Tensor] = {}

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """A contiguous view of `shape`, with whatever was in it."""
        size = prod(shape)
        if name not in self.held or self.held[name].numel() < size:
            self.held[name] = torch.empty(size, dtype=self.dtype)
        return self.held[name].narrow(0, 0, size).view(shape)


@dataclass(frozen=True, eq=False)
class Batch:
    """Tiles of one shape and how they lie in tensors (pairs, group, M, d) of queries and (pairs, N, d) of keys."""

    tiles: tuple[Tile, ...]  # each a run

    @cached_property
    def steps(self) -> tuple[tuple[Step, ...], ...]:
        """Of each step that of every tile."""
        return tuple(zip(*(tile.steps for tile in self.tiles), strict=True))

    @cached_property
    def count(self) -> int:
        """Of tiles, not of runs."""
        return sum(tile.count for tile in self.tiles)

    @property
    def rows(self) -> int:
        """Queries of one tile and head."""
        return self.tiles[0].queries.size

    @property
    def dead(self) -> torch.Tensor | None:
        """Rows without a live key, None if all have one."""
        return self.tiles[0].dead

    def split(self, x: torch.Tensor) -> list[torch.Tensor]:
        """x (tiles * pairs, ...) by runs of tiles."""
        pairs = x.shape[0] // self.count
        return x.split_with_sizes([tile.count * pairs for tile in self.tiles])

    def query_rows(self, x: torch.Tensor, work: Workspace, name: str) -> torch.Tensor:
        """x at the queries as (tiles * pairs, group * rows, d).

        A view where one tile lies in memory as a matrix product wants it, else staged.
        """
        views = [tile.queries.of(x, 2) for tile in self.tiles]
        if self.count == 1 and views[0].dim() == 5 and x.shape[1] == 1 and x.dtype == work.dtype:
            return views[0].flatten(0, 2)
        staged = work.take(name, self.count * x.shape[0], x.shape[1] * self.rows, x.shape[3])
        for view, part in zip(views, self.split(staged), strict=True):
            part.view(view.shape).copy_(view)
        return staged

    def put(
        self, x: torch.Tensor, values: torch.Tensor, *, add: bool = False, over: torch.Tensor | None = None
    ) -> None:
        """x at the queries = values, values / over, or += values; (tiles * pairs, group * rows, d or 1)."""
        divisors = [None] * len(self.tiles) if over is None else self.split(over)
        for tile, part, divisor in zip(self.tiles, self.split(values), divisors, strict=True):
            tile.queries.put(x, 2, part, add=add, over=divisor)

    def key_rows(self, number: int, x: torch.Tensor, work: Workspace, name: str) -> torch.Tensor:
        """x at the keys of one step as (tiles * pairs, width, d); a view or staged, as `query_rows`."""
        steps = self.steps[number]
        if self.count == len(steps[0].pieces) == 1 and x.dtype == work.dtype:
            view = steps[0].pieces[0].keys.of(x, 1)
            if view.dim() == 4:
                return view.flatten(0, 1)
        staged = work.take(name, self.count * x.shape[0], steps[0].width, x.shape[2])
        for step, part in zip(steps, self.split(staged), strict=True):
            for piece in step.pieces:
                view = piece.keys.of(x, 1)
                part.narrow(1, piece.column, piece.keys.size).view(view.shape).copy_(view)
        return staged

    def add_key_rows(self, number: int, total: torch.Tensor, parts: torch.Tensor) -> None:
        """total at the keys of one step += parts (tiles * pairs, width, d), one tile after the other.

        Neighbours share keys, so they cannot be added at once.
        """
        for step, part in zip(self.steps[number], self.split(parts), strict=True):
            for piece in step.pieces:
                here = part.narrow(1, piece.column, piece.keys.size)
                if piece.keys.listed is not None:
                    total.index_add_(1, piece.keys.listed, here.unflatten(0, (step.count, -1)).sum(0))
                    continue
                views = piece.keys.of(total, 1)
                here = here.view(views.shape)
                for view, new in zip(views.unbind(), here.unbind(), strict=True):
                    view.add_(new)


@dataclass(frozen=True, eq=False)
class Strip(Batch):
    """One run that slides along, of one head: tensors (M, d) of queries, (N, d) of keys. Little of it is copied."""

    def query_rows(self, x: torch.Tensor, work: Workspace, name: str) -> torch.Tensor:
        """x at the queries as (tiles, rows, d)."""
        return self._rows(x, self.tiles[0].queries, work, name)

    def put(
        self, x: torch.Tensor, values: torch.Tensor, *, add: bool = False, over: torch.Tensor | None = None
    ) -> None:
        """As for a batch."""
        self.tiles[0].queries.put(x, 0, values, add=add, over=over)

    def key_rows(self, number: int, x: torch.Tensor, work: Workspace, name: str) -> torch.Tensor:
        """x at the keys as (tiles, width, d), which overlap in memory."""
        return self._rows(x, self.steps[number][0].pieces[0].keys, work, name)

    def add_key_rows(self, number: int, total: torch.Tensor, parts: torch.Tensor) -> None:
        """total at the keys += parts (tiles, width, d).

        The first keys of all tiles are added, up to the next tile, then those after; or tile by tile, where that takes
        fewer calls.
        """
        box = self.steps[number][0].pieces[0].keys
        views, pace = box.of(total, 0), box.pitch // box.strides[0]
        if pace * self.count <= box.size:
            slices = zip(views.unbind(), parts.unbind(), strict=True)
        else:
            slices = zip(views.split(pace, 1), parts.split(pace, 1), strict=True)
        for view, new in slices:
            view.add_(new)

    @staticmethod
    def _rows(x: torch.Tensor, box: StridedBox, work: Workspace, name: str) -> torch.Tensor:
        """A view of x, or of staged tokens: of each once, however many boxes it is in."""
        view = box.of(x, 0)
        if x.dtype == work.dtype and x.stride(1) == 1:
            return view
        pace = box.pitch // box.strides[0]
        tokens, width = (box.count - 1) * pace + box.size, x.shape[1]
        staged = work.take(name, tokens, width)
        staged.copy_(view.as_strided((tokens, width), (view.stride(1), view.stride(2))))
        return staged.as_strided(view.shape, (pace * width, width, 1))


Schedule = tuple[tuple[Strip, ...], tuple[Batch, ...]]


def schedule(program: Program, heads: int) -> Schedule:
    """What to compute together: strips, one head at a time, and batches, all heads at once. As many tiles of one shape
    as keep their scores within IN_A_STRIP or TOGETHER. Kept with the program.
    """
    if heads not in program.schedules:
        program.schedules[heads] = _scheduled(program, heads)
    found: Schedule = program.schedules[heads]
    return found


def _scheduled(program: Program, heads: int) -> Schedule:
    strips: list[Strip] = []
    batches: list[Batch] = []
    for runs in program.alike:
        scores = runs[0].queries.size * runs[0].steps[0].width
        size = max(1, IN_A_STRIP // scores)
        alone = [run.slides and run.count >= max(2, min(heads, size)) for run in runs]
        strips += [Strip((part,)) for run in compress(runs, alone) for part in _evenly(run, size)]
        rest = [run for run, single in zip(runs, alone, strict=True) if not single]
        batches += map(Batch, _packed(rest, max(1, TOGETHER // (max(1, heads) * scores))))
    return tuple(strips), tuple(batches)


def _evenly(run: Tile, size: int) -> Iterator[Tile]:
    """The run in the fewest parts of at most `size` tiles, all about as long."""
    parts = -(-run.count // size)
    for i in range(parts):
        yield run.part(run.count * i // parts, run.count * (i + 1) // parts)


def _packed(runs: Iterable[Tile], size: int) -> Iterator[tuple[Tile, ...]]:
    """The tiles of all runs, `size` at a time."""
    batch: list[Tile] = []
    room = size
    for run in runs:
        first = 0
        while first < run.count:
            last = min(run.count, first + room)
            batch.append(run.part(first, last))
            room -= last - first
            first = last
            if room == 0:
                yield tuple(batch)
                batch, room = [], size
    if batch:
        yield tuple(batch)


@dataclass(eq=False, slots=True)
class Scored:
    """Scores of one step, (tiles * pairs, group * rows, width), after every modifier; `capped` before rules and mask.

    applied: of each run of tiles the rules with what they met, if they are kept for gradients. factors: of dropout, as
    the scores.

    Products write contiguous buffers only. Into a strided output torch multiplies one matrix of a batch at a time, on
    another pool of threads. That was measured to cost 1.5 times the whole.
    """

    scores: torch.Tensor
    keys: torch.Tensor
    capped: torch.Tensor | None = None
    applied: tuple[tuple[Applied, ...], ...] = ()
    factors: torch.Tensor | None = None


@dataclass(eq=False, slots=True)  # not frozen, as `How`
class Stage:
    """One step of a batch of tiles, and what is done to its scores. keeps: what gradients of rules need."""

    batch: Batch
    number: int
    how: How
    keeps: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """That of each run of tiles."""
        return self.batch.steps[self.number]


def score(q: torch.Tensor, k: torch.Tensor, stage: Stage, work: Workspace) -> Scored:
    """Scores of the queries (tiles * pairs, group * rows, d) against the keys of one step of each tile, masked."""
    batch, steps, how = stage.batch, stage.steps, stage.how
    keys = batch.key_rows(stage.number, k, work, "k")
    scores = work.take("scores", q.shape[0], q.shape[1], steps[0].width)
    torch.baddbmm(scores, q, keys.transpose(1, 2), beta=0, alpha=how.scale, out=scores)
    shape = q.shape[0], q.shape[1] // batch.rows, batch.rows, steps[0].width
    capped, factors = None, None
    applied: tuple[tuple[Applied, ...], ...] = ()
    if how.softcap is not None:
        scores.div_(how.softcap).tanh_().mul_(how.softcap)
        capped = scores.clone() if how.rules else scores
    if how.by_index:
        apart = stage.keeps and any(rule.expression.addend is None for rule in how.rules)  # their gradients read scores
        ruled = work.take("ruled", *scores.shape) if apart else scores
        factors = None if how.dropout is None else work.take("factors", *scores.shape)
        applied = _by_index(stage, scores.view(shape), ruled.view(shape), factors)
        scores = ruled
    rows = scores.view(shape)
    for piece in steps[0].pieces:  # tiles computed together have the same masks
        for first, last, mask in piece.masks:
            part = rows.narrow(3, piece.column + first, last - first)
            if how.rules:  # of dead pairs a rule may have made anything
                part.masked_fill_(mask < 0, -torch.inf)
            else:
                part.add_(mask)
    if how.unit != 1.0:
        scores.mul_(how.unit)
    return Scored(scores, keys, capped, applied, factors)


def _by_index(
    stage: Stage, scores: torch.Tensor, ruled: torch.Tensor, factors: torch.Tensor | None
) -> tuple[tuple[Applied, ...], ...]:
    """Write what rules make of scores (tiles * pairs, group, rows, width) to `ruled`, and the factors of dropout."""
    batch, how = stage.batch, stage.how
    assert how.heads is not None
    kept = []
    drops = scores if factors is None else factors.view(scores.shape)
    views = zip(*(_by_tile(batch, x) for x in (scores, ruled, drops)), strict=True)
    for tile, step, (x, to, drop) in zip(batch.tiles, stage.steps, views, strict=True):
        pairs = Pairs.of(tile.queries, step)
        if how.rules:
            indices = pairs.indices() | how.heads.indices() | {"shift": torch.tensor(how.shift)}
            applied = apply(how.rules, x, to, indices)
            kept.append(tuple(applied) if stage.keeps else ())
        if factors is not None and how.dropout is not None:
            drop.copy_(pairs.factors(how.dropout, how.heads, drop.dtype))
    return tuple(kept)


def _by_tile(batch: Batch, x: torch.Tensor) -> list[torch.Tensor]:
    """x (tiles * pairs, ...) of each run of tiles as (tiles, pairs, ...)."""
    return [part.unflatten(0, (tile.count, -1)) for tile, part in zip(batch.tiles, batch.split(x), strict=True)]


def apply(
    rules: tuple[Rule, ...], x: torch.Tensor, to: torch.Tensor, indices: dict[str, torch.Tensor]
) -> list[Applied]:
    """Each rule of the result of the one before it; the last one's is written to `to`. Biases are added in place, where
    x and `to` are one.
    """
    found: list[Applied] = []
    in_place = x.data_ptr() == to.data_ptr()
    for rule in rules:
        one = Applied.to(rule, {**indices, "score": x})
        found.append(one)
        if in_place and rule.expression.addend is not None:
            op, other = rule.expression.addend
            (x.add_ if op == "add" else x.sub_)(one.value(other))
        else:
            x = one.score
            in_place = False
    if not in_place:
        to.copy_(x)
    return found


def rules_backward(scored: Scored, batch: Batch, ds: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The gradient by the scores before all rules, from ds (tiles * pairs, group * rows, width), that after them.

    p: weights. Gradients of tables are added on the way.
    """
    shape = ds.shape[0], ds.shape[1] // batch.rows, batch.rows, ds.shape[2]
    parts = (_by_tile(batch, x.view(shape)) for x in (ds, p))
    for applied, part, weights in zip(scored.applied, *parts, strict=True):
        found = part
        for one in reversed(applied):
            found = one.gradient(found, weights)
        if found is not part:
            part.copy_(found)
    return ds
