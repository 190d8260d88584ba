"""Description -> candidates -> cost -> choice.

Terms that share a query grid may share a launch; a launch has one query step (the least common multiple of its
terms'), one range of rows and one box. The cost counts what the plan really does: pairs visited, pairs that need a
mask, elements staged, and steps. All constants come from the Target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product as cartesian
from math import lcm, prod

import numpy as np

from weft.acsr.format import Acsr, Term
from weft.acsr.relayout import Lanes, lanes_of, left_out, live_range, natural_step, on_axis
from weft.caching import cached
from weft.pattern.listed import EVERY, Listed
from weft.planning.families import cpu
from weft.planning.families.cpu import Cost
from weft.planning.problem import Problem
from weft.planning.tiles import AxisPlan, Launch, Part, TilePlan, axis_plan, block_launch
from weft.target import CPU, Target

KEY_BLOCK = 32


@dataclass(frozen=True)
class Group:
    """Terms planned together: which, their query step and range of rows on each axis; `listed`: only these queries."""

    terms: tuple[int, ...]
    steps: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]
    listed: Listed = EVERY

    def with_(self, other: Group) -> Group:
        """The common refinement of both, over the hull of their rows."""
        steps = tuple(lcm(a, b) for a, b in zip(self.steps, other.steps, strict=True))
        rows = tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(self.rows, other.rows, strict=True))
        return Group(tuple(sorted(self.terms + other.terms)), steps, rows, self.listed)

    def meets(self, other: Group) -> bool:
        """Whether the two have rows in common, and the same list of them or none."""
        return self.listed == other.listed and all(
            max(a[0], b[0]) < min(a[1], b[1]) for a, b in zip(self.rows, other.rows, strict=True)
        )


@cached(128)
def plan_tiles(acsr: Acsr, problem: Problem, target: Target = CPU) -> TilePlan:
    """The cheapest plan that the model knows for one Acsr on a CPU. Plans are kept; the cache is bounded."""
    report: list[str] = []
    groups = _grouped(acsr)
    chosen = {group: best_launch(acsr, group, problem, target) for group in groups}
    while (pair := _worth_joining(acsr, chosen, problem, target)) is not None:
        first, second, joined, launch = pair
        report.append(f"terms {first.terms} and {second.terms} share a launch")
        chosen = {g: c for g, c in chosen.items() if g not in (first, second)} | {joined: launch}
    launches = tuple(launch for launch, _ in chosen.values())
    report += [f"launch {i}: {cost}" for i, (_, cost) in enumerate(chosen.values())]
    return TilePlan(acsr, launches, block_launch(acsr), tuple(report))


def _grouped(acsr: Acsr) -> list[Group]:
    """Terms with the same grid, steps and rows always go together."""
    found: dict[tuple[object, ...], Group] = {}
    for index, term in enumerate(acsr.terms):
        rows = tuple(live_range(a, m) for a, m in zip(term.axes, term.q.shape, strict=True))
        group = Group((index,), tuple(map(natural_step, term.axes)), rows, term.rows if term.rows.kept else EVERY)
        key = (term.q, group.steps, group.rows, group.listed)
        found[key] = found[key].with_(group) if key in found else group
    return list(found.values())


def _worth_joining(
    acsr: Acsr, chosen: dict[Group, tuple[Launch, Cost]], problem: Problem, target: Target
) -> tuple[Group, Group, Group, tuple[Launch, Cost]] | None:
    """The first two groups that cost less in one launch than in two; two launches on the same rows pay for a merge."""
    for (a, (first, cost_a)), (b, (second, cost_b)) in cartesian(chosen.items(), chosen.items()):
        if first.q != second.q or a.terms >= b.terms or not a.meets(b):
            continue
        joined = a.with_(b)
        if max(joined.steps) > 64 * min(*a.steps, *b.steps):
            continue  # a refinement so fine that tiles of it are never full
        launch = best_launch(acsr, joined, problem, target)
        shared = min(prod(hi - lo for lo, hi in group.rows) for group in (a, b))
        merge = shared * problem.batch * problem.q_heads * problem.dv * target.copy_seconds
        if launch[1].total < cost_a.total + cost_b.total + merge:
            return a, b, joined, launch
    return None


# ---- candidates --------------------------------------------------------------------------------------------------
def best_launch(acsr: Acsr, group: Group, problem: Problem, target: Target) -> tuple[Launch, Cost]:
    """The cheapest box for a group of terms."""
    terms = [acsr.terms[i] for i in group.terms]
    lanes = [_group_lanes(terms, axis, group) for axis in range(terms[0].rank)]
    known: dict[tuple[int, int, int], AxisPlan] = {}

    def axis(i: int, a: int, block: int) -> AxisPlan:
        if (i, a, block) not in known:
            term = terms[i]
            key_block = KEY_BLOCK if term.rank == 1 else 1
            known[i, a, block] = axis_plan(term.axes[a], term.k.shape[a], lanes[a][i], block, key_block)
        return known[i, a, block]

    best: tuple[Launch, Cost] | None = None
    for box in cpu.configs(tuple(int(one[0].rows.max(initial=1)) for one in lanes)):
        parts = tuple(
            Part(
                number,
                term.k,
                tuple(axis(i, a, block) for a, block in enumerate(box)),
                left_out(term.rows),
                left_out(term.keys),
            )
            for i, (number, term) in enumerate(zip(group.terms, terms, strict=True))
        )
        launch = Launch(terms[0].q, box, parts)
        cost = cpu.cost(launch, problem, target)
        if best is None or cost.total < best[1].total:
            best = launch, cost
        if len(box) == 1 and _at_stake(launch, cost) <= cost.steps:
            break
    assert best is not None  # there is always a box
    return best


def _at_stake(launch: Launch, cost: Cost) -> float:
    """Seconds that tiles half as high could spare at most: those of pairs that are not surely live. They cost as many
    steps again.
    """
    visited, unmasked = (sum(counts) for counts in zip(*((p.visited, p.unmasked) for p in launch.parts), strict=True))
    return (cost.matmul + cost.softmax) * (1 - unmasked / max(1, visited)) + cost.mask


def _group_lanes(terms: list[Term], axis: int, group: Group) -> list[Lanes]:
    """The lanes of one axis for every term, without those that are dead in all of them."""
    found = [
        lanes_of(
            t.axes[axis], group.rows[axis], group.steps[axis], on_axis(t.rows, t.q, axis), on_axis(t.keys, t.k, axis)
        )
        for t in terms
    ]
    if terms[0].rank > 1:
        found = [replace(lanes, alone=False) for lanes in found]
    live = np.logical_or.reduce([lanes.live for lanes in found])
    return found if live.all() else [lanes.only(live) for lanes in found]
