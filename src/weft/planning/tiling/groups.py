"""Terms that are planned together: those that share a query grid may share a loop nest.

A nest has one query step (the least common multiple of its terms'), one range of rows and one box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as cartesian
from math import lcm
from typing import TypeAlias, TypeVar

import numpy as np

from weft.acsr.format import Acsr, Term
from weft.acsr.relayout import Lanes, lanes_of, left_out, live_range, natural_step, on_axis
from weft.pattern.listed import EVERY, Listed
from weft.planning.tiles import AxisPlan, LoopNest, Part

FINEST = 64  # times the smaller step of two groups: tiles of a refinement beyond it are never full
Cost = TypeVar("Cost")


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


Best: TypeAlias = Callable[[Group], tuple[LoopNest, Cost]]
May: TypeAlias = Callable[[Group, Group], bool]
Better: TypeAlias = Callable[[Group, Group, tuple[Cost, Cost], tuple[LoopNest, Cost]], bool]


def joined(
    acsr: Acsr, best: Best[Cost], may_join: May, is_better: Better[Cost]
) -> dict[Group, tuple[LoopNest, Cost]]:  # fmt: skip
    """The groups of an Acsr, each with its best nest; two are joined for as long as one nest is better.

    is_better: is told both groups, what each costs, and the nest of both.
    """
    chosen = {group: best(group) for group in _grouped(acsr)}
    while (found := _pair(chosen, best, may_join, is_better)) is not None:
        both, nest = found
        chosen = {g: one for g, one in chosen.items() if not set(g.terms) <= set(both.terms)} | {both: nest}
    return chosen


def _pair(
    chosen: Mapping[Group, tuple[LoopNest, Cost]], best: Best[Cost], may_join: May, is_better: Better[Cost]
) -> tuple[Group, tuple[LoopNest, Cost]] | None:  # fmt: skip
    """The first two groups that are better as one, and their nest."""
    for (a, (first, cost)), (b, (second, other)) in cartesian(chosen.items(), chosen.items()):
        if first.q != second.q or a.terms >= b.terms or not may_join(a, b):
            continue
        both = a.with_(b)
        if max(both.steps) > FINEST * min(*a.steps, *b.steps):
            continue
        nest = best(both)
        if is_better(a, b, (cost, other), nest):
            return both, nest
    return None


def _grouped(acsr: Acsr) -> list[Group]:
    """Terms with the same grid, steps and rows always go together."""
    found: dict[tuple[object, ...], Group] = {}
    for index, term in enumerate(acsr.terms):
        rows = tuple(live_range(a, m) for a, m in zip(term.axes, term.q.shape, strict=True))
        group = Group((index,), tuple(map(natural_step, term.axes)), rows, term.rows if term.rows.kept else EVERY)
        key = (term.q, group.steps, group.rows, group.listed)
        found[key] = found[key].with_(group) if key in found else group
    return list(found.values())


def parts_of(acsr: Acsr, group: Group, axes: Sequence[tuple[AxisPlan, ...]]) -> tuple[Part, ...]:
    """One for each term of a group, with its axes."""
    terms = [(number, acsr.terms[number]) for number in group.terms]
    pairs = zip(terms, axes, strict=True)
    return tuple(Part(n, term.k, own, left_out(term.rows), left_out(term.keys)) for (n, term), own in pairs)


def group_lanes(terms: list[Term], axis: int, group: Group) -> list[Lanes]:
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
