"""Rows or tiles: how the rows of a forward are dealt out to programs, and whether that costs less than tiles.

Tiles of 64 queries leave a GPU idle where there are few of them: a few queries against many keys, a short batch. A
row-wise kernel holds fewer rows in a program and splits their keys, so that there are programs enough; its results are
merged by a second kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.planning.candidates import resident
from weft.planning.choice import Candidate
from weft.planning.cost import Cost, cost
from weft.planning.problem import DTYPES, Problem
from weft.planning.rowwise import RowPlan
from weft.planning.tiling import Tiling
from weft.planning.work import Work
from weft.target import Gpu

FILLED = 2  # programs that a processor is given at once
MOST_SPLITS = 256
# Tiles without a mask that one by rows counts as, whose keys are all gathered and masked: 763 us for 64 queries against
# 131,072 keys on an H200 (benchmarks/results/choices.csv).
MASKED = 1.3
STREAMED = 0.85  # of the bandwidth, what keys that are read once reach on an H200 (benchmarks/notes/triton.md)


@dataclass(frozen=True)
class RowShape:
    """How rows are dealt out. rows: of a program, a power of two from 16 on, in which `heads` query heads of one
    key/value head and `span` tokens find room; cols: keys of a tile. programs: for one share of the keys; splits: how
    many shares.
    """

    rows: int
    cols: int
    warps: int
    stages: int
    heads: int
    span: int
    programs: int
    splits: int

    @property
    def tiling(self) -> Tiling:
        """The tiles that a program computes."""
        return Tiling(self.rows, self.cols, self.warps, self.stages)


def shape_of(plan: RowPlan, processors: int) -> RowShape:
    """Rows for a GPU of so many processors."""
    problem = plan.problem
    most, cols = _largest(problem)
    heads = min(problem.group, most)
    in_lane = -(-problem.m // plan.lanes)
    span = min(in_lane, most // heads)
    rows = max(16, 1 << (heads * span - 1).bit_length())
    members = sum(
        (one.batch[1] - one.batch[0]) * (one.kv[1] - one.kv[0]) * -(-(one.group[1] - one.group[0]) // heads)
        for share in plan.shares
        for one in share.heads
    )
    programs = members * plan.lanes * -(-in_lane // span)
    splits = max(1, min(FILLED * processors // max(1, programs), plan.longest(cols), MOST_SPLITS))
    single = problem.dtype == "float32"
    return RowShape(
        rows, cols, warps=8 if rows == 64 or single else 4,
        stages=2 if single and max(problem.d, problem.dv) > 128 else 3,
        heads=heads, span=span, programs=programs, splits=splits,
    )  # fmt: skip


def _largest(problem: Problem) -> tuple[int, int]:
    """(rows of a program at most, keys of a tile): what registers hold, and shared memory two or three times over."""
    wide = max(problem.d, problem.dv)
    if problem.dtype == "float32":
        return 16, 32 if wide <= 128 else 16
    return (64, 64) if wide <= 128 else (32, 32)


@dataclass(frozen=True, eq=False)
class ByRows:
    """A forward by rows: its plan, how rows are dealt out, and what that is predicted to take."""

    plan: RowPlan
    shape: RowShape
    cost: Cost


def by_rows(plan: RowPlan, gpu: Gpu) -> ByRows:
    """The prediction for a plan that is not steady. Every program is taken to visit as many tiles as the longest row,
    and one more where its tokens see keys that move with them.
    """
    shape, problem = shape_of(plan, gpu.processors), plan.problem
    tiles = max(1, plan.longest(shape.cols)) + -(-(shape.span - 1) // shape.cols)
    share = -(-tiles // shape.splits)
    whole, longest = round(MASKED * shape.programs * tiles), round(MASKED * share)
    work = Work("table", shape.programs * shape.splits, 0, whole, (0, longest))
    found = cost([work], "forward", problem, shape.tiling, gpu)
    keys = min(tiles * shape.cols * shape.programs, problem.batch * problem.kv_heads * problem.n)
    loads = keys * (problem.d + problem.dv) * DTYPES[problem.dtype] / (STREAMED * gpu.bandwidth)
    merging = launches = 0.0
    if shape.splits > 1:
        rows = problem.batch * problem.q_heads * problem.m
        merging, launches = 8 * rows * shape.splits * (problem.dv + 1) / gpu.bandwidth, gpu.launch_seconds
    waits = max(0.0, loads - (found.starts + found.full + found.uneven))
    masked = replace(found, edges=found.full, full=0.0, uneven=found.uneven + waits)
    return ByRows(plan, shape, replace(masked, merging=merging, launches=found.launches + launches))


def worth_it(rows: ByRows, tiles: Candidate, gpu: Gpu) -> bool:
    """Whether rows are predicted to be faster by what is worth compiling them for. On an H200 they gained 1.1 to 1.5
    times what was predicted then, and were even with tiles where they were predicted to lose
    (benchmarks/results/choices.csv).
    """
    return tiles.cost.seconds - rows.cost.seconds > 2 * gpu.launch_seconds


def may_gain(tiles: Candidate, problem: Problem, gpu: Gpu) -> bool:
    """Whether rows can be faster: tiles are not full of queries, or leave room on some processor. Not for float32,
    whose tiles were not measured, and may be multiplied in tf32.
    """
    programs = sum(work.programs for work in tiles.works)
    if not programs or problem.dtype == "float32":
        return False
    room = min(resident("forward", problem, tiling, gpu) for tiling in tiles.tilings)
    return programs < gpu.processors * room or problem.m < max(tiling.rows for tiling in tiles.tilings)
