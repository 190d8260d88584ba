"""Rows -> candidates -> cost -> choice, for each direction of a call.

On a CPU every Acsr is planned alone; boxes are its only candidates (`weft.planning.planner`). On a GPU a call chooses
from a short menu, so that a structure has few kernels, whatever lengths come; a tuner may measure all that are legal,
and asks for the best one by name (`Fixed`). Heads that differ run side by side under one tiling, or unlike ones apart,
each under its own: kernels that are best alone need not be best together (GOLDYLOC, arXiv 2409.02227).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from weft.acsr.format import Acsr
from weft.planning.candidates import MOST_IN_GROUPS, Terms, in_groups, in_one, legal, menu, of_blocks, shared_of
from weft.planning.cost import Cost, adding, converting, cost, in_memory, in_turn
from weft.planning.device import more_run, plan_for_device
from weft.planning.lines import as_lines
from weft.planning.planner import plan_tiles
from weft.planning.problem import Problem
from weft.planning.reach import reaches
from weft.planning.tiles import Launch, TilePlan
from weft.planning.tiling import Direction, Tiling
from weft.planning.work import Work, slots_of, works
from weft.target import Gpu, Target

Rows: TypeAlias = Sequence[tuple[Acsr, int]]  # of every distinct head, and how many heads share them
Fixed: TypeAlias = tuple[tuple[Direction, Tiling], ...]  # tilings that somebody asked for
Way: TypeAlias = tuple[Tiling, int]  # how rows are computed: their tiling, and the number of their pack
MOST = 4  # distinct heads that are looked at; of more of them, as many say what all take
# What one kernel for the backward may take of what two take: its prediction is off by a tenth (docs/decisions/0008).
IN_ONE = 0.85
EVEN = 1.5  # how much longer than the mean the longest of programs may be that are alike
WORTH = 0.97  # what heads apart may take at most of what they take together: predictions are off by a few percent


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to compute all rows of one direction, and what it is predicted to take.

    ways: of each of the rows; those of one pack have one tiling and run side by side where they can, packs follow each
    other.
    """

    ways: tuple[Way, ...]
    plans: tuple[TilePlan, ...]
    works: tuple[Work, ...]
    cost: Cost

    @property
    def tilings(self) -> tuple[Tiling, ...]:
        """One for each pack."""
        return tuple(tiling for _, tiling in sorted({number: tiling for tiling, number in self.ways}.items()))


def plan_rows(
    direction: Direction, rows: Rows, problem: Problem, target: Target | Gpu, fixed: Fixed
) -> list[tuple[TilePlan, int]]:
    """(plan, pack) of one direction, in the order of rows."""
    if not isinstance(target, Gpu):
        return [(plan_tiles(acsr, problem, target), 0) for acsr, _ in rows]
    found = _chosen(direction, rows, problem, target, fixed)
    return [(_with_blocks(direction, plan, problem, target), pack) for plan, pack in found]


def _chosen(
    direction: Direction, rows: Rows, problem: Problem, target: Gpu, fixed: Fixed
) -> list[tuple[TilePlan, int]]:  # fmt: skip
    """The same on a GPU, without a tiling of the remainder."""
    asked = dict(fixed).get(direction)
    tilings = (asked,) if asked else offered(direction, rows, problem, target)
    if 1 < len(rows) <= MOST and not asked:
        best = ranked(direction, rows, problem, target, tilings)[0]
        other = unlike_apart(direction, rows, problem, target, tilings)
        if other is not None and other.cost.seconds < WORTH * best.cost.seconds:
            best = other
        return [(plan, pack) for plan, (_, pack) in zip(best.plans, best.ways, strict=True)]
    tiling = tilings[0]
    if len(tilings) > 1:
        some = [rows[i * len(rows) // MOST] for i in range(MOST)] if len(rows) > MOST else rows
        tiling = ranked(direction, some, problem, target, tilings)[0].tilings[0]
    return [(plan_for_device(acsr, problem, target, tiling), 0) for acsr, _ in rows]


def _with_blocks(
    direction: Direction, plan: TilePlan, problem: Problem, gpu: Gpu, with_dq: bool = False
) -> TilePlan:  # fmt: skip
    """With a tiling of its remainder, if it has one; see `of_blocks`."""
    if plan.blocks is None or plan.tiling is None:
        return plan
    return replace(plan, of_blocks=of_blocks(direction, problem, plan.tiling, gpu, with_dq))


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
    """All rows as one pack."""
    return packed(direction, rows, problem, gpu, [(tiling, 0)] * len(rows))


def packed(direction: Direction, rows: Rows, problem: Problem, gpu: Gpu, ways: Sequence[Way]) -> Candidate:
    """The plans of rows and their cost; dK and dV as they are computed where the order of sums is free."""
    plans = tuple(
        plan_for_device(acsr, problem, gpu, tiling) for (acsr, _), (tiling, _) in zip(rows, ways, strict=True)
    )
    packs = {way: [i for i, own in enumerate(ways) if own == way] for way in dict.fromkeys(ways)}
    done = {
        way: works([(plans[i], rows[i][1]) for i in members], slots_of(gpu), direction == "dkdv")
        for way, members in packs.items()
    }
    every = tuple(work for pack in done.values() for work in pack)
    found = in_turn(
        [cost(in_memory(pack, direction, every), direction, problem, way[0], gpu) for way, pack in done.items()]
    )
    after = converting(every, direction, problem, gpu)
    return Candidate(tuple(ways), plans, every, replace(found, merging=found.merging + after))


def unlike_apart(
    direction: Direction, rows: Rows, problem: Problem, gpu: Gpu, tilings: Sequence[Tiling]
) -> Candidate | None:
    """Rows apart that alone would take another tiling, or other code, each under its own; None if all are alike."""
    if not 1 < len(rows) <= MOST:
        return None
    packs: dict[tuple[Tiling, frozenset[tuple[str, bool]]], int] = {}
    ways = []
    for row in rows:
        alone = ranked(direction, [row], problem, gpu, tilings)[0]
        alike = alone.tilings[0], frozenset((work.kind, work.merged) for work in alone.works)
        ways.append((alike[0], packs.setdefault(alike, len(packs))))
    return packed(direction, rows, problem, gpu, ways) if len(packs) > 1 else None


def backward_in_one(
    rows: Rows, problem: Problem, gpu: Gpu, two: tuple[Candidate, Candidate]
) -> tuple[TilePlan, ...] | None:
    """The plans of a backward in one kernel, which walks keys and adds to dQ, if it costs less than `two`, that of dQ
    and that of dK and dV; rows: of keys.
    """
    tiling, (queries, keys) = in_one(problem, rank_of(rows)), two
    if tiling is None or shared_of("dkdv", problem, tiling, gpu) > gpu.shared:
        return None
    # As many sums as of tiles so high; a kernel that makes dQ too is no faster than one that does not.
    rows_of, cols_of = (min(getattr(one, side) for one in keys.tilings) for side in ("rows", "cols"))
    if rows_of / tiling.rows * adding(keys.works, problem, cols_of, gpu) > queries.cost.seconds:
        return None
    found = candidate("dkdv", rows, problem, gpu, tiling)
    plans = tuple(_with_blocks("dkdv", plan, problem, gpu, with_dq=True) for plan in found.plans)
    if any(plan.blocks is not None and plan.of_blocks is None for plan in plans):
        return None
    whole = found.cost.seconds + adding(found.works, problem, tiling.cols, gpu)
    return plans if whole < IN_ONE * (queries.cost.seconds + keys.cost.seconds) else None


def offered(direction: Direction, rows: Rows, problem: Problem, gpu: Gpu) -> tuple[Tiling, ...]:
    """What a call with such rows chooses from: see `menu` and `in_groups`.

    So that no structure has a kernel more: lines that warp groups may compute have no forward of the menu for short
    runs, which are theirs, but only what keeps edges apart; forwards and dQ of bounds from tables have the usual tiling
    alone, of which others would gain 5 % at most in documents (by rates of an H200).
    """
    terms, groups = _terms_of(rows), in_groups(direction, problem, gpu)
    found = menu(direction, problem, rank_of(rows), gpu, terms)
    known = in_groups("forward" if direction == "dq" else direction, problem, gpu)
    if terms == "listed" or len(rows) > 1 or known is None:
        return found
    plan = plan_for_device(rows[0][0], problem, gpu, groups or found[0])
    if direction != "dkdv" and {work.kind for work in works([(plan, rows[0][1])], slots_of(gpu))} == {"table"}:
        return found[:1]
    if groups is None:
        return found
    if len(plan.launches) != 1 or plan.blocks is not None or not _of_lines(plan.launches[0]):
        return found
    found = tuple(tiling for tiling in found if tiling.apart) or found
    return (*found, groups) if _suits(direction, plan, rows[0][1], gpu) else found


def _of_lines(launch: Launch) -> bool:
    """Whether it is on one axis, with one clipped line a side at the most."""
    return len(launch.box) == 1 and as_lines(launch) is not None


def _suits(direction: Direction, plan: TilePlan, heads: int, gpu: Gpu) -> bool:
    """Whether warp groups may compute a launch of lines: of few terms and of programs about as long as each other,
    since who takes which is fixed; a forward's tokens such as descriptors reach.
    """
    (launch,), of_keys = plan.launches, direction == "dkdv"
    if len(launch.parts) > MOST_IN_GROUPS[direction] or more_run(launch) is not None:
        return False
    found = works([(plan, heads)], slots_of(gpu), of_keys)
    if len(found) != 1 or found[0].kind == "table" or found[0].split:
        return False
    even = sum(found[0].most) * found[0].programs <= EVEN * found[0].tiles
    return even and (of_keys or reaches(launch) is not None)


def _terms_of(rows: Rows) -> Terms:
    terms = [term for acsr, _ in rows for term in acsr.terms]
    if not all(term.rows.is_every and term.keys.is_every for term in terms):
        return "listed"
    return "several" if any(len(acsr.terms) > 1 for acsr, _ in rows) else "one"


def rank_of(rows: Rows) -> int:
    """The most axes of a term."""
    return max((term.rank for acsr, _ in rows for term in acsr.terms), default=1)
