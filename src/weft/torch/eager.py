"""Attention without the dispatcher: what a call means is checked and planned once, then found again by one key.

The operators of `weft.torch.operator` are for whoever reads or rewrites them: torch.compile, export, modes, transforms,
subclasses. Where nobody does, they cost more than the rest of a call. Schemas are matched, a pattern crosses as bytes,
and every check is made again (times: benchmarks/notes/triton.md, T76).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, strided
from torch._C import (
    _are_functorch_transforms_active,
    _is_torch_function_mode_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from weft.caching import Recent
from weft.kernels.options import Modifiers
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import Problem
from weft.runtime.pipeline import compiled
from weft.torch.operator import Options, as_tensor, by_operator, gradients, modifiers

PLAIN = (Tensor, torch.nn.Parameter)
KEPT = 512  # calls
LAID_OUT = 16  # ways in which the tensors of one call lie
UNASKED = object()  # whether launches alone make gradients
EXPECTED = ("expected",)  # the place of calls whose gradients are compiled already
ADDRESS, STRIDE, CONTIGUOUS = Tensor.data_ptr, Tensor.stride, Tensor.is_contiguous
Rows = tuple[Tensor | None, Tensor | None]  # sinks, slopes


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A call that was checked and planned, for all tensors of its shapes, types and device.

    mask: kept, so that no other pattern takes its id. how: without slopes; these are data, like sinks. ready: by
    strides, what makes results, or gradients, and needs no more than launches.
    """

    mask: Pattern
    backend: str
    plan: AttentionPlan
    kernels: ModuleType
    how: Modifiers
    ready: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def modifiers(self, slopes: Tensor | None) -> Modifiers:
        """What is done to scores."""
        return self.how if slopes is None else replace(self.how, alibi=slopes.to(torch.float64))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows, with_lse: bool) -> tuple[Tensor, Tensor]:
        """(out, lse), without gradients; lse is anything if it is not wanted."""
        if rows[0] is None and rows[1] is None and self.kernels.ready_forward is not None:
            found = self.forward_at_once(q, k, v)
            if found is not None:
                return found[0], found[1]
        out, lse = self.kernels.forward((q, k, v), self.plan, self.modifiers(rows[1]), rows[0], with_lse)
        return out, lse

    def forward_at_once(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor] | None:
        """(out, lse) by nothing but launches; None where `forward` has more to do."""
        at = [q.data_ptr(), k.data_ptr(), v.data_ptr()]
        dense = q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
        key = None if dense else (q.stride(), k.stride(), v.stride()), (at[0] | at[1] | at[2]) & 15 == 0
        ready = self.ready.get(key, UNASKED)
        if ready is UNASKED:
            ready = self._keep(key, self.kernels.ready_forward(self.plan, self.how, *key, q.device))
        return ready and ready.at_addresses(at)

    def _keep(self, key: tuple[Any, ...], ready: Any) -> Any:
        if len(self.ready) >= LAID_OUT:
            self.ready.clear()
        self.ready[key] = ready
        return ready

    def expect_gradients(self, qkv: tuple[Tensor, Tensor, Tensor], rows: Rows, deterministic: bool) -> None:
        """Have the kernels of gradients compiled beside those of the forward."""
        self._keep(EXPECTED, None)
        if self.kernels.expect_gradients is not None:
            there = rows[0] is not None, rows[1] is not None
            self.kernels.expect_gradients(self.plan, self.modifiers(rows[1]), qkv, there, deterministic)

    def at_once(self, saved: list[Tensor], dout: Tensor, deterministic: bool) -> list[Tensor] | None:
        """(dq, dk, dv) by nothing but launches; None where `gradients` has more to do. saved: q, k, v, out, lse."""
        q, k, v, out, lse = saved
        tensors = (q, k, v, out, dout, lse)
        at = [*map(ADDRESS, tensors)]
        strides = None if all(map(CONTIGUOUS, tensors)) else (*map(STRIDE, tensors),)
        key = strides, (at[0] | at[1] | at[2] | at[3] | at[4] | at[5]) & 15 == 0, deterministic
        ready = self.ready.get(key, UNASKED)
        if ready is UNASKED:
            ready = self._keep(key, self.kernels.ready(self.plan, self.how, *key, dout.device))
        return ready and ready.at_addresses(at)

    def operator_options(self, rows: Rows, deterministic: bool) -> Options:
        """As the operators take them."""
        return Options(*rows, self.how.scale, self.how.softcap, self.backend, deterministic)


# ---- the key of a call -----------------------------------------------------------------------------------------------
_calls: Recent[Hashable, Call] = Recent(KEPT)


def key_of(q: Tensor, k: Tensor, v: Tensor, mask: Pattern, rows: tuple[Any, Any], options: tuple[Any, ...]) -> Any:
    """All that checks and plans look at; None where the operator is to be called.

    rows: sinks, slopes. options: as they were given; their types too, because True == 1 == 1.0. Not the memory: where
    tensors begin and their strides are for kernels to look at, gradients and modes for the call.
    """
    if is_watched() or not (is_plain(q) and is_plain(k) and is_plain(v)) or not (q.is_cuda or q.is_cpu):
        return None
    sinks, slopes = rows
    if not ((sinks is None or is_plain(sinks)) and (slopes is None or is_plain(slopes))):
        return None
    return (
        id(mask), q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device,
        options, tuple(map(type, options)), sinks is not None and (sinks.shape, sinks.dtype, sinks.device),
        slopes is not None and (slopes.shape, slopes.dtype, slopes.device, slopes.requires_grad),
    )  # fmt: skip


def is_watched() -> bool:
    """Whether someone wants to see operators: a mode, a transform, a trace."""
    return bool(
        _len_torch_dispatch_stack()
        or _is_torch_function_mode_enabled()
        or _are_functorch_transforms_active()
        or _is_tracing()
        or forward_ad._current_level >= 0
    )


def is_plain(x: Any) -> bool:
    """Whether x is a tensor that is what lies in its memory. As `is_dense`, in place: all are asked, at every call."""
    return type(x) in PLAIN and x.layout is strided and not (x.is_nested or x.is_neg() or x._is_zerotensor())


def find(key: Any) -> Call | None:
    """The call of that key, if there was one."""
    try:
        return _calls.get(key)
    except TypeError:  # an option without a hash: a check will name it
        return None


def prepare(key: Any, problem: Problem, mask: Pattern, options: Options) -> Call:
    """Plan a call that was checked. Raises what plans and backends refuse."""
    plan, backend = compiled(mask, problem, options.backend)
    how = replace(modifiers(plan, options), alibi=None)
    made = Call(mask, options.backend, plan, backend.load(), how)
    return _calls.keep(key, made)


# ---- autograd --------------------------------------------------------------------------------------------------------
def attend(
    call: Call, tensors: tuple[Tensor, Tensor, Tensor], rows: Rows, deterministic: bool, with_lse: bool
) -> tuple[Tensor, Tensor]:
    """(out, lse); recorded where a gradient may be asked for."""
    q, k, v = tensors
    sinks = rows[0]
    wanted = q.requires_grad or k.requires_grad or v.requires_grad or (sinks is not None and sinks.requires_grad)
    if wanted and torch.is_grad_enabled():
        if EXPECTED not in call.ready:
            call.expect_gradients((q, k, v), rows, deterministic)
        out, lse = Recorded.apply(q, k, v, *rows, call, deterministic)
        return out, lse
    return call.forward(q, k, v, rows, with_lse)


class Recorded(torch.autograd.Function):
    """A prepared call with its gradients."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        q, k, v, sinks, slopes, ctx.call, ctx.deterministic = args
        out, lse = ctx.call.forward(q, k, v, (sinks, slopes), True)
        # lse has the sinks in it: they are read again for their own gradient alone
        ctx.save_for_backward(q, k, v, out, lse, sinks if ctx.needs_input_grad[3] else None, slopes)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        *saved, sinks, slopes = ctx.saved_tensors
        if given[0] is None and given[1] is None:
            return (None,) * 7
        found = backward(ctx.call, saved, (sinks, slopes), given, ctx.deterministic)
        return *found, None, None, None


def backward(
    call: Call, saved: list[Tensor], rows: Rows, given: tuple[Tensor | None, ...], deterministic: bool
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """(dq, dk, dv, dsinks). saved: q, k, v, out, lse; given: dout, dlse, not both None; rows: slopes, and sinks where
    their gradient is wanted.
    """
    (dout, dlse), (sinks, slopes) = given, rows
    if _by_operator(dout, dlse):
        options = call.operator_options(rows, deterministic)
        numbers = as_tensor(call.mask.numbers)
        *found, dsinks, _ = by_operator((dout, dlse), (*saved, call.mask.structure, numbers, *options, []))
        return *found, None if sinks is None else dsinks
    if dlse is None and dout is not None and sinks is None and slopes is None and call.kernels.ready is not None:
        at_once = call.at_once(saved, dout, deterministic)
        if at_once is not None:
            return *at_once, None
    how = call.how if slopes is None else call.modifiers(slopes)
    *found, dsinks, _ = gradients(call.kernels, call.plan, how, (dout, dlse), (*saved, sinks), deterministic)
    return *found, dsinks


def _by_operator(dout: Tensor | None, dlse: Tensor | None) -> bool:
    """Whether gradients go through the operator.

    They do so under compiled autograd, and where a second derivative may be asked for, which it refuses. A batch of
    gradients (is_grads_batched) goes there too, and is taken apart.
    """
    if is_compiling() or torch.is_grad_enabled() or is_watched():
        return True
    for x in (dout, dlse):  # noqa: SIM110 - a generator would be one more function to enter
        if x is not None and (not is_plain(x) or is_legacy_batchedtensor(x)):
            return True
    return False
