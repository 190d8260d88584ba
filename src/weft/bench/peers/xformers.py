"""xFormers' memory_efficient_attention with its attention biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.bench.peers.base import Peer, Prepared, is_full, missing
from weft.bench.peers.fa4 import is_window, packed_lengths
from weft.testing.masks import Band
from weft.testing.workloads import Workload


@dataclass(frozen=True)
class Xformers(Peer):
    """Dense, causal, windows and packed documents."""

    def reason_absent(self, device: str) -> str:
        return missing("xformers", device)

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        reasons = ["no attention sinks"] if workload.sinks else []
        if workload.q_heads != workload.kv_heads:
            reasons.append("grouped heads need a fifth dimension")
        if not (is_full(workload) or is_window(workload) or packed_lengths(workload)):
            reasons.append("dense, causal, windows and packed documents only")
        return reasons

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        from xformers.ops import memory_efficient_attention

        bias, packed = _bias(workload), bool(packed_lengths(workload))

        def run(q: Any, k: Any, v: Any) -> Any:
            if not packed:
                return memory_efficient_attention(q, k, v, attn_bias=bias)
            flat = (x.flatten(0, 1)[None] for x in (q, k, v))  # block-diagonal biases want a batch of one
            return memory_efficient_attention(*flat, attn_bias=bias)[0].unflatten(0, q.shape[:2])

        return Prepared(run)


def _bias(workload: Workload) -> Any:
    from xformers.ops.fmha import attn_bias

    lengths, mask = packed_lengths(workload), workload.mask
    if lengths:
        return attn_bias.BlockDiagonalMask.from_seqlens(lengths).make_causal()
    if is_full(workload):
        return None
    assert isinstance(mask, Band)
    if mask.left is None:
        return attn_bias.LowerTriangularFromBottomRightMask()
    return attn_bias.LocalAttentionFromBottomRightMask(window_left=mask.left, window_right=mask.right)


def peers() -> list[Peer]:
    """One."""
    return [Xformers("xformers", package="xformers", layout="bshd")]
