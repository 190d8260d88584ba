"""A plan as the CPU walks it: a flat list of steps with slices and additive masks, made once for each plan.

Interior keys carry no mask at all. Masks are shared: two tiles whose row bounds stand alike relative to their keys use
one tensor, so a window of any length needs a handful of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from weft.acsr.format import BLOCK
from weft.kernels.cpu.boxes import Box
from weft.kernels.cpu.dense import Dense, dense_of, in_order, seconds, seconds_of_tiles
from weft.pattern.bounds import Ints
from weft.planning.planner import CHUNK
from weft.planning.problem import Problem
from weft.planning.tiles import AxisPlan, Launch, Part, TileIndex, TilePlan

TOGETHER = 1 << 18  # scores of a batch: 1 MB, so that a buffer of them stays near the cores


@dataclass(frozen=True, eq=False)
class Piece:
    """Keys that one step visits: columns [column, column + keys.size) of its scores, and masks added to some of them.

    masks: (first column, last column + 1, (rows, columns) of 0 and -inf), columns counted inside the piece.
    """

    keys: Box
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

    queries: Box
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
        if any(step.dead is None for step in self.steps):
            return None
        first, *others = (step.dead.numpy() for step in self.steps)
        rows = reduce(np.intersect1d, others, first)
        return torch.from_numpy(rows) if rows.size else None

    @property
    def shape(self) -> tuple[object, ...]:
        """Tiles of one launch with the same shape (sizes and masks) can be computed together."""
        if len(self.steps) > 1 or self.steps[0].dead is not None:
            return (id(self),)
        masks = (tuple((a, b, id(mask)) for a, b, mask in p.masks) for p in self.steps[0].pieces)
        return (*((box.sizes, box.strides, id(box.listed)) for box in self.boxes), *masks)

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
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

    def with_boxes(self, boxes: Iterable[Box]) -> Tile:
        """The same steps elsewhere."""
        rest = iter(boxes)
        queries = next(rest)
        steps = (replace(s, pieces=tuple(replace(p, keys=next(rest)) for p in s.pieces)) for s in self.steps)
        return Tile(queries, tuple(steps))


@dataclass(frozen=True, eq=False)
class Program:
    """All tiles of a plan, those of the same launch and shape side by side and joined to runs.

    merges: rows may be visited by more than one launch, so outputs are merged by lse. covers: every row is visited, so
    nothing need be written beforehand. dense: what torch's own kernel computes.
    """

    alike: tuple[tuple[Tile, ...], ...]
    merges: bool
    covers: bool
    dense: tuple[Dense, ...] = ()
    schedules: dict[int, Any] = field(default_factory=dict)  # of so many heads: see `scores.schedule`


@dataclass(frozen=True, eq=False)
class _Draft:
    """A piece before it has a column: `alive` says which rows have a live key in it, None if all do."""

    keys: Box
    masks: tuple[tuple[int, int, torch.Tensor], ...]
    alive: np.ndarray | None


def program(plan: TilePlan, dtype: torch.dtype, problem: Problem | None = None) -> Program:
    """The program of a plan with masks of `dtype`. problem: what launches of rectangles and triangles are predicted to
    cost for; without one they go by tiles as all others do.
    """
    masks = Masks(dtype)
    dense: list[Dense] = []
    alike: list[tuple[Tile, ...]] = []
    merges = len(plan.launches) + (plan.blocks is not None) > 1
    for launch in plan.launches:
        tiles = _alike(_launch_tiles(launch, masks))
        shapes = None if problem is None else _worth_it(launch, tiles, problem, merges)
        alike += tiles if shapes is None else []
        dense += shapes or ()
    alike += _alike(_block_tiles(plan, masks))
    shaped = in_order(tuple(dense), plan.acsr.m)
    merges = merges or not all(one.fresh for one in shaped)
    visited = sum(tile.count * tile.queries.size for tiles in alike for tile in tiles)
    visited += sum(one.queries.count * one.queries.size for one in shaped)
    return Program(tuple(alike), merges, not merges and visited == plan.acsr.m, shaped)


def _worth_it(
    launch: Launch, alike: list[tuple[Tile, ...]], problem: Problem, merges: bool
) -> tuple[Dense, ...] | None:
    """The launch as shapes that torch's kernel computes, None where tiles are predicted to take less."""
    shapes = dense_of(launch)
    if shapes is None:
        return None
    heads, wide = problem.batch * problem.q_heads, (problem.d + problem.dv) / 128
    pairs = [sum(tile.pairs for tile in tiles) for tiles in alike]
    batches = sum(-(-heads * some // TOGETHER) for some in pairs)
    tiled = seconds_of_tiles(sum(pairs), batches, heads, wide)
    return shapes if seconds(shapes, heads, wide, merges) <= tiled else None


def _alike(walk: Iterable[Tile]) -> list[tuple[Tile, ...]]:
    found: dict[tuple[object, ...], list[Tile]] = {}
    for tile in walk:
        found.setdefault(tile.shape, []).append(tile)
    return [tuple(_runs(tiles)) for tiles in found.values()]


def _runs(tiles: list[Tile]) -> Iterator[Tile]:
    """Tiles of one shape, neighbours joined where every box lies as far from the one before as in the pair before."""
    still = (0,) * len(tiles[0].boxes)
    first, gaps, count = tiles[0], still, 1
    for before, tile in pairwise(tiles):
        here = tuple(b.first - a.first for a, b in zip(before.boxes, tile.boxes, strict=True))
        if min(here) >= 0 and (count == 1 or here == gaps):
            gaps, count = here, count + 1
        else:
            yield _run(first, gaps, count)
            first, gaps, count = tile, still, 1
    yield _run(first, gaps, count)


def _run(tile: Tile, gaps: tuple[int, ...], count: int) -> Tile:
    return tile.with_boxes(replace(b, count=count, pitch=gap) for b, gap in zip(tile.boxes, gaps, strict=True))


class Masks:
    """Additive masks, and lists of tokens, by content."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.known: dict[bytes, torch.Tensor] = {}
        self.lists: dict[bytes, torch.Tensor] = {}

    def gathered(self, tokens: Ints) -> Box:
        """The box of listed tokens."""
        listed = self.lists.setdefault(tokens.tobytes(), torch.from_numpy(tokens))
        return Box(0, (tokens.size,), (1,), listed=listed)

    def additive(self, live: np.ndarray) -> torch.Tensor:
        """0 where live, -inf where not."""
        key = live.tobytes() + live.shape[1].to_bytes(8, "little")
        if key not in self.known:
            self.known[key] = torch.from_numpy(np.where(live, 0.0, -np.inf)).to(self.dtype)
        return self.known[key]


def _launch_tiles(launch: Launch, masks: Masks) -> Iterator[Tile]:
    for index in launch.walk_tiles():
        queries = _query_box(launch, index, masks)
        drafts = [draft for part in launch.parts for draft in _drafts(part, index, queries, masks)]
        if drafts:
            yield Tile(queries, tuple(_steps(drafts)))


def _query_box(launch: Launch, index: TileIndex, masks: Masks) -> Box:
    if launch.lanes[0].queries is not None:
        return masks.gathered(launch.tile_queries(index))
    spans = []
    for (lane, tile), lanes, block in zip(index, launch.lanes, launch.box, strict=True):
        first, rows = tile * block, min(block, int(lanes.rows[lane]) - tile * block)
        spans.append((int(lanes.q_first[lane]) + lanes.q_step * first, lanes.q_step, rows))
    return Box.on(launch.q, spans)


def _drafts(part: Part, index: TileIndex, queries: Box, masks: Masks) -> Iterator[_Draft]:
    """The keys of one part of a tile, in pieces of at most CHUNK keys along the first axis."""
    spans = [(int(a.start[at]), int(a.stop[at])) for a, at in zip(part.axes, index, strict=True)]
    if any(stop <= start for start, stop in spans):
        return
    bounds = [axis.row_bounds(*at) for axis, at in zip(part.axes, index, strict=True)]
    inner = int(np.prod([stop - start for start, stop in spans[1:]], dtype=np.int64))
    pace = max(1, CHUNK // inner)
    for first in range(spans[0][0], spans[0][1], pace):
        here = [(first, min(first + pace, spans[0][1])), *spans[1:]]
        keys = _key_box(part, index, here, masks)
        cut = _cut(part, queries, keys)
        if len(part.axes) == 1:
            inner = _inner(part.axes[0], index[0], here[0])
            yield _flat_draft(keys, (here[0], inner), bounds[0], cut, masks)
        else:
            yield _grid_draft(keys, here, bounds, cut, masks)


def _cut(part: Part, queries: Box, keys: Box) -> np.ndarray | None:
    """(queries, keys): False for tokens that a part leaves out; None if it leaves out none of these."""
    if part.rows.is_every and part.keys.is_every:
        return None
    rows, columns = part.rows.holds(queries.tokens()[0]), part.keys.holds(keys.tokens()[0])
    return None if rows.all() and columns.all() else rows[:, None] & columns


def _key_box(part: Part, index: TileIndex, spans: list[tuple[int, int]], masks: Masks) -> Box:
    lanes, (start, stop) = part.axes[0].lanes, spans[0]
    if lanes.keys is not None:
        return masks.gathered(part.k.origin + lanes.key_at(np.asarray(index[0][0]), np.arange(start, stop)))
    found = []
    for axis, (lane, _), (start, stop) in zip(part.axes, index, spans, strict=True):
        step = axis.lanes.k_step
        found.append((int(axis.lanes.k_first[lane]) + step * start, step, stop - start))
    return Box.on(part.k, found)


def _inner(axis: AxisPlan, at: tuple[int, int], span: tuple[int, int]) -> tuple[int, int]:
    """The positions of a span that the plan calls full: the first, and the last + 1."""
    first = int(axis.start[at]) + int(axis.left[at]) * axis.block_k
    start = min(max(first, span[0]), span[1])
    return start, min(max(first + int(axis.full[at]) * axis.block_k, start), span[1])


def _flat_draft(
    keys: Box,
    spans: tuple[tuple[int, int], tuple[int, int]],
    bounds: tuple[Ints, Ints],
    cut: np.ndarray | None,
    masks: Masks,
) -> _Draft:
    """Masks on the left and right edge columns only, as the runs of the plan say. spans: all keys, the full ones."""
    ((start, stop), (inner_start, inner_stop)), (lo, hi) = spans, bounds
    edges = [(start, stop)] if inner_start == inner_stop else [(start, inner_start), (inner_stop, stop)]
    found = []
    alive = np.full(lo.shape, inner_start < inner_stop)
    for first, last in edges:
        if first < last:
            columns = np.arange(first, last)
            live = (columns >= lo[:, None]) & (columns < hi[:, None])
            if cut is not None:
                live &= cut[:, first - start : last - start]
            if not live.all():
                found.append((first - start, last - start, masks.additive(live)))
            alive |= live.any(axis=1)
    return _Draft(keys, tuple(found), None if alive.all() else alive)


def _grid_draft(
    keys: Box,
    spans: list[tuple[int, int]],
    bounds: list[tuple[Ints, Ints]],
    cut: np.ndarray | None,
    masks: Masks,
) -> _Draft:
    """One mask for a box of several axes, if any of its pairs is dead."""
    live = np.ones((1, 1), np.bool_)
    for (start, stop), (lo, hi) in zip(spans, bounds, strict=True):
        columns = np.arange(start, stop)
        axis = (columns >= lo[:, None]) & (columns < hi[:, None])
        live = (live[:, None, :, None] & axis[None, :, None, :]).reshape(live.shape[0] * len(axis), -1)
    if cut is not None:
        live = live & cut
    if live.all():
        return _Draft(keys, (), None)
    return _Draft(keys, ((0, keys.size, masks.additive(live)),), live.any(axis=1))


def _steps(drafts: list[_Draft]) -> Iterator[Step]:
    """Pieces packed into steps of about CHUNK keys."""
    batch: list[_Draft] = []
    for draft in drafts:
        if batch and sum(d.keys.size for d in batch) + draft.keys.size > CHUNK:
            yield _step(batch)
            batch = []
        batch.append(draft)
    yield _step(batch)


def _step(drafts: list[_Draft]) -> Step:
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


def _block_tiles(plan: TilePlan, masks: Masks) -> Iterator[Tile]:
    """The remainder: one tile for each row of blocks, from its first query that sees a key to the last."""
    if plan.blocks is None:
        return
    acsr, remainder = plan.acsr, plan.acsr.remainder
    spans, ends = remainder.spans(acsr.n), plan.blocks.first.tolist()
    for row, first, last in zip(plan.blocks.rows.tolist(), ends[:-1], ends[1:], strict=True):
        found = [remainder.mask(i, acsr.m, acsr.n)[:, slice(*spans[i])] for i in range(first, last)]
        seeing = np.flatnonzero(np.logical_or.reduce([live.any(axis=1) for live in found]))
        top, below = int(seeing[0]), int(seeing[-1]) + 1
        drafts = []
        for i, block in zip(range(first, last), found, strict=True):
            live = block[top:below]
            box = Box(BLOCK * int(remainder.cols[i]) + int(spans[i, 0]), (live.shape[1],), (1,))
            cut = () if live.all() else ((0, live.shape[1], masks.additive(live)),)
            drafts.append(_Draft(box, cut, live.any(axis=1) if cut else None))
        yield Tile(Box(BLOCK * row + top, (below - top,), (1,)), tuple(_steps(drafts)))
