"""Entry points of the CPU backend: heads are folded into one batch dimension, then each share of a plan runs its
program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from weft.caching import cached
from weft.kernels.cpu import flash
from weft.kernels.cpu.backward import Gradients, Saved
from weft.kernels.cpu.backward import backward as run_backward
from weft.kernels.cpu.forward import forward as run_forward
from weft.kernels.cpu.how import How
from weft.kernels.cpu.program import Program, program
from weft.kernels.cpu.rules import Heads as Folded
from weft.kernels.cpu.scores import Workspace
from weft.kernels.options import ACCUMULATE, Modifiers, join_sinks, rows_in_order_of, sink_gradient
from weft.planning.attention_plan import AttentionPlan
from weft.planning.heads import Heads

__all__ = ["backward", "expect_gradients", "forward", "ready", "ready_forward", "sink_gradient"]
Tensors = tuple[torch.Tensor, ...]
ready = ready_forward = expect_gradients = None  # nothing is launched or compiled here


def forward(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    plan: AttentionPlan,
    how: Modifiers,
    sinks: torch.Tensor | None = None,
    with_lse: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of q (B, Hq, M, D), k (B, Hkv, N, D) and v (B, Hkv, N, Dv). sinks, how.alibi: (Hq,) or None.

    The result keeps q's memory order and dtype. The logarithms are (B, Hq, M) in the dtype of accumulation, or (B, Hq,
    0) if they are not wanted.
    """
    q, k, v = tensors
    dtype = ACCUMULATE[q.dtype]
    programs = programs_of(plan, dtype, flash.serves(q, v, how))
    if any(one.dense for one in programs):
        q, k, v = (flash.as_it_reads(x, dtype) for x in tensors)
    joined = sinks is not None or any(one.merges for one in programs)
    out = rows_in_order_of(tensors[0], v.shape[3], dtype if joined else tensors[0].dtype)
    lse = torch.empty((*q.shape[:2], q.shape[2] if with_lse or joined else 0), dtype=dtype)
    if not all(one.covers for one in programs):
        out.zero_()
        lse.fill_(-torch.inf)
    work, local_how = Workspace(dtype), How.of(how, dtype)
    for share, one in zip(plan.forward, programs, strict=True):
        for heads in share.heads:
            for (q_, out_, lse_), (k_, v_), local in _folded((q, out, lse), (k, v), heads, local_how):
                result = out_, lse_ if lse.shape[2] == q.shape[2] else None
                flash.forward((q_, k_, v_), result, one.dense, local)
                run_forward((q_, k_, v_), result, one, local, work)
    if sinks is not None:
        lse = join_sinks(out, lse, sinks)
    return out.to(tensors[0].dtype), lse if with_lse else lse.new_empty((*q.shape[:2], 0))


def backward(
    saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None],
    plan: AttentionPlan,
    how: Modifiers,
    deterministic: bool = True,
    with_delta: bool = True,
) -> Tensors:
    """(dq, dk, dv, delta), always the same bits; delta (B, Hq, M) = rowsum(d_out * out) - d_lse, as it accumulates.
    Under rules also the gradients of their tables, one after the other, None of those that are not wanted.

    saved: q, k, v. rows: out and d_out (B, Hq, M, Dv), lse (B, Hq, M) and its gradient, if there is one. with_delta: it
    is made in any case here.
    """
    q, k, v = saved
    out, d_out, lse, d_lse = rows
    dtype = ACCUMULATE[q.dtype]
    products = d_out.to(dtype) * out.to(dtype)
    if with_delta:  # rows that see nothing have some share of a sink, and any d_out
        products.masked_fill_(out == 0, 0.0)
    delta = products.sum(-1)
    if d_lse is not None:
        delta.sub_(d_lse.masked_fill(lse == -torch.inf, 0.0))  # of rows without keys it may be NaN, as logaddexp's is
    dq, dk, dv = (rows_in_order_of(x, x.shape[3], dtype) for x in (q, k, v))
    # torch's kernel makes delta of out and d_out, and has no place for a gradient of lse
    programs = programs_of(plan, dtype, d_lse is None and flash.serves(q, v, how))
    if any(one.dense for one in programs):
        q, k, v, out, d_out = (flash.as_it_reads(x, dtype) for x in (q, k, v, out, d_out))
    covered = all(one.covers for one in programs)
    for x in (dk, dv) if covered else (dq, dk, dv):
        x.zero_()
    work, local_how = Workspace(dtype), How.of(how, dtype)
    for share, one in zip(plan.forward, programs, strict=True):
        for heads in share.heads:
            for many, few, local in _folded((q, d_out, lse, delta, dq, out), (k, v, dk, dv), heads, local_how):
                q_, d_out_, lse_, delta_, dq_, out_ = many
                k_, v_, dk_, dv_ = few
                what, grads = Saved(q_, k_, v_, lse_, d_out_, delta_, out_), Gradients(dq_, dk_, dv_)
                run_backward(what, grads, one, local, work)
                flash.backward(what, grads, one.dense, local, one.covers)
    found = (x.to(given.dtype) for x, given in zip((dq, dk, dv), saved, strict=True))
    return *found, delta, *_of_tables(how, local_how)


def _of_tables(what: Modifiers, how: How) -> Iterator[torch.Tensor | None]:
    """Gradients of the tables of all rules, in their dtypes."""
    for given, rule in zip(what.rules, how.rules, strict=False):  # ALiBi comes last
        grads = rule.grads or (None,) * len(given.tables)
        for table, found in zip(given.tables, grads, strict=True):
            yield None if found is None else found.to(table.dtype)


@cached(32)
def programs_of(plan: AttentionPlan, dtype: torch.dtype, with_dense: bool) -> tuple[Program, ...]:
    """The programs of a plan, one for each of its distinct heads; of 32 plans, however many heads they tell apart."""
    problem = plan.problem if with_dense else None
    return tuple(program(share.plan, dtype, problem) for share in plan.forward)


def _folded(many: Tensors, few: Tensors, heads: Heads, how: How) -> Iterator[tuple[Tensors, Tensors, How]]:
    """Views with batch and key/value head as one dimension, where all strides allow it, else one batch row at a time.

    many: (B, Hq, M, ...) -> (pairs, group, M, ...); few: (B, Hkv, N, D) -> (pairs, N, D).
    """
    (b0, b1), (k0, k1), (g0, g1) = heads.batch, heads.kv, heads.group
    kv_heads = few[0].shape[1]
    group = many[0].shape[1] // kv_heads
    split = [x.unflatten(1, (kv_heads, group))[b0:b1, k0:k1, g0:g1] for x in many]
    shared = [x[b0:b1, k0:k1] for x in few]
    h = torch.arange(many[0].shape[1]).unflatten(0, (kv_heads, group))[k0:k1, g0:g1] if how.by_index else None
    if all(_foldable(x) for x in (*split, *shared)):
        pairs = [tuple(x.flatten(0, 1) for x in xs) for xs in (split, shared)]
        yield *pairs, how if h is None else _of_heads(how, b0, b1, h)  # type: ignore[misc]
        return
    for b in range(b0, b1):
        local = how if h is None else _of_heads(how, b, b + 1, h)
        yield tuple(x[b - b0] for x in split), tuple(x[b - b0] for x in shared), local


def _of_heads(how: How, first: int, last: int, h: torch.Tensor) -> How:
    """For batch rows [first, last) and query heads h (key/value heads, group), folded into pairs."""
    b = torch.arange(first, last).repeat_interleave(h.shape[0])
    return replace(how, heads=Folded(b, h.repeat(last - first, 1)))


def _foldable(x: torch.Tensor) -> bool:
    return x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
