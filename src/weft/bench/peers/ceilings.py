"""Yardsticks of the machine: a large matrix product and a large copy, in the same process as the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.bench.peers.base import CEILING, Peer, Prepared
from weft.testing.workloads import Workload

SIDE = {"cuda": 8192, "cpu": 2048}  # of the square matrices
COPIED = {"cuda": 1 << 31, "cpu": 1 << 28}  # bytes


@dataclass(frozen=True)
class Matmul(Peer):
    """A square product in the workload's dtype."""

    def reason_absent(self, device: str) -> str:
        return ""

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        import torch

        side = SIDE[tensors.device]
        a, b = (tensors.normal(side, side) for _ in range(2))
        out = torch.empty_like(a)
        return Prepared(lambda: torch.mm(a, b, out=out), work=(2.0 * side**3, 3 * a.nbytes))


@dataclass(frozen=True)
class Copy(Matmul):
    """A copy on the device; read and write are counted."""

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        import torch

        source = torch.ones(COPIED[tensors.device], dtype=torch.uint8, device=tensors.device)
        target = torch.empty_like(source)
        return Prepared(lambda: target.copy_(source), work=(0.0, 2 * source.nbytes))


def peers() -> list[Peer]:
    """Both."""
    return [Matmul("matmul", kind=CEILING), Copy("copy", kind=CEILING)]
