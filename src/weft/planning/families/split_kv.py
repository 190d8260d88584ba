"""Split-KV: a forward of few rows, whose keys are split into equal shares; a second kernel merges their results.

Tiles of 64 queries leave a GPU idle where there are few of them: a few queries against many keys, a short batch. This
kernel holds fewer rows in a program and splits their keys, so that there are programs enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from weft.planning.cost import Cost
from weft.planning.cost import cost as cost_of
from weft.planning.families.base import InTiles
from weft.planning.problem import DTYPES, Problem
from weft.planning.resources import resident
from weft.planning.rowwise import RowPlan
from weft.planning.tiling import Tiling
from weft.planning.work import Work
from weft.target import Gpu

NAME = "split_kv"
# Launches that it must be predicted to save: what it is worth compiling for. On an H200 it gained 1.1 to 1.5 times what
# was predicted then, and was even with tiles where it was predicted to lose (benchmarks/results/choices.csv).
WORTH = 2
FILLED = 2  # programs that a processor is given at once
MOST_SPLITS = 256
# A tile by rows counts as so many tiles without a mask, since all its keys are gathered and masked. Fitted to the 763
# us of 64 queries against 131,072 keys on an H200 (benchmarks/results/choices.csv).
MASKED = 1.3
STREAMED = 0.85  # of the bandwidth, what keys that are read once reach on an H200 (benchmarks/notes/triton.md, T58)


@dataclass(frozen=True)
class RowShape:
    """How rows are dealt out.

    rows: of a program, a power of two from 16 on; it holds `span` tokens of `heads` query heads of one key/value head.
    cols: keys of a tile. programs: for one share of the keys. splits: shares of the keys.
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
    """A forward by rows: its plan, how rows are dealt out, and what that is predicted to take on a card."""

    plan: RowPlan
    shape: RowShape
    cost: Cost
    gpu: Gpu
    family: str = NAME

    @property
    def seconds(self) -> float:
        return self.cost.seconds

    @property
    def compared(self) -> float:
        return self.seconds + WORTH * self.gpu.launch_seconds


# ---- the family ------------------------------------------------------------------------------------------------------
def reasons_against(asked: InTiles) -> str:
    """Why rows cannot be faster, or have no formula. Not for float32, whose tiles were not measured, and may be
    multiplied in tf32.
    """
    (tiles,), problem, gpu = asked.tiles, asked.problem, asked.gpu
    programs = sum(work.programs for work in tiles.works)
    if not programs:
        return "there is nothing to compute"
    if problem.dtype == "float32":
        return "it is not for float32"
    room = min(resident("forward", problem, tiling, gpu) for tiling in tiles.tilings)
    if programs >= gpu.processors * room and problem.m >= max(tiling.rows for tiling in tiles.tilings):
        return f"{programs:,} tiles full of queries leave no room on any processor"
    return asked.rows if isinstance(asked.rows, str) else ""


def configs(asked: InTiles) -> Iterable[RowShape]:
    """The one for the card's processors."""
    assert isinstance(asked.rows, RowPlan), "reasons_against comes before"
    yield shape_of(asked.rows, asked.gpu.processors)


def cost(asked: InTiles, config: RowShape) -> ByRows:
    """The prediction for a plan that is not steady. Every program is taken to visit as many tiles as the longest row,
    and one more where its tokens see keys that move with them.
    """
    plan, problem, gpu, shape = asked.rows, asked.problem, asked.gpu, config
    assert isinstance(plan, RowPlan), "reasons_against comes before"
    tiles = max(1, plan.longest(shape.cols)) + -(-(shape.span - 1) // shape.cols)
    share = -(-tiles // shape.splits)
    whole, longest = round(MASKED * shape.programs * tiles), round(MASKED * share)
    work = Work("table", shape.programs * shape.splits, 0, whole, (0, longest))
    found = cost_of([work], "forward", problem, shape.tiling, gpu)
    keys = min(tiles * shape.cols * shape.programs, problem.batch * problem.kv_heads * problem.n)
    loads = keys * (problem.d + problem.dv) * DTYPES[problem.dtype] / (STREAMED * gpu.bandwidth)
    merging = launches = 0.0
    if shape.splits > 1:
        rows = problem.batch * problem.q_heads * problem.m
        merging, launches = 8 * rows * shape.splits * (problem.dv + 1) / gpu.bandwidth, gpu.launch_seconds
    waits = max(0.0, loads - (found.starts + found.full + found.uneven))
    masked = replace(found, edges=found.full, full=0.0, uneven=found.uneven + waits)
    return ByRows(plan, shape, replace(masked, merging=merging, launches=found.launches + launches), gpu)
