"""Attention in float16 beside bfloat16 on the GPU at hand: what weft chooses, and the configurations that a call names.

    PYTHONPATH=src python benchmarks/half_types.py [--only NAME,...] [--out FILE] [--seconds 70]

All of a problem are called in turn in one process, so that they meet the same card. Every result is compared with
float64 on sampled rows. `ratio`: the rate over that of bfloat16 as weft chooses it. Needs a GPU with torch and Triton.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from planning import commit
from table import append, failure
from wide_heads import card, own

from weft.bench.check import Truth
from weft.bench.inputs import Tensors
from weft.bench.timing import Calls
from weft.planning.choose import Fixed
from weft.planning.families import hopper
from weft.testing.workloads import Workload, named

PROBLEMS = ("window_pm256 fwd", "window_pm256 bwd", "dense_d64 fwd", "causal fwd", "causal_window_1024 fwd")
ROUNDS = 6
COLUMNS = (
    "date", "device", "torch", "triton", "commit", "problem", "direction", "who", "median_ms", "tflops", "ratio",
    "error_over_plain", "message",
)  # fmt: skip


def contenders(workload: Workload, direction: str) -> Iterator[tuple[str, Workload, Fixed]]:
    """(name, problem, configuration), bfloat16 first."""
    half = replace(workload, dtype="float16")
    yield "bfloat16", workload, ()
    yield "float16", half, ()
    if direction == "fwd":
        for tiling in hopper.of_names("forward", half.problem("cuda"), card()):
            yield f"float16 {tiling.rows}x{tiling.cols}x{tiling.stages}", half, (("forward", tiling),)


def measured(workload: Workload, direction: str) -> Iterator[dict[str, Any]]:
    """A row for each contender."""
    inputs: dict[str, tuple[Tensors, Truth]] = {}
    entries: list[tuple[dict[str, Any], Calls]] = []
    for name, problem, fixed in contenders(workload, direction):
        about: dict[str, Any] = {"problem": workload.name, "direction": direction, "who": name}
        try:
            if problem.dtype not in inputs:
                tensors = Tensors(problem, "cuda")
                inputs[problem.dtype] = tensors, Truth(tensors)
            tensors, truth = inputs[problem.dtype]
            calls = own(problem, tensors, direction, fixed)
            result = calls[0]()
            verdict = truth.verdict(direction, result if isinstance(result, tuple) else (result,))
            about |= {"error_over_plain": round(verdict.over_plain, 3), "message": verdict.wrong}
            entries.append((about, Calls(calls, "cuda")))
        except Exception as failed:  # a contender that fails has a row that says so
            yield about | {"message": failure(failed)}
    for _ in range(ROUNDS):
        for _, calls in entries:
            calls.round()
    rates = [workload.flops(direction) / median(calls.milliseconds) / 1e9 for _, calls in entries]
    for (about, calls), rate in zip(entries, rates, strict=True):
        of_first = round(rate / rates[0], 3) if entries[0][0]["who"] == "bfloat16" else ""
        yield about | {"median_ms": round(median(calls.milliseconds), 4), "tflops": round(rate, 1), "ratio": of_first}


def main() -> None:
    """Print a line a contender, and append its row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(PROBLEMS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=70, help="no problem begins later")
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    about = {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "device": torch.cuda.get_device_name(),
        "torch": torch.__version__, "triton": version("triton"), "commit": commit(),
    }  # fmt: skip
    for problem in asked.only.split(","):
        name, direction = problem.split()
        if time.monotonic() > end:
            print(f"# no time for {problem}", flush=True)
            continue
        for row in measured(named(name), direction):
            append(asked.out, COLUMNS, about | row)
            said = [str(row.get(x, "")) for x in COLUMNS[5:]]
            print("{:20} {:4} {:22} {:>9} {:>8} {:>7} {:>7}  {}".format(*said), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        print(f"# {problem} done, {end - time.monotonic():.0f} s left", flush=True)


if __name__ == "__main__":
    main()
