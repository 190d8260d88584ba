"""The worker: one process measures one problem with many peers. `python -m weft.bench.worker` with a request on stdin.

It writes one JSON object a line, so that whoever reads knows what was at hand when a library crashes or hangs:

    {"event": "probe", "device": ..., "origin": {...}, "peers": {name: {...}}}   the answer to {"probe": true}
    {"event": "start", "direction": ..., "peer": ...}      before anything of that peer runs
    {"event": "ready", ..., "first_ms": ..., "error": ...} after its first call and its check
    {"event": "round", ..., "round": 3}                    before each of its rounds
    {"event": "row", "row": {...}}                         a finished row; a peer without figures has one at once
    {"event": "done"}                                      at the end
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import sys
import threading
import time
from functools import cache
from importlib import import_module
from statistics import median, quantiles
from typing import Any

import torch

from weft.bench import rows
from weft.bench.check import Truth, Verdict
from weft.bench.inputs import Case, Tensors
from weft.bench.origin import machine
from weft.bench.peers.base import ATTENTION, PLAN, Peer, Prepared
from weft.bench.timing import BusyCores, Calls, HeldMemory
from weft.errors import UnsupportedError
from weft.testing.workloads import Workload, named

LOST_DEVICE = 86  # exit status after an error that leaves the GPU unusable


class Wrong(Exception):
    """A result is not what the mask says."""


class Entry:
    """One peer in one direction: prepared, called once and checked when it is made."""

    def __init__(self, peer: Peer, direction: str, tensors: Tensors, truth: Any) -> None:
        self.peer, self.direction, self.tensors = peer, direction, tensors
        if peer.kind == ATTENTION:  # not in the time of the first call
            tensors.laid_out(peer.layout)
            tensors.synchronize()
        begin = time.perf_counter()
        self.prepared = peer.prepare(tensors.workload, tensors)
        functions = self._functions()
        result = functions[0]()
        tensors.synchronize()
        self.first_ms = 1e3 * (time.perf_counter() - begin)
        self.verdict = self._check(result, truth) if self._is_checked else None
        del result
        self.calls = Calls(functions, "cpu" if peer.kind == PLAN else tensors.device)
        self.memory = self.calls.memory()

    @property
    def _is_checked(self) -> bool:
        return self.peer.kind == ATTENTION and not self.peer.different_mask(self.tensors.workload)

    def _functions(self) -> list[Any]:
        """One for each copy of the inputs."""
        run = self.prepared.run
        if self.peer.kind != ATTENTION:
            return [run]
        return calls_of(run, self.tensors.laid_out(self.peer.layout), self.direction)

    def _check(self, result: Any, truth: Any) -> Verdict:
        results = result if isinstance(result, tuple) else (result,)
        if self.peer.layout == "bshd":
            results = tuple(x.transpose(1, 2) for x in results)
        verdict: Verdict = truth().verdict(self.direction, results)
        if verdict.wrong:
            raise Wrong(verdict.wrong)
        return verdict

    def row(self) -> dict[str, Any]:
        """The figures of all rounds."""
        workload, times = self.tensors.workload, self.calls.milliseconds
        fifths = quantiles(times, n=5, method="inclusive") if len(times) > 1 else times * 4
        middle = median(times)
        different = self.peer.different_mask(workload)
        status = {"status": rows.DIFFERENT if different else rows.OK, "message": different}
        figures = {
            "calls": len(times), "median_ms": middle, "p20_ms": fifths[0], "p80_ms": fifths[-1],
            "plan_ms": middle if self.peer.kind == PLAN else self.prepared.plan_ms, "first_ms": self.first_ms,
            "launch_us": 1e6 * self.calls.host or None, "memory_mb": None if self.memory is None else self.memory / 1e6,
        }  # fmt: skip
        if self.verdict is not None:
            figures |= {"error": self.verdict.error, "error_over_plain": self.verdict.over_plain}
        if not different:
            figures |= _rates(self.prepared, self.peer, workload, self.direction, 1e-3 * middle)
        return status | {name: float(f"{x:.5g}") if isinstance(x, float) else x for name, x in figures.items()}


def _rates(prepared: Prepared, peer: Peer, workload: Workload, direction: str, seconds: float) -> dict[str, float]:
    """Useful TFLOP/s and GB/s."""
    if peer.kind == ATTENTION:
        work: tuple[float, float] = (workload.flops(direction), workload.nbytes(direction))
    elif prepared.work is None:
        return {}
    else:
        work = prepared.work
    rates = {"tflops": work[0] / seconds / 1e12, "gbs": work[1] / seconds / 1e9}
    return {name: rate for name, rate in rates.items() if rate}


def calls_of(run: Any, cases: list[Case], direction: str) -> list[Any]:
    """Forwards, or gradients alone, of each case; run(q, k, v) is attention."""
    return [(_forward if direction == "fwd" else _backward)(run, case) for case in cases]


def _forward(run: Any, case: Any) -> Any:
    def call() -> Any:
        with torch.no_grad():
            return run(case.q, case.k, case.v)

    return call


def _backward(run: Any, case: Any) -> Any:
    """The gradients alone: the forward is done once, here."""
    leaves = [x.detach().requires_grad_() for x in (case.q, case.k, case.v)]
    out = run(*leaves)
    return lambda: torch.autograd.grad(out, leaves, case.dout, retain_graph=True)


# ---- the process -------------------------------------------------------------------------------------------------
class Worker:
    """Carries out one request and tells what it does."""

    def __init__(self, request: dict[str, Any], tell: Any) -> None:
        self.request, self.tell = request, tell
        self.peers: dict[str, Peer] = import_module(request.get("peers") or "weft.bench.peers").all_peers()

    def run(self) -> None:
        """Answer a probe, or measure a problem."""
        if self.request.get("probe"):
            self.probe()
        else:
            self.measure()
        self.tell({"event": "done"})

    def probe(self) -> None:
        """Which device, which machine, which peers."""
        device = self.request["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
        if device == "cuda" and not torch.cuda.is_available():
            self.tell({"event": "probe", "device": ""})
            return
        found = {
            name: {"absent": peer.reason_absent(device), "default": peer.default, "ways": peer.directions}
            for name, peer in self.peers.items()
        }
        self.tell({"event": "probe", "device": device, "origin": machine(device), "peers": found})

    def measure(self) -> None:
        """Prepare all, then time them in turn, then report."""
        tensors = Tensors(named(self.request["workload"]), self.request["device"])
        truth = cache(lambda: Truth(tensors))
        prepared = [self._prepared(way, peer, tensors, truth) for way, peer in self.request["entries"]]
        entries = [entry for entry in prepared if entry is not None]
        disturbance = HeldMemory() if tensors.device == "cuda" else BusyCores()
        for number in range(self.request["rounds"]):
            for entry in list(entries):
                self.tell(self._about("round", entry.direction, entry.peer.name) | {"round": number + 1})
                if not self._guarded(entry.direction, entry.peer, entry.calls.round):
                    entries.remove(entry)
        said = disturbance.message()
        for entry in entries:
            row = entry.row()
            row["message"] = "; ".join(part for part in (row["message"], said) if part)
            self._row(entry.direction, entry.peer, row)

    def _prepared(self, direction: str, name: str, tensors: Tensors, truth: Any) -> Entry | None:
        peer, workload = self.peers[name], tensors.workload
        self.tell(self._about("start", direction, name))
        if reasons := peer.reasons_against(workload, direction, tensors.device):
            self._row(direction, peer, {"status": rows.REFUSED, "message": "; ".join(reasons)})
            return None
        made: list[Entry] = []
        if not self._guarded(direction, peer, lambda: made.append(Entry(peer, direction, tensors, truth))):
            return None
        entry = made[0]
        told = {"first_ms": entry.first_ms, "error": entry.verdict and entry.verdict.over_plain}
        self.tell(self._about("ready", direction, name) | told)
        return entry

    def _guarded(self, direction: str, peer: Peer, act: Any) -> bool:
        """Whether `act` went through; if not, its row is told. A GPU that is lost ends the process."""
        try:
            act()
            return True
        except Wrong as wrong:
            found = {"status": rows.WRONG, "message": str(wrong)}
        except UnsupportedError as refused:
            found = {"status": rows.REFUSED, "message": refused.wrong or str(refused)}
        except Exception as failed:  # anything that a library may throw is that library's row
            found = {"status": rows.FAILED, "message": f"{type(failed).__name__}: {failed}"}
        self._row(direction, peer, found)
        if self.request["device"] == "cuda":
            try:
                torch.cuda.synchronize()
                gc.collect()  # what the failed call held
                torch.cuda.empty_cache()
            except RuntimeError:
                os._exit(LOST_DEVICE)
        return False

    def _row(self, direction: str, peer: Peer, figures: dict[str, Any]) -> None:
        message = re.sub(r"([^\w\s])\1{3,}", "", str(figures.get("message", "")))  # rules drawn across a terminal
        figures["message"] = " ".join(message.split())[:300]
        about = {"direction": direction, "peer": peer.name, "version": peer.version()}
        self.tell({"event": "row", "row": about | figures})

    @staticmethod
    def _about(event: str, direction: str, name: str) -> dict[str, Any]:
        return {"event": event, "direction": direction, "peer": name}


def end_with(parent: int) -> None:
    """Wait for the end of the process that asked, then end at once, with what was started here. Else a benchmark that
    is killed leaves a peer on the device, beside whatever is measured next.
    """
    while os.getppid() == parent:
        time.sleep(1)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    """Standard output is for the events alone: what libraries print goes to standard error."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with, args=(request.get("parent", os.getppid()),), daemon=True).start()
    Worker(request, lambda event: events.write(json.dumps(event) + "\n")).run()


if __name__ == "__main__":
    main()
