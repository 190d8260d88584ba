"""A plain loop of scaled_dot_product_attention over slices of keys: what a user writes for a window on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weft.bench.peers.base import Peer, Prepared
from weft.testing.masks import Band
from weft.testing.workloads import Workload

BLOCK = 128  # queries at a time: the fastest of 64, 128 and 256 in most rows of benchmarks/results/cpu.csv


@dataclass(frozen=True)
class Slices(Peer):
    """Windows, dilated ones by residue classes; masks are made beforehand and shared by shape."""

    def reason_absent(self, device: str) -> str:
        return "" if device == "cpu" else "a loop of small calls is for the CPU"

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        mask, reasons = workload.mask, ["no attention sinks"] if workload.sinks else []
        if not isinstance(mask, Band) or mask.left is None:
            reasons.append("windows only")
        if workload.m != workload.n:
            reasons.append("as many queries as keys only")
        if direction == "bwd":
            reasons.append("autograd of slices adds whole tensors, which measures nothing")
        return reasons

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        steps, group = list(_slices(workload)), workload.q_heads != workload.kv_heads

        def run(q: Any, k: Any, v: Any) -> Any:
            out = q.new_empty(*q.shape[:3], v.shape[3])
            for rows, keys, mask in steps:
                part = sdpa(q[:, :, rows], k[:, :, keys], v[:, :, keys], attn_mask=mask, enable_gqa=group)
                out[:, :, rows] = part
            return out

        return Prepared(run)


def _slices(workload: Workload) -> Iterator[tuple[slice, slice, Any]]:
    """(queries, keys, additive mask) of each block of queries of each residue class."""
    import torch

    band, masks = workload.mask, {}
    assert isinstance(band, Band) and band.left is not None
    step, dtype = band.step, getattr(torch, workload.dtype)
    left, right = band.left // step, band.right // step
    for phase in range(step):
        length = len(range(phase, workload.n, step))
        for first in range(0, length, BLOCK):
            last = min(first + BLOCK, length)
            low, high = max(0, first - left), min(length, last + right)
            shape = (last - first, high - low, first - low)
            if shape not in masks:
                gap = torch.arange(low, high) - torch.arange(first, last)[:, None]
                dead = (gap < -left) | (gap > right)
                masks[shape] = torch.zeros(gap.shape, dtype=dtype).masked_fill_(dead, -torch.inf)
            yield _tokens(phase, step, first, last), _tokens(phase, step, low, high), masks[shape]


def _tokens(phase: int, step: int, first: int, last: int) -> slice:
    return slice(phase + step * first, phase + step * (last - 1) + 1, step)


def peers() -> list[Peer]:
    """One."""
    return [Slices("sdpa-slices")]
