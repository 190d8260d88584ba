"""The tensors of one problem: several copies where they are small, so that a call does not find its inputs in L2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

import torch
from torch import Tensor

from weft.testing.workloads import Workload

COPIES = 3  # at most; together they fill the L2 twice where they can
CPU_CACHE = 32 << 20  # bytes, where torch does not say


@dataclass(frozen=True)
class Case:
    """q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv), dout (B, Hq, M, Dv). Axes 1 and 2 may be exchanged."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor


@dataclass
class Tensors:
    """Made when first asked for: a plan needs none of them."""

    workload: Workload
    device: str

    @cached_property
    def generator(self) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(0)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers in the workload's dtype."""
        dtype = getattr(torch, self.workload.dtype)
        return torch.randn(shape, generator=self.generator, device=self.device, dtype=dtype)

    @cached_property
    def cases(self) -> list[Case]:
        """The copies, each with numbers of its own; results are checked on the first."""
        w = self.workload
        q, k = (w.batch, w.q_heads, w.m, w.d), (w.batch, w.kv_heads, w.n, w.d)
        shapes = (q, k, (*k[:3], w.dv), (*q[:3], w.dv))
        copies = min(COPIES, ceil(2 * self._cache() / w.nbytes("fwd")))
        return [Case(*(self.normal(*shape) for shape in shapes)) for _ in range(copies)]

    @cached_property
    def _exchanged(self) -> list[Case]:
        made = ((x.transpose(1, 2).contiguous() for x in (c.q, c.k, c.v, c.dout)) for c in self.cases)
        return [Case(*case) for case in made]

    def laid_out(self, layout: str) -> list[Case]:
        """The copies in a peer's layout, contiguous there."""
        return self.cases if layout == "bhsd" else self._exchanged

    @cached_property
    def sinks(self) -> Tensor | None:
        """(Hq,), where the workload has sinks."""
        return self.normal(self.workload.q_heads) if self.workload.sinks else None

    def table(self, values: Any) -> Tensor:
        """A list or array of numpy on the device: what `Workload.predicate` asks for."""
        return torch.as_tensor(values, device=self.device)

    def arange(self, length: int) -> Tensor:
        """0, 1, ..., on the device."""
        return torch.arange(length, device=self.device)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _cache(self) -> int:
        return torch.cuda.get_device_properties(0).L2_cache_size if self.device == "cuda" else CPU_CACHE
