"""A plan as the CPU walks it: a flat list of steps with slices and additive masks, made once for each plan.

Interior keys carry no mask at all. Masks are shared: tiles whose row bounds stand alike relative to their keys use one
tensor. So a window of any length needs a handful of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from weft.acsr.format import BLOCK
from weft.kernels.cpu.boxes import StridedBox
from weft.kernels.cpu.dense import Dense, dense_of, in_order, seconds, seconds_of_tiles
from weft.kernels.cpu.lines import line_tiles
from weft.kernels.cpu.tiles import Draft, Masks, Tile, steps_of
from weft.pattern.bounds import Ints
from weft.planning.families.cpu import CHUNK
from weft.planning.problem import Problem
from weft.planning.tiles import LoopNest, Part, TileIndex, TilePlan

TOGETHER = 1 << 18  # scores of a batch: 1 MB, so that a buffer of them stays near the cores


@dataclass(frozen=True, eq=False)
class Program:
    """All tiles of a plan, those of the same nest and shape side by side and joined to runs.

    merges: rows may be visited by more than one nest, so outputs are merged by lse. covers: every row is visited, so
    nothing need be written beforehand. dense: what torch's own kernel computes.
    """

    alike: tuple[tuple[Tile, ...], ...]
    merges: bool
    covers: bool
    dense: tuple[Dense, ...] = ()
    schedules: dict[int, Any] = field(default_factory=dict)  # of so many heads: see `scores.schedule`


def program(plan: TilePlan, dtype: torch.dtype, problem: Problem | None = None) -> Program:
    """The program of a plan with masks of `dtype`. problem: what nests of rectangles and triangles are predicted to
    cost for; without one they go by tiles as all others do.
    """
    masks = Masks(dtype)
    dense: list[Dense] = []
    alike: list[tuple[Tile, ...]] = []
    merges = len(plan.nests) + (plan.blocks is not None) > 1
    for nest in plan.nests:
        tiles = _alike(line_tiles(nest, masks) if len(nest.box) == 1 else _grid_tiles(nest, masks))
        shapes = None if problem is None else _worth_it(nest, tiles, problem, merges)
        alike += tiles if shapes is None else []
        dense += shapes or ()
    alike += _alike(_block_tiles(plan, masks))
    shaped = in_order(tuple(dense), plan.acsr.m)
    merges = merges or not all(one.fresh for one in shaped)
    visited = sum(tile.count * tile.queries.size for tiles in alike for tile in tiles)
    visited += sum(one.queries.count * one.queries.size for one in shaped)
    return Program(tuple(alike), merges, not merges and visited == plan.acsr.m, shaped)


def _worth_it(
    nest: LoopNest, alike: list[tuple[Tile, ...]], problem: Problem, merges: bool
) -> tuple[Dense, ...] | None:
    """The nest as shapes that torch's kernel computes, None where tiles are predicted to take less."""
    shapes = dense_of(nest)
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
    """Tiles of one shape, neighbours joined where every box lies as far from the one before as in the pair before. Some
    may be runs themselves.
    """
    run = tiles[0]
    for tile in tiles[1:]:
        gaps = run.gaps_to(tile)
        if gaps is None:
            yield run
            run = tile
        else:
            run = run.repeated(run.count + tile.count, gaps)
    yield run


def _grid_tiles(nest: LoopNest, masks: Masks) -> Iterator[Tile]:
    for index in nest.walk_tiles():
        queries = _query_box(nest, index)
        drafts = [draft for part in nest.parts for draft in _drafts(part, index, queries, masks)]
        if drafts:
            yield Tile(queries, tuple(steps_of(drafts)))


def _query_box(nest: LoopNest, index: TileIndex) -> StridedBox:
    spans = []
    for (lane, tile), lanes, block in zip(index, nest.lanes, nest.box, strict=True):
        first, rows = tile * block, min(block, int(lanes.rows[lane]) - tile * block)
        spans.append((int(lanes.q_first[lane]) + lanes.q_step * first, lanes.q_step, rows))
    return StridedBox.on(nest.q, spans)


def _drafts(part: Part, index: TileIndex, queries: StridedBox, masks: Masks) -> Iterator[Draft]:
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
        yield _grid_draft(keys, here, bounds, _cut(part, queries, keys), masks)


def _cut(part: Part, queries: StridedBox, keys: StridedBox) -> np.ndarray | None:
    """(queries, keys): False for tokens that a part leaves out; None if it leaves out none of these."""
    if part.rows.is_every and part.keys.is_every:
        return None
    rows, columns = part.rows.holds(queries.tokens()[0]), part.keys.holds(keys.tokens()[0])
    return None if rows.all() and columns.all() else rows[:, None] & columns


def _key_box(part: Part, index: TileIndex, spans: list[tuple[int, int]]) -> StridedBox:
    found = []
    for axis, (lane, _), (start, stop) in zip(part.axes, index, spans, strict=True):
        step = axis.lanes.k_step
        found.append((int(axis.lanes.k_first[lane]) + step * start, step, stop - start))
    return StridedBox.on(part.k, found)


def _grid_draft(
    keys: StridedBox,
    spans: list[tuple[int, int]],
    bounds: list[tuple[Ints, Ints]],
    cut: np.ndarray | None,
    masks: Masks,
) -> Draft:
    """One mask for a box of several axes, if any of its pairs is dead."""
    live = np.ones((1, 1), np.bool_)
    for (start, stop), (lo, hi) in zip(spans, bounds, strict=True):
        columns = np.arange(start, stop)
        axis = (columns >= lo[:, None]) & (columns < hi[:, None])
        live = (live[:, None, :, None] & axis[None, :, None, :]).reshape(live.shape[0] * len(axis), -1)
    if cut is not None:
        live = live & cut
    if live.all():
        return Draft(keys, (), None)
    return Draft(keys, ((0, keys.size, masks.additive(live)),), np.asarray(live.any(axis=1)))


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
            box = StridedBox(BLOCK * int(remainder.cols[i]) + int(spans[i, 0]), (live.shape[1],), (1,))
            cut = () if live.all() else ((0, live.shape[1], masks.additive(live)),)
            drafts.append(Draft(box, cut, np.asarray(live.any(axis=1)) if cut else None))
        yield Tile(StridedBox(BLOCK * row + top, (below - top,), (1,)), tuple(steps_of(drafts)))
