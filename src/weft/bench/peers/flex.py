"""FlexAttention: torch.compile as it comes, with max-autotune, and with FlashAttention-4's kernels (BACKEND=FLASH);
and what its masks cost.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

from weft.bench.peers.base import PLAN, Peer, Prepared, is_full, missing
from weft.bench.peers.block_mask import block_mask
from weft.testing.workloads import Workload


@dataclass(frozen=True)
class Flex(Peer):
    """mask_mod is the workload's formula; the block mask is made beforehand, by `block_mask`."""

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
        mask = None if is_full(workload) else block_mask(workload, tensors)
        compiled = torch.compile(flex_attention, dynamic=False, mode=self.mode)
        options: dict[str, Any] = {"block_mask": mask, "enable_gqa": workload.q_heads != workload.kv_heads}
        if self.backend:
            options["kernel_options"] = {"BACKEND": self.backend}
        return Prepared(lambda q, k, v: compiled(q, k, v, **options))


@dataclass(frozen=True)
class MaskMaking(Flex):
    """What its users pay for a mask: create_block_mask under torch.compile, compiled beforehand."""

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        return ["no mask is needed"] if is_full(workload) else []

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask

        heads, mod = workload.q_heads if workload.per_head else None, workload.predicate(tensors.table)
        compiled = torch.compile(create_block_mask)

        def make() -> Any:
            mask = compiled(mod, None, heads, workload.m, workload.n, device=tensors.device)
            tensors.synchronize()
            return mask

        return Prepared(make)


def peers() -> list[Peer]:
    """Those that compile for minutes are measured only where they are named."""
    return [
        Flex("flex"),
        Flex("flex-tuned", mode="max-autotune-no-cudagraphs", default=False),
        Flex("flex-flash", backend="FLASH", default=False),
        MaskMaking("flex-mask", kind=PLAN, default=False),
    ]
