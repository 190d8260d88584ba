"""Boxes of queries on a CPU. The cost counts what a nest does: pairs visited, pairs that need a mask, elements
staged, and steps; all constants come from the Target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as cartesian
from math import prod

from weft.acsr.format import Acsr
from weft.planning.problem import Problem
from weft.planning.tiles import LoopNest
from weft.target import Target

NAME = "cpu"
FLAT_BLOCKS = (256, 128, 64, 32)
BOX_SIZES = (32, 64, 128, 256)
CHUNK = 4096  # keys that a backend takes in one step


@dataclass(frozen=True)
class Cost:
    """Predicted seconds of a nest on a Target, by cause."""

    matmul: float
    softmax: float
    mask: float
    staging: float
    steps: float

    @property
    def total(self) -> float:
        return self.matmul + self.softmax + self.mask + self.staging + self.steps

    def __str__(self) -> str:
        parts = ("matmul", "softmax", "mask", "staging", "steps")
        return f"{self.total * 1e3:.2f} ms (" + ", ".join(f"{p} {getattr(self, p) * 1e3:.2f}" for p in parts) + ")"


def reasons_against(acsr: Acsr) -> str:
    """None: boxes compute every pattern."""
    return ""


def configs(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Boxes of queries that are worth a look: powers of two on each axis, none larger than the axis needs.

    On one axis the largest comes first, since its tables are short.
    """
    if len(shape) == 1:
        yield from ((block,) for block in FLAT_BLOCKS if block == FLAT_BLOCKS[-1] or block // 2 < shape[0])
        return
    sides = [[1 << i for i in range(9) if (1 << i) < 2 * length] for length in shape]
    largest = prod(side[-1] for side in sides)
    for box in cartesian(*sides):
        if prod(box) in BOX_SIZES or prod(box) == largest < BOX_SIZES[0]:
            yield box


def cost(nest: LoopNest, problem: Problem, target: Target) -> Cost:
    """Seconds of one nest, forward. Terms that all candidates share (reading q, writing out) are left out."""
    heads = problem.batch * problem.q_heads
    pairs = heads * sum(part.visited for part in nest.parts)
    masked = pairs - heads * sum(part.unmasked for part in nest.parts)
    staged = problem.batch * problem.kv_heads * (problem.d + problem.dv) * _staged_keys(nest)
    return Cost(
        matmul=2 * (problem.d + problem.dv) * pairs / target.matmul_flops,
        softmax=pairs * target.softmax_seconds,
        mask=masked * target.mask_seconds,
        staging=staged * target.copy_seconds,
        steps=_steps(nest) * target.step_seconds,
    )


def _staged_keys(nest: LoopNest) -> int:
    """Keys copied into a contiguous tile: listed ones and boxes of more than one axis (a slice of one axis is used in
    place).
    """
    plain = [len(p.axes) == 1 and p.axes[0].lanes.keys is None and p.k.order is None for p in nest.parts]
    staged = [part for part, used_in_place in zip(nest.parts, plain, strict=True) if not used_in_place]
    return sum(prod(axis.steps(1) for axis in part.axes) for part in staged)


def _steps(nest: LoopNest) -> int:
    """Tiles that visit anything, once for every part and every CHUNK of keys."""
    total = 0
    for part in nest.parts:
        flat = len(part.axes) == 1
        total += prod(axis.steps(CHUNK) if flat else int((axis.widths > 0).sum()) for axis in part.axes)
    return total
