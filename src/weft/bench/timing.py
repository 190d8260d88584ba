"""How a call is timed: device events on a GPU, the clock on a CPU; a few calls a round, inputs rotated.

On a GPU the device first spins for as long as the host needs to queue the round. So an event pair holds the device's
time and none of the host's. What the host needs is measured apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from math import ceil
from pathlib import Path
from statistics import median

import torch

from weft.bench import rows

ROUND = 2e-3  # seconds of calls in one round, at least
MOST = 50  # calls in one round, at most
CALM = 0.1  # cores that other processes may keep busy without being mentioned
ALONE = 2.0  # GiB of a GPU outside torch's memory that libraries may take, contexts and code: an estimate
SPIN_HERTZ = 2e9  # of torch.cuda._sleep's cycles, about
QUEUED = 8  # calls that are queued before the host waits: far fewer launches than a queue takes
HOST = 0.1  # seconds of calls whose host time is taken, about


class Calls:
    """One function on each of several inputs, called in turn."""

    def __init__(self, functions: list[Callable[[], object]], device: str) -> None:
        self.functions, self.device = functions, device
        self.turn = count()
        self.milliseconds: list[float] = []
        self._synchronize()
        self.host = self._host_seconds()
        self.each = max(1, min(MOST, ceil(ROUND / max(1e-7, self._estimate()))))

    def call(self) -> object:
        """The next input's call."""
        return self.functions[next(self.turn) % len(self.functions)]()

    def round(self) -> None:
        """Time one round."""
        self.milliseconds += self._on_gpu(self.each) if self.device == "cuda" else self._on_cpu(self.each)

    def memory(self) -> int | None:
        """Bytes allocated during a call beyond what is left after it; a GPU's only."""
        if self.device != "cuda":
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        result = self.call()
        torch.cuda.synchronize()
        extra = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        del result
        return extra

    def _estimate(self) -> float:
        """Seconds of a call."""
        return 1e-3 * median(self._on_gpu(2) if self.device == "cuda" else self._on_cpu(1))

    def _host_seconds(self) -> float:
        """Of a warm call that is queued and not waited for; 0 on a CPU, where every call is waited for."""
        found: list[float] = []
        end = time.perf_counter() + HOST
        while self.device == "cuda" and not (found and time.perf_counter() > end):
            found += self._on_cpu(QUEUED)
            self._synchronize()
        return 1e-3 * median(found) if found else 0.0

    def _on_gpu(self, calls: int) -> list[float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        torch.cuda._sleep(int(min(0.02, 2 * self.host * calls + 1e-4) * SPIN_HERTZ))
        for begin, end in events:
            begin.record()
            self.call()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in events]

    def _on_cpu(self, calls: int) -> list[float]:
        found = []
        for _ in range(calls):
            begin = time.perf_counter()
            self.call()
            found.append(1e3 * (time.perf_counter() - begin))
        return found

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


class BusyCores:
    """How many cores other processes kept busy since it was made, where the system tells (Linux)."""

    def __init__(self) -> None:
        self.begin = self._now()

    def message(self) -> str:
        """What a row of a CPU says about it, empty for a quiet machine."""
        wall, busy, own = (after - before for before, after in zip(self.begin, self._now(), strict=True))
        cores = max(0.0, busy - own) / max(wall, 1e-9)
        return f"{rows.DISTURBED} {cores:.1f} cores busy" if cores > CALM else ""

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds: by the clock, busy over all cores, busy for this process."""
        stat, busy = Path("/proc/stat"), 0.0
        if stat.exists():
            user, nice, system, _, _, irq, soft = map(int, stat.read_text().split()[1:8])
            busy = (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, sum(os.times()[:4])


class HeldMemory:
    """How much of a GPU's memory other processes held, when it was made or later: what they compute nobody tells."""

    def __init__(self) -> None:
        self.begin = self._now()

    def message(self) -> str:
        """What a row of a GPU says about it, empty if nobody else is there."""
        held = max(self.begin, self._now())
        return f"{rows.DISTURBED} {held:.1f} GiB of the GPU" if held > ALONE else ""

    @staticmethod
    def _now() -> float:
        """GiB that are neither free nor torch's own."""
        free, total = torch.cuda.mem_get_info()
        return float(total - free - torch.cuda.memory_reserved()) / (1 << 30)
