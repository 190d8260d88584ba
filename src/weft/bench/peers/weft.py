"""weft itself: one adapter for each of its backends."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from weft.bench.peers.base import Peer, Prepared
from weft.caching import clear
from weft.kernels.backend import BACKENDS, Backend
from weft.planning.attention_plan import AttentionPlan
from weft.planning.tiling import Direction
from weft.testing.workloads import Workload


@dataclass(frozen=True)
class Weft(Peer):
    """weft.attention with a named backend."""

    backend: Backend | None = None

    def reason_absent(self, device: str) -> str:
        return ""

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        assert self.backend is not None
        return [reason.why for reason in self.backend.reasons_against(workload.problem(device))]

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        import weft

        assert self.backend is not None
        pattern, sinks, name = workload.make(), tensors.sinks, self.backend.name
        seconds = median(_plan_seconds(workload, tensors.device, name) for _ in range(3))
        clear()
        return Prepared(
            lambda q, k, v: weft.attention(q, k, v, pattern, sinks=sinks, backend=name), plan_ms=1e3 * seconds
        )

    def version(self) -> str:
        import weft

        return weft.__version__


def _plan_seconds(workload: Workload, device: str, backend: str) -> float:
    begin = time.perf_counter()
    planned(workload, device, backend)
    return time.perf_counter() - begin


def planned(workload: Workload, device: str, backend: str) -> AttentionPlan:
    """A plan from empty caches; for a GPU with its tables there, of every direction."""
    from weft.runtime.pipeline import compiled

    clear()
    plan, chosen = compiled(workload.make(), workload.problem(device), backend)
    if chosen.name == "triton":
        tables(plan, device)
    return plan


def tables(plan: AttentionPlan, device: str) -> list[Any]:
    """What kernels read, of every direction, on the device; past the cache that would keep it."""
    import torch

    from weft.kernels.gpu.programs.launches import packed

    ways: tuple[Direction, ...] = ("forward", "dq", "dkdv")
    found = [packed.__wrapped__(plan.towards(way), plan.problem, way == "dkdv") for way in ways]
    read = (table for one in found for table in (*one.tables, one.sum_rows) if table is not None)
    return [torch.from_numpy(table.words).to(device) for table in read]


def peers() -> list[Peer]:
    """One for each backend."""
    return [Weft(f"weft-{backend.name}", backend=backend) for backend in BACKENDS]
