"""Packed documents in batch rows, (B, H, N, D), whose running sums are on the device: a layer of a model in training.

It is `device_documents.attention` of all rows, one after the other. A call of known shapes and strides is found by one
key, and makes no views that autograd would record: the layers of a model ask alike, and the host has to be ahead of
them all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.caching import emptied_by
from weft.kernels.backend import choose
from weft.pattern.algebra import Pattern
from weft.torch import device_documents, gpu
from weft.torch.bind import Bound
from weft.torch.call import autocast
from weft.torch.device_documents import Call, Chosen, Sums, bound_backward, bound_forward
from weft.torch.inputs import check_tensors, problem_of
from weft.torch.operator import DERIVATIVES, refusal

KEPT = 64  # calls
ADDRESS, STRIDE = Tensor.data_ptr, Tensor.stride
Tensors = tuple[Tensor, Tensor, Tensor]


class Packing(NamedTuple):
    """Documents of all batch rows: running sums (documents + 1,) in int32, contiguous; no document has more tokens than
    `longest`; the pattern of each; options of scores.
    """

    sums: Tensor
    longest: int
    pattern: Pattern
    scale: float | None = None
    softcap: float | None = None
    backend: str = "auto"

    @property
    def counted(self) -> Sums:
        """As `device_documents` takes them."""
        return Sums(self.sums, self.sums, True, (self.longest, self.longest))


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """A call for tensors of one form, of so many batch rows. pattern: kept, so that no other one takes its id.
    backward: by the strides and alignment of dout, and whether sums have an order.
    """

    call: Call
    pattern: Pattern
    batch: int
    forward: Bound
    backward: dict[Hashable, Bound] = field(default_factory=dict)


_prepared: dict[Hashable, Prepared] = {}
_lock = Lock()


def forget() -> None:
    """All calls."""
    with _lock:
        _prepared.clear()


emptied_by(forget)


def attention(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    """out (B, N, Hq, Dv) of q (B, Hq, N, D), k (B, Hkv, N, D) and v (B, Hkv, N, Dv), plain tensors that nobody watches.

    Each document sees itself alone, by its pattern. Raises as `weft.varlen_attention`.
    """
    q, k, v = autocast(q, k, v)
    key = (
        id(packing.pattern), packing.sums.shape[0], packing.longest, packing.scale, packing.softcap, packing.backend,
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.device, k.device, v.device, _aligned((q, k, v)), q.dtype is torch.float32 and gpu.tf32_wanted(),
    )  # fmt: skip
    found = _prepared.get(key)
    if found is None:
        joinable = _joinable(q), _joinable(k), _joinable(v)
        if any(x is not y for x, y in zip(joinable, (q, k, v), strict=True)):
            return attention(*joinable, packing)
        found = _prepare((q, k, v), packing)
        _keep(key, found)
    out: Tensor = Recorded.apply(q, k, v, packing.sums, found)
    return out


def _aligned(tensors: Sequence[Tensor]) -> bool:
    """Whether each begins on 16 bytes."""
    bits = 0
    for x in tensors:
        bits |= x.data_ptr()
    return not bits & 15


def _joinable(x: Tensor) -> Tensor:
    """(B, H, N, D) whose rows follow each other in memory."""
    if x.shape[0] <= 1 or x.stride(0) == x.shape[2] * x.stride(2):
        return x
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    """(B, H, N, D) as (1, H, B * N, D), by strides."""
    batch, heads, tokens, width = x.shape
    _, head, token, one = x.stride()
    return x.as_strided((1, heads, batch * tokens, width), (heads * head, head, token, one))


def _prepare(tensors: Tensors, packing: Packing) -> Prepared:
    flat = tuple(_joined(x.detach()) for x in tensors)
    check_tensors(*flat)
    choose(packing.backend, problem_of(*flat))
    device_documents.sums_of((packing.sums, packing.sums), True, (packing.longest, packing.longest), flat)
    chosen = Chosen(packing.scale, packing.softcap, packing.backend)
    call = device_documents.call_of(flat, packing.counted, packing.pattern, (None, None), chosen)
    options = gpu.options_of(call.how, call.plan)
    bound = bound_forward(call, gpu.layout_of(flat), options, flat[0].device)
    return Prepared(call, packing.pattern, tensors[0].shape[0], bound)


def _keep(key: Hashable, made: Prepared) -> None:
    with _lock:
        if len(_prepared) >= KEPT:
            del _prepared[next(iter(_prepared))]
        _prepared[key] = made


def _run(bound: Bound, tensors: Sequence[Tensor], sums: Tensor) -> Sequence[Tensor]:
    """The results of a program, by addresses alone where it is launches and nothing else."""
    if bound.plain:
        found = bound.at_addresses([*map(ADDRESS, tensors), at := sums.data_ptr(), at])
        if found is not None:
            return found
    return bound((*(_joined(x) if x.dim() == 4 else x for x in tensors), sums, sums))


def _in_rows(x: Tensor, batch: int) -> Tensor:
    """(1, H, B * N, D) as (B, H, N, D), by strides."""
    _, heads, tokens, width = x.shape
    _, head, token, one = x.stride()
    each = tokens // batch
    return x.as_strided((batch, heads, each, width), (each * token, head, token, one))


class Recorded(torch.autograd.Function):
    """A prepared call with its gradients."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sums: Tensor, prepared: Prepared) -> Tensor:
        found = _run(prepared.forward, (q, k, v), sums)
        out = _in_rows(found[0], prepared.batch).transpose(1, 2)
        ctx.prepared = prepared
        ctx.save_for_backward(q, k, v, out, found[1], sums)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise refusal("double backward", *DERIVATIVES)
        q, k, v, out, lse, sums = ctx.saved_tensors
        prepared = ctx.prepared
        tensors = (q, k, v, out.transpose(1, 2), _joinable(dout.transpose(1, 2)))
        bound = _backward(prepared, tensors, lse)
        found = _run(bound, (*tensors, lse), sums)
        dq, dk, dv = found
        return *(_in_rows(x, prepared.batch) for x in (dq, dk, dv)), None, None


def _backward(prepared: Prepared, tensors: Sequence[Tensor], lse: Tensor) -> Bound:
    dout, deterministic = tensors[4], torch.are_deterministic_algorithms_enabled()
    key = dout.stride(), _aligned((*tensors, lse)), deterministic
    bound = prepared.backward.get(key)
    if bound is None:
        flat, call = tuple(map(_joined, tensors)), prepared.call
        layout = gpu.layout_of(flat, lse=lse)
        options = gpu.options_of(call.how, call.plan)._replace(deterministic=deterministic)
        bound = bound_backward(call, layout, options, dout.device)
        prepared.backward[key] = bound
    return bound
