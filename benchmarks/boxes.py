"""Gradients on grids at D=64: kernels by warp groups beside kernels of tiles, each direction apart.

    PYTHONPATH=src python benchmarks/boxes.py [--problem NAME] [--out FILE]

All ways are called in turn in one process. Every result is compared with float64 on sampled rows and keys.
"""

from __future__ import annotations

import argparse
import csv
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

from grids import entry, tiles
from wide_heads import ROUNDS, own

from weft.bench.check import Truth
from weft.bench.inputs import Tensors
from weft.planning.families.hopper import BOXED
from weft.planning.tiling import Tiling
from weft.testing.workloads import named

FOUR = Tiling(256, 32, 16, 8, 96, False, 4)


def main() -> None:
    """Print a line a way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--problem", default="na2d_64x64_k7")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    workload = named(asked.problem)
    (_, dq), (_, dkdv) = tiles(workload, "bwd")
    ways = {
        "tiles": (dq, dkdv),
        "groups": (BOXED, BOXED),
        "dQ by groups": (BOXED, dkdv),
        "dK, dV by groups": (dq, BOXED),
        "dQ by four groups": (FOUR, dkdv),
    }
    tensors = Tensors(workload, "cuda")
    truth, entries = Truth(tensors), []
    for name, (first, second) in ways.items():
        fixed = (("dq", first), ("dkdv", second))
        about, calls = entry(truth, "bwd", partial(own, workload, tensors, "bwd", fixed))
        entries.append((name, about, calls))
    for _, (_, _, calls) in product(range(3 * ROUNDS), entries):
        if calls is not None:
            calls.round()
    for name, about, calls in entries:
        middle = median(calls.milliseconds) if calls is not None else float("nan")
        row = [workload.name, name, round(middle, 4), round(workload.flops("bwd") / middle / 1e9, 1), *about.values()]
        print(*row, flush=True)
        if asked.out:
            with asked.out.open("a", newline="") as file:
                csv.writer(file).writerow(row)


if __name__ == "__main__":
    main()
