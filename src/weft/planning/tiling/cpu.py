"""Plans for a CPU: terms that cost less together share a nest, and each nest has the cheapest box of queries."""

from __future__ import annotations

from math import prod

from weft.acsr.format import Acsr
from weft.caching import cached
from weft.planning.families import cpu
from weft.planning.families.cpu import Cost
from weft.planning.problem import Problem
from weft.planning.tiles import AxisPlan, LoopNest, TilePlan, axis_plan, block_nest
from weft.planning.tiling.groups import Group, group_lanes, joined, parts_of
from weft.target import CPU, Target

KEY_BLOCK = 32


@cached(128)
def plan_tiles(acsr: Acsr, problem: Problem, target: Target = CPU) -> TilePlan:
    """The cheapest plan that the model knows for one Acsr on a CPU. Plans are kept; the cache is bounded."""
    report: list[str] = []

    def is_better(a: Group, b: Group, apart: tuple[Cost, Cost], both: tuple[LoopNest, Cost]) -> bool:
        """Two nests on the same rows pay for a merge."""
        shared = min(prod(hi - lo for lo, hi in group.rows) for group in (a, b))
        merge = shared * problem.batch * problem.q_heads * problem.dv * target.copy_seconds
        better = both[1].total < apart[0].total + apart[1].total + merge
        if better:
            report.append(f"terms {a.terms} and {b.terms} share a nest")
        return better

    chosen = joined(acsr, lambda group: best_nest(acsr, group, problem, target), Group.meets, is_better)
    nests = tuple(nest for nest, _ in chosen.values())
    report += [f"nest {i}: {cost}" for i, (_, cost) in enumerate(chosen.values())]
    return TilePlan(acsr, nests, block_nest(acsr), tuple(report))


def best_nest(acsr: Acsr, group: Group, problem: Problem, target: Target) -> tuple[LoopNest, Cost]:
    """The cheapest box for a group of terms."""
    terms = [acsr.terms[i] for i in group.terms]
    lanes = [group_lanes(terms, axis, group) for axis in range(terms[0].rank)]
    known: dict[tuple[int, int, int], AxisPlan] = {}

    def axis(i: int, a: int, block: int) -> AxisPlan:
        if (i, a, block) not in known:
            term = terms[i]
            key_block = KEY_BLOCK if term.rank == 1 else 1
            known[i, a, block] = axis_plan(term.axes[a], term.k.shape[a], lanes[a][i], block, key_block)
        return known[i, a, block]

    best: tuple[LoopNest, Cost] | None = None
    for box in cpu.configs(tuple(int(one[0].rows.max(initial=1)) for one in lanes)):
        axes = [tuple(axis(i, a, block) for a, block in enumerate(box)) for i in range(len(terms))]
        nest = LoopNest(terms[0].q, box, parts_of(acsr, group, axes))
        cost = cpu.cost(nest, problem, target)
        if best is None or cost.total < best[1].total:
            best = nest, cost
        if len(box) == 1 and _at_stake(nest, cost) <= cost.steps:
            break
    assert best is not None  # there is always a box
    return best


def _at_stake(nest: LoopNest, cost: Cost) -> float:
    """Seconds that tiles half as high could spare at most: those of pairs that are not surely live. They cost as many
    steps again.
    """
    visited, unmasked = (sum(counts) for counts in zip(*((p.visited, p.unmasked) for p in nest.parts), strict=True))
    return (cost.matmul + cost.softmax) * (1 - unmasked / max(1, visited)) + cost.mask
