"""The fused backward: all gradients in one pass over queries, by warp groups that specialise on Hopper's cards.

It serves windows so short that 64 queries see three tiles of keys, and sparse keys beside such a window
(docs/decisions/0010-warp-groups-that-specialise.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from weft.caching import cached
from weft.pattern.bounds import Bound, Stair
from weft.planning.affine_bounds import as_lines
from weft.planning.families import sparse_keys
from weft.planning.families.base import InTiles
from weft.planning.families.sparse_keys import TILE, SparseKeys
from weft.planning.features import on_hopper
from weft.planning.heads import Share
from weft.planning.problem import Problem
from weft.planning.tiles import LoopNest
from weft.planning.tiling.gpu import is_listed
from weft.target import Gpu

NAME = "fused backward"
SEEN = 3  # tiles of keys that one of queries sees
# Seconds: of a launch; of a step over a tile of queries; more of a step where keys come and go. By rows of an H200
# (benchmarks/results/short-windows.csv).
START, STEP, TURN = 5.8e-6, 2.0e-6, 1.05e-6


@dataclass(frozen=True)
class ShortWindow:
    """Query i of so many tokens sees the keys from i - left to i + right that there are.

    Query tile t sees key tiles t to t + SEEN - 1, where tile c begins at key TILE * c - shift. The shift is a multiple
    of TILE, so no tile lies across the first key. An H100 refuses to write such a box (an illegal instruction).
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
    """runs: of a head of keys. per: key tiles of a run. steps: tiles of queries that the busiest processor walks, for
    each of the heads that share keys.
    """

    runs: int
    per: int
    steps: int


def cut(window: ShortWindow, problem: Problem, gpu: Gpu) -> Cut:
    """The cut by which the busiest processor walks fewest tiles. A run also walks the SEEN - 1 tiles before it."""
    heads, processors, found = problem.batch * problem.kv_heads, gpu.processors, []
    for wanted in range(1, min(window.tiles, 4 * processors // heads + 4) + 1):
        per = -(-window.tiles // wanted)
        runs = -(-window.tiles // per)
        found.append(Cut(runs, per, -(-heads * runs // processors) * (per + SEEN - 1)))
    return min(found, key=lambda one: one.steps)


def window_seconds(window: ShortWindow, problem: Problem, gpu: Gpu) -> float:
    """What the pass over queries takes."""
    return START + cut(window, problem, gpu).steps * (problem.group * STEP + TURN)


# ---- the family ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FusedBackward:
    """window, term: what the pass over queries computes. beside: sparse keys by their term, in the order of terms."""

    window: ShortWindow
    term: int
    beside: tuple[tuple[int, SparseKeys], ...] = ()

    @property
    def launches(self) -> list[SparseKeys]:
        """The keys beside the window, as many at a time as a launch takes."""
        return [one for _, keys in self.beside for one in keys.launches()]

    def seconds(self, problem: Problem, gpu: Gpu) -> float:
        """What all launches take."""
        beside = (sparse_keys.seconds(keys, problem, gpu) for _, keys in self.beside)
        return window_seconds(self.window, problem, gpu) + sum(beside)


@dataclass(frozen=True, eq=False)
class Fused:
    """All gradients in one pass, and what it is predicted to take."""

    config: FusedBackward
    seconds: float
    family: str = NAME

    @property
    def compared(self) -> float:
        return self.seconds


def reasons_against(asked: InTiles) -> str:
    """Why the pattern or the card has no such kernel; "" where it has."""
    found = fused_backward(asked.shares, asked.problem, asked.gpu)
    return found if isinstance(found, str) else ""


def configs(asked: InTiles) -> Iterable[FusedBackward]:
    """The one of the pattern."""
    found = fused_backward(asked.shares, asked.problem, asked.gpu)
    assert not isinstance(found, str), "reasons_against comes before"
    yield found


def cost(asked: InTiles, config: FusedBackward) -> Fused:
    """The prediction of a configuration. It is above that of two kernels where heads of keys are too few to fill the
    processors.
    """
    return Fused(config, config.seconds(asked.problem, asked.gpu))


def has_kernel(problem: Problem, gpu: Gpu) -> bool:
    """Whether a card has a kernel for short windows of such tensors."""
    some = problem.batch * problem.kv_heads > 0 and 0 < problem.m == problem.n
    return some and (problem.d, problem.dv) == (64, 64) and problem.dtype == "bfloat16" and on_hopper(gpu)


@cached(64)  # it is asked why not, what of, and for the proof
def fused_backward(shares: tuple[Share, ...], problem: Problem, gpu: Gpu) -> FusedBackward | str:
    """The pass over planned queries, or why there is none."""
    if not has_kernel(problem, gpu):
        return "its kernel is for square problems of D=64 in bfloat16 on Hopper's cards"
    plan = shares[0].plan
    if len(shares) > 1 or plan.blocks is not None:
        return "heads differ" if len(shares) > 1 else "some of it is listed block by block"
    parts = [(nest, part) for nest in plan.nests for part in nest.parts]
    windows = [(short_window(replace(nest, parts=(part,)), problem.n), part.term) for nest, part in parts]
    found = next(((window, term) for window, term in windows if window is not None), None)
    if found is None:
        return f"no term is a window of which {TILE} queries see {SEEN} tiles of keys at most"
    others = [part.term for _, part in parts if part.term != found[1]]
    beside = [(other, sparse_keys.sparse_keys(plan.acsr.terms[other], problem.n)) for other in others]
    if any(keys is None for _, keys in beside):
        return "keys beside the window are not at equal steps, or not seen by queries side by side"
    return FusedBackward(*found, tuple((other, keys) for other, keys in beside if keys is not None))


# ---- windows ---------------------------------------------------------------------------------------------------------
def short_window(nest: LoopNest, length: int) -> ShortWindow | None:
    """The window that a nest of one part computes, over so many tokens; None where it computes no short window."""
    lines = as_lines(nest) if len(nest.box) == 1 else None
    if lines is None or not _of_all(nest, length):
        return None
    relation = lines.parts[0].axes[0].relation
    low, high = _offset(relation.lower, 0, length), _offset(relation.upper, 1, length)
    if low is None or high is None:
        return None
    found = ShortWindow(length, -low, high - 1)
    return found if found.fits else None


def _of_all(nest: LoopNest, length: int) -> bool:
    """Whether a nest walks all queries and keys in their order, and each query sees a key.

    A line says nothing of tiles that see no key, and the pass over queries leaves no tile out.
    """
    axis = nest.parts[0].axes[0]
    lanes, grids = axis.lanes, (nest.q, nest.parts[0].k)
    steps = len(lanes) == 1 and (lanes.q_step, lanes.k_step) == (1, 1)
    first = steps and not (int(lanes.q_first[0]) or int(lanes.k_first[0])) and int(lanes.rows[0]) == length
    whole = all(grid.origin == 0 and grid.shape == (length,) for grid in grids)
    seen = bool((axis.widths > 0).all())
    return first and whole and seen and axis.n == length and not (is_listed(nest.parts[0]) or nest.is_ordered)


def _offset(bounds: tuple[Bound, ...], least: int, length: int) -> int | None:
    """How far a bound is from its query, where it is one line, which nothing clips between `least` and length."""
    if len(bounds) != 1 or not isinstance(bounds[0], Stair):
        return None
    stair = bounds[0]
    line = (stair.rise, stair.run, stair.shift) == (1, 1, 0)
    free = stair.in_lo <= 0 and stair.in_hi >= length
    free &= stair.out_lo <= least and stair.out_hi >= length
    return stair.base if line and free else None
