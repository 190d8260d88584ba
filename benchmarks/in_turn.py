"""Two checkouts of weft in turn on one GPU: is a change of kernels or of launching slower?

    python benchmarks/in_turn.py --before PATH --after PATH [--problems NAME ...] [--ways fwd ...] [--rounds N]
        [--out FILE.csv]

A process for each checkout holds the tensors of one problem and measures a few calls when it is asked. The two take
turns, so that both meet the same clocks. Printed are medians by device events, the ratio before / after, and the host's
time of a warm call (bars: 0.98 for each, 1.0 for the geometric mean). Problems are those of `weft bench core`; also
`host`, which is a small call whose device time is nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

DIRECTIONS = ("fwd", "bwd")
COLUMNS = ("problem", "direction", "before_ms", "after_ms", "ratio", "before_host_us", "after_host_us")


# ---- one checkout ----------------------------------------------------------------------------------------------------
def worker() -> None:
    """Answers requests on standard input: ["load", name], ["time", direction, calls], each with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to the other stream
    loaded: dict[str, Any] = {}
    for line in sys.stdin:
        what, *rest = json.loads(line)
        if what == "load":
            loaded = _calls(*rest)
            found: Any = sorted(loaded)
        else:
            found = loaded[rest[0]].measure(rest[1])
        print(json.dumps(found), file=answers, flush=True)


class Timed:
    """One call, timed by device events behind a queue that the host fills meanwhile."""

    def __init__(self, call: Any) -> None:
        self.call = call
        for _ in range(3):
            call()

    def measure(self, calls: int) -> tuple[list[float], float]:
        """(milliseconds of each call on the device, microseconds of one on the host)"""
        import time

        import torch

        torch.cuda.synchronize()
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        torch.cuda._sleep(int(4e6))
        began = time.perf_counter()
        for begin, end in pairs:
            begin.record()
            self.call()
            end.record()
        host = (time.perf_counter() - began) / calls
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in pairs], 1e6 * host


def _calls(name: str, ways: list[str]) -> dict[str, Timed]:
    import torch

    import weft
    from weft.testing.workloads import WORKLOADS

    torch.cuda.empty_cache()
    if name == "host":
        pattern, sizes, dtype = weft.causal() & weft.window(left=100), [(1, 4, 1024, 64)] * 3, torch.bfloat16
    else:
        work = WORKLOADS[name]
        p = work.problem("cuda")
        pattern, dtype = work.make(), getattr(torch, p.dtype)
        sizes = [(p.batch, p.q_heads, p.m, p.d), (p.batch, p.kv_heads, p.n, p.d), (p.batch, p.kv_heads, p.n, p.dv)]
    q, k, v = (torch.randn(size, device="cuda", dtype=dtype, requires_grad=True) for size in sizes)
    out = weft.attention(q, k, v, pattern)
    dout = torch.randn_like(out)
    plain = [x.detach() for x in (q, k, v)]
    made = {
        "fwd": lambda: weft.attention(*plain, pattern),
        "bwd": lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True),
    }
    return {way: Timed(made[way]) for way in ways}


# ---- both ------------------------------------------------------------------------------------------------------------
class Checkout:
    """A worker process of one checkout."""

    def __init__(self, path: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{path / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
        command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=path
        )

    def tell(self, *request: Any) -> None:
        """Send a request."""
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        """Wait for its answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a worker died; its error is above")
        return json.loads(line)


def compared(before: Checkout, after: Checkout, name: str, ways: list[str], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each direction of one problem."""
    for one in (before, after):  # both compile at the same time
        one.tell("load", name, ways)
    for one in (before, after):
        one.answer()
    for direction in ways:
        device: list[list[float]] = [[], []]
        host: list[list[float]] = [[], []]
        for turn in range(2 * rounds):
            which = turn % 2 if turn // 2 % 2 else 1 - turn % 2
            one = (before, after)[which]
            one.tell("time", direction, 10)
            milliseconds, microseconds = one.answer()
            device[which] += milliseconds
            host[which].append(microseconds)
        times, hosts = [median(x) for x in device], [min(x) for x in host]
        values = (name, direction, *times, times[0] / times[1], *hosts)
        yield dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path)
    parser.add_argument("--problems", nargs="*", default=[])
    parser.add_argument("--ways", nargs="*", choices=DIRECTIONS, default=list(DIRECTIONS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true")
    asked = parser.parse_args()
    if asked.worker:
        worker()
        return
    names = asked.problems or ["host", *_core(asked.after)]
    before, after = Checkout(asked.before.resolve()), Checkout(asked.after.resolve())
    rows = []
    for name in names:
        for row in compared(before, after, name, asked.ways, asked.rounds):
            rows.append(row)
            print("  ".join(f"{x:.4g}" if isinstance(x, float) else f"{x:26}" for x in row.values()), flush=True)
    for direction in asked.ways:
        ratios = [row["ratio"] for row in rows if row["direction"] == direction and row["problem"] != "host"]
        if ratios:
            mean = exp(sum(map(log, ratios)) / len(ratios))
            print(f"{direction}: least {min(ratios):.3f}, geometric mean {mean:.4f}")
    if asked.out:
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


def _core(path: Path) -> list[str]:
    code = "from weft.testing.workloads import WORKLOADS as W; print(*[n for n, w in W.items() if 'core' in w.tags])"
    environment = {**os.environ, "PYTHONPATH": str(path / "src")}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return found.stdout.split()


if __name__ == "__main__":
    main()
