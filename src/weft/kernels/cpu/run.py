"""Entry points of the CPU backend: heads are folded into one batch dimension, then each share of a plan runs its program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from weft.kernels.cpu.backward import Gradients, Saved
from weft.kernels.cpu.backward import backward as run_backward
from weft.kernels.cpu.forward import forward as run_forward
from weft.kernels.cpu.program import program
from weft.kernels.cpu.scores import ACCUMULATE, Modifiers
from weft.plan.attention_plan import AttentionPlan, Heads

Tensors = tuple[torch.Tensor, ...]


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: AttentionPlan, how: Modifiers) -> Tensors:
    """(out, lse). q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv); out keeps q's memory order and dtype, lse is
    (B, Hq, M) in the dtype of accumulation. how.alibi: (Hq,) slopes or None."""
    dtype = ACCUMULATE[q.dtype]
    programs = [program(share.plan, dtype) for share in plan.forward]
    exact = dtype == q.dtype or not any(one.merges for one in programs)
    out = empty_like_rows(q, v.shape[3], q.dtype if exact else dtype)
    lse = torch.empty(q.shape[:3], dtype=dtype)
    if not all(one.covers for one in programs):
        out.zero_()
        lse.fill_(-torch.inf)
    for share in plan.forward:
        for heads in share.heads:
            for (q_, out_, lse_), (k_, v_), local in _folded((q, out, lse), (k, v), heads, how):
                run_forward((q_, k_, v_), (out_, lse_), program(share.plan, dtype), local)
    return out.to(q.dtype), lse


def backward(
    saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    plan: AttentionPlan,
    how: Modifiers,
) -> Tensors:
    """(dq, dk, dv). saved: q, k, v. rows: d_out (B, Hq, M, Dv), and lse and delta (B, Hq, M) as `backward.Saved` says."""
    q, k, v = saved
    dtype = ACCUMULATE[q.dtype]
    dq = empty_like_rows(q, q.shape[3], dtype).zero_()
    dk, dv = (torch.zeros_like(x, dtype=dtype, memory_format=torch.contiguous_format) for x in (k, v))
    for share in plan.forward:
        for heads in share.heads:
            for many, few, local in _folded((q, *rows, dq), (k, v, dk, dv), heads, how):
                q_, d_out, lse, delta, dq_ = many
                k_, v_, dk_, dv_ = few
                what = Saved(q_, k_, v_, lse, d_out, delta)
                run_backward(what, Gradients(dq_, dk_, dv_), program(share.plan, dtype), local)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def empty_like_rows(q: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """(B, Hq, M, width), uninitialised, with B, H and M ordered in memory as in q."""
    order = sorted(range(3), key=lambda dim: (-q.stride(dim), dim))
    shape = [q.shape[dim] for dim in order]
    place = [order.index(dim) for dim in range(3)]
    return torch.empty((*shape, width), dtype=dtype, device=q.device).permute(*place, 3)


def _folded(many: Tensors, few: Tensors, heads: Heads, how: Modifiers) -> Iterator[tuple[Tensors, Tensors, Modifiers]]:
    """Views with batch and key/value head as one dimension, where all strides allow it, else one batch row at a time.

    many: (B, Hq, M, ...) -> (pairs, group, M, ...); few: (B, Hkv, N, D) -> (pairs, N, D).
    """
    (b0, b1), (k0, k1), (g0, g1) = heads.batch, heads.kv, heads.group
    kv_heads = few[0].shape[1]
    split = [x.unflatten(1, (kv_heads, -1))[b0:b1, k0:k1, g0:g1] for x in many]
    shared = [x[b0:b1, k0:k1] for x in few]
    slopes = None if how.alibi is None else how.alibi.view(kv_heads, -1)[k0:k1, g0:g1]
    if all(_foldable(x) for x in (*split, *shared)):
        pairs = [tuple(x.flatten(0, 1) for x in xs) for xs in (split, shared)]
        yield *pairs, replace(how, alibi=None if slopes is None else slopes.repeat(b1 - b0, 1))  # type: ignore[misc]
        return
    for b in range(b1 - b0):
        yield tuple(x[b] for x in split), tuple(x[b] for x in shared), replace(how, alibi=slopes)


def _foldable(x: torch.Tensor) -> bool:
    return x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
