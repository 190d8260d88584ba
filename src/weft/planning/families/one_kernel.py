"""dQ beside dK and dV: a kernel of tiles of keys that adds to dQ in memory, in no fixed order
(docs/decisions/0008-two-kernels-for-the-backward.md). At D=128 on Hopper's cards warp groups have one too
(`hopper.SUMMED`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from weft.planning.cost import adding, around_sums, waiting
from weft.planning.families import hopper
from weft.planning.families.base import InTiles, Pass, Tiled
from weft.planning.problem import Problem
from weft.planning.rates import Rates
from weft.planning.resources import of_blocks, shared_of
from weft.planning.tiles import TilePlan
from weft.planning.tiling import Tiling

NAME = "one kernel"
# What it may take of what two kernels take: its prediction is off by a tenth, that of warp groups by 6 %. Two that are
# as fast are better, since their sums have an order.
IN_ONE, IN_GROUPS = 0.85, 0.95
# Clocks of a block of keys and of a tile, of those of `hopper.SUMS` that are timed. At D=128 they are fitted to whole
# backwards of six problems on an H200, and off by up to 6 % (benchmarks/results/wide-heads.csv, 2026-11-29T16:34). At
# D=64 a tile is of dense attention (19:10), and the block is a guess. Of lists a tile is of block_list_64 (22:39), of
# which a processor walks two at a time, and the block is a guess.
OF_GROUPS = {
    hopper.SUMMED: Rates(10_436, 3_957, 3_957), hopper.SUMMED_NARROW: Rates(6_000, 4_690, 4_690),
    hopper.LISTED: Rates(3_000, 2_820, 2_820),
}  # fmt: skip
# On grids a block is a guess, and a tile fitted to five problems, off by up to 9 % (benchmarks/results/grids.csv,
# 2026-11-30). A tile that one consumer alone sees takes some 0.6 of it.
OF_GRIDS = Rates(10_436, 4_250, 4_250)
Config: TypeAlias = tuple[Pass, Tiling]


@dataclass(frozen=True, eq=False)
class OneKernel:
    """Tiles of keys. The kernel of a remainder has stages of its own, which leave room for dQ."""

    keys: Tiled
    family: str = NAME

    @property
    def tiling(self) -> Tiling:
        return self.keys.tilings[0]

    @cached_property
    def plans(self) -> tuple[TilePlan, ...]:
        """Of each of the rows."""
        problem, gpu, tiling = self.keys.asked.problem, self.keys.asked.gpu, self.tiling
        return tuple(
            plan if plan.blocks is None
            else replace(plan, of_blocks=tiling) if tiling.groups
            else replace(plan, of_blocks=of_blocks("dkdv", problem, tiling, gpu, with_dq=True))
            for plan in self.keys.plans
        )  # fmt: skip

    @cached_property
    def sums(self) -> float:
        """Seconds of sums of dQ in memory; of warp groups, whose tiles hold the sums themselves, of what is around."""
        if self.tiling.groups:
            return around_sums(self.keys.asked.problem, self.keys.asked.gpu)
        return adding(self.keys.works, self.keys.asked.problem, self.tiling.cols, self.keys.asked.gpu)

    @property
    def seconds(self) -> float:
        walked = self._of_groups if self.tiling.groups else self.keys.seconds
        return walked + self.sums

    @property
    def _of_groups(self) -> float:
        """What the walk of warp groups takes."""
        gpu, clocks = self.keys.asked.gpu, 0.0
        rates = OF_GRIDS if self.keys.asked.rank > 1 else OF_GROUPS[self.tiling]
        for work in self.keys.works:
            clocks += (work.programs * rates.start + work.tiles * rates.full) / gpu.processors
            clocks += waiting(work, rates, 1, gpu, in_turn=True)
        return clocks / gpu.clock

    @property
    def compared(self) -> float:
        return self.seconds / (IN_GROUPS if self.tiling.groups else IN_ONE)


def reasons_against(asked: InTiles) -> str:
    """Why gradients cannot come of one kernel, or why one is surely slower."""
    return _against_tiles(asked) if _against_groups(asked) else ""


def _against_groups(asked: InTiles) -> str:
    """The same of the kernel of warp groups."""
    if not hopper.no_list(asked.tiles[1].asked):
        return ""
    timed = hopper.sums_of(asked.problem) in OF_GROUPS
    return hopper.no_sums(asked.tiles[1].asked) if timed else "it is not timed, and taken where a call names it"


def _against_tiles(asked: InTiles) -> str:
    """The same of a kernel whose warps all do the same."""
    queries, keys = asked.tiles
    if not queries.works:
        return "there is nothing to compute"
    tiling = tiling_of(asked.problem, keys.asked.rank)
    if tiling is None:
        return "a kernel that makes dQ beside dK and dV has too few registers"
    if shared_of("dkdv", asked.problem, tiling, asked.gpu) > asked.gpu.shared:
        return f"for one of {tiling} the card's shared memory is too small"
    # As many sums as of tiles so high; a kernel that makes dQ too is no faster than one that does not.
    rows, cols = (min(getattr(one, side) for one in keys.tilings) for side in ("rows", "cols"))
    sums = rows / tiling.rows * adding(keys.works, asked.problem, cols, asked.gpu)
    if sums > queries.seconds:
        return f"its sums of dQ in memory alone take {sums * 1e3:.3f} ms, longer than the kernel of dQ"
    plans = OneKernel(keys.asked.alike(tiling)).plans
    return "a remainder has no room" if any(p.blocks is not None and p.of_blocks is None for p in plans) else ""


def configs(asked: InTiles) -> Iterable[Config]:
    """What keys are walked in which tiles. Keys: those alone whose queries a list does not leave out, which a sum may
    then join. Only where it is worth it, since all rows of a long sequence are looked at.
    """
    every = asked.tiles[1].asked
    if not hopper.no_list(every):
        yield every, hopper.LISTED
    elif not _against_groups(asked):
        yield every, hopper.sums_of(asked.problem)
    if _against_tiles(asked):
        return
    tiling = tiling_of(asked.problem, every.rank)
    assert tiling is not None, "it is a reason against tiles"
    if cost(asked, (every, tiling)).compared >= asked.compared:
        yield every, tiling
        return
    yield replace(every, rows=[(acsr.without_blind(), heads) for acsr, heads in every.rows]), tiling


def cost(asked: InTiles, config: Config) -> OneKernel:
    """What a configuration is predicted to take."""
    walked, tiling = config
    return OneKernel(walked.alike(tiling))


def tiling_of(problem: Problem, rank: int) -> Tiling | None:
    """The tiles of the kernel; None where it has too few registers for all sums."""
    wide = max(problem.d, problem.dv)
    if problem.dtype == "float32" or wide > 128:
        return None
    return Tiling(64, 64, 4, 3, apart=True) if wide <= 64 and rank == 1 else Tiling(128, 32, 8, 3, apart=rank == 1)
