"""A plan as the CPU walks it: a flat list of steps with slices and additive masks, made once for each plan.

Interior keys carry no mask at all. Masks are shared: two tiles whose row bounds stand alike relative to their keys use
one tensor, so a window of any length needs a handful of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
import torch

from weft.acsr.format import BLOCK, Grid
from weft.pattern.bounds import Ints
from weft.planning.planner import CHUNK
from weft.planning.tiles import AxisPlan, Launch, Part, TileIndex, TilePlan

Slices = tuple[slice, ...]
BATCH = 1 << 19  # scores computed together: a few MB, which is what a core's caches hold


@dataclass(frozen=True, eq=False)
class Box:
    """Tokens of a grid, sliced on every axis: a view of q, k or v, never a copy."""

    grid: Grid
    slices: Slices
    size: int

    def of(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """The view of x, whose tokens are dimension `dim`: that dimension becomes the axes of the box."""
        if len(self.slices) == 1:
            one = self.slices[0]
            tokens = x.narrow(dim, self.grid.origin + one.start, one.stop - one.start)
            return tokens if one.step == 1 else tokens[(slice(None),) * dim + (slice(None, None, one.step),)]
        tokens = x.narrow(dim, self.grid.origin, self.grid.size).unflatten(dim, self.grid.shape)
        return tokens[(slice(None),) * dim + self.slices]

    def axis_indices(self) -> Ints:
        """The token indices, in the order of the box."""
        tokens = np.zeros(1, np.int64)
        for one, size in zip(self.slices, self.grid.shape, strict=True):
            tokens = (tokens[:, None] * size + np.arange(size)[one]).reshape(-1)
        return tokens + self.grid.origin


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


@dataclass(frozen=True, eq=False)
class Tile:
    """One query tile and its steps."""

    queries: Box
    steps: tuple[Step, ...]

    @property
    def shape(self) -> tuple[object, ...]:
        """Tiles of one launch with the same shape (sizes and masks) can be computed together."""
        if len(self.steps) > 1 or self.steps[0].dead is not None:
            return (id(self),)
        pieces = ((p.column, tuple((a, b, id(mask)) for a, b, mask in p.masks)) for p in self.steps[0].pieces)
        return (self.queries.size, self.steps[0].width, *pieces)


@dataclass(frozen=True, eq=False)
class Program:
    """All tiles of a plan, those of the same launch and shape side by side.

    merges: rows may be visited by more than one launch, so outputs are merged by lse. covers: every row is visited, so
    nothing need be written beforehand.
    """

    alike: tuple[tuple[Tile, ...], ...]
    merges: bool
    covers: bool

    def batches(self, heads: int) -> Iterator[tuple[Tile, ...]]:
        """Tiles to compute together: as many of one shape as keep `heads` times their scores within BATCH."""
        for tiles in self.alike:
            scores = max(1, heads) * tiles[0].queries.size * tiles[0].steps[0].width
            count = max(1, BATCH // scores)
            for at in range(0, len(tiles), count):
                yield tiles[at : at + count]


@dataclass(frozen=True, eq=False)
class _Draft:
    """A piece before it has a column: `alive` says which rows have a live key in it, None if all do."""

    keys: Box
    masks: tuple[tuple[int, int, torch.Tensor], ...]
    alive: np.ndarray | None


@lru_cache(maxsize=32)
def program(plan: TilePlan, dtype: torch.dtype) -> Program:
    """The program of a plan with masks of `dtype`."""
    masks = Masks(dtype)
    walks = [*(_launch_tiles(launch, masks) for launch in plan.launches), _block_tiles(plan, masks)]
    alike = [tiles for walk in walks for tiles in _alike(walk)]
    merges = len(plan.launches) + (plan.blocks is not None) > 1
    visited = sum(tile.queries.size for tiles in alike for tile in tiles)
    return Program(tuple(alike), merges, covers=not merges and visited == plan.acsr.m)


def _alike(walk: Iterable[Tile]) -> list[tuple[Tile, ...]]:
    found: dict[tuple[object, ...], list[Tile]] = {}
    for tile in walk:
        found.setdefault(tile.shape, []).append(tile)
    return [tuple(tiles) for tiles in found.values()]


class Masks:
    """Additive masks by content."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.known: dict[bytes, torch.Tensor] = {}

    def additive(self, live: np.ndarray) -> torch.Tensor:
        """0 where live, -inf where not."""
        key = live.tobytes() + live.shape[1].to_bytes(8, "little")
        if key not in self.known:
            self.known[key] = torch.from_numpy(np.where(live, 0.0, -np.inf)).to(self.dtype)
        return self.known[key]


def _launch_tiles(launch: Launch, masks: Masks) -> Iterator[Tile]:
    for index in launch.walk_tiles():
        drafts = [draft for part in launch.parts for draft in _drafts(part, index, masks)]
        if drafts:
            queries = _query_box(launch, index)
            yield Tile(queries, tuple(_steps(drafts)))


def _query_box(launch: Launch, index: TileIndex) -> Box:
    slices, size = [], 1
    for (lane, tile), lanes, block in zip(index, launch.lanes, launch.box, strict=True):
        first, rows = tile * block, min(block, int(lanes.rows[lane]) - tile * block)
        slices.append(_positions(int(lanes.q_first[lane]), lanes.q_step, first, first + rows))
        size *= rows
    return Box(launch.q, tuple(slices), size)


def _positions(base: int, step: int, first: int, last: int) -> slice:
    return slice(base + step * first, base + step * (last - 1) + 1, step)


def _drafts(part: Part, index: TileIndex, masks: Masks) -> Iterator[_Draft]:
    """The keys of one part of a tile, in pieces of at most CHUNK keys along the first axis."""
    spans = [(int(a.start[at]), int(a.stop[at])) for a, at in zip(part.axes, index, strict=True)]
    if any(stop <= start for start, stop in spans):
        return
    bounds = [axis.row_bounds(*at) for axis, at in zip(part.axes, index, strict=True)]
    inner = int(np.prod([stop - start for start, stop in spans[1:]], dtype=np.int64))
    pace = max(1, CHUNK // inner)
    for first in range(spans[0][0], spans[0][1], pace):
        here = [(first, min(first + pace, spans[0][1])), *spans[1:]]
        keys = _key_box(part, index, here)
        if len(part.axes) == 1:
            yield _flat_draft(keys, part.axes[0], index[0], here[0], bounds[0], masks)
        else:
            yield _grid_draft(keys, here, bounds, masks)


def _key_box(part: Part, index: TileIndex, spans: list[tuple[int, int]]) -> Box:
    slices, size = [], 1
    for axis, (lane, _), (start, stop) in zip(part.axes, index, spans, strict=True):
        slices.append(_positions(int(axis.lanes.k_first[lane]), axis.lanes.k_step, start, stop))
        size *= stop - start
    return Box(part.k, tuple(slices), size)


def _flat_draft(
    keys: Box, axis: AxisPlan, at: tuple[int, int], span: tuple[int, int], bounds: tuple[Ints, Ints], masks: Masks
) -> _Draft:
    """Masks on the left and right edge columns only, as the runs of the plan say."""
    lo, hi = bounds
    run_start, left, full = int(axis.start[at]), int(axis.left[at]), int(axis.full[at])
    start, stop = span
    inner_start = min(max(run_start + left * axis.block_k, start), stop)
    inner_stop = min(max(run_start + (left + full) * axis.block_k, inner_start), stop)
    edges = [(start, stop)] if inner_start == inner_stop else [(start, inner_start), (inner_stop, stop)]
    found = []
    for first, last in edges:
        if first < last:
            columns = np.arange(first, last)
            live = (columns >= lo[:, None]) & (columns < hi[:, None])
            if not live.all():
                found.append((first - start, last - start, masks.additive(live)))
    alive = None if inner_start < inner_stop else np.minimum(hi, stop) > np.maximum(lo, start)
    return _Draft(keys, tuple(found), alive)


def _grid_draft(keys: Box, spans: list[tuple[int, int]], bounds: list[tuple[Ints, Ints]], masks: Masks) -> _Draft:
    """One mask for a box of several axes, if any of its pairs is dead."""
    live, alive = np.ones((1, 1), np.bool_), np.ones(1, np.bool_)
    for (start, stop), (lo, hi) in zip(spans, bounds, strict=True):
        columns = np.arange(start, stop)
        axis = (columns >= lo[:, None]) & (columns < hi[:, None])
        live = (live[:, None, :, None] & axis[None, :, None, :]).reshape(live.shape[0] * len(axis), -1)
        alive = (alive[:, None] & axis.any(axis=1)).reshape(-1)
    if live.all():
        return _Draft(keys, (), None)
    return _Draft(keys, ((0, keys.size, masks.additive(live)),), alive)


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
    """The remainder: one tile for each row of blocks."""
    if plan.blocks is None:
        return
    acsr, remainder = plan.acsr, plan.acsr.remainder
    rows, keys = Grid(0, (acsr.m,)), Grid(0, (acsr.n,))
    spans = zip(plan.blocks.rows.tolist(), plan.blocks.first[:-1].tolist(), plan.blocks.first[1:].tolist(), strict=True)
    for row, first, last in spans:
        stop = min(BLOCK * (row + 1), acsr.m)
        drafts = []
        for i in range(first, last):
            live = remainder.mask(i, acsr.m, acsr.n)
            start = BLOCK * int(remainder.cols[i])
            box = Box(keys, (slice(start, start + live.shape[1], 1),), live.shape[1])
            cut = () if live.all() else ((0, live.shape[1], masks.additive(live)),)
            drafts.append(_Draft(box, cut, live.any(axis=1) if cut else None))
        yield Tile(Box(rows, (slice(BLOCK * row, stop, 1),), stop - BLOCK * row), tuple(_steps(drafts)))
