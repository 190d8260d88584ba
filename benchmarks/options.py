"""Score functions, biases, dropout, layouts, packed documents and decoding on a GPU, beside none and beside peers.

    PYTHONPATH=src python benchmarks/options.py --out FILE.csv [--only TEXT ...] [--ways TEXT ...] [--small]

First every call is made once, in processes side by side, so that all kernels are compiled; then tables are measured one
after the other, and their rows appended as they come: microseconds of a call, and how much of the time of the way
beside it that is. Results are compared with float64 on some rows first. Steps of decoding are timed in CUDA graphs.
`weft` in a row's `who` is weft's own. --constant NAME=NUMBER sets a number of `weft.kernels.gpu.configure` first.
Without a GPU --small tries it all at small sizes, and times nothing of worth.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from options_steps import cache_hits, steps
from options_ways import (
    PAIRS_OF_HEADS,
    ROWS,
    Table,
    Way,
    layouts,
    neighbours,
    packed,
    shifted_windows,
    t5_encoder,
    with_options,
)
from table import append, failure

from weft.bench.origin import commit, machine
from weft.bench.timing import Calls
from weft.kernels.gpu import configure

ROUNDS, AT_ONCE, WARMED = 4, 14, 60  # rounds of each way; processes that compile; seconds for all of them
OFF = 0.02  # of the largest number: what bfloat16 may be off by
COLUMNS = (
    "date", "machine", "driver", "python", "torch", "triton", "threads", "commit", "table", "who", "direction", "us",
    "beside", "ratio", "error", "message",
)  # fmt: skip
Row = dict[str, Any]
WAYS: list[str] = []  # words of the names of those that are asked for; all, where there are none


def tables(device: str, small: bool) -> dict[str, Callable[[], Table]]:
    """Those of ways, by name; what compiles FlexAttention is last."""
    tokens, documents = (512, 8) if small else (65536, 64)
    lengths = (64, 128) if small else (512, 1024, 2048, 4096)
    made: dict[str, Callable[[], Table]] = {}
    for name in ("window_pm256", "causal"):
        made[f"options {name}"] = partial(with_options, name, device, small)
    for name in ("window_pm256", "causal"):
        made[f"layouts {name}"] = partial(layouts, name, device, small)
    made["packed drawn"] = partial(packed, documents, tokens, False, device, False)
    for length in lengths:
        made[f"packed {length}"] = partial(packed, tokens // 2 // length, tokens // 2, True, device, True)
    made["t5"] = partial(t5_encoder, device, small)
    made["swin"] = partial(shifted_windows, device, small)
    made["na2d"] = partial(neighbours, device, small)
    return made


# ---- one way ---------------------------------------------------------------------------------------------------------
class Ready:
    """A way whose tensors are laid out and whose first calls were made."""

    def __init__(self, table: Table, way: Way) -> None:
        self.way, self.table = way, table
        q, k, v, dout = (way.lay(x) for x in table.tensors)
        self.plain = [x.detach() for x in (q, k, v)]
        self.watched = [x.detach().requires_grad_() for x in (q, k, v)]
        with torch.no_grad():
            self.out = way.run(*self.plain)
        self.recorded = way.run(*self.watched)
        self.dout = dout
        self.found = self.backward()

    def forward(self) -> Any:
        """out"""
        with torch.no_grad():
            return self.way.run(*self.plain)

    def backward(self) -> Any:
        """Gradients of q, k, v and of the way's tables."""
        leaves = (*self.watched, *self.way.leaves)
        return torch.autograd.grad(self.recorded, leaves, self.dout, retain_graph=True)

    def off(self) -> float:
        """How far out and dq are off in some rows, as a part of their largest number."""
        table, way, law = self.table, self.way, self.way.law or self.table.law
        random = torch.Generator().manual_seed(3)
        batch, heads, tokens = table.shape[:3]
        worst = 0.0
        for _ in range(PAIRS_OF_HEADS):
            b, h = (int(torch.randint(n, (1,), generator=random)) for n in (batch, heads))
            rows = torch.randint(tokens, (ROWS,), generator=random).to(table.device)
            truth = law.rows(table.tensors[:3], table.tensors[3], b, h, rows)
            for x, y in zip((way.back(self.out), way.back(self.found[0])), truth, strict=True):
                worst = max(worst, float((x[b, h, rows].double() - y).abs().max() / y.abs().max()))
        return worst


def measured(table: Table) -> Iterator[Row]:
    """Rows of all ways of a table, timed in turn."""
    entries: list[tuple[Row, Calls]] = []
    for way in table.ways:
        if not wanted(table, way):
            continue
        about = {"table": table.name, "who": way.who, "beside": way.beside or table.beside}
        try:
            ready = Ready(table, way)
            error = ready.off()
            about |= {"error": f"{error:.2g}", "message": "" if error < OFF else "WRONG"}
            for direction in table.directions:
                call = ready.forward if direction == "fwd" else ready.backward
                entries.append((about | {"direction": direction}, Calls([call], table.device)))
        except Exception as failed:  # a way that fails has a row that says so
            yield about | {"message": failure(failed)}
    for _ in range(ROUNDS):
        for _, calls in entries:
            calls.round()
    found = {(row["who"], row["direction"]): 1e3 * median(calls.milliseconds) for row, calls in entries}
    for row, _ in entries:
        took, other = found[row["who"], row["direction"]], found.get((row["beside"], row["direction"]))
        yield row | {"us": round(took, 2), "ratio": round(took / other, 4) if other else ""}


# ---- compiled beforehand ---------------------------------------------------------------------------------------------
def shares(small: bool, only: list[str]) -> list[list[str]]:
    """What each process compiles, as "table:number of a way"; the slowest are alone."""
    jobs: list[tuple[float, str]] = []
    for name, make in tables("meta", small).items():
        if asked_for(name, only):
            jobs += [
                (way.slow, f"{name}:{number}")
                for number, way in enumerate(make().ways)
                if way.slow and wanted(make(), way)
            ]
    bins: list[tuple[float, list[str]]] = [(0.0, []) for _ in range(AT_ONCE)]
    for slow, job in sorted(jobs, reverse=True):
        total, mine = min(bins, key=lambda one: one[0])
        bins[bins.index((total, mine))] = (total + slow, [*mine, job])
    return [mine for _, mine in bins if mine]


def warm(device: str, asked: argparse.Namespace) -> None:
    """Make every call once, in processes side by side."""
    started = time.monotonic()
    command = [sys.executable, str(Path(__file__).resolve()), *["--small"] * asked.small]
    command += [f"--constant={asked.constant}", "--child"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    todo = shares(asked.small, asked.only) if device == "cuda" else []
    running = [subprocess.Popen([*command, *jobs], env=environment) for jobs in todo]
    for one in running:
        try:
            one.wait(max(1.0, WARMED - (time.monotonic() - started)))
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()
    print(f"# compiled after {time.monotonic() - started:.0f} s", flush=True)


def child(device: str, small: bool, jobs: list[str]) -> None:
    """The calls of one process."""
    known = tables(device, small)
    for job in jobs:
        name, _, number = job.rpartition(":")
        try:
            table = known[name]()
            Ready(table, table.ways[int(number)])
        except Exception:  # the row says it
            traceback.print_exc()
    if device == "cuda":
        torch.cuda.synchronize()


# ---- all -------------------------------------------------------------------------------------------------------------
def wanted(table: Table, way: Way) -> bool:
    """Whether a way is asked for, or is the one that others are beside."""
    return not WAYS or way.who == table.beside or any(word in way.who for word in WAYS)


def asked_for(name: str, only: list[str]) -> bool:
    """Whether a table is asked for: all, or those whose name holds one of the words."""
    return not only or any(word in name for word in only)


def work(device: str, small: bool, only: list[str]) -> Iterator[tuple[str, Callable[[], Iterator[Row]]]]:
    """(name, what makes its rows), the most important first."""
    known = {name: lambda make=make: measured(make()) for name, make in tables(device, small).items()}
    first = [name for name in known if name.startswith("options")]
    for name in first:
        yield name, known[name]
    yield "decode", partial(steps, device, small)
    for name in (x for x in known if x not in first):
        if name == "t5":
            yield "cache", partial(cache_hits, device)
        yield name, known[name]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=None, help="a CSV file, to which rows are appended")
    parser.add_argument("--only", nargs="+", default=[], help="words of the tables' names")
    parser.add_argument("--ways", nargs="+", default=[], help="words of the names of ways; the one beside is there too")
    parser.add_argument("--constant", default="", help="NAME=NUMBER, which rows then tell")
    parser.add_argument("--seconds", type=float, default=105.0, help="no table is begun after so many")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    WAYS.extend(asked.ways)
    if asked.constant:
        name, _, number = asked.constant.partition("=")
        setattr(configure, name, int(number))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not asked.small:
        parser.error("torch finds no GPU here; --small tries the script without one")
    if asked.child:
        child(device, asked.small, asked.child)
        return 0
    end = time.monotonic() + asked.seconds
    warm(device, asked)
    sources = f"{commit()} {asked.constant}".strip()
    made = machine(device) | {"commit": sources, "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}
    for name, make in work(device, asked.small, asked.only):
        if not asked_for(name, asked.only):
            continue
        if time.monotonic() > end:
            print(f"# no time for {name}", flush=True)
            continue
        try:
            for row in make():
                write(asked.out, made | row)
        except Exception:
            traceback.print_exc()
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        print(f"# {name} done, {end - time.monotonic():.0f} s left", flush=True)
    return 0


def write(path: Path | None, row: Row) -> None:
    """Print a row, and append it."""
    said = [str(row.get(name, "")) for name in ("table", "who", "direction", "us", "ratio", "error", "message")]
    print("{:52} {:28} {:4} {:>10} {:>7} {:>8}  {}".format(*said), flush=True)
    append(path, COLUMNS, row)


if __name__ == "__main__":
    sys.exit(main())
