"""One problem in several tilings, in turn on one GPU: what a direction would take in others than are chosen.

    PYTHONPATH=src python benchmarks/ways.py PROBLEM DIRECTION --ways forward=128,64,4,3 ... [--size N] [--out FILE]

A way is one tiling or two, as `dq=ROWS,COLS,WARPS,STAGES[,REGISTERS[,APART[,GROUPS]]]+dkdv=...`; "chosen" is what the
plan takes, "tiles" the best of kernels of tiles. Every result is compared with float64 on sampled rows and keys. SIZE:
of a neighbourhood on 64 x 64 instead of the problem's.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

from grids import entry, tiles
from wide_heads import ROUNDS, own

from weft.bench.check import Truth
from weft.bench.inputs import Tensors
from weft.planning.choose import Fixed
from weft.planning.tiling import DIRECTIONS, Tiling
from weft.testing.workloads import Neighborhood, Workload, named


def way(text: str, workload: Workload, direction: str) -> Fixed:
    """The tilings of a way."""
    if text == "chosen":
        return ()
    if text == "tiles":
        return tiles(workload, direction)
    found = []
    for part in text.split("+"):
        name, numbers = part.split("=")
        rows, cols, warps, stages, *rest = (int(x) for x in numbers.split(","))
        registers, apart, groups = (*rest, 0, 0, 0)[:3]
        one = next(x for x in DIRECTIONS if x == name)
        found.append((one, Tiling(rows, cols, warps, stages, registers, bool(apart), groups)))
    return tuple(found)


def main() -> None:
    """Print a line a way, and append rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("problem")
    parser.add_argument("direction", choices=("fwd", "bwd"))
    parser.add_argument("--ways", nargs="+", default=["chosen", "tiles"])
    parser.add_argument("--size", type=int)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    workload = named(asked.problem)
    if asked.size:
        mask = Neighborhood((64, 64), (asked.size, asked.size))
        workload = replace(workload, name=f"na2d_64x64_k{asked.size}", mask=mask)
    tensors = Tensors(workload, "cuda")
    truth, entries = Truth(tensors), []
    for name in asked.ways:
        make = partial(own, workload, tensors, asked.direction, way(name, workload, asked.direction))
        entries.append((name, *entry(truth, asked.direction, make)))
    for _, (_, _, calls) in product(range(3 * ROUNDS), entries):
        if calls is not None:
            calls.round()
    for name, about, calls in entries:
        middle = median(calls.milliseconds) if calls is not None else float("nan")
        rate = round(workload.flops(asked.direction) / middle / 1e9, 1)
        row = [f"{datetime.now(UTC):%Y-%m-%dT%H:%M}", workload.name, asked.direction, name, round(middle, 4), rate]
        print(*row, *about.values(), flush=True)
        if asked.out:
            with asked.out.open("a", newline="") as file:
                csv.writer(file).writerow([*row, *about.values()])


if __name__ == "__main__":
    main()
