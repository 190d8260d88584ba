"""Clocks of a full processor for a program and for a tile: measured once for a card, or estimated from its numbers.

Tables of measured rates lie beside this module, one file for each card, written by benchmarks/predict.py. A tiling,
kind or head dimension that was not measured takes the ratio between clocks and floor from the nearest one that was.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from weft.planning.features import in_halves
from weft.planning.problem import DTYPES, Problem
from weft.planning.resources import MOST_REGISTERS
from weft.planning.tiling import Direction, Tiling
from weft.planning.work import Kind
from weft.target import GPUS, MMA_PER_CLOCK, Gpu

TABLES = Path(__file__).parent / "measured"
SLOWDOWN = {"start": 3.0, "edge": 2.0, "full": 1.6}  # of a card of which nothing was measured


@dataclass(frozen=True)
class Rates:
    """Clocks: start of a program, edge and full of a tile with and without a mask."""

    start: float
    edge: float
    full: float


Key = tuple[int, Direction, Kind, Tiling]  # head dimension first


@lru_cache(maxsize=4096)
def rates(kind: Kind, direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu) -> Rates:
    """Those of one kernel on one card."""
    tile, start = floor_of(direction, problem, tiling, gpu)
    wide = max(problem.d, problem.dv)
    near = _nearest(kind, direction, wide, tiling, _known(gpu)) if DTYPES[problem.dtype] == 2 else None
    if near is None:
        return Rates(start * SLOWDOWN["start"], tile * SLOWDOWN["edge"], tile * SLOWDOWN["full"])
    key, known = near
    d = key[0]
    then = Problem(1, 1, 1, 1, 1, d, d, "bfloat16", "cuda")
    tile_then, start_then = floor_of(key[1], then, key[3], gpu)
    over, over_start = tile / tile_then, start / start_then
    return Rates(known.start * over_start, known.edge * over, known.full * over)


def floor_of(direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu) -> tuple[float, float]:
    """(Clocks of a tile, clocks of a program's beginning and end), at the least.

    A tile has products and half the exponentials, since these overlap badly inside a program. A program reads and
    writes its own rows.
    """
    count = {"forward": 1, "dq": 1.5, "dkdv": 2.5 if in_halves(direction, problem, gpu) else 2}[direction]
    pairs = tiling.rows * tiling.cols
    per_clock = MMA_PER_CLOCK[gpu.architecture] if DTYPES[problem.dtype] == 2 else gpu.fma16
    tile = 2 * pairs * count * (problem.d + problem.dv) / per_clock + pairs / gpu.exponentials / 2
    rows = tiling.rows * (problem.d + problem.dv) * DTYPES[problem.dtype] * 2
    return tile, rows / (gpu.bandwidth / gpu.processors / gpu.clock)


def _known(gpu: Gpu) -> str:
    """The card whose table it is: its own, or one with the same processors; "" where there is none."""
    alike = next((x.name for x in GPUS.values() if x.architecture == gpu.architecture), "")
    return gpu.name if measured(gpu.name) else alike


@lru_cache(maxsize=1024)
def _nearest(kind: Kind, direction: Direction, wide: int, tiling: Tiling, card: str) -> tuple[Key, Rates] | None:
    """The measured rates that are most alike.

    They are of the same direction; then as many axes count most, then the same width, kind and tiling. Where warp
    groups were not measured in a direction, those of another one serve. At some widths only lines of one term were
    measured. The remainder's blocks are walked as several terms are.
    """
    kind, table = "several" if kind == "blocks" else kind, measured(card)
    exact = wide, direction, kind, tiling
    if exact in table:
        return exact, table[exact]
    found = [(key, rate) for key, rate in table.items() if key[1] == direction]
    if tiling.groups and not any(key[3].groups for key, _ in found):  # a guess, until it is measured
        found = [(key, rate) for key, rate in table.items() if key[3].groups]
    return min(found, key=lambda one: _unlike(one[0], kind, wide, tiling), default=None)


def _unlike(key: Key, kind: Kind, wide: int, tiling: Tiling) -> tuple[float, ...]:
    d, _, of, t = key
    grids = ("plane", "space")
    axes = of != kind and (of in grids or kind in grids)
    groups = (t.groups > 0) != (tiling.groups > 0)  # other code
    shape = abs(t.rows - tiling.rows) + abs(t.cols - tiling.cols) + 8 * abs(t.warps - tiling.warps)
    limits = abs((t.registers or MOST_REGISTERS) - (tiling.registers or MOST_REGISTERS)) / MOST_REGISTERS
    rest = abs(t.stages - tiling.stages) + (t.apart != tiling.apart) + limits
    return groups, axes, abs(d - wide), of != kind, shape, rest


@cache
def measured(name: str) -> dict[Key, Rates]:
    """The table of a card; empty if there is none."""
    path = TABLES / f"{name}.json"
    if not name or not path.is_file():
        return {}
    said = json.loads(path.read_text())
    return {
        (d, direction, kind, Tiling(*tiling)): Rates(*clocks) for d, direction, kind, tiling, clocks in said["rates"]
    }
