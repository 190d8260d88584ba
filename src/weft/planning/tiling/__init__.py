"""What is chosen for a GPU kernel: the pairs of a tile, and options of the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "dq", "dkdv"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "dq", "dkdv")
OF_GRADIENTS: tuple[Direction, ...] = ("dq", "dkdv")
Part = Literal["forward", "dq", "dkdv", "gradients"]  # of a call, as it is timed: a direction, or all of the backward


@dataclass(frozen=True, order=True)
class Tiling:
    """rows of the side that stays x cols of the side that is walked, powers of two; by so many warps.

    stages: loads in flight. registers: the most that a thread may use; 0: what the compiler takes. apart: on one axis,
    tiles with an edge have a loop of their own before the full ones. Else one loop has a branch around the mask.
    groups: warp groups that specialise, on one line; 0: all warps do the same.
    """

    rows: int
    cols: int
    warps: int
    stages: int
    registers: int = 0
    apart: bool = False
    groups: int = 0

    def __str__(self) -> str:
        if self.groups:
            return f"{self.rows}x{self.cols}, {self.groups} warp groups that compute, {self.stages} stages"
        options = "".join([f", {self.registers} registers" * bool(self.registers), ", edges apart" * self.apart])
        return f"{self.rows}x{self.cols}, {self.warps} warps, {self.stages} stages{options}"


def chunks(size: int) -> tuple[tuple[int, int, int], ...]:
    """A head dimension as (first, width, live) of powers of two that a matrix product takes: 80 is 64 + 16.

    Widths are at least 16; in the last one `live` columns exist and the others read as zero. No more than two, and a
    second one only if it saves a quarter of the whole.
    """
    whole = max(16, 1 << (size - 1).bit_length())
    if size == whole:
        return ((0, whole, whole),)
    first = whole // 2
    rest = max(16, 1 << (size - first - 1).bit_length()) if size > first else 0
    if first >= 16 and rest and first + rest <= whole * 3 // 4:
        return (0, first, first), (first, rest, size - first)
    return ((0, whole, size),)
