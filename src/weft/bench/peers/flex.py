"""FlexAttention: torch.compile as it comes, with max-autotune, and with FlashAttention-4's kernels (BACKEND=FLASH)."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import Any

from weft.bench.peers.base import Peer, Prepared, is_full, missing
from weft.testing.workloads import Workload


@dataclass(frozen=True)
class Flex(Peer):
    """mask_mod is the workload's formula; the block mask is made by a compiled create_block_mask beforehand."""

    mode: str | None = None
    backend: str = ""

    def reason_absent(self, device: str) -> str:
        if device == "cpu":
            if self.mode or self.backend:
                return "it runs on cuda only"
            return "" if shutil.which("c++") or shutil.which("g++") else "it needs a C++ compiler on the CPU"
        return missing("flash_attn.cute", device) if self.backend else missing("triton", device)

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        reasons = ["no attention sinks"] if workload.sinks else []
        if device == "cpu" and direction == "bwd":
            reasons.append("no backward on the CPU")
        if device == "cuda" and workload.dtype == "float64":
            reasons.append("no float64")
        return reasons

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        import torch
        from torch._functorch import config
        from torch.nn.attention.flex_attention import flex_attention

        config.donated_buffer = False  # a benchmark of the backward runs it many times on one forward
        mask, planned = (None, None) if is_full(workload) else _block_mask(workload, tensors)
        compiled = torch.compile(flex_attention, dynamic=False, mode=self.mode)
        options: dict[str, Any] = {"block_mask": mask, "enable_gqa": workload.q_heads != workload.kv_heads}
        if self.backend:
            options["kernel_options"] = {"BACKEND": self.backend}
        return Prepared(lambda q, k, v: compiled(q, k, v, **options), plan_ms=planned)


def _block_mask(workload: Workload, tensors: Any) -> tuple[Any, float]:
    """(the block mask, milliseconds of making it once create_block_mask is compiled)."""
    from torch.nn.attention.flex_attention import create_block_mask

    heads = workload.q_heads if workload.per_head else None
    mod = workload.predicate(tensors.table)

    def make() -> Any:
        mask = create_block_mask(mod, None, heads, workload.m, workload.n, device=tensors.device, _compile=True)
        tensors.synchronize()
        return mask

    make()
    begin = time.perf_counter()
    mask = make()
    return mask, 1e3 * (time.perf_counter() - begin)


def peers() -> list[Peer]:
    """Three; max-autotune takes minutes to compile, so it is measured only where it is named."""
    return [
        Flex("flex"),
        Flex("flex-tuned", mode="max-autotune-no-cudagraphs", default=False),
        Flex("flex-flash", backend="FLASH"),
    ]
