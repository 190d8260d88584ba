"""FlashInfer, forward only: ragged prefill with causal masks, left windows, packed documents or a custom mask."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from weft.bench.peers.base import Peer, Prepared, dense_mask, is_full, missing
from weft.bench.peers.fa4 import packed_lengths
from weft.testing.masks import Band
from weft.testing.workloads import Workload

WORKSPACE = 1 << 28  # bytes
MASK_PAIRS = 1 << 30  # booleans of the largest custom mask that is tried


@dataclass(frozen=True)
class FlashInfer(Peer):
    """BatchPrefillWithRaggedKVCacheWrapper; planning is timed apart, as the library does."""

    def reason_absent(self, device: str) -> str:
        return missing("flashinfer", device)

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        reasons = ["no attention sinks"] if workload.sinks else []
        reasons += ["inference only"] if direction == "bwd" else []
        reasons += [] if workload.dtype in ("bfloat16", "float16") else ["16-bit types only"]
        if workload.per_head:
            reasons.append("one mask for all heads")
        if not _by_options(workload) and workload.batch * workload.m * workload.n > MASK_PAIRS:
            reasons.append(f"a custom mask of more than {MASK_PAIRS} pairs")
        return reasons

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        import torch
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=tensors.device)
        wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        arguments = _arguments(workload, tensors)
        wrapper.plan(**arguments)
        tensors.synchronize()
        begin = time.perf_counter()
        wrapper.plan(**arguments)
        tensors.synchronize()
        planned = 1e3 * (time.perf_counter() - begin)

        def run(q: Any, k: Any, v: Any) -> Any:
            return wrapper.run(*(x.flatten(0, 1) for x in (q, k, v))).unflatten(0, q.shape[:2])

        return Prepared(run, plan_ms=planned)


def _by_options(workload: Workload) -> bool:
    """Whether flags and lengths say the mask."""
    left_window = isinstance(workload.mask, Band) and workload.mask.right == 0 and workload.mask.step == 1
    return is_full(workload) or left_window or bool(packed_lengths(workload))


def _arguments(workload: Workload, tensors: Any) -> dict[str, Any]:
    import torch

    packed, dtype = packed_lengths(workload), getattr(torch, workload.dtype)
    ends = [
        tensors.table([0, *accumulate(packed or [length] * workload.batch)]).int()
        for length in (workload.m, workload.n)
    ]
    found: dict[str, Any] = {
        "qo_indptr": ends[0], "kv_indptr": ends[1], "num_qo_heads": workload.q_heads,
        "num_kv_heads": workload.kv_heads, "head_dim_qk": workload.d, "head_dim_vo": workload.dv,
        "q_data_type": dtype, "kv_data_type": dtype,
    }  # fmt: skip
    if not _by_options(workload):
        return found | {"custom_mask": dense_mask(workload, tensors).flatten().repeat(workload.batch)}
    if is_full(workload):
        return found
    left = workload.mask.left if isinstance(workload.mask, Band) else None
    return found | {"causal": True, "window_left": -1 if left is None else left}


def peers() -> list[Peer]:
    """One."""
    return [FlashInfer("flashinfer", package="flashinfer-python", layout="bshd")]
