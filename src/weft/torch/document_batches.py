"""Packed documents in batch rows, (B, H, N, D), whose running sums are on the device: a layer of a model in training.

It is `device_documents.attention` of all rows, one after the other. A call of known shapes and strides is found by one
key, and autograd records no views. The layers of a model ask alike, and the host has to be ahead of them all.
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
from weft.torch.device_documents import Call, Chosen, Sums, bound_apart
from weft.torch.device_tables import is_capturing
from weft.torch.inputs import check_tensors, problem_of
from weft.torch.operator import DERIVATIVES, refusal

KEPT = 64  # calls
ADDRESS, STRIDE = Tensor.data_ptr, Tensor.stride
Tensors = tuple[Tensor, Tensor, Tensor]
Both = tuple[Bound, Bound]


class Packing(NamedTuple):
    """Documents of all batch rows. sums: running sums (documents + 1,) in int32, contiguous, which do not change.
    longest: no document has more tokens. pattern: of each document. tables: kept for later calls with these sums.
    """

    sums: Tensor
    longest: int
    pattern: Pattern
    tables: dict[Hashable, list[Tensor]]
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
    backward: by the strides and alignment of dout, and whether sums have an order. Of each two programs the first makes
    tables, which all layers of a model share.
    """

    call: Call
    pattern: Pattern
    batch: int
    forward: Both
    backward: dict[Hashable, Both] = field(default_factory=dict)


_prepared: dict[Hashable, Prepared] = {}
_lock = Lock()


def forget() -> None:
    """All calls."""
    with _lock:
        _prepared.clear()


emptied_by(forget)


def attention(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    """out (B, N, Hq, Dv) of q (B, Hq, N, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv).

    They are plain tensors that no mode watches. Each document sees itself alone, by its pattern. Raises as
    `weft.varlen_attention`.
    """
    q, k, v = autocast(q, k, v)
    if q.is_cuda and is_capturing():  # replays may have other sums
        return _making_tables((q, k, v), packing)
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
    out: Tensor = Recorded.apply(q, k, v, packing, found)
    return out


def _making_tables(tensors: Tensors, packing: Packing) -> Tensor:
    """By a program that makes its tables itself."""
    q, k, v = (x.transpose(1, 2).flatten(0, 1).transpose(0, 1)[None] for x in tensors)
    ordered = torch.are_deterministic_algorithms_enabled()
    chosen = Chosen(packing.scale, packing.softcap, packing.backend, ordered)
    out, _ = device_documents.attention((q, k, v), packing.counted, packing.pattern, (None, None), chosen)
    return out[0].transpose(0, 1).unflatten(0, tensors[0].shape[:3:2])


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
    both = bound_apart(call, gpu.layout_of(flat), options, flat[0].device, False)
    return Prepared(call, packing.pattern, tensors[0].shape[0], both)


def _keep(key: Hashable, made: Prepared) -> None:
    with _lock:
        if len(_prepared) >= KEPT:
            del _prepared[next(iter(_prepared))]
        _prepared[key] = made


def _run(both: Both, tensors: Sequence[Tensor], packing: Packing) -> Sequence[Tensor]:
    """The results of a program, by addresses alone where it is launches and nothing else."""
    making, bound = both
    key = making, making.stream and making.stream(making.gpu)
    tables = packing.tables.get(key)
    if tables is None:  # the first layer on this stream
        tables = packing.tables[key] = making((packing.sums, packing.sums))
    tensors = (*tensors, *tables)
    if bound.plain:
        found = bound.at_addresses([*map(ADDRESS, tensors)])
        if found is not None:
            return found
    return bound([_joined(x) if x.dim() == 4 else x for x in tensors])


def _in_rows(x: Tensor, batch: int) -> Tensor:
    """(1, H, B * N, D) as (B, H, N, D), by strides."""
    _, heads, tokens, width = x.shape
    _, head, token, one = x.stride()
    each = tokens // batch
    return x.as_strided((batch, heads, each, width), (each * token, head, token, one))


class Recorded(torch.autograd.Function):
    """A prepared call with its gradients."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, packing: Packing, prepared: Prepared) -> Tensor:
        found = _run(prepared.forward, (q, k, v), packing)
        out = _in_rows(found[0], prepared.batch).transpose(1, 2)
        ctx.packing, ctx.prepared = packing, prepared
        ctx.save_for_backward(q, k, v, out, found[1])
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise refusal("double backward", *DERIVATIVES)
        q, k, v, out, lse = ctx.saved_tensors
        prepared = ctx.prepared
        tensors = (q, k, v, out.transpose(1, 2), _joinable(dout.transpose(1, 2)), lse)
        dq, dk, dv = _run(_backward(prepared, tensors), tensors, ctx.packing)
        return *(_in_rows(x, prepared.batch) for x in (dq, dk, dv)), None, None


def _backward(prepared: Prepared, tensors: Sequence[Tensor]) -> Both:
    ordered = torch.are_deterministic_algorithms_enabled()
    key = tensors[4].stride(), _aligned(tensors), ordered
    both = prepared.backward.get(key)
    if both is None:
        *four, lse = tensors
        flat, call = tuple(map(_joined, four)), prepared.call
        options = gpu.options_of(call.how, call.plan)._replace(deterministic=ordered)
        both = bound_apart(call, gpu.layout_of(flat, lse=lse), options, lse.device, True)
        prepared.backward[key] = both
    return both
