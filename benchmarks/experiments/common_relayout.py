"""Can the terms of a pattern share one query relayout, or does each need a launch of its own?

    python benchmarks/experiments/common_relayout.py

Prints the tables of docs/decisions/0001-terms-in-one-relayout.md in a few seconds; numpy only. Key/query tiles are counted
for both directions (`acsr` and `acsr.transpose()`):

separate  every term in its own launch: its own step and range of rows; outputs are merged by lse where rows meet.
common    one launch: one step for all terms, rows over the hull. Every divisor of the least common multiple of the steps
          is tried and the best is taken; below a term's own step its tiles hold several residue classes, and the dead
          pairs among them need a mask.
planned   terms joined as long as this needs fewer tiles.

First with whole tiles of a GPU (128 queries x 64 or 128 keys; any box of that size on a grid), then in pairs visited under
the CPU planner's own best boxes.
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
from weft.pattern.relation import Relation, Residue
from weft.plan.planner import Group, best_launch
from weft.plan.problem import Problem
from weft.plan.relayout import lanes_of, live_range, natural_step
from weft.plan.tiles import axis_plan
from weft.target import CPU

LIMIT = 1.25  # the bar: more than this times the tiles of separate launches is a failure
ROW_BYTES = 2 * 4 + 2 * 4 + 2  # a merge, per row and channel: a float32 partial written and read twice, one bf16 result
H200 = 4.28e12, 6.0e14  # bytes a second, FLOPs a second of a dense kernel


@dataclass(frozen=True)
class Case:
    """One attention problem: the Acsr of every distinct head, all over the same tokens, and its head dimension."""

    name: str
    heads: tuple[Acsr, ...]
    d: int

    def transpose(self) -> Case:
        return replace(self, heads=tuple(acsr.transpose() for acsr in self.heads))

    @property
    def nnz(self) -> int:
        return sum(acsr.nnz for acsr in self.heads)


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
        problem = Problem(1, 1, 1, acsr.m, acsr.n, case.d, case.d)
        total += sum(part.visited for part in best_launch(acsr, placed.group, problem, CPU)[0].parts)
    return total


# ---- groupings ---------------------------------------------------------------------------------------------------
def separate(case: Case) -> list[Placed]:
    """Every term alone; a term on a grid cut where its border rule begins, so that each part may have its own box."""
    found = []
    for head, acsr in enumerate(case.heads):
        for number, term in enumerate(acsr.terms):
            steps = tuple(map(natural_step, term.axes))
            for rows in ranges(term):
                found.append(Placed(head, Group((number,), steps, rows)))
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


def best_common(case: Case, launches: list[list[Placed]], queries: int, keys: int) -> tuple[int, int]:
    """(tiles, step) of the best single launch: a whole grid in one piece, or any divisor of the common step."""
    whole = joined(launches)
    step = whole[0].group.steps[0]
    steps = [s for s in range(1, step + 1) if step % s == 0] if len(whole[0].group.steps) == 1 else [step]
    return min((gpu_tiles(case, joined(launches, s), queries, keys), s) for s in steps)


def planned(case: Case, queries: int, keys: int) -> tuple[int, int]:
    """(tiles, launches) after joining launches for as long as a common one has no more tiles than both."""
    tiles = {(placed,): gpu_tiles(case, [placed], queries, keys) for placed in separate(case)}
    while True:
        for a, b in combinations(tiles, 2):
            both = tuple(joined([list(a), list(b)]))
            count = gpu_tiles(case, list(both), queries, keys)
            if count <= tiles[a] + tiles[b]:
                tiles = {k: v for k, v in tiles.items() if k not in (a, b)} | {both: count}
                break
        else:
            return sum(tiles.values()), len(tiles)


def merged_rows(launches: list[list[Placed]]) -> int:
    """Rows that a second, third, ... launch of the same head meets again."""
    total = 0
    for head in {launch[0].head for launch in launches}:
        mine = [launch[0].group.rows for launch in launches if launch[0].head == head]
        rows = sum(prod(hi - lo for lo, hi in spans) for spans in mine)
        covered = prod(max(s[a][1] for s in mine) - min(s[a][0] for s in mine) for a in range(len(mine[0])))
        total += max(0, rows - covered)
    return total


# ---- report ------------------------------------------------------------------------------------------------------
def cases() -> list[Case]:
    length, video = 16384, (30, 48, 80)
    dilations = [weft.longformer(512, 0, d) for d in (1, 1, 1, 1, 2, 2, 3, 4)]
    one = [
        ("strided(128)", weft.strided(128), length, 64),
        ("fixed(128)", weft.fixed(128), length, 64),
        ("longformer(512, 64)", weft.longformer(512, 64), length, 64),
        ("longformer(512, 64, dilation=4)", weft.longformer(512, 64, 4), length, 64),
        ("na3d 30x48x80, 18x24x24", weft.neighborhood(video, (18, 24, 24)), prod(video), 128),
    ]
    found = [Case(name, (pattern.acsr(m),), d) for name, pattern, m, d in one]
    mixed = Case("dilation 1,1,1,1,2,2,3,4 by head", tuple(p.acsr(length) for p in dilations), 64)
    return [*found[:4], mixed, found[4]]


def gpu_line(case: Case, direction: str, queries: int, keys: int) -> str:
    launches = [[placed] for placed in separate(case)]
    apart = sum(gpu_tiles(case, launch, queries, keys) for launch in launches)
    common, step = best_common(case, launches, queries, keys)
    plan, count = planned(case, queries, keys)
    live = case.nnz / (apart * queries * keys)
    return (
        f"{case.name:34s}{direction:5s}{queries}x{keys:<5d}{live:6.2f}{len(launches):5d}{apart:9d}{common:9d}{step:6d}"
        f"{common / apart:8.2f} {'FAIL' if common > LIMIT * apart else 'ok':5s}{count:4d}{plan / apart:8.2f}"
    )


def cpu_line(case: Case, direction: str) -> str:
    launches = [[placed] for placed in separate(case)]
    apart = sum(cpu_pairs(case, launch) for launch in launches)
    common = cpu_pairs(case, joined(launches))
    rows = merged_rows(launches)
    speed, flops = H200
    equal = rows * ROW_BYTES * case.d / speed * flops / (4 * case.d)
    verdict = "FAIL" if common > LIMIT * apart else "ok"
    return (
        f"{case.name:34s}{direction:5s}{case.nnz / apart:6.2f}{apart / 1e6:11.1f}{common / 1e6:11.1f}"
        f"{common / apart:8.2f} {verdict:5s}{rows:9d}{equal / case.nnz:9.2f}"
    )


def main() -> None:
    both = [(case, name) for one in cases() for case, name in ((one, "fwd"), (one.transpose(), "dK/V"))]
    print(f"{'tiles of a GPU':34s}{'':5s}{'tile':9s}{'live':>6s}{'n':>5s}{'separate':>9s}{'common':>9s}{'step':>6s}"
          f"{'ratio':>8s} {'':5s}{'n':>4s}{'planned':>8s}")  # fmt: skip
    for keys in (64, 128):
        for case, name in both:
            print(gpu_line(case, name, 128, keys), flush=True)
    print(f"\n{'million pairs of the CPU planner':34s}{'':5s}{'live':>6s}{'separate':>11s}{'common':>11s}{'ratio':>8s} "
          f"{'':5s}{'rows met':>9s}{'merge':>9s}")  # fmt: skip
    for case, name in both:
        print(cpu_line(case, name), flush=True)
    print("merge: what merging all separate launches costs an H200 in memory traffic, over the matmul time of the live pairs")


if __name__ == "__main__":
    main()
