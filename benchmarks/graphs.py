"""Kernels without the host: forwards and gradients inside CUDA graphs, of this tree or of several in turns.

    python benchmarks/graphs.py [PROBLEM ...] [--trees DIR ...] [--backward] [--rounds N] [--record]

A problem is a workload of `weft bench --list`, other sizes behind it: strided_l128_s128@16:1 has 16 heads of queries
and one of keys, strided_l128_s128@16:16:32768 so many tokens. A tree is a checkout; each is measured in processes of
its own, one a round, so that no kernel is found by another one's plan. A figure is microseconds a launch of some two
milliseconds of them, inputs rotated as `weft bench` does; medians of replays, then of rounds. Results are compared with
float64 first. `weft bench` times calls by events, which add some 3 us to each; these figures are for what that hides.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
USUAL = (
    "strided_l128_s128", "strided_l128_s128@16:1", "strided_l128_s128@4", "strided_l128_s128@16:16:32768",
    "gpt_oss_window_128", "window_pm256", "dense_d64",
)  # fmt: skip
LIMIT = 300  # seconds for one tree's process
COLUMNS = (
    "date", "machine", "driver", "python", "torch", "triton", "threads", "commit", "problem", "shape", "dtype",
    "direction", "rounds", "us", "least_us", "most_us", "error",
)  # fmt: skip
Row = dict[str, Any]


# ---- in a tree's process ---------------------------------------------------------------------------------------------
def problem_of(text: str) -> Any:
    """The Workload of such a text. Raises ValueError where there is none."""
    from weft.testing.workloads import WORKLOADS

    name, _, sizes = text.partition("@")
    if name not in WORKLOADS or not re.fullmatch(r"(\d+(:\d+){0,2})?", sizes):
        raise ValueError(
            f"{text}: no workload with sizes; name NAME, NAME@heads, @heads:kv_heads or with :tokens after it"
        )
    workload = WORKLOADS[name]
    if not sizes:
        return workload
    q_heads, kv_heads, tokens = ([int(x) for x in sizes.split(":")] + [0, 0])[:3]
    kv_heads = kv_heads or q_heads
    if not q_heads or q_heads % kv_heads:
        raise ValueError(f"{text}: {q_heads} heads of queries cannot share {kv_heads} of keys evenly")
    if tokens and (workload.mask.tokens is not None or workload.m != workload.n):
        raise ValueError(f"{text}: how many tokens {name} has follows from its mask or its queries; leave them out")
    return replace(workload, q_heads=q_heads, kv_heads=kv_heads, m=tokens or workload.m, n=tokens or workload.n)


def attention_of(workload: Any, tensors: Any) -> Callable[..., Any]:
    """run(q, k, v), with the workload's mask and sinks."""
    import weft

    pattern, sinks = workload.make(), tensors.sinks
    return lambda q, k, v: weft.attention(q, k, v, pattern, sinks=sinks)


def measure(problems: list[str], directions: list[str]) -> None:
    """Write a line of JSON for each problem and direction: where it is from, its time, how far it is off."""
    import torch
    from graph_time import microseconds

    from weft.bench.check import Truth
    from weft.bench.inputs import Tensors
    from weft.bench.origin import commit, machine
    from weft.bench.worker import calls_of

    made = machine("cuda") | {"commit": commit()}
    torch.cuda.set_stream(torch.cuda.Stream())  # graphs cannot be captured on the first one
    for text in problems:
        workload = problem_of(text)
        tensors = Tensors(workload, "cuda")
        for direction in directions:
            calls = calls_of(attention_of(workload, tensors), tensors.cases, direction)
            found = calls[0]()
            verdict = Truth(tensors).verdict(direction, found if direction == "bwd" else (found,))
            del found
            row = {"problem": text, "shape": workload.shape, "dtype": workload.dtype, "direction": direction}
            row |= {"us": microseconds(calls), "error": verdict.error, "wrong": verdict.wrong}
            print(json.dumps(made | row), flush=True)


# ---- trees in turns --------------------------------------------------------------------------------------------------
def asked_of(tree: Path, problems: list[str], directions: list[str]) -> list[Row]:
    """The lines of one process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", *problems]
    command += ["--backward"] * ("bwd" in directions)
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT)
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def joined(rounds: list[list[Row]]) -> list[Row]:
    """One tree's rows over its rounds: medians, the least and the most, the largest error. Raises ValueError where a
    result is wrong.
    """
    found = defaultdict(list)
    for row in (row for one in rounds for row in one):
        if row.pop("wrong"):
            raise ValueError(f"{row['problem']}, {row['direction']}: a result is wrong, by {row['error']:.2g}")
        found[row["problem"], row["direction"]].append(row)
    times = {key: [row["us"] for row in rows] for key, rows in found.items()}
    return [
        rows[0] | {
            "rounds": len(rows), "us": round(median(times[key]), 2), "least_us": round(min(times[key]), 2),
            "most_us": round(max(times[key]), 2), "error": float(f"{max(row['error'] for row in rows):.3g}"),
        }
        for key, rows in found.items()
    ]  # fmt: skip


def table(trees: list[list[Row]]) -> str:
    """Problems line by line, trees beside each other with what they take of the first one's time."""
    lines = []
    for rows in zip(*trees, strict=True):
        first = rows[0]
        each = [f"{row['us']:10.2f} ({row['us'] / first['us']:.3f})" for row in rows]
        lines.append(f"{first['problem']:34s} {first['direction']} {''.join(each)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kernels inside CUDA graphs, of several trees in turns")
    parser.add_argument("problems", nargs="*", default=list(USUAL))
    parser.add_argument("--trees", nargs="+", type=Path, default=[ROOT], help="checkouts; this one")
    parser.add_argument("--backward", action="store_true", help="gradients, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="append to results/graphs.csv")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    directions = ["fwd", *["bwd"] * asked.backward]
    try:
        list(map(problem_of, asked.problems))
    except ValueError as error:
        parser.error(str(error))
    import torch

    if not torch.cuda.is_available():
        print("graphs.py: torch finds no GPU here; run it where there is one", file=sys.stderr)
        return 1
    if asked.child:
        measure(asked.problems, directions)
        return 0
    rounds = [[asked_of(tree, asked.problems, directions) for tree in asked.trees] for _ in range(asked.rounds)]
    trees = [joined(list(of_tree)) for of_tree in zip(*rounds, strict=True)]
    print(table(trees))
    if asked.record:
        from planning import RESULTS, append, provenance

        date = provenance("torch")["date"]
        append(RESULTS / "graphs.csv", COLUMNS, [{"date": date} | row for rows in trees for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
