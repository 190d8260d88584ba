"""The programs of a checked call of packed documents, and its gradients.

The documents of all batch rows lie one after the other: programs see (B, H, N, D) as (1, H, B * N, D). Those that are
launches alone are given addresses, so a call makes no view, and autograd records none. The layers of a model ask alike,
and the host has to be ahead of them all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.programs.documents import Documents, apart, documents_backward_program, documents_forward_program
from weft.kernels.options import Modifiers
from weft.planning.attention_plan import AttentionPlan
from weft.torch import gpu
from weft.torch.bind import Bound, gpu_of, refuse_capture
from weft.torch.operator import DERIVATIVES, refusal

KEPT = 64  # forms of the tensors of one call
ADDRESS = Tensor.data_ptr
Tensors = tuple[Tensor, Tensor, Tensor]
Rows = tuple[Tensor | None, Tensor | None]  # sinks, slopes
Tables = dict[Hashable, list[Tensor]]
Vectors = dict[str, Tensor | None]


class Programs(NamedTuple):
    """What computes results. making: what makes its tables; None where `rest` does so itself."""

    making: Bound | None
    rest: Bound


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A call that was checked and planned, for all sums of so many documents. programs: by the form of its tensors."""

    plan: AttentionPlan
    documents: Documents
    how: Modifiers
    programs: dict[Hashable, Programs] = field(default_factory=dict)


class Given(NamedTuple):
    """Running sums in int32, contiguous, and a block table where keys lie in pages. tables: those of kernels, kept for
    later calls with these sums, which do not change; None where each call makes its own. deterministic: gradients have
    the same bits each time.
    """

    sums: tuple[Tensor, ...]
    tables: Tables | None
    deterministic: bool


def forward(call: Call, tensors: Tensors, rows: Rows, given: Given) -> tuple[Tensor, Tensor]:
    """out (B, N, Hq, Dv) and lse (1, Hq, B * N)."""
    out, lse = _run(call, tensors, {"sinks": rows[0], "slopes": rows[1]}, given)
    return in_rows(out, tensors[0].shape[0]).transpose(1, 2), lse


class Recorded(torch.autograd.Function):
    """A call with its gradients."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        q, k, v, sinks, slopes, call, given = args
        out, lse = forward(call, (q, k, v), (sinks, slopes), given)
        ctx.call, ctx.tables, ctx.deterministic = call, given.tables, given.deterministic
        # lse has the sinks in it: they are read again for their own gradient alone
        ctx.save_for_backward(q, k, v, out, lse, sinks if ctx.needs_input_grad[3] else None, slopes, *given.sums)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise refusal("double backward", *DERIVATIVES)
        q, k, v, out, lse, sinks, slopes, *sums = ctx.saved_tensors
        dout, dlse = given
        if dout is None and dlse is None:
            return (None,) * 7
        dout = torch.zeros_like(out) if dout is None else dout
        tensors, vectors = (q, k, v, out.transpose(1, 2), dout.transpose(1, 2)), {"lse": lse, "dlse": dlse}
        again = Given(tuple(sums), ctx.tables, ctx.deterministic)
        found = _run(ctx.call, tensors, {**vectors, "slopes": slopes}, again, with_delta=sinks is not None)
        dq, dk, dv = [in_rows(x, q.shape[0]) for x in found[:3]]
        return dq, dk, dv, None if sinks is None else gpu.sink_gradient(sinks, lse, found[3]), None, None, None


# ---- programs --------------------------------------------------------------------------------------------------------
def _run(
    call: Call, tensors: Sequence[Tensor], vectors: Vectors, given: Given, with_delta: bool = False
) -> Sequence[Tensor]:  # fmt: skip
    """(out, lse) of q, k and v; of these with out and dout (dq, dk, dv), and delta where it is asked for."""
    beside = [x for x in vectors.values() if x is not None]
    key = (
        given.tables is None, given.deterministic, with_delta, *[x is not None for x in vectors.values()],
        call.plan.problem.dtype == "float32" and gpu.tf32_wanted(), _aligned(tensors), _aligned(beside),
        *[x.stride() for x in tensors], *[(x.dtype, x.stride()) for x in beside],
    )  # fmt: skip
    programs = call.programs.get(key)
    if programs is None:
        joined = tensors if call.documents.paged else [joinable(x) for x in tensors]
        if any(x is not y for x, y in zip(joined, tensors, strict=True)):
            return _run(call, joined, vectors, given, with_delta)
        if len(call.programs) >= KEPT:
            call.programs.clear()
        options = gpu.options_of(call.how, call.plan)
        options = options._replace(with_delta=with_delta, deterministic=given.deterministic or len(tensors) == 3)
        layout = gpu.layout_of(tuple(tensors if call.documents.paged else map(one_row, tensors)), **vectors)
        programs = call.programs[key] = _programs(call, layout, options, tensors[0].device, given.tables is not None)
    making, rest = programs
    listed = [*tensors, *beside, *(given.sums if making is None else _tables(making, given))]
    found = rest.at_addresses([*map(ADDRESS, listed)]) if rest.plain else None  # alike for one row and for several
    if found is not None:
        return found
    return rest(listed if call.documents.paged else [one_row(x) if x.dim() == 4 else x for x in listed])


def _aligned(tensors: Iterable[Tensor]) -> bool:
    """Whether each begins on 16 bytes."""
    bits = 0
    for x in tensors:
        bits |= x.data_ptr()
    return not bits & 15


def _programs(call: Call, layout: Layout, options: Options, device: torch.device, shares: bool) -> Programs:
    """shares: tables are made apart."""
    backward = len(layout.strides) == 5
    refuse_capture(f"{'gradients of ' * backward}documents of {call.plan.problem}", gpu_of(device))
    made = documents_backward_program if backward else documents_forward_program
    program = made(call.plan, layout, options, call.documents)
    if not shares:
        return Programs(None, Bound(program, device))
    tables, rest = apart(program)
    return Programs(Bound(tables, device), Bound(rest, device))


def _tables(making: Bound, given: Given) -> list[Tensor]:
    """Made by the first layer on this stream."""
    assert given.tables is not None
    key = making, making.stream and making.stream(making.gpu)
    tables = given.tables.get(key)
    if tables is None:
        tables = given.tables[key] = making(given.sums)
    return tables


# ---- batch rows and one row ------------------------------------------------------------------------------------------
def joinable(x: Tensor) -> Tensor:
    """(B, H, N, D) whose batch rows follow each other in memory."""
    if x.shape[0] == 1 or x.stride(0) == x.shape[2] * x.stride(2):
        return x
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def one_row(x: Tensor) -> Tensor:
    """(B, H, N, D) as (1, H, B * N, D), by strides."""
    batch, heads, tokens, width = x.shape
    if batch == 1:
        return x
    _, head, token, one = x.stride()
    return x.as_strided((1, heads, batch * tokens, width), (heads * head, head, token, one))


def in_rows(x: Tensor, batch: int) -> Tensor:
    """(1, H, B * N, D) as (B, H, N, D), by strides."""
    if batch == 1:
        return x
    _, heads, tokens, width = x.shape
    _, head, token, one = x.stride()
    each = tokens // batch
    return x.as_strided((batch, heads, each, width), (each * token, head, token, one))
