"""Kernels of one direction by warp groups that specialise, on Hopper's cards: forwards, dK and dV, and dQ at D=256
(docs/decisions/0010-warp-groups-that-specialise.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.planning.affine_bounds import as_lines
from weft.planning.families.base import Pass, Tiled, Way
from weft.planning.features import on_hopper
from weft.planning.problem import DTYPES, Problem
from weft.planning.tiles import LoopNest, TilePlan
from weft.planning.tiling import Direction, Tiling
from weft.planning.tiling.gpu import FAR, more_run
from weft.planning.tma import extents, grid_extents
from weft.planning.work import Work, slots_of, works
from weft.target import Gpu

NAME = "hopper"
CONFIGS: dict[Direction, Tiling] = {
    "forward": Tiling(256, 64, 16, 8, 96, False, 4),
    "dkdv": Tiling(128, 64, 8, 4, 168, True, 2),
}
WIDE = Tiling(128, 64, 8, 4, 168, False, 2)  # the forward's at D=128
WIDEST = Tiling(128, 64, 8, 2, 168, False, 2)  # and at D=256, where nothing is timed: its rates follow those of D=128
OF_GRIDS = (CONFIGS["forward"], WIDE)
# Of lists of whole blocks, at D=128: all gradients in one walk, and the forward. Two programs are side by side.
LISTED, LISTED_FORWARD = Tiling(64, 64, 4, 1, 128, True, 1), Tiling(64, 64, 4, 2, 128, False, 1)
LISTS = (LISTED, LISTED_FORWARD)
# Offered only where a call names them, until they are timed: D, Dv, dtypes and the forward's configuration. At D=128
# tiles of 128 keys took 1.01 to 1.07 of the time of 64 (benchmarks/results/wide-heads.csv).
NAMED: tuple[tuple[range, str, Tiling], ...] = (
    (range(65, 128), "bfloat16", WIDE),
    (range(65, 128), "float16", WIDE),
    (range(129, 256), "bfloat16", WIDEST),
    (range(129, 256), "float16", WIDEST),
)
APART = Tiling(128, 64, 8, 1, 168, True, 2)  # of dQ, dV and dK at D=256, each in a launch of its own
# On grids at D=64: the forward, dQ, and dK and dV together. A program computes one box, and three are side by side.
BOXED: dict[Direction, Tiling] = {
    "forward": Tiling(64, 64, 4, 3, 80, False, 1), "dq": Tiling(64, 64, 4, 2, 80, True, 1),
    "dkdv": Tiling(64, 32, 4, 3, 80, True, 1),
}  # fmt: skip
# What configurations take of what is predicted. Tiles of lists are predicted by the rates of several terms. They took
# more where both were timed, 2.415 ms for 1.374 on block_list_64, so lists are weighed as they are. Boxes have
# the rates of wider blocks, and take 0.058 ms for 0.037 on na2d_64x64_k7.
TAKEN = {LISTED_FORWARD: 0.57, BOXED["forward"]: 1.57}
CONFIGS_AT, WIDE_AT, WIDEST_AT = 64, 128, 256  # head dimensions
# Tilings of all gradients in one walk, which adds to dQ in memory, at D=128 and at D=64. SUMS has the bytes of shared
# memory of their kernels.
SUMMED, SUMMED_NARROW = Tiling(128, 64, 8, 2, 168, True, 2), Tiling(128, 128, 8, 2, 168, True, 2)
SUMS = {SUMMED: 225_440, SUMMED_NARROW: 229_536, LISTED: 107_548}
MOST_TERMS: dict[Direction, int] = {"forward": 2, "dq": 1, "dkdv": 1}
REGISTERS = 1 << 16  # of a processor
EVEN = 1.5  # how much longer than the mean the longest of programs may be that are alike


def has_row_bounds(tiling: Tiling, rank: int = 1) -> bool:
    """Whether a kernel reads the bounds of rows from its tables: at wide heads, and on grids."""
    return bool(tiling.groups) and (rank > 1 or tiling not in CONFIGS.values())


def resident(tiling: Tiling) -> int:
    """Programs of warp groups that a processor runs side by side, as registers allow: one group more loads."""
    return max(1, REGISTERS // (128 * (tiling.groups + 1) * tiling.registers))


def sums_of(problem: Problem) -> Tiling:
    """The configuration of `SUMS` for such heads."""
    return SUMMED_NARROW if problem.d == CONFIGS_AT else SUMMED


def no_sums(asked: Pass) -> str:
    """Why all gradients cannot come of one walk of `sums_of` over the tiles of keys that are asked for; "" where they
    can.
    """
    problem, tiling = asked.problem, sums_of(asked.problem)
    sizes = (CONFIGS_AT,) * 2, (WIDE_AT,) * 2
    if not on_hopper(asked.gpu) or (problem.d, problem.dv) not in sizes or DTYPES[problem.dtype] != 2:
        return f"its kernels are for D={CONFIGS_AT} and {WIDE_AT} in 16 bits on Hopper"
    if asked.gpu.shared < SUMS[tiling]:
        return "its tiles need more shared memory than the card has"
    if asked.terms == "listed" or len(asked.rows) > 1:
        return "tokens are listed" if asked.terms == "listed" else "heads differ"
    if asked.rank > 1:
        if tiling != SUMMED or problem.dtype != "bfloat16":
            return f"its kernels of grids are for D={WIDE_AT} in bfloat16"
        return _no_boxes(asked, asked.planned(tiling))
    nest = line_of(asked, tiling)
    if nest is None or len(nest.parts) > 1:
        return "it is not one loop nest of one term on a line, of tokens as they come"
    if tiling == SUMMED_NARROW and as_lines(nest) is None:
        return "its bounds are no clipped lines: what is no number in a document would reach those beside it"
    return "descriptors would reach tokens that nobody sees" if extents(nest) is None else ""


def no_list(asked: Pass) -> str:
    """Why lists of whole blocks are not walked by warp groups; "" where they are."""
    problem, (acsr, _) = asked.problem, asked.rows[0]
    if not on_hopper(asked.gpu) or (problem.d, problem.dv) != (WIDE_AT,) * 2 or problem.dtype != "bfloat16":
        return f"its kernels of lists are for D={WIDE_AT} in bfloat16 on Hopper"
    if len(asked.rows) > 1:
        return "heads differ"
    if acsr.terms or not acsr.remainder.rows.size:
        return "it is no list of blocks alone"
    whole = (acsr.remainder.bit_index < 0).all() and not (problem.m % LISTED.cols or problem.n % LISTED.rows)
    return "" if whole else "some blocks are not whole"


# ---- the family ------------------------------------------------------------------------------------------------------
def reasons_against(asked: Pass, named: Tiling | None = None) -> str:
    """Why there is no such kernel; "" where there is. What depends on strides and alignment is asked at the call.

    named: a configuration that a call asks for, which may be one of `NAMED`.
    """
    config = _config(asked)
    if named is not None and named in of_names(asked.direction, asked.problem, asked.gpu):
        config = named
    if named in (None, LISTED_FORWARD) and asked.direction == "forward" and not no_list(asked):
        return ""
    if config is None:
        return _no_kernel(asked.direction, asked.problem, asked.gpu)
    if asked.terms == "listed" or len(asked.rows) > 1:
        return "tokens are listed" if asked.terms == "listed" else "heads differ"
    if asked.rank > 1:
        return _no_grid(asked, config)
    nest = line_of(asked, config)
    if nest is None:
        return "it is not one loop nest of lines with one clipped bound a side, of tokens as they come"
    if len(nest.parts) > MOST_TERMS[asked.direction] or more_run(nest) is not None:
        return f"more than {MOST_TERMS[asked.direction]} terms, or one of full tiles alone"
    if (asked.direction == "forward" or has_row_bounds(config)) and extents(nest) is None:
        return "descriptors would reach tokens that nobody sees"
    counted = _counted(asked, config)
    return _no_order(counted, has_row_bounds(config)) or ("" if named is not None else _uneven(counted, config))


def _no_grid(asked: Pass, config: Tiling) -> str:
    """Why there is no kernel for a grid; "" where there is."""
    if config not in (*OF_GRIDS, *BOXED.values()) or asked.problem.dtype != "bfloat16":
        # of float16 the largest score of a row's first tiles is taken off, in which many rows of a grid see no key
        return f"its kernels of grids are at D={CONFIGS_AT}, and forwards at D={WIDE_AT} too, in bfloat16"
    return _no_boxes(asked, asked.planned(config)) or _no_order(_counted(asked, config), True)


def _no_boxes(asked: Pass, plan: TilePlan) -> str:
    """Why descriptors do not reach the boxes of a plan on a grid; "" where they do."""
    if len(plan.nests) != 1 or plan.blocks is not None or len(plan.nests[0].parts) > 1:
        return "it is not one loop nest of one term"
    if grid_extents(plan.nests[0]) is None:
        return "its tokens are not one grid as it comes, or boxes would reach what nobody sees"
    if asked.rank > 2 and asked.problem.group > 1:
        return "descriptors of three axes have one for batch rows and heads, and heads share keys"
    return ""


def configs(asked: Pass) -> Iterable[tuple[Way, ...]]:
    """The one of the direction."""
    config = _config(asked)
    if asked.direction == "forward" and not no_list(asked):
        config = LISTED_FORWARD
    assert config is not None, "reasons_against comes before"
    yield asked.alike(config).ways
    if config == BOXED["forward"]:  # blocks of four boxes read less, where these see much
        yield asked.alike(CONFIGS["forward"]).ways


def cost(asked: Pass, config: tuple[Way, ...]) -> Tiled:
    """What a configuration is predicted to take."""
    return Weighed(asked, config) if config[0][0] in TAKEN else Tiled(asked, config)


@dataclass(frozen=True, eq=False)
class Weighed(Tiled):
    """A configuration whose prediction is off by what TAKEN says. It is weighed by what it takes."""

    @property
    def compared(self) -> float:
        return TAKEN[self.tilings[0]] * self.seconds


# ---- what decides ----------------------------------------------------------------------------------------------------
def _config(asked: Pass) -> Tiling | None:
    """The configuration of what is asked; None where a card has no such kernel for tensors of these sizes."""
    problem, gpu = asked.problem, asked.gpu
    if asked.rank > 1 and problem.d == CONFIGS_AT and not _no_kernel("forward", problem, gpu):
        return BOXED[asked.direction]
    return config_of(asked.direction, problem, gpu)


def config_of(direction: Direction, problem: Problem, gpu: Gpu) -> Tiling | None:
    """The configuration of one direction; None where a card has no such kernel for tensors of these sizes."""
    if _no_kernel(direction, problem, gpu):
        return None
    widest = WIDEST if direction == "forward" else APART
    return {CONFIGS_AT: CONFIGS.get(direction), WIDE_AT: WIDE, WIDEST_AT: widest}[problem.d]


def of_names(direction: Direction, problem: Problem, gpu: Gpu) -> tuple[Tiling, ...]:
    """The configurations that a call may name beside those that are chosen."""
    if direction != "forward" or not on_hopper(gpu):
        return ()
    return tuple(
        tiling for sizes, dtype, tiling in NAMED
        if problem.d in sizes and problem.dv in sizes and problem.dtype == dtype
    )  # fmt: skip


def beside(direction: Direction, problem: Problem, gpu: Gpu) -> Tiling | None:
    """The configuration that kernels of one direction are offered beside; the forward's for dQ at D=64, without any."""
    config = config_of("forward" if direction == "dq" else direction, problem, gpu)
    return None if direction == "dq" and config != CONFIGS["forward"] else config


def _no_kernel(direction: Direction, problem: Problem, gpu: Gpu) -> str:
    """Why no kernel of a direction is made for such tensors."""
    if direction == "dq" and problem.d != WIDEST_AT:
        return "there is no such kernel of dQ alone"
    if not on_hopper(gpu):
        return f"{gpu.name} is no Hopper card"
    if problem.d != problem.dv or problem.d not in (CONFIGS_AT, WIDE_AT, WIDEST_AT):
        return f"its kernels are for D={CONFIGS_AT}, {WIDE_AT} and {WIDEST_AT}, the same of q, k and v"
    if direction == "dkdv" and problem.d == WIDE_AT:
        return f"its kernels of dK and dV are for D={CONFIGS_AT} and {WIDEST_AT}"
    if DTYPES[problem.dtype] != 2:
        return f"its kernels are not for {problem.dtype}"
    return "heads share keys" if direction == "dkdv" and problem.d == CONFIGS_AT and problem.group > 1 else ""


def line_of(asked: Pass, config: Tiling) -> LoopNest | None:
    """The nest of the first head's rows, where it is the only one and on one axis.

    It has one clipped line a side, unless the tables hold the bounds of rows.
    """
    plan = asked.planned(config)
    if len(plan.nests) != 1 or plan.blocks is not None or len(plan.nests[0].box) > 1:
        return None
    nest = plan.nests[0]
    if nest.is_ordered:
        return None
    return nest if has_row_bounds(config) or as_lines(nest) is not None else None


def _counted(asked: Pass, config: Tiling) -> tuple[Work, ...]:
    return works([(asked.planned(config), asked.rows[0][1])], slots_of(asked.gpu), asked.direction == "dkdv")


def _uneven(counted: tuple[Work, ...], config: Tiling) -> str:
    """Why programs would end at different times. Blocks are sorted by length at wide heads alone, where tables hold the
    bounds of rows (`tables.tile_scheduler`).
    """
    (work,) = counted
    if has_row_bounds(config) or sum(work.most) * work.programs <= EVEN * work.tiles:
        return ""
    return f"its longest program has more than {EVEN} times the mean of tiles, and blocks are not sorted by length"


def _no_order(counted: tuple[Work, ...], row_bounds: bool) -> str:
    """Why programs cannot take the work of a line in turn."""
    if len(counted) != 1 or counted[0].split:
        return "some rows see so much that programs share them"
    if counted[0].kind == "table" and not row_bounds:
        return "its bounds are tables"
    return "" if counted[0].programs < FAR else "it has more programs than 32 bits count"
