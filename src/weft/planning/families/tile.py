"""Tiles whose warps all do the same: Triton's kernels, on every GPU.

A call chooses from a short menu, so that a structure has few kernels, whatever lengths come. A tuner may measure all
that are legal. Heads that differ run side by side under one tiling, or unlike ones apart, each under its own. Both are
priced, since kernels that are best alone need not be best together (GOLDYLOC, arXiv 2409.02227).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product as cartesian
from typing import NamedTuple, get_args

from weft.acsr.format import BLOCK
from weft.planning.families import hopper
from weft.planning.families.base import MOST, Pass, Terms, Tiled, Way
from weft.planning.features import HALVED, always_apart, from_registers, held, on_hopper
from weft.planning.problem import Problem
from weft.planning.resources import MOST_REGISTERS, footprint, queries_held, shared_of, shared_of_blocks
from weft.planning.tiles import TilePlan
from weft.planning.tiling import Direction, Tiling
from weft.planning.work import slots_of, works
from weft.target import GPU, Gpu

NAME = "tile"
REGISTERS_OF_FIVE = 96  # registers of a thread, so that a processor runs five programs of four warps side by side
# Beyond 128 head dimensions, by the largest D + Dv and whether on lines. Timed at D=160, 192 (Dv=128 too) and 256.
# Forwards and dQ on grids are as they are elsewhere.
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
# For cards without room for the usual tiling, the largest that fits.
SMALLER = (Tiling(64, 32, 8, 2), Tiling(32, 32, 4, 2), Tiling(32, 16, 4, 2), Tiling(16, 16, 4, 1))


# ---- the family ------------------------------------------------------------------------------------------------------
def reasons_against(asked: Pass) -> str:
    """None: tiles compute every pattern. What a card has no room for is told by `no_room`, once a plan is made."""
    return ""


def configs(asked: Pass) -> Iterable[tuple[Way, ...]]:
    """One tiling for all rows; and for a few distinct heads, unlike ones apart."""
    tilings = offered(asked)
    yield from (asked.alike(tiling).ways for tiling in tilings)
    if 1 < len(asked.rows) <= MOST and (apart := unlike_apart(asked, tilings)):
        yield apart


def cost(asked: Pass, config: tuple[Way, ...]) -> Tiled:
    """What a configuration is predicted to take."""
    return Tiled(asked, config)


def offered(asked: Pass) -> tuple[Tiling, ...]:
    """What a call with such rows chooses from.

    The menu is cut, so that no structure has a kernel more:

    - Lines that warp groups may compute keep what has edges apart; short runs belong to warp groups.
    - Forwards and dQ with bounds from tables keep the usual tiling. Others gain 5 % at most in documents (rates, H200).
    - Forwards at D=128 that warp groups may compute keep the usual tiling. Warp groups won on all that was timed.
    """
    direction, problem, gpu = asked.direction, asked.problem, asked.gpu
    found = menu(direction, problem, asked.rank, gpu, asked.terms)
    beside, groups = hopper.beside(direction, problem, gpu), hopper.config_of(direction, problem, gpu)
    if asked.terms == "listed" or len(asked.rows) > 1 or beside is None:
        return found
    if groups == hopper.WIDE and not hopper.reasons_against(asked):
        return found[:1]
    if direction != "dkdv" and _of_tables(asked, groups or found[0]):
        return found[:1]
    if groups is None or hopper.line_of(asked, groups) is None:
        return found
    return tuple(tiling for tiling in found if tiling.apart) or found


def _of_tables(asked: Pass, tiling: Tiling) -> bool:
    """Whether all bounds come from tables."""
    counted = works([(asked.planned(tiling), asked.rows[0][1])], slots_of(asked.gpu))
    return {work.kind for work in counted} == {"table"}


def unlike_apart(asked: Pass, tilings: Sequence[Tiling]) -> tuple[Way, ...] | None:
    """Rows apart that alone would take another tiling, or other code, each under its own; None if all are alike."""
    packs: dict[tuple[Tiling, frozenset[tuple[str, bool]]], int] = {}
    ways = []
    for row in asked.rows:
        one = replace(asked, rows=[row])
        alone = min((one.alike(tiling) for tiling in tilings), key=lambda found: found.seconds)
        alike = alone.tilings[0], frozenset((work.kind, work.merged) for work in alone.works)
        ways.append((alike[0], packs.setdefault(alike, len(packs))))
    return tuple(ways) if len(packs) > 1 else None


def no_room(direction: Direction, plans: Iterable[TilePlan], problem: Problem, gpu: Gpu, tf32: bool) -> str:
    """Why the remainder of plans has no kernel of one direction on a card; "" where it has."""
    stages = [1 if plan.of_blocks is None else plan.of_blocks.stages for plan in plans if plan.blocks is not None]
    takes = max((shared_of_blocks(direction, problem, one, gpu, tf32) for one in stages), default=0)
    if takes <= gpu.shared:
        return ""
    return (
        f"the pattern has pairs that no affine term covers, in blocks of {BLOCK} x {BLOCK}; their "
        f"kernel for {direction} takes up to {takes} bytes of shared memory, and {gpu.name} has {gpu.shared}"
    )


# ---- the menu --------------------------------------------------------------------------------------------------------
def _narrow_on_grids(direction: Direction, gpu: Gpu) -> bool:
    """Whether gradients keep to narrow tiles on grids, up to D=64 without a limit of registers. Others spill up to
    4,240 bytes a thread there (counted, not timed).
    """
    return direction != "forward" and from_registers(gpu)


def usual(direction: Direction, problem: Problem, rank: int = 1, gpu: Gpu = GPU) -> Tiling:
    """What was measured best at these head dimensions on an H200 (benchmarks/notes/triton.md, T51 to T53)."""
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
        if queries_held(direction, problem, gpu):
            return Tiling(64, 64 if line else 32, 4, 3, apart=True)
        # two stages where three would leave room for one block on a processor only
        two = direction == "dq" or (forward and not line)
        return Tiling(64, 32 if direction == "dkdv" else 64, 4, 2 if two else 3, apart=not forward)
    if direction == "dkdv" and from_registers(gpu):  # others spill up to 9,232 bytes a thread (counted, not timed)
        return Tiling(32, 32, 4, 2, apart=line)
    size = min((both for both in WIDE if problem.d + problem.dv <= both), default=max(WIDE))
    return (WIDE[size] if on_hopper(gpu) else WIDE_ELSEWHERE)[direction, line]


class Under(NamedTuple):
    """What else takes registers: score functions, sums for gradients of tables, dropout. by_distance: score functions
    read no table but by how far apart pairs are.
    """

    scores: bool = False
    sums: bool = False
    dropout: bool = False
    by_distance: bool = False


PLAIN = Under()


def narrow(direction: Direction, problem: Problem, rank: int, gpu: Gpu, under: Under) -> Tiling | None:
    """What a call takes under options that crowd registers; None where the plan's own tiles serve.

    The assembler for sm_90 counts bytes that a thread spills. On grids at D=128 they are up to 1,072, and 32 in these
    tiles, though with eight warps. Reads by distance take less. With four warps 64 x 32 pairs are 1,552 instructions
    of warps in dQ, for 3,440 with eight; in dK and dV 1,772 for 3,736. In dQ on lines with sums they are 608, and 64
    in these. With dropout such tiles spill less too, but gradients took 1.3 to 1.5 times as long
    (benchmarks/notes/options.md).
    """
    wide = max(problem.d, problem.dv)
    if problem.dtype == "float32" or wide > 128:
        return None
    found = None
    if rank > 1 and wide > 64 and under.by_distance:
        found = None if direction == "forward" else Tiling(64, 32, 4, 3)
    elif rank > 1 and wide > 64 and under.scores:
        found = Tiling(64, 32, 4 if direction == "forward" else 8, 3)
    elif rank == 1 and direction == "dq" and wide > 96 and under.sums:
        found = Tiling(64, 32, 4, 3, apart=True)
    return found if found is not None and shared_of(direction, problem, found, gpu) <= gpu.shared else None


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
        short = rank == 1 and terms == "one" and on_hopper(gpu)
        return (first, *filter(fits, _others_of_wide(direction, problem) if short else ()))
    others = {"forward": _other_forwards, "dq": _others_of_queries, "dkdv": _others_of_keys}[direction]
    return (first, *filter(fits, others(problem, gpu, rank == 1, terms)))


def _other_forwards(problem: Problem, gpu: Gpu, line: bool, terms: Terms) -> tuple[Tiling, ...]:
    """What a forward is offered beside the usual tiling: narrow tiles for short runs; up to D=64 edges apart for long.

    Of several terms, one may be tokens that all see. In a small problem their few rows outlast the others. There fewer
    and wider tiles help, or a stage more helps more than programs side by side. Listed tokens have no such tile, whose
    kernel would spill in its loop.
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
    """What dQ is offered beside the usual tiling: narrow tiles for short runs, and over several terms a stage more.

    There the few rows that see all may outlast the others.
    """
    wide = max(problem.d, problem.dv)
    if wide <= 64:
        longest = (Tiling(64, 64, 4, 4, apart=True),) * (line and terms == "several")
        registers = REGISTERS_OF_FIVE if line and terms == "one" and on_hopper(gpu) else 128
        return Tiling(64, 32, 4, 3, registers, apart=line), *longest
    if not 96 < wide <= 128:
        return ()
    if not held(problem, gpu):
        return (Tiling(128, 64, 8, 3, apart=True),) * line
    if terms == "one" or not line:
        return (Tiling(64, 64, 4, 3),)
    return (Tiling(64, 32, 4, 3),) + (Tiling(64, 64, 4, 4, apart=True),) * (terms == "several")


def _others_of_keys(problem: Problem, gpu: Gpu, line: bool, terms: Terms) -> tuple[Tiling, ...]:
    """What dK and dV are offered beside the usual tiling.

    Up to D=64 these are square tiles. Square tiles over several terms nearly always take longer; there a thread may use
    all registers, for few long programs. At D=128 wide tiles serve grids alone. On lines they take 0.93 to 1.39 of the
    time, which rates do not tell. Where heads share keys their kernel would spill in its loop
    (benchmarks/notes/triton.md, T54 and T55).
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
