"""Grids at D=64: kernels by warp groups beside kernels of tiles, each direction apart.

    PYTHONPATH=src python benchmarks/boxes.py [--problem NAME] [--out FILE]

All ways are called in turn in one process. Every result is compared with float64 on sampled rows and keys.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

from grids import entry, tiles
from wide_heads import ROUNDS, own

from weft.bench.check import Truth
from weft.bench.inputs import Tensors
from weft.planning.choose import Fixed
from weft.planning.families.hopper import BOXED, CONFIGS
from weft.planning.tiling import Tiling
from weft.testing.workloads import Neighborhood, Workload, named

NARROW_TILES = Tiling(64, 32, 4, 3, 80, True, 1)  # of dK and dV, three programs side by side


def fixed(workload: Workload, direction: str) -> dict[str, Fixed]:
    """Ways to compute a direction."""
    if direction == "fwd":
        ways = {"tiles": dict(tiles(workload, "fwd"))["forward"], "four groups": CONFIGS["forward"]}
        return {name: (("forward", one),) for name, one in (ways | {"a box": BOXED["forward"]}).items()}
    (_, dq), (_, dkdv) = tiles(workload, "bwd")
    ways = {
        "tiles": (dq, dkdv),
        "boxes": (BOXED["dq"], BOXED["dkdv"]),
        "dQ by boxes": (BOXED["dq"], dkdv),
        "dK, dV by boxes": (dq, BOXED["dkdv"]),
        "dK, dV by boxes, 32 queries": (dq, NARROW_TILES),
    }
    return {name: (("dq", one), ("dkdv", other)) for name, (one, other) in ways.items()}


def main() -> None:
    """Print a line a way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--problem", default="na2d_64x64_k7")
    parser.add_argument("--size", type=int, default=7)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    workload = named(asked.problem)
    if asked.size != 7:
        mask = Neighborhood((64, 64), (asked.size, asked.size))
        workload = replace(workload, name=f"na2d_64x64_k{asked.size}", mask=mask)
    tensors = Tensors(workload, "cuda")
    truth = Truth(tensors)
    for direction in ("fwd", "bwd"):
        entries = []
        for name, one in fixed(workload, direction).items():
            about, calls = entry(truth, direction, partial(own, workload, tensors, direction, one))
            entries.append((name, about, calls))
        for _, (_, _, calls) in product(range(3 * ROUNDS), entries):
            if calls is not None:
                calls.round()
        for name, about, calls in entries:
            middle = median(calls.milliseconds) if calls is not None else float("nan")
            rate = round(workload.flops(direction) / middle / 1e9, 1)
            row = [workload.name, direction, name, round(middle, 4), rate, *about.values()]
            print(*row, flush=True)
            if asked.out:
                with asked.out.open("a", newline="") as file:
                    csv.writer(file).writerow(row)


if __name__ == "__main__":
    main()
