"""Attention on Hopper's cards: weft as it chooses, each configuration that a call may name, and the peers.

    PYTHONPATH=src python benchmarks/wide_heads.py [--only NAME,...] [--ways fwd,bwd] [--peers cudnn,...] [--dims N]
        [--types bfloat16,float16] [--to FILE]

All of a problem are called in turn in one process, so that they meet the same card. Every result is compared with
float64 on sampled rows and keys. Rates are useful TFLOP/s. Needs a GPU with torch and Triton; --to: rows as CSV.
"""

from __future__ import annotations

import argparse
import csv
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from planning import commit
from table import failure

from weft.bench.check import Truth
from weft.bench.inputs import Case, Tensors
from weft.bench.peers import all_peers
from weft.bench.timing import Calls
from weft.bench.worker import calls_of
from weft.planning.attention_plan import plan_attention
from weft.planning.choose import Fixed
from weft.planning.families import hopper, tile
from weft.planning.problem import Problem
from weft.planning.tiling import Direction
from weft.target import Gpu
from weft.testing.workloads import Workload, named
from weft.torch import gpu
from weft.torch.card import at_hand
from weft.torch.operator import Options, modifiers

PROBLEMS = ("dense", "causal", "causal_window_1024", "chunk_2048_causal", "document_causal", "mistral_window_4096")
PEERS = "cudnn,fa4,xformers,flex"
ROUNDS = 6
COLUMNS = (
    "run", "device", "torch", "triton", "commit", "problem", "direction", "who", "median_ms", "tflops",
    "error_over_plain", "message",
)  # fmt: skip


def card() -> Gpu:
    """The GPU at hand."""
    found = at_hand()
    assert found is not None, "there is no GPU"
    return found.gpu


class Ours:
    """weft with a configuration that is named, or where that is none as it chooses."""

    def __init__(self, workload: Workload, fixed: Fixed) -> None:
        problem: Problem = workload.problem("cuda")
        self.plan = plan_attention(workload.make(), problem, card(), fixed)
        self.how = modifiers(self.plan, Options(None, None, None, None, "triton", True))

    def forward(self, case: Case) -> Any:
        """out and lse."""
        return gpu.forward((case.q, case.k, case.v), self.plan, self.how)

    def backward(self, case: Case) -> Callable[[], Any]:
        """A call that makes the gradients alone."""
        out, lse = self.forward(case)
        saved, rows = (case.q, case.k, case.v), (out, case.dout, lse, None)
        return lambda: gpu.backward(saved, rows, self.plan, self.how, deterministic=False, with_delta=False)[:3]


def own(workload: Workload, tensors: Tensors, direction: str, fixed: Fixed) -> list[Callable[[], Any]]:
    """Calls of weft, one for each copy of the inputs."""
    ours = Ours(workload, fixed)
    if direction == "fwd":
        return [lambda case=case: ours.forward(case)[0] for case in tensors.cases]
    return [ours.backward(case) for case in tensors.cases]


def theirs(workload: Workload, tensors: Tensors, direction: str, name: str) -> list[Callable[[], Any]]:
    """Calls of a peer, likewise; its results have heads before tokens."""
    peer = all_peers()[name]
    against = peer.reason_absent("cuda") or "; ".join(peer.reasons_against(workload, direction, "cuda"))
    if against:
        raise LookupError(against)
    made = calls_of(peer.prepare(workload, tensors).run, tensors.laid_out(peer.layout), direction)
    if peer.layout == "bhsd":
        return made
    return [partial(_exchanged, call) for call in made]


def _exchanged(call: Callable[[], Any]) -> Any:
    found = call()
    return tuple(x.transpose(1, 2) for x in found) if isinstance(found, tuple) else found.transpose(1, 2)


def contenders(workload: Workload, tensors: Tensors, direction: str, peers: list[str]) -> Iterator[tuple[str, Any]]:
    """(name, what makes its calls)"""
    yield "weft", partial(own, workload, tensors, direction, ())
    if workload.d == hopper.WIDEST_AT:
        sides: tuple[Direction, ...] = ("forward",) if direction == "fwd" else ("dq", "dkdv")
        fixed = tuple((side, tile.usual(side, workload.problem("cuda"), 1, card())) for side in sides)
        yield "weft tiles", partial(own, workload, tensors, direction, fixed)
        if direction == "bwd":
            yield "weft tiles of queries", partial(own, workload, tensors, direction, fixed[:1])
    if direction == "bwd":
        keys = plan_attention(workload.make(), workload.problem("cuda"), card()).asked("dkdv")
        for tiling in hopper.SUMS:
            against = hopper.no_list(keys) if tiling == hopper.LISTED else hopper.no_sums(keys)
            if not against and tiling in (hopper.LISTED, hopper.sums_of(workload.problem("cuda"))):
                name = f"weft summed {tiling.rows}x{tiling.cols}"
                yield name, partial(own, workload, tensors, direction, (("dkdv", tiling),))
    else:
        for tiling in hopper.of_names("forward", workload.problem("cuda"), card()):
            name = f"weft {tiling.rows}x{tiling.cols}x{tiling.stages}"
            yield name, partial(own, workload, tensors, direction, (("forward", tiling),))
    for name in peers:
        yield name, partial(theirs, workload, tensors, direction, name)


def measured(works: list[Workload], direction: str, peers: list[str], ours: str) -> Iterator[dict[str, Any]]:
    """A row for each contender. works: one problem in its types; all take turns."""
    entries: list[tuple[dict[str, Any], Calls]] = []
    for workload in works:
        yield from prepared(workload, direction, peers, ours, entries)
    for _ in range(ROUNDS):
        for _, calls in entries:
            calls.round()
    for about, calls in entries:
        middle = median(calls.milliseconds)
        yield about | {"median_ms": round(middle, 4), "tflops": round(works[0].flops(direction) / middle / 1e9, 1)}
    del entries
    gc.collect()
    torch.cuda.empty_cache()


def prepared(
    workload: Workload, direction: str, peers: list[str], ours: str, entries: list[tuple[dict[str, Any], Calls]]
) -> Iterator[dict[str, Any]]:
    """Add the calls of each contender to entries; a row for each that fails."""
    tensors = Tensors(workload, "cuda")
    truth = Truth(tensors)
    for name, make in contenders(workload, tensors, direction, peers):
        if name.startswith("weft") and ours and not any(name.startswith(one) for one in ours.split(",")):
            continue
        who = name if workload.dtype == "bfloat16" else f"{name} {workload.dtype}"
        about: dict[str, Any] = {"problem": workload.name, "direction": direction, "who": who}
        try:
            calls = make()
            result = calls[0]()
            torch.cuda.synchronize()
            verdict = truth.verdict(direction, result if isinstance(result, tuple) else (result,))
            entries.append((about | {"error_over_plain": round(verdict.over_plain, 3), "message": verdict.wrong},
                            Calls(calls, "cuda")))  # fmt: skip
        except LookupError as absent:
            yield about | {"message": str(absent)}
        except Exception as failed:  # a contender that fails has a row that says so
            yield about | {"message": failure(failed)}
        print(f"# {workload.name} {direction} {who} ready {datetime.now(UTC):%H:%M:%S}", flush=True)


def main() -> None:
    """Print a line a contender, and write rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(PROBLEMS))
    parser.add_argument("--ways", default="fwd,bwd")
    parser.add_argument("--peers", default=PEERS)
    parser.add_argument("--ours", default="", help="how the names of weft's own begin, if not all")
    parser.add_argument("--dims", type=int, default=0, help="head dimensions other than the problems' own")
    parser.add_argument("--types", default="bfloat16")
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    run = f"{datetime.now(UTC):%Y-%m-%dT%H:%M}-wide"
    about = {"run": run, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
    about |= {"triton": version("triton"), "commit": commit()}
    rows = []
    for direction in asked.ways.split(","):
        for name in asked.only.split(","):
            work = named(name)
            if asked.dims:
                work = replace(work, name=f"{name}.d{asked.dims}", d=asked.dims, dv=asked.dims)
            works = [replace(work, dtype=one) for one in asked.types.split(",")]
            for row in measured(works, direction, [x for x in asked.peers.split(",") if x], asked.ours):
                rows.append(about | row)
                rate, time, error, message = (str(row.get(x, "")) for x in COLUMNS[-3:-5:-1] + COLUMNS[-2:])
                print(f"{name:24}{direction:5}{row['who']:28}{rate:>8}{time:>10}{error:>8}  {message}", flush=True)
            if asked.to:
                with asked.to.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
