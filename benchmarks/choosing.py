"""What a call waits for before it launches anything on a GPU: planning and choosing, for every pattern of the library.

    python benchmarks/choosing.py [--only TEXT] [--tokens N] [--target h200] [--record]

Cold: from empty caches and a new pattern; forward: its ACSR, tilings, packs of heads, rows or tiles; backward: the same
for dQ, dK and dV, and one kernel or two. Median of five in one process, which has read its card's table of rates. Warm:
the plan asked for again, the median of a thousand. Processor time of one thread, D=64 in bfloat16, 8 heads; numpy only,
a minute. Bars: 20 ms for a cold forward and for a cold backward, 30 us warm.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from statistics import median
from typing import NamedTuple

import numpy as np
from planning import RESULTS, append, clear_caches, machine, patterns, problem_for, provenance

from weft.errors import PatternError
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.problem import Problem
from weft.planning.rates import measured
from weft.target import GPUS, Gpu

TOKENS, REPEATS, ASKED = 1 << 17, 5, 1000
BARS = {"forward_ms": 20.0, "backward_ms": 20.0, "warm_us": 30.0}
COLUMNS = (
    "date", "machine", "python", "numpy", "commit", "pattern", "tokens", "target", "forward_ms", "backward_ms",
    "warm_us",
)  # fmt: skip


class Row(NamedTuple):
    """One pattern: milliseconds before its first forward and backward, microseconds to find both again."""

    forward_ms: float
    backward_ms: float
    warm_us: float

    def missed(self) -> list[str]:
        return [name for name, bar in BARS.items() if not getattr(self, name) < bar]


def forward(pattern: Pattern, problem: Problem, gpu: Gpu) -> AttentionPlan:
    plan = plan_attention(pattern, problem, gpu)
    _ = plan.by_rows
    return plan


def backward(plan: AttentionPlan) -> None:
    _ = plan.queries, plan.transposed, plan.in_one


def cold(name: str, n: int, gpu: Gpu) -> tuple[float, float]:
    """(milliseconds before a forward, before a backward after it)"""
    clear_caches()
    measured(gpu.name)
    pattern, problem = patterns(n)[name](), gpu_problem(name, n)
    times = [time.process_time()]
    plan = forward(pattern, problem, gpu)
    times.append(time.process_time())
    backward(plan)
    times.append(time.process_time())
    first, second = np.diff(times)
    return 1e3 * float(first), 1e3 * float(second)


def warm(name: str, n: int, gpu: Gpu) -> float:
    """Microseconds of a call that was planned; kept as `weft.runtime.pipeline` keeps it."""
    pattern, problem = patterns(n)[name](), gpu_problem(name, n)
    kept = lru_cache(lambda pattern, problem: forward(pattern, problem, gpu))
    backward(kept(pattern, problem))
    times = []
    for _ in range(ASKED):
        begin = time.perf_counter()
        backward(kept(pattern, problem))
        times.append(time.perf_counter() - begin)
    return 1e6 * median(times)


def gpu_problem(name: str, n: int) -> Problem:
    return replace(problem_for(name, n), dtype="bfloat16", device="cuda")


def measure(name: str, n: int, gpu: Gpu) -> Row:
    runs = [cold(name, n, gpu) for _ in range(REPEATS)]
    return Row(*(median(run[i] for run in runs) for i in range(2)), warm(name, n, gpu))


def names(only: str, n: int) -> list[str]:
    """Patterns with this text in their name whose windows fit into grids of n tokens."""
    found = []
    for name, make in patterns(n).items():
        with suppress(PatternError):
            make()
            found += [name] * (only in name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Planning and choosing for a GPU")
    parser.add_argument("--only", default="", help="patterns with this text in their name")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--target", default="h200", choices=list(GPUS))
    parser.add_argument("--record", action="store_true", help="append to results/choosing.csv")
    asked = parser.parse_args()
    print(f"{machine()}; {asked.tokens} tokens on {asked.target}")
    print(f"{'pattern':38s}{'forward ms':>11s}{'backward ms':>12s}{'warm us':>9s}")
    found = {}
    cold("full", asked.tokens, GPUS[asked.target])  # what is imported late
    for name in names(asked.only, asked.tokens):
        found[name] = row = measure(name, asked.tokens, GPUS[asked.target])
        marks = "".join(f"  {x} missed" for x in row.missed())
        print(f"{name:38s}{row.forward_ms:11.2f}{row.backward_ms:12.2f}{row.warm_us:9.2f}{marks}", flush=True)
    if asked.record:
        rows = [
            provenance("numpy") | {"pattern": name, "tokens": asked.tokens, "target": asked.target}
            | {key: round(x, 2) for key, x in row._asdict().items()}
            for name, row in found.items()
        ]  # fmt: skip
        append(RESULTS / "choosing.csv", COLUMNS, rows)
    return sum(bool(row.missed()) for row in found.values())


if __name__ == "__main__":
    sys.exit(main())
