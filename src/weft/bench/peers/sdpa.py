"""torch's scaled_dot_product_attention: FlashAttention-2, cuDNN, the CPU's own, and a dense boolean mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.bench.peers.base import Peer, Prepared, dense_mask, is_causal, is_full
from weft.testing.workloads import Workload

MASK_BYTES = 1 << 30  # the largest dense mask that is tried


@dataclass(frozen=True)
class Sdpa(Peer):
    """Without a mask tensor. kernel: a name in torch's SDPBackend, or none to let torch choose."""

    device: str = "cuda"
    kernel: str = ""

    def reason_absent(self, device: str) -> str:
        return "" if device == self.device else f"it runs on {self.device} only"

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        reasons = ["no attention sinks"] if workload.sinks else []
        if not (is_full(workload) or is_causal(workload)):
            reasons.append("full and causal attention only, but for a dense mask")
        if self.kernel and workload.dtype not in ("bfloat16", "float16"):
            reasons.append("16-bit types only")
        return reasons

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        causal = is_causal(workload)
        return Prepared(self._call(workload, {"is_causal": causal}))

    def _call(self, workload: Workload, options: dict[str, Any]) -> Any:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        options |= {"enable_gqa": workload.q_heads != workload.kv_heads}
        if not self.kernel:
            return lambda q, k, v: sdpa(q, k, v, **options)
        kernel = getattr(SDPBackend, self.kernel)  # an enumeration of C++, not of Python

        def run(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(kernel):
                return sdpa(q, k, v, **options)

        return run


@dataclass(frozen=True)
class Masked(Sdpa):
    """With a dense boolean mask, made beforehand."""

    def reason_absent(self, device: str) -> str:
        return ""

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        reasons = ["no attention sinks"] if workload.sinks else []
        if is_full(workload) or is_causal(workload):
            reasons.append("no mask is needed")
        nbytes = workload.m * workload.n * (workload.q_heads if workload.per_head else 1)
        if nbytes > MASK_BYTES:
            reasons.append(f"the mask would take {nbytes / 2**30:.0f} GiB")
        return reasons

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        return Prepared(self._call(workload, {"attn_mask": dense_mask(workload, tensors)}))


def peers() -> list[Peer]:
    """Four; the dense mask on both kinds of device."""
    return [
        Sdpa("fa2", kernel="FLASH_ATTENTION"),
        Sdpa("cudnn", kernel="CUDNN_ATTENTION"),
        Sdpa("sdpa", device="cpu"),
        Masked("sdpa-mask"),
    ]
