"""Tiles of nests on one axis: rows that have no key in common are never in one tile, nor are keys that none sees.

A tile multiplies what it reads with weights of 0 too, and NaN survives that. So what a document, or padding, holds
reaches no other document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.kernels.cpu.boxes import StridedBox
from weft.kernels.cpu.tiles import Draft, Masks, Tile, steps_of
from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool
from weft.planning.families.cpu import CHUNK
from weft.planning.tiles import AxisPlan, LoopNest, Part

Bounds = tuple[Ints, Ints]  # positions [lo, hi) of the keys of some rows; lo >= hi where there are none


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one tile of a plan that share keys. at: (lane, tile of rows). whole: they are all of its rows."""

    at: tuple[int, int]
    tokens: Ints
    whole: bool


def line_tiles(nest: LoopNest, masks: Masks) -> Iterator[Tile]:
    """The tiles of a nest of one axis, each of rows that share keys; a run where all of those are alike."""
    for index in nest.walk_tiles():
        tokens = nest.tile_queries(index)
        bounds = [_bounds(part, index[0], tokens) for part in nest.parts]
        groups = _together(bounds)
        gaps = _alike(groups, bounds, nest)
        for rows in groups if gaps is None else groups[:1]:
            mine = Rows(index[0], tokens[rows], rows.size == tokens.size)
            pairs = zip(nest.parts, bounds, strict=True)
            drafts = [d for part, (lo, hi) in pairs for d in _drafts(part, mine, (lo[rows], hi[rows]), masks)]
            if drafts:
                tile = Tile(_query_box(nest, mine, masks), tuple(steps_of(drafts)))
                yield tile if gaps is None else tile.repeated(len(groups), (gaps[0], *gaps[1:] * (len(tile.boxes) - 1)))


def _bounds(part: Part, at: tuple[int, int], tokens: Ints) -> Bounds:
    """Of all rows of a tile; none of rows that a list leaves out."""
    lo, hi = part.axes[0].row_bounds(*at)
    return lo, hi if part.rows.is_every else np.where(part.rows.holds(tokens), hi, lo)


def _together(bounds: list[Bounds]) -> list[Ints]:
    """Rows that see something, parted where one and the next have no key in common. By monotony none has, then."""
    for lo, hi in bounds:
        if (hi > lo).all() and (lo[1:] < hi[:-1]).all():
            return [np.arange(lo.size)]
    seen = np.logical_or.reduce([hi > lo for lo, hi in bounds])
    rows = np.flatnonzero(seen)
    joined = np.zeros(max(0, rows.size - 1), np.bool_)
    for lo, hi in bounds:
        one, next_ = rows[:-1], rows[1:]
        joined |= (lo[next_] < hi[one]) & (lo[one] < hi[one]) & (lo[next_] < hi[next_])
    return np.split(rows, np.flatnonzero(~joined) + 1) if rows.size else []


def _alike(groups: list[Ints], bounds: list[Bounds], nest: LoopNest) -> tuple[int, int] | None:
    """(Tokens from one group's queries to the next one's, the same of keys), where groups are alike.

    None unless the groups of a tile are evenly apart, no token is listed, and there is one part.
    """
    if len(groups) < 2 or len(bounds) > 1:
        return None
    part, size, count = nest.parts[0], groups[0].size, len(groups)
    lanes = part.axes[0].lanes
    listed = lanes.queries is not None or lanes.keys is not None or part.k.order is not None
    if listed or not part.keys.is_every or any(group.size != size for group in groups):
        return None
    rows, (lo, hi) = np.stack(groups), (x[np.stack(groups)] for x in bounds[0])
    pitch, gap = int(rows[1, 0] - rows[0, 0]), int(lo[1, 0] - lo[0, 0])
    steps = np.arange(count)[:, None]
    even = (rows - pitch * steps == rows[:1]).all() and np.diff(rows[0]).sum() == size - 1
    if not (even and gap > 0 and (lo - gap * steps == lo[:1]).all() and (hi - gap * steps == hi[:1]).all()):
        return None
    return pitch * lanes.q_step, gap * lanes.k_step


def _query_box(nest: LoopNest, rows: Rows, masks: Masks) -> StridedBox:
    lanes = nest.lanes[0]
    tokens, listed = rows.tokens, lanes.queries is not None or nest.q.order is not None
    if listed or tokens[-1] - tokens[0] != lanes.q_step * (tokens.size - 1):
        return masks.gathered(tokens)
    return StridedBox(int(tokens[0]), (tokens.size,), (lanes.q_step,))


def _drafts(part: Part, rows: Rows, bounds: Bounds, masks: Masks) -> Iterator[Draft]:
    """The keys of one part that some of the rows see, in pieces of at most CHUNK."""
    axis, (lo, hi) = part.axes[0], bounds
    seen = hi > lo
    if not seen.any():
        return
    start, stop = max(int(axis.start[rows.at]), int(lo[seen].min())), min(int(axis.stop[rows.at]), int(hi[seen].max()))
    if rows.whole:
        inner = _inner(axis, rows.at)
    else:
        inner = (int(lo.max()), int(hi.min())) if seen.all() else (start, start)
    gaps = bool((lo[seen][1:] > hi[seen][:-1]).any())
    for first in range(start, stop, CHUNK):
        positions = np.arange(first, min(first + CHUNK, stop))
        kept = _live(positions, bounds).any(axis=0) if gaps else np.ones(positions.shape, np.bool_)
        if not part.keys.is_every:
            kept &= part.keys.holds(_keys_at(part, rows.at[0], positions))
        if kept.all():
            yield _draft(_key_box(part, rows.at[0], positions, masks), positions, inner, bounds, masks)
        elif kept.any():
            some = positions[kept]
            yield _draft(_key_box(part, rows.at[0], some, masks), some, (0, 0), bounds, masks)


def _inner(axis: AxisPlan, at: tuple[int, int]) -> tuple[int, int]:
    """The positions that the plan calls full: the first, and the last + 1."""
    first = int(axis.start[at]) + int(axis.left[at]) * axis.block_k
    return first, first + int(axis.full[at]) * axis.block_k


def _keys_at(part: Part, lane: int, positions: Ints) -> Ints:
    return part.k.tokens(part.axes[0].lanes.key_at(np.asarray(lane), positions))


def _key_box(part: Part, lane: int, positions: Ints, masks: Masks) -> StridedBox:
    """The keys at these positions, which rise: a view if they are consecutive and no list or order is in between."""
    lanes = part.axes[0].lanes
    consecutive = positions[-1] - positions[0] == positions.size - 1
    if lanes.keys is not None or part.k.order is not None or not consecutive:
        return masks.gathered(_keys_at(part, lane, positions))
    return StridedBox(int(_keys_at(part, lane, positions[:1])[0]), (positions.size,), (lanes.k_step,))


def _live(positions: Ints, bounds: Bounds) -> NDBool:
    lo, hi = bounds
    return (positions >= lo[:, None]) & (positions < hi[:, None])


def _draft(keys: StridedBox, positions: Ints, inner: tuple[int, int], bounds: Bounds, masks: Masks) -> Draft:
    """Masks on the edges of keys alone: those before and after the full positions `inner`."""
    first, after = (int(np.searchsorted(positions, x)) for x in inner)
    edges = [(0, positions.size)] if first >= after else [(0, first), (after, positions.size)]
    found = []
    alive = np.full(bounds[0].shape, first < after)
    for a, b in edges:
        if a < b:
            live = _live(positions[a:b], bounds)
            if not live.all():
                found.append((a, b, masks.additive(live)))
            alive |= live.any(axis=1)
    return Draft(keys, tuple(found), None if alive.all() else alive)
