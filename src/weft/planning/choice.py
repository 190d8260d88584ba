"""Rows -> candidates -> cost -> choice: one tiling for all heads of a call and each direction.

On a CPU every Acsr is planned alone; boxes are its only candidates (`weft.planning.planner`). On a GPU a call chooses
from a short menu, so that a structure has few kernels, whatever lengths come; a tuner may measure all that are legal,
and asks for the best one by name (`Fixed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from weft.acsr.format import Acsr
from weft.planning.candidates import in_one, legal, menu
from weft.planning.cost import Cost, adding, converting, cost
from weft.planning.device import plan_for_device
from weft.planning.planner import plan_tiles
from weft.planning.problem import Problem
from weft.planning.tiles import TilePlan
from weft.planning.tiling import Direction, Tiling
from weft.planning.work import Work, slots_of, works
from weft.target import Gpu, Target

Rows: TypeAlias = Sequence[tuple[Acsr, int]]  # of every distinct head, and how many heads share them
Fixed: TypeAlias = tuple[tuple[Direction, Tiling], ...]  # tilings that somebody asked for


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to compute all rows of one direction, and what it is predicted to take."""

    tiling: Tiling
    plans: tuple[TilePlan, ...]
    works: tuple[Work, ...]
    cost: Cost


def plan_rows(direction: Direction, rows: Rows, problem: Problem, target: Target | Gpu, fixed: Fixed) -> list[TilePlan]:
    """The plans of one direction, in the order of rows."""
    if not isinstance(target, Gpu):
        return [plan_tiles(acsr, problem, target) for acsr, _ in rows]
    asked = dict(fixed).get(direction)
    tilings = [asked] if asked else menu(direction, problem, rank_of(rows), target)
    if len(tilings) == 1:
        return [plan_for_device(acsr, problem, target, tilings[0]) for acsr, _ in rows]
    return list(ranked(direction, rows, problem, target, tilings)[0].plans)


def ranked(
    direction: Direction, rows: Rows, problem: Problem, gpu: Gpu, tilings: Iterable[Tiling] | None = None
) -> list[Candidate]:
    """Candidates, the cheapest first; by default all that the card has room for."""
    found = [
        candidate(direction, rows, problem, gpu, tiling)
        for tiling in tilings or legal(direction, problem, rank_of(rows), gpu)
    ]
    return sorted(found, key=lambda one: one.cost.seconds)


def candidate(direction: Direction, rows: Rows, problem: Problem, gpu: Gpu, tiling: Tiling) -> Candidate:
    """The plans under one tiling and their cost; dK and dV as they are computed where the order of sums is free."""
    plans = tuple(plan_for_device(acsr, problem, gpu, tiling) for acsr, _ in rows)
    shares = [(plan, heads) for plan, (_, heads) in zip(plans, rows, strict=True)]
    done = works(shares, slots_of(gpu), split=direction == "dkdv")
    found = cost(done, direction, problem, tiling, gpu)
    after = converting(done, direction, problem, gpu)
    return Candidate(tiling, plans, done, replace(found, merging=found.merging + after))


def backward_in_one(
    rows: Rows, problem: Problem, gpu: Gpu, two: tuple[Candidate, Candidate]
) -> tuple[TilePlan, ...] | None:
    """The plans of a backward in one kernel, which walks keys and adds to dQ, if it costs less than `two`, that of dQ
    and that of dK and dV; rows: of keys.
    """
    tiling, (queries, keys) = in_one(problem, rank_of(rows)), two
    if tiling is None:
        return None
    # As many sums as of tiles so high; a kernel that makes dQ too is no faster than one that does not.
    share = keys.tiling.rows / tiling.rows
    if share * adding(keys.works, problem, keys.tiling, gpu) > queries.cost.seconds:
        return None
    found = candidate("dkdv", rows, problem, gpu, tiling)
    whole = found.cost.seconds + adding(found.works, problem, tiling, gpu)
    return found.plans if whole < queries.cost.seconds + keys.cost.seconds else None


def rank_of(rows: Rows) -> int:
    """The most axes of a term."""
    return max((term.rank for acsr, _ in rows for term in acsr.terms), default=1)
