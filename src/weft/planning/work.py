"""What the programs of a plan do on a GPU, counted: tiles with and without an edge, and the longest program.

Nests of one kind that meet no row of a head twice run side by side, as one wave; waves follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, TypeAlias

import numpy as np

from weft.caching import cached
from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool
from weft.planning.tiles import LoopNest, TilePlan
from weft.planning.tiling.gpu import (
    is_formula,
    is_listed,
    longest_tile,
    more_run,
    rows_of_tiles,
    shortest_tile,
    tiles_of,
    tiles_on_line,
)
from weft.target import Gpu, Target

# One axis: bounds that are formulas, or tables; several terms. Grids of two axes, and of more. Blocks of the remainder.
Kind = Literal["formula", "table", "several", "plane", "space", "blocks"]
Visits: TypeAlias = list[tuple[int, NDBool | None]]  # of plans by number, the rows; None: all
# What a kernel's code depends on: axes (0: the remainder), and whether all bounds are formulas, tokens are listed, and
# tokens are in another order.
Code: TypeAlias = tuple[int, bool, bool, bool]
LEAST = 32  # tiles that a program may visit at any rate: see `most_of`
FEW = 0.25  # share of all rows that other waves may visit where one adds the sums that they leave: see `are_few`


@dataclass(frozen=True)
class Work:
    """One wave, over all heads. kind: what its kernel's code depends on. programs: tiles of the side that stays.

    edge, full: tiles of pairs with and without a mask. most, least: (edge, full) of the longest program and of the
    shortest. merged: another wave visits some row too, so results are added in memory. It is false where such rows are
    few, since one wave then adds their shared sums. split: some tiles are cut into several programs.
    """

    kind: Kind
    programs: int
    edge: int
    full: int
    most: tuple[int, int]
    least: tuple[int, int] = (0, 0)
    merged: bool = False
    split: bool = False

    @property
    def tiles(self) -> int:
        return self.edge + self.full


def works(plans: Sequence[tuple[TilePlan, int]], slots: int, of_keys: bool = False) -> tuple[Work, ...]:
    """The waves of plans, each with the number of its heads. slots: programs that run at a time. of_keys: keys stay,
    for which see `most_of` and `Work.merged`.
    """
    limit = most_of(plans, slots) if of_keys else None
    waves: list[tuple[Code, Work, Visits]] = []
    for number, (plan, heads) in enumerate(plans):
        for code, work, rows in _nests(plan, limit):
            here = replace(work, programs=work.programs * heads, edge=work.edge * heads, full=work.full * heads)
            for i, (other, wave, met) in enumerate(waves):
                if other == code and wave.split == work.split and not _meet(met, [(number, rows)]):
                    waves[i] = code, _together(wave, here), [*met, (number, rows)]
                    break
            else:
                waves.append((code, here, [(number, rows)]))
    if of_keys and any(
        not work.split and _joins(met, [m for _, _, m in waves if m is not met], len(plans)) for _, work, met in waves
    ):
        return tuple(work for _, work, _ in waves)
    return tuple(replace(w, merged=any(met is not m and _meet(met, m) for _, _, m in waves)) for _, w, met in waves)


def _joins(met: Visits, others: Sequence[Visits], plans: int) -> bool:
    """Whether a wave visits every row, and others few."""
    theirs = [rows for other in others for _, rows in other]
    some = [rows for rows in theirs if rows is not None]
    if len(some) < len(theirs) or not are_few(some):
        return False
    seen: dict[int, NDBool] = {}
    for number, rows in met:
        seen[number] = np.ones_like(some[0]) if rows is None else seen.get(number, False) | rows
    return len(seen) == plans and all(rows.all() for rows in seen.values())


def are_few(visited: Sequence[NDBool]) -> bool:
    """Whether waves visit some rows, and few of all: another one may then join what they leave."""
    return bool(visited) and float(np.any(visited, axis=0).mean()) <= FEW


def _meet(some: Visits, others: Visits) -> bool:
    """Whether both visit some row of one plan's heads."""
    return any(a == b and (x is None or y is None or bool((x & y).any())) for a, x in some for b, y in others)


def slots_of(target: Target | Gpu) -> int:
    """Programs that a GPU runs at a time, or thereabouts: what one may hold is measured by it."""
    return 3 * target.processors if isinstance(target, Gpu) else 1


def most_of(plans: Sequence[tuple[TilePlan, int]], slots: int) -> int | None:
    """What a program may visit, None if none takes longer than the whole would on a busy GPU."""
    total = sum(tiles_of(plan) * heads for plan, heads in plans)
    longest = max((longest_tile(nest) for plan, _ in plans for nest in plan.nests), default=0)
    return max(LEAST, total // (2 * slots)) if longest > max(64, total // slots) else None


def rows_apart(nest: LoopNest, m: int, tiles: Ints, limit: int) -> NDBool | None:
    """Which of m rows visit more than `limit` tiles, where a nest of its own takes their other shares; else None.

    It spares the other rows, which are most, sums in float32. With these the whole takes twice as long or more.
    """
    long = tiles > limit
    some = None if limit <= LEAST or long.all() else rows_of_tiles(nest, m, long)
    return some if some is not None and are_few([some]) else None


def _together(a: Work, b: Work) -> Work:
    """Both as one nest: on one axis a kernel for several terms walks a single one too."""
    kind: Kind = a.kind if a.kind == b.kind else "several"
    most, least = max(a.most, b.most, key=sum), min(a.least, b.least, key=sum)
    return Work(kind, a.programs + b.programs, a.edge + b.edge, a.full + b.full, most, least, split=a.split or b.split)


@cached(256)  # a plan is looked at alone, beside others, and once it is chosen
def _nests(plan: TilePlan, limit: int | None) -> list[tuple[Code, Work, NDBool | None]]:
    """(code, work of one head, rows visited, None for all) of every nest; the remainder last."""
    alone = len(plan.nests) == 1  # who meets nobody need not know where
    found: list[tuple[Code, Work, NDBool | None]] = []
    for nest in plan.nests:
        if nest.tiles:
            first, rest, some = _works(nest, plan.acsr.m, limit)
            code, rows = _code(nest), None if alone and rest is None else nest.rows(plan.acsr.m)
            found += [(code, first, rows)] + ([] if rest is None else [(code, rest, some)])
    if plan.blocks is not None:
        counts = np.diff(plan.blocks.first)
        most, least = int(counts.max(initial=0)), int(counts.min()) if counts.size else 0
        work = Work("blocks", plan.blocks.tiles, int(counts.sum()), 0, (most, 0), (least, 0))
        found.append(((0, False, False, False), work, None))
    return found


def _works(nest: LoopNest, m: int, limit: int | None) -> tuple[Work, Work | None, NDBool | None]:
    """The work of a nest; where few rows visit more than the limit, what they visit beyond it, and which they are."""
    if len(nest.box) > 1:
        edge = sum(prod(axis.steps(axis.block_k) for axis in part.axes) for part in nest.parts)
        kind: Kind = "plane" if len(nest.box) == 2 else "space"
        return Work(kind, nest.tiles, edge, 0, (longest_tile(nest), 0), (shortest_tile(nest), 0)), None, None
    tiles, full = np.sum([tiles_on_line(part.axes[0]) for part in nest.parts], axis=0)
    kind, edge = _on_line(nest), tiles - full
    if limit is None or not (tiles > limit).any():
        return _work(kind, tiles.size, edge, full), None, None
    of = np.maximum(-(-tiles // limit), 1)
    some = rows_apart(nest, m, tiles, limit)
    if some is None:
        return replace(_work(kind, int(of.sum()), edge, full, of), split=True), None, None
    first = edge // of, full // of
    rest = replace(_work(kind, int((of - 1).sum()), edge - first[0], full - first[1], of - 1), split=True)
    return _work(kind, tiles.size, *first), rest, some


def _work(kind: Kind, programs: int, edge: Ints, full: Ints, of: Ints | int = 1) -> Work:
    """edge, full: tiles of every tile of rows; of: how many programs share them, 0 for none."""
    shares = np.broadcast_to(np.maximum(of, 1), edge.shape)
    lengths = np.where(np.broadcast_to(of, edge.shape) > 0, (edge + full) / shares, np.nan)
    ends = np.nanargmax(lengths), np.nanargmin(lengths)
    most, least = ((int(edge[at] // shares[at]), int(full[at] // shares[at])) for at in ends)
    return Work(kind, programs, int(edge.sum()), int(full.sum()), most, least)


def _on_line(nest: LoopNest) -> Kind:
    several = len(nest.parts) > 1 and more_run(nest) is None
    return "several" if several else "formula" if _code(nest)[1] else "table"


def _code(nest: LoopNest) -> Code:
    """Nests of one code are one launch of a kernel, where they meet no row twice."""
    rank, m = len(nest.box), nest.q.shape[0]
    return (
        rank,
        rank > 1 or all(is_formula(part.axes[0], m) for part in nest.parts),
        any(map(is_listed, nest.parts)),
        nest.is_ordered,
    )
