"""What a tiling holds on a card: shared memory and registers of a program, and programs side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product as cartesian

from weft.acsr.format import BLOCK
from weft.planning.features import HELD, held, in_halves, on_hopper
from weft.planning.problem import DTYPES, Problem
from weft.planning.tiling import Direction, Tiling, chunks
from weft.target import Gpu

THREADS = 32  # of a warp
PAIR = 4  # bytes of what is known of one: float32
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


@dataclass(frozen=True)
class Footprint:
    """What a tiling holds: bytes of shared memory, registers of a thread; estimates before anything is compiled."""

    shared: int
    registers: int


def footprint(direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu) -> Footprint:
    """Tiles of both sides in shared memory; sums in float32, and the scores of one tile, in registers."""
    width, dims = DTYPES[problem.dtype], problem.d + problem.dv
    walked = tiling.stages * tiling.cols * dims * width
    mine = {"forward": problem.d, "dq": dims, "dkdv": dims}[direction]
    if queries_held(direction, problem, gpu):
        mine -= problem.d
    sums = {"forward": problem.dv, "dq": problem.d, "dkdv": dims}[direction]
    if in_halves(direction, problem, gpu):
        sums = max(problem.d, problem.dv)
    scores = tiling.cols * (1 if direction == "forward" else 2)
    threads = THREADS * tiling.warps
    return Footprint(walked + tiling.rows * mine * width, 48 + tiling.rows * (sums + scores) // threads)


def queries_held(direction: Direction, problem: Problem, gpu: Gpu) -> bool:
    """Whether queries stay in registers, and at most their gradients in shared memory."""
    return direction == "dq" and held(problem, gpu) and max(problem.d, problem.dv) in HELD


def shared_of(direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu) -> float:
    """The most bytes of shared memory that a program of a tiling was seen to take on such cards."""
    takes = footprint(direction, _laid_out(problem, gpu), tiling, gpu).shared
    if in_halves(direction, problem, gpu):
        return takes + 32 * tiling.stages * tiling.cols  # Stats beside queries and dO
    if queries_held(direction, problem, gpu):
        share = 1.0
    elif gpu.architecture.startswith("gfx"):
        share = AMD
    elif DTYPES[problem.dtype] == 4:
        share = FLOAT32
    else:
        share = (BLACKWELL if gpu.architecture == "sm_100" else COMPILED)[direction]
    return share * takes


def shared_beside_sums(direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu) -> float:
    """The same where gradients of tables are summed over pairs. Then 16-bit tiles are all there. Beside them is one of
    pairs in float32, by which threads exchange what they sum.

    Seen with Triton 3.6 in dQ along diagonals, D=128 to 256.
    """
    takes = shared_of(direction, problem, tiling, gpu)
    if DTYPES[problem.dtype] == 2 and on_hopper(gpu):
        takes = max(takes, footprint(direction, _laid_out(problem, gpu), tiling, gpu).shared)
    return takes + PAIR * tiling.rows * tiling.cols


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
    """The most bytes of shared memory that a program of the remainder was seen to take.

    They are its rows, a block of columns for each stage, and pairs. Seen with Triton 3.6 and 3.7 at D=16 to 256. tf32:
    products of float32 are in tf32.

    Where products read both factors from shared memory every stage is there, on sm_100 one more for gradients.
    Elsewhere the last stage is in registers. A single stage waits for one tensor after the other. AMD's kernels hold
    one.
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
