"""flash-attn-4, called directly: dense, causal, windows, and packed documents or chunks as variable lengths."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from weft.bench.peers.base import Peer, Prepared, is_full, missing
from weft.testing.masks import Band, Chunks, Documents
from weft.testing.workloads import Workload


def packed_lengths(workload: Workload) -> list[int]:
    """Lengths of causal documents that say the same as the mask; empty where there are none."""
    mask = workload.mask
    if isinstance(mask, Documents) and not mask.shared:
        return [length for length in mask.lengths if length] * workload.batch
    if isinstance(mask, Chunks) and workload.m == workload.n:
        whole, rest = divmod(workload.n, mask.size)
        return ([mask.size] * whole + [rest] * (rest > 0)) * workload.batch
    return []


def is_window(workload: Workload) -> bool:
    """Causal or a window without gaps."""
    return isinstance(workload.mask, Band) and workload.mask.step == 1


@dataclass(frozen=True)
class FlashAttention4(Peer):
    """flash_attn.cute. Its causal and window masks are aligned with the last keys, as the workloads are."""

    def reason_absent(self, device: str) -> str:
        return missing("flash_attn.cute", device)

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        reasons = [] if workload.dtype in ("bfloat16", "float16") else ["16-bit types only"]
        if not (is_full(workload) or is_window(workload) or packed_lengths(workload)):
            reasons.append("dense, causal, windows and packed documents only")
        return reasons

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

        lengths, sinks = packed_lengths(workload), tensors.sinks
        if lengths:
            ends = tensors.table([0, *accumulate(lengths)]).int()
            packed = {
                "cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths),
                "causal": True, "learnable_sink": sinks,
            }  # fmt: skip

            def run(q: Any, k: Any, v: Any) -> Any:
                out = first_of(flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), **packed))
                return out.unflatten(0, q.shape[:2])

            return Prepared(run)
        options: dict[str, Any] = {"learnable_sink": sinks}
        if isinstance(workload.mask, Band):
            window = {"window_size": (workload.mask.left, workload.mask.right)}
            options |= {"causal": True} if workload.mask == Band() else window
        return Prepared(lambda q, k, v: first_of(flash_attn_func(q, k, v, **options)))


def first_of(result: Any) -> Any:
    """Some versions return (out, lse)."""
    return result[0] if isinstance(result, tuple) else result


def peers() -> list[Peer]:
    """One."""
    return [FlashAttention4("fa4", package="flash-attn-4", layout="bshd")]
