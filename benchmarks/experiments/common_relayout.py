"""Can the terms of a pattern share one query relayout, or does each need a launch of its own?

    python benchmarks/experiments/common_relayout.py

Prints the tables of docs/decisions/0001-terms-in-one-relayout.md in a few seconds; numpy only. Tiles are counted in
both directions (`acsr` and `acsr.transpose()`):

separate  every term in its own launch: its own step and range of rows; outputs are merged by lse where rows meet.
common    one launch: one step for all terms, rows over the hull. Every divisor of the least common multiple of the
          steps is tried and the best is taken; below a term's own step its tiles hold several residue classes, and the
          dead pairs among them need a mask.
planned   terms are joined where this costs less, a merge counted; a grid is cut up or not.

First whole tiles of a GPU (128 queries x 64 or 128 keys; on a grid any box of that size), then pairs visited under the
CPU planner's own best boxes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import combinations, pairwise
from itertools import product as cartesian
from math import gcd, prod

import numpy as np

import weft
from weft.acsr.format import Acsr, Term
from weft.acsr.relayout import lanes_of, live_range, natural_step
from weft.pattern.relation import NDBool, Relation, Residue
from weft.planning.problem import Problem
from weft.planning.tiles import axis_plan
from weft.planning.tiling.cpu import best_launch
from weft.planning.tiling.groups import Group
from weft.target import CPU

LIMIT = 1.25  # the bar: more than this times the tiles of separate launches is a failure
HEADS = 16  # of the problem that the CPU planner is asked about
RATE = {64: 5.36e14, 128: 6.76e14}  # FLOPs a second of dense attention on an H200, by head dimension
BANDWIDTH = 4.28e12  # bytes a second of a copy there


@dataclass(frozen=True)
class Case:
    """One attention problem: the Acsr of every distinct head, all over the same tokens, and its head dimension."""

    name: str
    heads: tuple[Acsr, ...]
    d: int
    direction: str = "fwd"

    def transpose(self) -> Case:
        return replace(self, heads=tuple(acsr.transpose() for acsr in self.heads), direction="dK/dV")

    @property
    def nnz(self) -> int:
        return sum(acsr.nnz for acsr in self.heads)

    def terms(self, launches: list[list[Placed]]) -> list[Term]:
        return [self.heads[p.head].terms[i] for launch in launches for p in launch for i in p.group.terms]


@dataclass(frozen=True)
class Placed:
    """A group of terms of one head; for na3d one term is there in several ranges of rows."""

    head: int
    group: Group


# ---- counting ----------------------------------------------------------------------------------------------------
def envelope(relation: Relation, step: int) -> Relation:
    """The relation with its congruences kept only as far as residue classes modulo `step` can tell."""
    rows, diagonal = (Residue(gcd(r.step, step), r.phase) for r in (relation.rows, relation.diagonal))
    return replace(relation, rows=rows, diagonal=diagonal)


@cache
def axis_tiles(relation: Relation, n: int, rows: tuple[int, int], step: int, block: tuple[int, int]) -> int:
    """Tiles of block[0] queries x block[1] keys that one axis visits; key tiles begin at the first live key."""
    reduced = envelope(relation, step)
    axis = axis_plan(reduced, n, lanes_of(reduced, rows, step), *block)
    return int(-(-np.maximum(axis.widths, 0) // block[1]).sum())


def term_tiles(term: Term, group: Group, box: tuple[int, ...], keys: int) -> int:
    """Tiles of one term with queries in `box`, under the best box of `keys` keys."""
    shapes = [(keys,)] if term.rank == 1 else power_boxes(keys, term.k.shape)
    return min(
        prod(
            axis_tiles(axis, n, rows, step, block)
            for axis, n, rows, step, block in zip(
                term.axes, term.k.shape, group.rows, group.steps, zip(box, shape, strict=True), strict=True
            )
        )
        for shape in shapes
    )


def power_boxes(size: int, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Boxes of `size` points with powers of two as sides, none longer than the axis needs."""
    sides = [[1 << i for i in range(9) if (1 << i) < 2 * length] for length in shape]
    return [box for box in cartesian(*sides) if prod(box) == size]


def gpu_tiles(case: Case, launch: list[Placed], queries: int, keys: int) -> int:
    """Tiles of one launch, under the box of queries that suits its terms best."""
    terms = [(case.heads[p.head].terms[i], p.group) for p in launch for i in p.group.terms]
    boxes = [(queries,)] if terms[0][0].rank == 1 else power_boxes(queries, terms[0][0].q.shape)
    return min(sum(term_tiles(term, group, box, keys) for term, group in terms) for box in boxes)


def cpu_pairs(case: Case, launch: list[Placed]) -> int:
    """Pairs that the CPU planner's own best boxes visit for one launch."""
    total = 0
    for placed in launch:
        acsr = case.heads[placed.head]
        problem = Problem(1, HEADS, HEADS, acsr.m, acsr.n, case.d, case.d)
        total += sum(part.visited for part in best_launch(acsr, placed.group, problem, CPU)[0].parts)
    return total


# ---- groupings ---------------------------------------------------------------------------------------------------
def separate(case: Case) -> list[Placed]:
    """Every term alone; a term on a grid cut where its border rule begins, so that each part may have its own box."""
    found = []
    for head, acsr in enumerate(case.heads):
        for number, term in enumerate(acsr.terms):
            steps = tuple(map(natural_step, term.axes))
            found += [Placed(head, Group((number,), steps, rows)) for rows in ranges(term)]
    return found


def ranges(term: Term) -> Iterator[tuple[tuple[int, int], ...]]:
    """The ranges of rows in which one axis behaves alike: between places where the number of keys begins to change."""
    if term.rank == 1:
        yield (live_range(term.axes[0], term.q.shape[0]),)
        return
    cuts = []
    for axis, m, n in zip(term.axes, term.q.shape, term.k.shape, strict=True):
        lo, hi = axis.interval(np.arange(m, dtype=np.int64), n)
        kinks = np.flatnonzero(np.diff(lo, 2) | np.diff(hi, 2)) + 1
        cuts.append(list(pairwise([0, *kinks.tolist(), m])))
    yield from cartesian(*cuts)


def joined(launches: list[list[Placed]], step: int | None = None) -> list[Placed]:
    """One launch in place of several: the hull of all rows, the common multiple of all steps (or `step`)."""
    every = [placed for launch in launches for placed in launch]
    hull = reduce(Group.with_, (placed.group for placed in every))
    steps = hull.steps if step is None else (step,) * len(hull.steps)
    found: dict[tuple[int, tuple[int, ...]], Placed] = {}
    for placed in every:
        terms = tuple(dict.fromkeys(placed.group.terms))
        found[placed.head, terms] = Placed(placed.head, Group(terms, steps, hull.rows))
    return list(found.values())


def one_grid(case: Case, launches: list[list[Placed]]) -> bool:
    """Whether all terms cut the queries along the same axes; else no launch can hold them all."""
    return len({term.q for term in case.terms(launches)}) == 1


def best_common(case: Case, queries: int, keys: int) -> tuple[int, int] | None:
    """(tiles, step) of the best single launch: a whole grid in one piece, or any divisor of the common step."""
    launches = [[placed] for placed in separate(case)]
    if not one_grid(case, launches):
        return None
    steps = joined(launches)[0].group.steps
    divisors = [s for s in range(1, steps[0] + 1) if steps[0] % s == 0] if len(steps) == 1 else [steps[0]]
    return min((gpu_tiles(case, joined(launches, s), queries, keys), s) for s in divisors)


def planned(case: Case, queries: int, keys: int) -> tuple[float, list[list[Placed]]]:
    """(tiles and what a merge costs in tiles, launches): launches are joined while that makes the sum smaller."""

    def cost(launches: list[list[Placed]]) -> float:
        tiles = sum(gpu_tiles(case, launch, queries, keys) for launch in launches)
        return tiles + merge_tiles(case, launches, queries * keys)

    chosen = [[placed] for placed in separate(case)]
    best = cost(chosen)
    if len({placed.group.terms for launch in chosen for placed in launch}) == 1 and len(chosen) > 8:
        whole = [joined(chosen)]  # the pieces of one grid: all of them or none
        return min(((best, chosen), (cost(whole), whole)), key=lambda x: x[0])
    while True:
        pairs = [(a, b) for a, b in combinations(chosen, 2) if one_grid(case, [a, b])]
        tries = [[*(c for c in chosen if c not in (a, b)), joined([a, b])] for a, b in pairs]
        costs = [cost(launches) for launches in tries]
        if not costs or min(costs) > best:
            return best, chosen
        best, chosen = min(costs), tries[costs.index(min(costs))]


def rows_met_again(case: Case, launches: list[list[Placed]]) -> int:
    """Rows of a second, third, ... launch of the same head: what a merge has to read."""
    met = np.zeros((len(case.heads), case.heads[0].m), np.int64)
    for launch in launches:
        here = np.zeros(met.shape, np.bool_)
        for placed in launch:
            for i in placed.group.terms:
                term = case.heads[placed.head].terms[i]
                span = slice(term.q.origin, term.q.origin + term.q.size)
                here[placed.head, span] |= rows_with_keys(term, placed.group.rows)
        met += here
    return int(np.maximum(met - 1, 0).sum())


def rows_with_keys(term: Term, spans: tuple[tuple[int, int], ...]) -> NDBool:
    """Which tokens of a term's grid of queries, inside the spans of its axes, have a live key."""
    found = np.ones(1, np.bool_)
    for axis, m, n, (first, last) in zip(term.axes, term.q.shape, term.k.shape, spans, strict=True):
        rows = np.arange(m, dtype=np.int64)
        live = (axis.affine_rows(rows, n)[2] > 0) & (first <= rows) & (rows < last)
        found = (found[:, None] & live).reshape(-1)
    return found


def merge_tiles(case: Case, launches: list[list[Placed]], area: int) -> float:
    """The memory traffic of a merge on an H200, as the number of tiles of `area` pairs that take as long.

    Where rows are met again a float32 partial result is written and read: of out, or of dK and dV.
    """
    outputs = 1 if case.direction == "fwd" else 2
    traffic = rows_met_again(case, launches) * outputs * 2 * 4 * case.d
    return (traffic / BANDWIDTH) / (outputs * 4 * case.d * area / RATE[case.d])


# ---- report ------------------------------------------------------------------------------------------------------
def cases() -> list[Case]:
    length, video = 16384, (30, 48, 80)
    dilations = [weft.longformer(512, 0, d) for d in (1, 1, 1, 1, 2, 2, 3, 4)]
    one = [
        ("strided(128)", weft.strided(128), length, 64),
        ("fixed(128)", weft.fixed(128), length, 64),
        ("fixed(128, summary=8)", weft.fixed(128, 8), length, 64),
        ("longformer(512, 64)", weft.longformer(512, 64), length, 64),
        ("longformer(512, 64, dilation=4)", weft.longformer(512, 64, 4), length, 64),
        ("na3d 30x48x80, 18x24x24", weft.neighborhood(video, (18, 24, 24)), prod(video), 128),
    ]
    found = [Case(name, (pattern.acsr(m),), d) for name, pattern, m, d in one]
    mixed = Case("dilation 1,1,1,1,2,2,3,4 by head", tuple(p.acsr(length) for p in dilations), 64)
    return [*found[:-1], mixed, found[-1]]


def gpu_line(case: Case, queries: int, keys: int) -> str:
    launches = [[placed] for placed in separate(case)]
    apart = sum(gpu_tiles(case, launch, queries, keys) for launch in launches)
    common, step = best_common(case, queries, keys) or (None, "-")
    plan, chosen = planned(case, queries, keys)
    area = queries * keys
    return (
        f"{case.name:33s}{case.direction:7s}{queries}x{keys:<5d}{len(launches):3d}{apart:9d}{common or '-':>9}{step:>6}"
        f"{compared(common, apart)}{len(chosen):4d}{plan:9.0f}"
        f"{merge_tiles(case, chosen, area) / plan:7.0%}{case.nnz / (plan * area):6.2f}"
    )


def cpu_line(case: Case) -> str:
    launches = [[placed] for placed in separate(case)]
    apart = sum(cpu_pairs(case, launch) for launch in launches)
    common = cpu_pairs(case, joined(launches)) if one_grid(case, launches) else None
    million = "-" if common is None else f"{common / 1e6:.1f}"
    return (
        f"{case.name:33s}{case.direction:7s}{len(launches):11d}{apart / 1e6:9.1f}{million:>9s}{'':6s}"
        f"{compared(common, apart)}{'':13s}{case.nnz / apart:6.2f}"
    )


def compared(common: int | None, apart: int) -> str:
    """The ratio and whether it fails; where there is no common launch neither."""
    if common is None:
        return f"{'-':>8s}{'':5s}"
    return f"{common / apart:8.2f} {'FAIL' if common > LIMIT * apart else 'ok':4s}"


def main() -> None:
    both = [direction for one in cases() for direction in (one, one.transpose())]
    columns = (
        f"{'n':>3s}{'separate':>9s}{'common':>9s}{'step':>6s}{'ratio':>8s}{'':5s}{'n':>4s}{'planned':>9s}{'merge':>7s}"
    )
    print(f"{'tiles of a GPU':33s}{'':7s}{'tile':9s}{columns}{'live':>6s}")
    for keys in (64, 128):
        for case in both:
            print(gpu_line(case, 128, keys), flush=True)
    print("n: launches. planned: tiles, a merge counted as tiles (its share: merge). live: pairs over those of planned")
    print("\nmillion pairs under the CPU planner's boxes (common: the least common multiple; live: of separate)")
    for case in both:
        print(cpu_line(case), flush=True)


if __name__ == "__main__":
    main()
