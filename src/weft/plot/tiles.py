"""What a kernel walks, as pictures show it: views of nests, each in the order in which it takes tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np

from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool
from weft.planning.tiles import LoopNest, TilePlan, Visit, walk

SKIPPED, ELSEWHERE, MASKED, PARTIAL, FULL = range(5)
MEANING = (
    "skipped",
    "live, in another nest",
    "masked in a partial tile",
    "live in a partial tile",
    "full tile, no mask",
)

Box: TypeAlias = tuple[int, int, int, int]  # first and last row, first and last column; the last ones are not in it


@dataclass(frozen=True, eq=False)
class View:
    """Nests that take tokens in one order.

    queries (rows,) and keys (n,): tokens in that order; classes (rows, n): SKIPPED ... FULL of each pair; boxes: what
    each query tile visits. q_steps, k_steps: the residue classes of the order, per axis; all 1 without. grid: its
    shape where all tokens are the points of one grid of two or three axes; else empty.
    """

    title: str
    queries: Ints
    keys: Ints
    classes: np.ndarray
    boxes: tuple[Box, ...]
    q_steps: tuple[int, ...] = (1,)
    k_steps: tuple[int, ...] = (1,)
    grid: tuple[int, ...] = ()

    @property
    def orders(self) -> tuple[str, str]:
        """The order of queries and that of keys, in words; empty where tokens stand as they are."""
        return _order(self.queries, self.q_steps), _order(self.keys, self.k_steps)


def _order(tokens: Ints, steps: tuple[int, ...]) -> str:
    if max(steps) > 1:
        return f"by index modulo {'×'.join(map(str, steps))}"
    return "" if np.array_equal(tokens, np.arange(tokens.size)) else "box after box"


def views(plan: TilePlan) -> list[View]:
    """What a kernel walks: one view of all nests in token order, and one of each that has an order of its own."""
    live = _live(plan)
    walked = walk(plan)
    apart, plain, titles = [], [], []
    for nest in plan.nests:
        tiles = [visits for visits in islice(walked, nest.tiles) if visits]
        if _plain(nest, plan.acsr.n):
            plain += tiles
            titles.append(_tiles(nest))
        else:
            apart.append(_view(_tiles(nest), tiles, live, nest))
    if plan.blocks is not None:
        plain += [visits for visits in walked if visits]
        titles.append(f"{plan.blocks.tiles} rows of blocks")
    title = ", ".join(titles) if len(titles) < 3 else f"{len(plain)} tiles of queries, {len(titles)} nests"
    return ([_view(title or "no tiles", plain, live, None)] if plain or not apart else []) + apart


def _live(plan: TilePlan) -> NDBool:
    """The mask (M, N), by the plan's own account."""
    live = np.zeros((plan.acsr.m, plan.acsr.n), np.bool_)
    for visit in (visit for visits in walk(plan) for visit in visits):
        live[np.ix_(visit.queries, visit.keys)] |= True if visit.mask is None else visit.mask
    return live


def _plain(nest: LoopNest, n: int) -> bool:
    """Whether every query tile is a run of neighbouring tokens that takes keys in token order."""
    return len(nest.box) == 1 and nest.lanes[0].q_step == max(_key_order(nest, n)[1]) == 1


def _tiles(nest: LoopNest) -> str:
    box = "×".join(map(str, nest.box))
    return f"{nest.tiles} tile{'' if nest.tiles == 1 else 's'} of {box} queries"


def _view(title: str, tiles: list[list[Visit]], live: NDBool, nest: LoopNest | None) -> View:
    """The view of some query tiles: in token order without a nest, else in the nest's order, its own rows alone."""
    m, n = live.shape
    keys, k_steps = _key_order(nest, n) if nest else (np.arange(n), (1,))
    queries = np.concatenate([visits[0].queries for visits in tiles]) if nest else np.arange(m)
    row, column = np.zeros(m, np.int64), np.argsort(keys)
    row[queries] = np.arange(queries.size)
    classes = np.where(live, ELSEWHERE, SKIPPED)[np.ix_(queries, keys)]
    boxes: list[Box] = []
    for visits in tiles:
        rows, visited = row[visits[0].queries], np.zeros(n, np.bool_)
        for visit in visits:
            at = np.ix_(rows, column[visit.keys])
            found = np.full(at[0].shape[:1] + at[1].shape[1:], FULL)
            if visit.mask is not None:
                found = np.where(visit.mask, PARTIAL, MASKED)
            classes[at] = np.maximum(classes[at], found)
            visited[column[visit.keys]] = True
        boxes += [(int(rows[0]), int(rows[-1]) + 1, first, last) for first, last in _runs(visited)]
    q_steps = tuple(lanes.q_step for lanes in nest.lanes) if nest else (1,)
    return View(title, queries, keys, classes, tuple(boxes), q_steps, k_steps, _grid(nest, m, n))


def _grid(nest: LoopNest | None, m: int, n: int) -> tuple[int, ...]:
    """The shape of the grid that is all of a nest's tokens, queries and keys; empty if there is none."""
    if nest is None or len(nest.q.shape) < 2 or not nest.q.size == m == n:
        return ()
    return nest.q.shape if all(part.k == nest.q for part in nest.parts) else ()


def _key_order(nest: LoopNest, n: int) -> tuple[Ints, tuple[int, ...]]:
    """(all keys, by residue class where all parts take them so, else as they are; the steps)."""
    part = nest.parts[0]
    steps = tuple(axis.lanes.k_step for axis in part.axes)
    alike = all(other.k == part.k and tuple(axis.lanes.k_step for axis in other.axes) == steps for other in nest.parts)
    if not alike or part.k.size != n or max(steps) == 1:
        return np.arange(n), (1,) * len(steps)
    coordinates = part.k.coordinates(np.arange(n))[1]
    residues = [x % step for x, step in zip(coordinates, steps, strict=True)]
    return np.lexsort([np.arange(n), *residues[::-1]]), steps


def _runs(flags: NDBool) -> Iterable[tuple[int, int]]:
    """[first, last) of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]])))
    return ((int(first), int(last)) for first, last in edges.reshape(-1, 2))
