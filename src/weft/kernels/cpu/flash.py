"""Rectangles and triangles through torch's fused attention for CPUs, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from weft.kernels.cpu.backward import Gradients, Saved
from weft.kernels.cpu.dense import Dense
from weft.kernels.cpu.forward import Inputs, Places, merge
from weft.kernels.cpu.how import How
from weft.kernels.options import Modifiers

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
Views = tuple[torch.Tensor, ...]


def serves(q: torch.Tensor, v: torch.Tensor, how: Modifiers) -> bool:
    """Whether torch's kernel computes such a call.

    It has no softcap, no ALiBi, no rules and no dropout of ours. It multiplies -inf by the scale, and takes values as
    wide as keys. It stops the process where a tensor is empty.
    """
    plain = how.softcap is None and how.alibi is None and not how.rules and how.dropout is None and how.scale > 0
    return plain and q.shape[-1] == v.shape[-1] and q.numel() > 0 and v.numel() > 0


def as_it_reads(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x in the dtype of accumulation (its own products round weights to 16 bits), each vector contiguous."""
    x = x.to(dtype)
    return x if x.stride(-1) == 1 else x.contiguous()


def forward(tensors: Inputs, result: Places, dense: tuple[Dense, ...], how: How) -> None:
    """Write out and lse, or merge with what is there of queries met before; shapes as `forward.forward` has them."""
    (q, k, v), (out, lse) = tensors, result
    rows = (q, out) if lse is None else (q, out, lse[..., None])
    for one in dense:
        for (q_, out_, *lse_), (k_, v_) in _calls(one, rows, (k, v)):
            o, new = FORWARD(q_, _shared(k_, q_), _shared(v_, q_), 0.0, one.causal, scale=how.scale)
            new = new[..., None]
            if not one.fresh:
                o, new = merge(o, new, out_, lse_[0])
            out_.copy_(o)
            if lse_:
                lse_[0].copy_(new)


def backward(saved: Saved, grads: Gradients, dense: tuple[Dense, ...], how: How, covers: bool) -> None:
    """Add the gradients of these pairs; dq is written where the program covers every row. saved.out is given."""
    assert saved.out is not None
    rows = (saved.q, saved.out, saved.d_out, saved.lse[..., None], grads.dq)
    for one in dense:
        for (q, out, d_out, lse, dq), (k, v, dk, dv) in _calls(one, rows, (saved.k, saved.v, grads.dk, grads.dv)):
            found = BACKWARD(d_out, q, _shared(k, q), _shared(v, q), out, lse[..., 0], 0.0, one.causal, scale=how.scale)
            (dq.copy_ if covers else dq.add_)(found[0])
            dk.add_(found[1].sum(1) if q.shape[1] > 1 else found[1][:, 0])
            dv.add_(found[2].sum(1) if q.shape[1] > 1 else found[2][:, 0])


def _calls(one: Dense, rows: Views, keys: Views) -> Iterator[tuple[Views, Views]]:
    """Views (batch, group, queries, d) of rows (P, G, M, d) and (batch, keys, d) of keys (P, N, d).

    They are of a run of boxes for each pair, or of all pairs for each box, whichever are fewer calls.
    """
    boxes = [one.queries.of(x, 2) for x in rows], [one.keys.of(x, 1) for x in keys]
    by_box = one.queries.count <= rows[0].shape[0]
    for i in range(min(one.queries.count, rows[0].shape[0])):
        many, few = (tuple(x[i] if by_box else x[:, i] for x in views) for views in boxes)
        yield many, few


def _shared(keys: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Keys as every head of a group sees them, without a copy."""
    return keys[:, None].expand(-1, q.shape[1], -1, -1)
