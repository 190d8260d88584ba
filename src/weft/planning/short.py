"""Windows so short that 64 queries see three tiles of keys: all their gradients come of one walk over queries
(docs/decisions/0010-warp-groups-that-specialise.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.pattern.bounds import Bound, Stair
from weft.planning.device import is_listed
from weft.planning.lines import as_lines
from weft.planning.problem import Problem
from weft.planning.tiles import Launch
from weft.target import Gpu

TILE = 64  # queries, and keys
SEEN = 3  # tiles of keys that one of queries sees
# Seconds of a launch, of a step over a tile of queries, and more of one where keys come and go, by rows of an H200
# (benchmarks/results/short-windows.csv).
START, STEP, TURN = 5.8e-6, 2.0e-6, 1.05e-6


@dataclass(frozen=True)
class ShortWindow:
    """Query i of so many tokens sees the keys from i - left to i + right that there are.

    Query tile t sees key tiles t to t + SEEN - 1, where tile c begins at key TILE * c - shift. The shift is a multiple
    of TILE, so that no tile lies across the first key: such boxes are not written (an H100 calls it an illegal
    instruction).
    """

    length: int
    left: int
    right: int

    @property
    def shift(self) -> int:
        return TILE * -(-self.left // TILE)

    @property
    def fits(self) -> bool:
        """Whether tiles of queries see so few of keys."""
        return self.left >= 0 and self.right >= 0 and self.shift + self.right <= TILE * (SEEN - 1)

    @property
    def tiles(self) -> int:
        """Of keys, those before the first key included: with the shift's."""
        return (self.length + self.shift + TILE - 1) // TILE


@dataclass(frozen=True)
class Cut:
    """Runs of a head of keys, key tiles of each, and how many tiles of queries the busiest processor walks, for each of
    the heads that share keys.
    """

    runs: int
    per: int
    steps: int


def cut(window: ShortWindow, problem: Problem, gpu: Gpu) -> Cut:
    """The runs by which the busiest processor walks fewest tiles. A run walks the SEEN - 1 tiles before its first one
    too.
    """
    heads, processors, found = problem.batch * problem.kv_heads, gpu.processors, []
    for wanted in range(1, min(window.tiles, 4 * processors // heads + 4) + 1):
        per = -(-window.tiles // wanted)
        runs = -(-window.tiles // per)
        found.append(Cut(runs, per, -(-heads * runs // processors) * (per + SEEN - 1)))
    return min(found, key=lambda one: one.steps)


def seconds(window: ShortWindow, problem: Problem, gpu: Gpu) -> float:
    """What one walk takes."""
    return START + cut(window, problem, gpu).steps * (problem.group * STEP + TURN)


def has_kernel(problem: Problem, gpu: Gpu) -> bool:
    """Whether a card has a kernel for short windows of such tensors."""
    some = problem.batch * problem.kv_heads > 0 and 0 < problem.m == problem.n
    sizes = (problem.d, problem.dv) == (64, 64)
    return some and sizes and problem.dtype == "bfloat16" and gpu.architecture == "sm_90"


def short_window(launch: Launch, length: int) -> ShortWindow | None:
    """The window that a launch of one part is of, over so many tokens; None where it is something else, or too wide."""
    lines = as_lines(launch) if len(launch.box) == 1 else None
    if lines is None or not _of_all(launch, length):
        return None
    relation = lines.parts[0].axes[0].relation
    low, high = _offset(relation.lower, 0, length), _offset(relation.upper, 1, length)
    if low is None or high is None:
        return None
    found = ShortWindow(length, -low, high - 1)
    return found if found.fits else None


def _of_all(launch: Launch, length: int) -> bool:
    """Whether it walks all queries and keys as they are, and each query sees some: of tiles that see none a line says
    nothing, and the one walk passes none over.
    """
    axis = launch.parts[0].axes[0]
    lanes, grids = axis.lanes, (launch.q, launch.parts[0].k)
    steps = len(lanes) == 1 and (lanes.q_step, lanes.k_step) == (1, 1)
    first = steps and not (int(lanes.q_first[0]) or int(lanes.k_first[0])) and int(lanes.rows[0]) == length
    whole = all(grid.origin == 0 and grid.shape == (length,) for grid in grids)
    seen = bool((axis.widths > 0).all())
    return first and whole and seen and axis.n == length and not is_listed(launch.parts[0])


def _offset(bounds: tuple[Bound, ...], least: int, length: int) -> int | None:
    """How far a bound is from its query, where it is one line, which nothing clips between `least` and length."""
    if len(bounds) != 1 or not isinstance(bounds[0], Stair):
        return None
    stair = bounds[0]
    line = (stair.rise, stair.run, stair.shift) == (1, 1, 0)
    free = stair.in_lo <= 0 and stair.in_hi >= length
    free &= stair.out_lo <= least and stair.out_hi >= length
    return stair.base if line and free else None
