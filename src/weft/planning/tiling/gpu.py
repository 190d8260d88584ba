"""Plans for a GPU: every tile is computed whole, so boxes are chosen by the number of tiles that they need.

A tile has rows x cols pairs, powers of two. On a grid its two sides are boxes of as many tokens, and a box of keys may
begin anywhere. Axes are independent, so the number of tiles is a product of one sum for each axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TypeAlias

import numpy as np

from weft.acsr.format import Acsr, Term
from weft.acsr.relayout import Lanes
from weft.caching import cached
from weft.pattern.bounds import Ints, Stair
from weft.pattern.relation import NDBool
from weft.planning.problem import Problem
from weft.planning.tiles import AxisPlan, LoopNest, Part, TileBounds, TilePlan, axis_plan, block_nest, tile_bounds
from weft.planning.tiling import Tiling
from weft.planning.tiling.groups import Group, group_lanes, joined, parts_of
from weft.planning.tiling.isolated import isolated
from weft.target import Gpu

# Coordinates that a box of keys on a grid has on all axes together, at most: kernels mask it by a product over them.
PLACES = 16
# Coordinates on its last axis, at least, where warp groups mask it by words (`hopper.ops.grids`).
LAST = 8
FAR = 1 << 30  # beyond every coordinate: kernels compute these in 32 bits


@cached(256)
def plan_for_device(acsr: Acsr, problem: Problem, gpu: Gpu, tiling: Tiling) -> TilePlan:
    """The plan with the fewest tiles; two nests on the same rows pay for their merge."""

    def may_join(a: Group, b: Group) -> bool:
        return a.meets(b) or _follow(a, b, tiling.rows)

    def is_better(a: Group, b: Group, apart: tuple[int, int], both: tuple[LoopNest, int]) -> bool:
        if a.meets(b):
            return both[1] < sum(apart) + _merge(problem, gpu, tiling, a, b)
        return both[1] <= sum(apart) and more_run(both[0]) is not None

    chosen = joined(acsr, lambda group: _best(acsr, group, tiling), may_join, is_better)
    found = [one if tiling.groups else _isolated(*one) for one in chosen.values()]
    report = tuple(f"nest {i}: {count} tiles" for i, (_, count) in enumerate(found))
    return TilePlan(acsr, tuple(nest for nest, _ in found), block_nest(acsr), report, tiling)


def _isolated(nest: LoopNest, total: int) -> tuple[LoopNest, int]:
    """The nest and its tiles, with no tile that holds two documents."""
    parted = isolated(nest)
    if parted is None:
        return nest, total
    total = sum(part.axes[0].steps(part.axes[0].block_k) for part in parted.parts)
    return replace(parted, parts=tuple(sorted(parted.parts, key=_is_whole))), total


def _follow(a: Group, b: Group, rows: int) -> bool:
    """Whether, on a line, the rows of one group follow those of the other, where one tile ends and another begins."""
    if a.listed != b.listed or a.steps != b.steps or len(a.rows) > 1:
        return False
    (first, end), (begin, _) = sorted((a.rows[0], b.rows[0]))
    return end == begin and (end - first) % (rows * a.steps[0]) == 0


def _merge(problem: Problem, gpu: Gpu, tiling: Tiling, a: Group, b: Group) -> int:
    """What merging costs, in tiles: 8 bytes a row and dim of values, against 2 (D + Dv) operations a pair."""
    rows = min(prod(hi - lo for lo, hi in group.rows) for group in (a, b))
    operations = 2 * (problem.d + problem.dv) * tiling.rows * tiling.cols
    per_byte = dict(gpu.flops)["fp16"] / gpu.bandwidth
    return int(per_byte * 8 * rows * problem.dv / operations)


def _best(acsr: Acsr, group: Group, tiling: Tiling) -> tuple[LoopNest, int]:
    """The box of queries, and for each term the box of keys, with the fewest tiles."""
    counted = _counted(acsr, group)
    terms, lanes, rank = counted.terms, counted.lanes, counted.terms[0].rank
    best: tuple[int, tuple[int, ...], list[tuple[int, ...]]] | None = None
    for box in _boxes(tiling.rows, tuple(int(one[0].rows.max(initial=1)) for one in lanes)):
        keys = [counted.best_keys(i, box, tiling) for i in range(len(terms))]
        weight = sum(counted.weight(i, box, key, tiling.groups) for i, key in enumerate(keys))
        if best is None or weight < best[0]:
            best = weight, box, keys
    assert best is not None  # there is always a box
    _, box, keys = best
    total = sum(counted.tiles(i, box, key) for i, key in enumerate(keys))
    axes = [tuple(counted.plan(i, a, box[a], key[a]) for a in range(rank)) for i, key in enumerate(keys)]
    parts = parts_of(acsr, group, axes)
    return LoopNest(terms[0].q, box, tuple(sorted(parts, key=_is_whole))), total


@cached(64)
def _counted(acsr: Acsr, group: Group) -> _Counted:
    """Kept, because every tiling asks for the same sums."""
    terms = [acsr.terms[i] for i in group.terms]
    return _Counted(terms, [group_lanes(terms, axis, group) for axis in range(terms[0].rank)])


class _Counted:
    """Axis plans of a group of terms. Where runs begin and end does not depend on the box of keys."""

    def __init__(self, terms: list[Term], lanes: list[list[Lanes]]) -> None:
        self.terms, self.lanes = terms, lanes
        self.bounds: dict[tuple[int, int, int], TileBounds] = {}
        self.runs: dict[tuple[int, int, int], AxisPlan] = {}
        self.sums: dict[tuple[int, int, int, int], int] = {}
        self.groups: dict[tuple[int, int, int, int, int], int] = {}

    def plan(self, term: int, axis: int, rows: int, cols: int) -> AxisPlan:
        """The runs of one axis; the last one made for a box of queries is kept."""
        key, one = (term, axis, rows), self.terms[term]
        relation, n, lanes = one.axes[axis], one.k.shape[axis], self.lanes[axis][term]
        if key not in self.runs or self.runs[key].block_k != cols:
            self.runs[key] = axis_plan(relation, n, lanes, rows, cols, self._bounds(*key))
        return self.runs[key]

    def steps(self, term: int, axis: int, rows: int, cols: int) -> int:
        """Tiles of keys over all tiles of rows of one axis."""
        key = (term, axis, rows)
        return (self.runs.get(key) or self.plan(*key, cols)).steps(cols)

    def best_keys(self, term: int, box: tuple[int, ...], tiling: Tiling) -> tuple[int, ...]:
        """The box of keys that needs the fewest tiles."""
        boxes = _key_boxes(tiling.cols, self.terms[term].k.shape, bool(tiling.groups))
        found = [(self.weight(term, box, keys, tiling.groups), keys) for keys in boxes]
        return min(found, key=lambda one: one[0])[1]

    def weight(self, term: int, box: tuple[int, ...], keys: tuple[int, ...], groups: int) -> int:
        """What boxes are chosen by: tiles that blocks read, and on grids those that each warp group walks of them.

        From the second-level cache a tile comes about as fast as a group walks it.
        """
        read = self.tiles(term, box, keys)
        if len(box) == 1 or groups < 2:
            return read
        sides = zip(box, own_box(box, groups), keys, strict=True)
        return read + prod(self.walked(term, axis, *one) for axis, one in enumerate(sides))

    def walked(self, term: int, axis: int, rows: int, own: int, cols: int) -> int:
        """Tiles of keys along an axis that groups of `own` rows see, of those that their blocks of `rows` read."""
        key = (term, axis, rows, own, cols)
        if key not in self.groups:
            blocks, groups = self._bounds(term, axis, rows), self._bounds(term, axis, own)
            count = -(-int(self.lanes[axis][term].rows.max(initial=0)) // own)
            first = blocks.start  # one column for all tiles, or one for each
            if first.shape[1] > 1:
                first = np.repeat(first, rows // own, axis=1)[:, :count]
            seen = -((first - groups.stop) // cols) - (groups.start - first) // cols
            seen = np.where(groups.stop > groups.start, seen, 0)
            self.groups[key] = int(np.broadcast_to(seen, (len(seen), count)).sum())
        return self.groups[key]

    def _bounds(self, term: int, axis: int, rows: int) -> TileBounds:
        """The bounds of tiles of so many rows; they are kept."""
        key, one = (term, axis, rows), self.terms[term]
        if key not in self.bounds:
            self.bounds[key] = tile_bounds(one.axes[axis], one.k.shape[axis], self.lanes[axis][term], rows)
        return self.bounds[key]

    def tiles(self, term: int, box: tuple[int, ...], keys: tuple[int, ...]) -> int:
        """Tiles that one term needs, those at its edges counted whole."""
        total = 1
        for axis, (rows, cols) in enumerate(zip(box, keys, strict=True)):
            key = (term, axis, rows, cols)
            if key not in self.sums:
                self.sums[key] = self.steps(*key)
            total *= self.sums[key]
        return total


@lru_cache(maxsize=256)
def _boxes(size: int, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Boxes of `size` tokens, powers of two on every axis; no side is twice as long as its axis, if that can be."""
    return tuple(_sides(size, shape))


def _sides(size: int, shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(shape) == 1:
        yield (size,)
        return
    sides = [1 << i for i in range(size.bit_length())]
    fitting = [side for side in sides if side < 2 * max(1, shape[0])]
    rest = prod(1 << max(0, (max(1, length) - 1).bit_length()) for length in shape[1:])
    for side in fitting:
        if size // side <= max(rest, 1) or side == fitting[-1]:
            for others in _boxes(size // side, shape[1:]):
                yield (side, *others)


@lru_cache(maxsize=256)
def _key_boxes(size: int, shape: tuple[int, ...], groups: bool) -> tuple[tuple[int, ...], ...]:
    """Boxes of keys that kernels mask: of PLACES coordinates at most, or by warp groups with LAST on the last axis."""
    if len(shape) == 1:
        return ((size,),)
    every = (_boxes(size, one) for one in (shape, (size,) * len(shape)))
    fitting, others = (tuple(x for x in one if (x[-1] >= LAST if groups else sum(x) <= PLACES)) for one in every)
    return fitting or others


def own_box(box: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """A warp group's part of a box of rows. Groups share a box along its first axes."""
    found = []
    for size in box:
        part = min(size, groups)
        found.append(size // part)
        groups //= part
    return tuple(found)


def longest_tile(nest: LoopNest) -> int:
    """Tiles of keys that one tile of queries visits at most (an upper bound on grids)."""
    return sum(prod(int((-(-axis.widths // axis.block_k)).max(initial=0)) for axis in p.axes) for p in nest.parts)


def shortest_tile(nest: LoopNest) -> int:
    """Tiles of keys that one tile of queries visits at least (a lower bound on grids)."""
    return sum(
        prod(int((-(-axis.widths // axis.block_k))[axis.heights > 0].min(initial=1 << 30)) for axis in p.axes)
        for p in nest.parts
    )


def tiles_of(plan: TilePlan) -> int:
    """Tiles that a plan computes, the remainder's blocks included."""
    total = len(plan.acsr.remainder)
    for nest in plan.nests:
        for part in nest.parts:
            total += prod(axis.steps(axis.block_k) for axis in part.axes)
    return total


# ---- what the code of a kernel depends on ---------------------------------------------------------------------------
@cached(64)  # every question about a nest asks it
def tiles_on_line(axis: AxisPlan) -> tuple[Ints, Ints]:
    """(tiles of keys, full ones) of every tile of rows of a single axis; never to be written to."""
    exists = axis.heights > 0
    return (-(-axis.widths // axis.block_k))[exists], axis.unmasked[exists]


def _is_whole(part: Part) -> bool:
    """Whether all tiles of a part are full, on one axis: such parts come last."""
    if len(part.axes) > 1:
        return False
    tiles, full = tiles_on_line(part.axes[0])
    return bool((tiles == full).all())


Run: TypeAlias = tuple[Ints, Ints]  # (first token, tokens) of every tile of rows


def more_run(nest: LoopNest) -> Run | None:
    """What all parts but the first visit, where that is one run of full tiles at the step of the first; else None.

    Tokens that all see are such a run. Kernels walk it after the full tiles of the first part, in the same loop.
    """
    if len(nest.box) > 1 or len(nest.parts) == 1 or nest.is_ordered or any(map(is_listed, nest.parts)):
        return None
    first, *others = nest.parts
    step = first.axes[0].lanes.k_step
    if any(part.axes[0].lanes.k_step != step or not _is_whole(part) for part in others):
        return None
    found: Run | None = _run(others[0])
    for part in others[1:]:
        found = found and _chained(found, _run(part), step)
    return found


def rows_of_tiles(nest: LoopNest, m: int, some: NDBool) -> NDBool | None:
    """Which of m rows are of some tiles of a nest on one axis, in the order of `LoopNest.walk_tiles`; None on grids."""
    if len(nest.box) > 1:
        return None
    found = np.zeros(m, np.bool_)
    for slot in np.stack(nest.slots(0), axis=1)[some].tolist():
        found[nest.tile_queries((slot,))] = True
    return found


def _run(part: Part) -> Run:
    axis = part.axes[0]
    exists, lanes = axis.heights > 0, axis.lanes
    first = part.k.origin + lanes.k_first[:, None] + lanes.k_step * axis.start.astype(np.int64)
    return first[exists], axis.widths[exists]


def _chained(a: Run, b: Run, step: int) -> Run | None:
    """Two runs as one, where one ends as the other begins, or is empty."""
    (first, count), (second, more) = a, b
    touch = (first + count * step == second) | (second + more * step == first)
    if not (touch | (count == 0) | (more == 0)).all():
        return None
    begin = np.where(count == 0, second, np.where(more == 0, first, np.minimum(first, second)))
    return begin, count + more


def is_formula(axis: AxisPlan, m: int) -> bool:
    """Whether the bounds of m rows are formulas: two staircases a side at most, within 32 bits, and no list."""
    both = axis.relation.lower, axis.relation.upper
    return all(len(bounds) <= 2 and all(isinstance(b, Stair) and is_narrow(b, m) for b in bounds) for bounds in both)


def is_narrow(stair: Stair, m: int) -> bool:
    """Whether the first m steps are computed in 32 bits."""
    last = stair.rise * ((m + stair.shift) // stair.run + 1)
    return max(stair.run, stair.shift + m, last, last + abs(stair.base)) < FAR


def is_listed(part: Part) -> bool:
    """Whether tokens are gathered or left out, by a list of them."""
    lanes = part.axes[0].lanes
    return lanes.queries is not None or lanes.keys is not None or not (part.rows.is_every and part.keys.is_every)
