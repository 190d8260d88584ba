"""Tilings of a GPU's kernels: those that a call chooses from, and all that a tuner may measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product as cartesian
from typing import Literal, get_args

from weft.acsr.format import BLOCK
from weft.planning.problem import DTYPES, Problem
from weft.planning.tiling import Direction, Tiling, chunks
from weft.target import GPU, Gpu, Target

# What terms rows have: lists of tokens in some; several in some; else one.
Terms = Literal["one", "several", "listed"]
THREADS = 32  # of a warp
MOST_REGISTERS = 255  # of a thread
# Of what is counted, the most that Triton 3.6 and 3.7 compile, D=64 to 256. Rows of queries stay in registers;
# on sm_100 products take both factors from shared memory, gradients of scores too; AMD's kernels hold one chunk.
COMPILED: dict[Direction, float] = {"forward": 0.86, "dq": 0.9, "dkdv": 0.94}
BLACKWELL: dict[Direction, float] = {"forward": 1.01, "dq": 1.4, "dkdv": 1.4}
AMD, FLOAT32 = 0.5, 0.82
# Of what a program of the remainder holds beside its rows and those that it walks: blocks of pairs, at the most.
ONE_PAIR, PAIRS_WITH_DQ = 1.1, 6.0
PAIRS: dict[Direction, float] = {"forward": ONE_PAIR, "dq": ONE_PAIR, "dkdv": 3.1}
AMD_ALONE = 1 << 16  # bytes of a tensor that AMD's kernels hold at a time, at the most
HELD = range(65, 129)  # head dimensions whose gradients hold factors in registers, where products take them there
HALVED = 320  # D + Dv
REGISTERS_OF_FIVE = 96  # registers of a thread, so that a processor runs five programs of four warps side by side
# Beyond 128 head dimensions, by D + Dv up to so many and whether on lines: timed at D=160, 192 (Dv=128 too) and 256;
# forwards and dQ of grids as they are elsewhere.
WIDE_ELSEWHERE: dict[tuple[Direction, bool], Tiling] = {
    ("forward", True): Tiling(128, 64, 8, 2), ("forward", False): Tiling(128, 32, 8, 3),
    ("dq", True): Tiling(128, 32, 8, 3, apart=True), ("dq", False): Tiling(128, 32, 8, 2),
    ("dkdv", True): Tiling(64, 64, 8, 2, apart=True), ("dkdv", False): Tiling(64, 64, 8, 2),
}  # fmt: skip
WIDE: dict[int, dict[tuple[Direction, bool], Tiling]] = {
    HALVED: WIDE_ELSEWHERE | {
        ("forward", True): Tiling(128, 64, 8, 3), ("dq", True): Tiling(128, 64, 8, 3, apart=True),
        ("dkdv", True): Tiling(128, 32, 8, 3, apart=True), ("dkdv", False): Tiling(64, 32, 4, 3),
    },
    384: WIDE_ELSEWHERE | {
        ("forward", True): Tiling(128, 64, 8, 3), ("dq", True): Tiling(128, 64, 8, 2, apart=True),
        ("dkdv", True): Tiling(128, 64, 8, 2, apart=True), ("dkdv", False): Tiling(64, 32, 4, 2),
    },
    512: WIDE_ELSEWHERE | {
        ("dkdv", True): Tiling(128, 32, 8, 3, apart=True), ("dkdv", False): Tiling(32, 64, 4, 2),
    },
}  # fmt: skip
IN_GROUPS: dict[Direction, Tiling] = {
    "forward": Tiling(256, 64, 16, 8, 96, False, 4),
    "dkdv": Tiling(128, 64, 8, 4, 168, True, 2),
}
MOST_IN_GROUPS: dict[Direction, int] = {"forward": 2, "dkdv": 1}  # terms
# For cards without room for the usual tiling, the largest that fits.
SMALLER = (Tiling(64, 32, 8, 2), Tiling(32, 32, 4, 2), Tiling(32, 16, 4, 2), Tiling(16, 16, 4, 1))


@dataclass(frozen=True)
class Footprint:
    """What a tiling holds: bytes of shared memory, registers of a thread; estimates before anything is compiled."""

    shared: int
    registers: int


def held(problem: Problem, gpu: Target | Gpu) -> bool:
    """Whether kernels hold in registers what they multiply every tile with: on cards that multiply from there."""
    return _hopper(gpu) and DTYPES[problem.dtype] == 2 and max(problem.d, problem.dv) < HELD.stop


def _hopper(gpu: Target | Gpu) -> bool:
    return isinstance(gpu, Gpu) and gpu.architecture == "sm_90"


def always_apart(direction: Direction, problem: Problem, gpu: Target | Gpu) -> bool:
    """Whether edges of a line have loops of their own beside a grid too: with masks in the loop of all tiles, ptxas
    runs the products of dK and dV at narrow heads one by one, and loses keys that are held (sm_90).
    """
    return direction == "dkdv" and held(problem, gpu) and max(problem.d, problem.dv) <= 64


def no_maximum(direction: Direction, problem: Problem, gpu: Target | Gpu) -> bool:
    """Whether a forward takes no maximum off scores. Not in float16, whose weights end at 2^16. On sm_100 Triton 3.6
    and 3.7 do not compile it.
    """
    blackwell = isinstance(gpu, Gpu) and gpu.architecture == "sm_100"
    return direction == "forward" and problem.dtype != "float16" and not blackwell


def in_halves(direction: Direction, problem: Problem, gpu: Target | Gpu) -> bool:
    """Whether dV and dK are made by a launch each: where D + Dv is beyond HALVED, threads have no registers for both
    sums, and five products at full speed take less than four that spill (timed on sm_90 alone). Not in float32.
    """
    return direction == "dkdv" and _hopper(gpu) and DTYPES[problem.dtype] == 2 and problem.d + problem.dv > HALVED


def _narrow_on_grids(direction: Direction, gpu: Gpu) -> bool:
    """Whether gradients keep to narrow tiles on grids, up to D=64 without a limit of registers. Others spill up to
    4,240 bytes a thread there (counted, not timed).
    """
    return direction != "forward" and _from_registers(gpu)


def _from_registers(gpu: Gpu) -> bool:
    """Whether products take both factors and their sums from registers, on NVIDIA's cards."""
    return gpu.architecture in ("sm_80", "sm_89")


def usual(direction: Direction, problem: Problem, rank: int = 1, gpu: Gpu = GPU) -> Tiling:
    """What was measured best at these head dimensions on an H200 (benchmarks/notes/triton.md)."""
    wide, forward, line = max(problem.d, problem.dv), direction == "forward", rank == 1
    if problem.dtype == "float32":
        rows = 32 if wide > 128 else 64
        return Tiling(rows, 32, 4 if forward else 8, 2)
    if wide <= 64:
        if not line and _narrow_on_grids(direction, gpu):
            return Tiling(64, 32, 4, 3, apart=True)
        return Tiling(64, 32 if direction == "dkdv" else 64, 4, 3, 128 if forward else 168, apart=not forward)
    if wide <= 96:  # where heads share keys, products in wide tiles are run one by one, or sums spill in the loop
        narrow = direction == "dkdv" and problem.group > 1
        return Tiling(64, 32 if narrow else 64, 4, 3, apart=not forward)
    if wide <= 128:
        if _queries_held(direction, problem, gpu):
            return Tiling(64, 64 if line else 32, 4, 3, apart=True)
        # two stages where three would leave room for one block on a processor only
        two = direction == "dq" or (forward and not line)
        return Tiling(64, 32 if direction == "dkdv" else 64, 4, 2 if two else 3, apart=not forward)
    if direction == "dkdv" and _from_registers(gpu):  # others spill up to 9,232 bytes a thread (counted, not timed)
        return Tiling(32, 32, 4, 2, apart=line)
    size = min((both for both in WIDE if problem.d + problem.dv <= both), default=max(WIDE))
    return (WIDE[size] if _hopper(gpu) else WIDE_ELSEWHERE)[direction, line]


def menu(
    direction: Direction, problem: Problem, rank: int = 1, gpu: Gpu = GPU, terms: Terms = "one"
) -> tuple[Tiling, ...]:  # fmt: skip
    """What a call chooses from: the usual tiling, and others where that one is not good at short runs or at long.

    Every entry is a kernel more that a structure may compile. A card without room for the usual one gets a smaller one.
    """

    def fits(tiling: Tiling) -> bool:
        return shared_of(direction, problem, tiling, gpu) <= gpu.shared

    first = usual(direction, problem, rank, gpu)
    if not fits(first):
        return (next(filter(fits, SMALLER), SMALLER[-1]),)
    if problem.dtype == "float32":
        return (first,)
    if rank > 1 and _narrow_on_grids(direction, gpu):
        return (first,)
    if max(problem.d, problem.dv) > 128:
        short = rank == 1 and terms == "one" and _hopper(gpu)
        return (first, *filter(fits, _others_of_wide(direction, problem) if short else ()))
    others = {"forward": _other_forwards, "dq": _others_of_queries, "dkdv": _others_of_keys}[direction]
    return (first, *filter(fits, others(problem, gpu, rank == 1, terms)))


def _other_forwards(problem: Problem, gpu: Gpu, line: bool, terms: Terms) -> tuple[Tiling, ...]:
    """What a forward is offered beside the usual tiling: narrow tiles for short runs; up to D=64 edges apart for long.

    Of several terms, as tokens that all see are one: in a small problem the few rows that see all may outlast the
    others, and wide tiles are fewer in turn, or a stage more is worth more than programs side by side; none of listed
    tokens, whose kernel spills in its loop.
    """
    wide, several = max(problem.d, problem.dv), line and terms == "several"
    if wide <= 64:
        apart = (Tiling(64, 64, 4, 3, 128, apart=True),) * (line and terms == "one")
        return apart + (Tiling(64, 128, 4, 3), Tiling(64, 128, 4, 4)) * several + (Tiling(64, 32, 4, 3),) * (not line)
    if not held(problem, gpu):
        return ()
    if wide <= 96:
        return (Tiling(64, 32, 4, 3),) * (line and terms == "one")
    return (Tiling(64, 32, 4, 3),) + (Tiling(64, 64, 4, 4),) * several


def _others_of_queries(problem: Problem, gpu: Gpu, line: bool, terms: Terms) -> tuple[Tiling, ...]:
    """What dQ is offered: narrow tiles for short runs; over several terms, where few rows that see all may outlast the
    others, a stage more.
    """
    wide = max(problem.d, problem.dv)
    if wide <= 64:
        longest = (Tiling(64, 64, 4, 4, apart=True),) * (line and terms == "several")
        registers = REGISTERS_OF_FIVE if line and terms == "one" and _hopper(gpu) else 128
        return Tiling(64, 32, 4, 3, registers, apart=line), *longest
    if not 96 < wide <= 128:
        return ()
    if not held(problem, gpu):
        return (Tiling(128, 64, 8, 3, apart=True),) * line
    if terms == "one" or not line:
        return (Tiling(64, 64, 4, 3),)
    return (Tiling(64, 32, 4, 3),) + (Tiling(64, 64, 4, 4, apart=True),) * (terms == "several")


def _others_of_keys(problem: Problem, gpu: Gpu, line: bool, terms: Terms) -> tuple[Tiling, ...]:
    """What dK and dV are offered: up to D=64 square tiles; over several terms, where these nearly always take longer,
    as many registers as a thread likes, for few long programs. At D=128 wide tiles on grids alone: on lines they take
    0.93 to 1.39 of the time, which rates do not tell; and not where heads share keys, whose walk would spill in its
    loop (benchmarks/notes/triton.md).
    """
    wide = max(problem.d, problem.dv)
    if wide <= 64:
        return (Tiling(64, 32, 4, 3, apart=True) if line and terms == "several" else Tiling(64, 64, 4, 3, apart=line),)
    if not (96 < wide <= 128 and held(problem, gpu)):
        return ()
    return (Tiling(64, 32, 4, 3),) if line else (Tiling(128, 64, 8, 3),) * (problem.group == 1)


def _others_of_wide(direction: Direction, problem: Problem) -> tuple[Tiling, ...]:
    """Beyond 128 head dimensions narrow tiles for short runs, timed where WIDE was."""
    both = problem.d + problem.dv
    if direction == "forward":
        return (Tiling(64, 32, 4, 3 if both <= 384 else 2),)
    return (Tiling(64, 32, 4, 3 if both <= HALVED else 2, apart=True),) * (both <= 384)


def in_groups(direction: Direction, problem: Problem, gpu: Gpu) -> Tiling | None:
    """What is offered to lines beside `menu`: warp groups that specialise, where there are such kernels
    (docs/decisions/0010-warp-groups-that-specialise.md).
    """
    bfloat16, shared = problem.dtype == "bfloat16", problem.group > 1
    fits = bfloat16 if direction == "forward" else DTYPES[problem.dtype] == 2 and not shared
    known = (problem.d, problem.dv) == (64, 64) and fits and _hopper(gpu)
    return IN_GROUPS.get(direction) if known else None


def in_one(problem: Problem, rank: int) -> Tiling | None:
    """Of the kernel that makes dQ beside dK and dV; None where it has too few registers for all of them."""
    wide = max(problem.d, problem.dv)
    if problem.dtype == "float32" or wide > 128:
        return None
    return Tiling(64, 64, 4, 3, apart=True) if wide <= 64 and rank == 1 else Tiling(128, 32, 8, 3, apart=rank == 1)


def legal(direction: Direction, problem: Problem, rank: int, gpu: Gpu) -> tuple[Tiling, ...]:
    """Every tiling that the card has room for, and what is offered; no axis is apart on grids."""
    found = dict.fromkeys(one for terms in get_args(Terms) for one in menu(direction, problem, rank, gpu, terms))
    for tiling in _all(direction, rank, always_apart(direction, problem, gpu)):
        takes = footprint(direction, problem, tiling, gpu)
        if takes.shared <= gpu.shared and takes.registers <= MOST_REGISTERS:
            found[tiling] = None
    return tuple(found)


def _all(direction: Direction, rank: int, apart: bool) -> Iterator[Tiling]:
    forward = direction == "forward"
    low = ((32, 4),) if rank > 1 or not forward else ()
    # wide tiles: forward alone has the registers, and a box of 128 keys on two axes has more than PLACES coordinates
    wide = (128,) if forward and rank != 2 else ()
    for (rows, warps), cols, stages in cartesian((*low, (64, 4), (64, 8), (128, 8)), (32, 64, *wide), (2, 3, 4)):
        yield Tiling(rows, cols, warps, stages, apart=rank == 1 and not forward)
        if rank == 1 and stages == 3 and not (forward or apart):
            yield Tiling(rows, cols, warps, stages)


def footprint(direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu) -> Footprint:
    """Tiles of both sides in shared memory; sums in float32, and the scores of one tile, in registers."""
    width, channels = DTYPES[problem.dtype], problem.d + problem.dv
    walked = tiling.stages * tiling.cols * channels * width
    mine = {"forward": problem.d, "dq": channels, "dkdv": channels}[direction]
    if _queries_held(direction, problem, gpu):
        mine -= problem.d
    sums = {"forward": problem.dv, "dq": problem.d, "dkdv": channels}[direction]
    if in_halves(direction, problem, gpu):
        sums = max(problem.d, problem.dv)
    scores = tiling.cols * (1 if direction == "forward" else 2)
    threads = THREADS * tiling.warps
    return Footprint(walked + tiling.rows * mine * width, 48 + tiling.rows * (sums + scores) // threads)


def _queries_held(direction: Direction, problem: Problem, gpu: Gpu) -> bool:
    """Whether queries stay in registers, and at most their gradients in shared memory."""
    return direction == "dq" and held(problem, gpu) and max(problem.d, problem.dv) in HELD


def shared_of(direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu) -> float:
    """The most bytes of shared memory that a program of a tiling was seen to take on such cards."""
    takes = footprint(direction, _laid_out(problem, gpu), tiling, gpu).shared
    if in_halves(direction, problem, gpu):
        return takes + 32 * tiling.stages * tiling.cols  # Stats beside queries and dO
    if _queries_held(direction, problem, gpu):
        share = 1.0
    elif gpu.architecture.startswith("gfx"):
        share = AMD
    elif DTYPES[problem.dtype] == 4:
        share = FLOAT32
    else:
        share = (BLACKWELL if gpu.architecture == "sm_100" else COMPILED)[direction]
    return share * takes


def _laid_out(problem: Problem, gpu: Gpu) -> Problem:
    """With head dimensions as wide as their chunks are laid out: in 16 bits on sm_100 each of two as the first."""
    d, dv = (sum(width for _, width, _ in chunks(size)) for size in (problem.d, problem.dv))
    if gpu.architecture == "sm_100" and DTYPES[problem.dtype] == 2:
        d, dv = (max(16, 1 << (size - 1).bit_length()) for size in (d, dv))
    return replace(problem, d=d, dv=dv)


# ---- the remainder ---------------------------------------------------------------------------------------------------
def of_blocks(
    direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu, with_dq: bool = False
) -> Tiling | None:  # fmt: skip
    """The tiling of the remainder beside one of lines: as many of its stages as fit; None where a single one does not.

    Of float32 as many as fit in tf32 too, which callers choose later, unless a single one does not. with_dq: of the
    kernel that makes dQ beside dK and dV.
    """
    for tf32, stages in cartesian((True, False), range(tiling.stages, 0, -1)):
        if shared_of_blocks(direction, problem, stages, gpu, tf32, with_dq) <= gpu.shared:
            return replace(tiling, rows=BLOCK, cols=BLOCK, stages=stages)
    return None


def shared_of_blocks(
    direction: Direction, problem: Problem, stages: int, gpu: Gpu, tf32: bool = False, with_dq: bool = False
) -> int:
    """The most bytes of shared memory that a program of the remainder was seen to take, by Triton 3.6 and 3.7, D=16 to
    256: its rows, a block of columns for each stage, and pairs. tf32: of float32, products in tf32.

    Where products read both factors from shared memory every stage is there, on sm_100 one more for gradients;
    elsewhere the last one is in registers. A single stage waits for one tensor after the other. AMD's kernels hold one.
    """
    if gpu.architecture.startswith("gfx") and stages == 1:
        return AMD_ALONE
    width, gradient, blackwell = DTYPES[problem.dtype], direction != "forward", gpu.architecture == "sm_100"
    laid_out = _laid_out(problem, gpu)
    d, both, larger = laid_out.d, laid_out.d + laid_out.dv, max(laid_out.d, laid_out.dv)
    mine, pairs = both if gradient else d, PAIRS_WITH_DQ if with_dq else PAIRS[direction] if width == 2 else ONE_PAIR
    if gpu.architecture.startswith("gfx"):
        mine, walked = 0, both
    elif gpu.architecture in ("sm_90", "sm_100") and (width == 2 or tf32):
        walked = (stages + (blackwell and gradient)) * both if stages > 1 else larger + gradient * both
    else:
        walked = max((stages - 1) * both, both if gradient else larger)
        wide = d >= 128 and len(chunks(problem.d)) == 1 and (width == 2 or tf32)
        pairs = pairs if with_dq else PAIRS[direction] if wide else ONE_PAIR
    return int(BLOCK * width * (mine + walked + pairs * BLOCK))


def resident(direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu) -> int:
    """Programs that one processor runs side by side, at least one."""
    takes, threads = footprint(direction, problem, tiling, gpu), THREADS * tiling.warps
    registers = tiling.registers or min(MOST_REGISTERS, takes.registers)
    by_registers = gpu.registers // (4 * registers * threads)
    return max(1, min(gpu.shared // max(1, takes.shared), by_registers, 2048 // threads))
