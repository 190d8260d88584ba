"""What a pattern costs before any kernel runs: rows, tiles and transposed tiles, for the backend that "auto" takes on
the device, from empty caches. No tensors.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from weft.bench.peers.base import PLAN, Peer, Prepared
from weft.bench.peers.weft import forget
from weft.testing.workloads import Workload


@dataclass(frozen=True)
class Planning(Peer):
    """Planning alone."""

    def reason_absent(self, device: str) -> str:
        return ""

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        from weft.runtime.pipeline import compiled

        pattern, problem = workload.make(), workload.problem(tensors.device)

        def plan() -> None:
            forget()
            assert compiled(pattern, problem)[0].transposed

        return Prepared(plan, plan_ms=1e3 * median(_seconds(plan) for _ in range(3)))


def _seconds(call: Any) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def peers() -> list[Peer]:
    """One, measured only where it is named."""
    return [Planning("weft-plan", package="weft", kind=PLAN, default=False)]
