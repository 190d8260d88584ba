"""What a pattern costs before any kernel runs: rows, tiles and transposed tiles, for the backend that "auto" takes on
the device, from empty caches. On a GPU also the tables that its kernels read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.bench.peers.base import PLAN, Peer, Prepared
from weft.bench.peers.weft import planned
from weft.testing.workloads import Workload


@dataclass(frozen=True)
class Planning(Peer):
    """Planning alone."""

    def reason_absent(self, device: str) -> str:
        return ""

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        def plan() -> None:
            assert planned(workload, tensors.device, "auto").transposed

        return Prepared(plan)


def peers() -> list[Peer]:
    """One, measured only where it is named."""
    return [Planning("weft-plan", package="weft", kind=PLAN, default=False)]
