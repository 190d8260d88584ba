"""Neighbourhoods on Hopper's cards: weft as it chooses, tiles whose warps all do the same, and FlexAttention.

    PYTHONPATH=src python benchmarks/grids.py [--only NAME,...] [--ways fwd,bwd] [--peers flex] [--out FILE]

All of a problem are called in turn in one process, so that they meet the same card. Every result is compared with
float64 on sampled rows and keys. Rates are useful TFLOP/s. A row is written at once; no problem begins after the given
seconds. NATTEN has no wheel: benchmarks/notes has its ratio to FlexAttention. Needs a GPU.
"""

from __future__ import annotations

import argparse
import csv
import gc
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from planning import commit
from table import failure
from wide_heads import COLUMNS, ROUNDS, card, own, theirs

from weft.bench.check import Truth
from weft.bench.inputs import Tensors
from weft.bench.timing import Calls
from weft.planning.attention_plan import plan_attention
from weft.planning.choose import Fixed
from weft.planning.families import hopper, tile
from weft.planning.families.base import Pass
from weft.planning.heads import rows_of
from weft.planning.tiling import OF_GRADIENTS
from weft.testing.workloads import Workload, named

PROBLEMS = ("na2d_128x128_k21", "na3d_30x48x80_k18x24x24", "hunyuan_w18x24x24_st16x8x8", "na2d_64x64_k7")


def asked_of(workload: Workload) -> Pass:
    """What is asked of kernels of keys."""
    return plan_attention(workload.make(), workload.problem("cuda"), card()).asked("dkdv")


def tiles(workload: Workload, direction: str) -> Fixed:
    """The tilings that kernels of tiles would take."""
    problem, found = workload.problem("cuda"), []
    plan = plan_attention(workload.make(), problem, card())
    for one in ("forward",) if direction == "fwd" else OF_GRADIENTS:
        asked = Pass(one, rows_of(plan.transposed if one == "dkdv" else plan.forward), problem, card())
        found.append((one, min(tile.offered(asked), key=lambda tiling, asked=asked: asked.alike(tiling).seconds)))
    return tuple(found)


def contenders(workload: Workload, tensors: Tensors, direction: str, peers: list[str]) -> Iterator[tuple[str, Any]]:
    """(name, what makes its calls)"""
    yield "weft", partial(own, workload, tensors, direction, ())
    if direction == "bwd" and not hopper.no_sums(asked_of(workload)):
        yield "weft one walk", partial(own, workload, tensors, direction, (("dkdv", hopper.SUMMED),))
    yield "weft tiles", lambda: own(workload, tensors, direction, tiles(workload, direction))
    for name in peers:
        yield name, partial(theirs, workload, tensors, direction, name)


def entry(truth: Truth, direction: str, make: Callable[[], Any]) -> tuple[dict[str, Any], Calls | None]:
    """(what is told of a contender, its calls where it has some)"""
    try:
        calls = make()
        result = calls[0]()
        torch.cuda.synchronize()
        verdict = truth.verdict(direction, result if isinstance(result, tuple) else (result,))
        return {"error_over_plain": round(verdict.over_plain, 3), "message": verdict.wrong}, Calls(calls, "cuda")
    except Exception as failed:  # a contender that fails has a row that says so
        return {"message": failure(failed)}, None


def measured(workload: Workload, direction: str, peers: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each contender."""
    tensors = Tensors(workload, "cuda")
    truth, entries = Truth(tensors), []
    for name, make in contenders(workload, tensors, direction, peers):
        about, calls = entry(truth, direction, make)
        entries.append(({"problem": workload.name, "direction": direction, "who": name} | about, calls))
        print(f"# {workload.name} {direction} {name} ready {datetime.now(UTC):%H:%M:%S}", flush=True)
    for _, (_, calls) in product(range(ROUNDS), entries):
        if calls is not None:
            calls.round()
    for about, calls in entries:
        middle = median(calls.milliseconds) if calls is not None else None
        rate = round(workload.flops(direction) / middle / 1e9, 1) if middle else None
        yield about | {"median_ms": middle and round(middle, 4), "tflops": rate}
    del entries, truth, tensors
    gc.collect()
    torch.cuda.empty_cache()


def main() -> None:
    """Print a line a contender, and append rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(PROBLEMS))
    parser.add_argument("--ways", default="fwd,bwd")
    parser.add_argument("--peers", default="")
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--out", type=Path)
    asked, began = parser.parse_args(), time.monotonic()
    about = {"run": f"{datetime.now(UTC):%Y-%m-%dT%H:%M}-grids", "device": torch.cuda.get_device_name()}
    about |= {"torch": torch.__version__, "triton": version("triton"), "commit": commit()}
    for direction, name in product(asked.ways.split(","), asked.only.split(",")):
        if time.monotonic() - began > asked.seconds:
            print(f"# {name} {direction}: no time is left", flush=True)
            continue
        for row in measured(named(name), direction, [x for x in asked.peers.split(",") if x]):
            print(*(row.get(x) for x in COLUMNS[5:]), flush=True)
            if asked.out:
                new = not asked.out.exists()
                with asked.out.open("a", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    if new:
                        writer.writeheader()
                    writer.writerow(about | row)


if __name__ == "__main__":
    main()
