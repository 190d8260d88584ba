"""The parent: one worker process per problem, watched; a peer that crashes or hangs costs its own row."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import weft
from weft.bench import rows
from weft.bench.origin import commit
from weft.errors import UnsupportedError, install_line
from weft.testing.workloads import named

DIRECTIONS = {"fwd": ("fwd",), "bwd": ("bwd",), "both": ("fwd", "bwd")}
# torch.compile's pool of compilers costs a worker of its own more than it saves, and outlives a hanging one.
QUIET = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
STARTUP = 120.0  # seconds until a worker's first word: it imports torch
Pair = tuple[str, str]  # direction, peer


class Ended(Exception):
    """The worker is gone, or silent beyond its time; carries a status and a message."""


class Process:
    """A worker, and the events that it writes."""

    def __init__(self, request: dict[str, Any], limit: float) -> None:
        self.limit = limit
        self.errors: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in `close`
        source = str(Path(weft.__file__).parents[1])
        path = os.pathsep.join(x for x in (source, os.environ.get("PYTHONPATH", "")) if x)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "weft.bench.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.errors, text=True, start_new_session=True, env=QUIET | os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as stdin:  # if it is gone, `events` says so
            stdin.write(json.dumps(request | {"parent": os.getpid()}) + "\n")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # else it died in the middle of it
                self.lines.put(line)
        self.lines.put("")

    def events(self) -> Iterator[dict[str, Any]]:
        """Up to "done"; raises Ended if it does not come so far."""
        patience = max(self.limit, STARTUP)
        while True:
            line = self._line(patience)
            patience = self.limit
            if not line:
                raise Ended(rows.CRASHED, self._last_words())
            event = json.loads(line)
            if event["event"] == "done":
                return
            yield event

    def _line(self, patience: float) -> str:
        """The next line, empty if the worker is gone; what it started may outlive it and hold its output open."""
        deadline, gone = time.monotonic() + patience, False
        while time.monotonic() < deadline:
            try:
                return self.lines.get(timeout=0.5)
            except queue.Empty:
                if gone:
                    return ""
                gone = self.process.poll() is not None  # and once more: the last line may still be on its way
        raise Ended(rows.TIMED_OUT, f"no word for {patience:g} s")

    def _last_words(self) -> str:
        code = self.process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        self.errors.seek(0)
        last = [line for line in self.errors.read().splitlines() if line.strip()][-1:]
        return ": ".join([how, *last])

    def close(self) -> None:
        """End it, with whatever it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join(5)
        if not self.reader.is_alive():  # else a process of another group still holds the pipe
            assert self.process.stdout is not None
            self.process.stdout.close()
        self.errors.close()


@dataclass(frozen=True)
class Machine:
    """What a worker found: the device, the columns that say where rows come from, and the peers.

    absent: why a peer cannot run here; ways: the directions that it has.
    """

    device: str
    origin: dict[str, str]
    absent: dict[str, str]
    default: list[str]
    ways: dict[str, list[str]]


def probe(device: str, peers: str = "") -> Machine:
    """Ask a worker. device: "cpu", "cuda", or empty for the GPU if there is one. peers: as in Bench."""
    process = Process({"probe": True, "device": device, "peers": peers}, STARTUP)
    asked = f"weft bench --device {device or 'auto'}"
    try:
        found = next(process.events())
    except Ended as ended:
        status, message = ended.args
        raise UnsupportedError(asked, f"the worker {status}: {message}", install_line("torch")) from None
    finally:
        process.close()
    if not found["device"]:
        raise UnsupportedError(asked, "torch sees no GPU here", "use --device cpu, or a machine with one")
    told: dict[str, dict[str, Any]] = found["peers"]
    return Machine(
        found["device"], found["origin"] | {"commit": commit()},
        {name: peer["absent"] for name, peer in told.items() if peer["absent"]},
        [name for name, peer in told.items() if peer["default"]],
        {name: peer["ways"] for name, peer in told.items()},
    )  # fmt: skip


def _silent(name: str, event: dict[str, Any]) -> None:
    """Nobody watches."""


@dataclass
class Bench:
    """How to measure and where rows go. show: called with the workload's name and every event.

    limit: seconds without word from a worker before the peer at hand is given up. peers: a module with all_peers().
    """

    machine: Machine
    out: Path
    rounds: int = 7
    limit: float = 180.0
    fresh: bool = False
    peers: str = ""
    show: Callable[[str, dict[str, Any]], None] = _silent

    def run(self, workloads: Iterable[str], peers: Iterable[str], direction: str) -> list[dict[str, Any]]:
        """Measure what is not finished; returns the new rows, which are in the file by then."""
        origin = self.machine.origin
        done = rows.finished(rows.read(self.out), origin["machine"], origin["commit"])
        present = [peer for peer in peers if peer not in self.machine.absent]
        asked = (*DIRECTIONS[direction], "any")
        pairs = [(way, peer) for way in asked for peer in present if way in self.machine.ways[peer]]
        made: list[dict[str, Any]] = []
        for name in workloads:
            left = [pair for pair in pairs if self.fresh or (name, *pair) not in done]
            self.show(name, {"event": "workload", "left": len(left), "finished": len(pairs) - len(left)})
            made += self._workload(name, left)
        return made

    def _workload(self, name: str, left: list[Pair]) -> list[dict[str, Any]]:
        """All pairs of one workload: a worker for all, and another after each that was lost."""
        made = []
        while left:
            request: dict[str, Any] = {"workload": name, "entries": left, "device": self.machine.device}
            request |= {"rounds": self.rounds, "peers": self.peers}
            process, at_hand = Process(request, self.limit), left[0]
            try:
                for event in process.events():
                    if event["event"] in ("start", "round"):
                        at_hand = (event["direction"], event["peer"])
                    self.show(name, event)
                    if event["event"] == "row":
                        made.append(self._keep(name, event["row"]))
                        left = [pair for pair in left if pair != (event["row"]["direction"], event["row"]["peer"])]
                return made
            except Ended as ended:
                status, message = ended.args
                if at_hand in left:  # else its row was told before it took the worker with it
                    lost = {"direction": at_hand[0], "peer": at_hand[1], "status": status, "message": message}
                    self.show(name, {"event": "row", "row": lost})
                    made.append(self._keep(name, lost))
                    left = [pair for pair in left if pair != at_hand]
            finally:
                process.close()
        return made

    def _keep(self, name: str, figures: dict[str, Any]) -> dict[str, Any]:
        """A whole row, appended to the file."""
        workload = named(name)
        row = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), **self.machine.origin, "workload": name,
            "shape": workload.shape, "dtype": workload.dtype, "share": float(f"{workload.share:.4g}"), **figures,
        }  # fmt: skip
        rows.append(self.out, [row])
        return row
