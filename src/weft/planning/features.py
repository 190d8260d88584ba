"""What a card's kernels do that others' do not, as head dimensions and dtypes allow it."""

from __future__ import annotations

from weft.planning.problem import DTYPES, Problem
from weft.planning.tiling import Direction
from weft.target import Gpu, Target

HELD = range(65, 129)  # head dimensions whose gradients hold factors in registers, where products take them there
HALVED = 320  # D + Dv


def held(problem: Problem, gpu: Target | Gpu) -> bool:
    """Whether kernels hold in registers what they multiply every tile with: on cards that multiply from there."""
    return on_hopper(gpu) and DTYPES[problem.dtype] == 2 and max(problem.d, problem.dv) < HELD.stop


def on_hopper(gpu: Target | Gpu) -> bool:
    """Whether a target is a Hopper card."""
    return isinstance(gpu, Gpu) and gpu.architecture == "sm_90"


def always_apart(direction: Direction, problem: Problem, gpu: Target | Gpu) -> bool:
    """Whether tiles with an edge always have loops of their own on a line.

    With masks in the loop of all tiles, ptxas runs the products of dK and dV at narrow heads one by one (sm_90). It
    also loses the keys that are held.
    """
    return direction == "dkdv" and held(problem, gpu) and max(problem.d, problem.dv) <= 64


def no_maximum(direction: Direction, problem: Problem, gpu: Target | Gpu) -> bool:
    """Whether a forward takes no maximum off scores. Not in float16, whose weights end at 2^16. On sm_100 Triton 3.6
    and 3.7 do not compile it.
    """
    blackwell = isinstance(gpu, Gpu) and gpu.architecture == "sm_100"
    return direction == "forward" and problem.dtype != "float16" and not blackwell


def in_halves(direction: Direction, problem: Problem, gpu: Target | Gpu) -> bool:
    """Whether dV and dK are made by a launch each: in 16 bits, where D + Dv is beyond HALVED.

    There threads have no registers for both sums. Five products at full speed take less than four that spill (timed on
    sm_90 alone).
    """
    return direction == "dkdv" and on_hopper(gpu) and DTYPES[problem.dtype] == 2 and problem.d + problem.dv > HALVED


def from_registers(gpu: Gpu) -> bool:
    """Whether products take both factors and their sums from registers, on NVIDIA's cards."""
    return gpu.architecture in ("sm_80", "sm_89")
