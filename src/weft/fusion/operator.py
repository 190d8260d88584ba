"""The registered operators weft::recognised_attention and weft::recognised_attention_backward.

Each decides at every call whether weft or the unfused graph computes the attention. The gradient of the unfused graph
is that of the graph, computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _get_deterministic_algorithms
from torch.autograd import forward_ad

from weft.errors import WeftError
from weft.fusion.decide import Decision, Replaced, decide, drop, named
from weft.kernels.options import ACCUMULATE, rows_in_order_of
from weft.torch import eager
from weft.torch.call import attend
from weft.torch.inputs import problem_of
from weft.torch.operator import DERIVATIVES, LIB, TAGS, TRANSFORMS, Options, gradients, refusal

GIVEN = "float? scale, Tensor[] leaves, SymInt[] numbers, str name, int place"
LIB.define(
    f"recognised_attention(Tensor q, Tensor k, Tensor v, Tensor? sinks, {GIVEN}, bool with_lse) -> (Tensor, Tensor)",
    tags=TAGS,
)
LIB.define(
    f"recognised_attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"Tensor? sinks, {GIVEN}) -> (Tensor, Tensor, Tensor, Tensor)", tags=TAGS,
)  # fmt: skip
Three = tuple[Tensor, Tensor, Tensor]
Four = tuple[Tensor, Tensor, Tensor, Tensor]


class Given(NamedTuple):
    """What follows q, k and v in both schemas. leaves, numbers: what masks are computed from. name: of a `Replaced`.
    place: how many operators of that name stand before in the graph.
    """

    sinks: Tensor | None
    scale: float | None
    leaves: Sequence[Tensor]
    numbers: Sequence[int]
    name: str
    place: int

    def unfused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As the graph had it."""
        sinks = () if self.sinks is None else (self.sinks,)
        return named(self.name).as_in_graph((q, k, v, *sinks), self.leaves, self.numbers, self.scale)


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *told, with_lse = rest
    given = Given(*told)
    one = named(given.name)
    with torch.no_grad():
        found = decide(one, (q, k, v), given.leaves, given.numbers, given.place == 0)
        out, lse = _empty(q, v, one, with_lse)
        if found.pattern is None:
            return _laid_out(given.unfused(q, k, v), out), lse.zero_()
        options = given.scale, one.softcap, 0, "auto", None
        try:
            result, sums = attend(_four(q, k, v), found.pattern, (given.sinks, None), options, with_lse)
        except WeftError as refused:
            drop(one, (q, k, v), given.leaves, given.numbers, refused)
            return _laid_out(given.unfused(q, k, v), out), lse.zero_()
        return _laid_out(result if q.dim() == 4 else result[0], out), sums.contiguous() if with_lse else lse


def _backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> Four:
    given = Given(*rest)
    found = decide(named(given.name), (q, k, v), given.leaves, given.numbers, False)
    if found.pattern is None:
        dqkv, dsinks = _unfused_gradients(given, (q, k, v), dout)
    else:
        dqkv, dsinks = _gradients(given, found, (q, k, v), (out, lse, dout))
    dq, dk, dv = (_laid_out(g, _like(x)) for g, x in zip(dqkv, (q, k, v), strict=True))
    return dq, dk, dv, q.new_empty(0) if dsinks is None else dsinks


def _unfused_gradients(given: Given, qkv: Three, dout: Tensor) -> tuple[list[Tensor], Tensor | None]:
    """Those of the graph, which is computed again."""
    with torch.enable_grad(), _recording():
        inputs = [x.detach().requires_grad_() for x in qkv]
        if given.sinks is not None:
            given = given._replace(sinks=given.sinks.detach().requires_grad_())
        result = given.unfused(*inputs)
        wanted = inputs if given.sinks is None else [*inputs, given.sinks]
    grads = torch.autograd.grad(result, wanted, dout, allow_unused=True)
    found = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, grads, strict=True)]
    return found[:3], found[3] if given.sinks is not None else None


def _recording() -> Any:
    """Autograd inside an operator, which the dispatcher calls below autograd."""
    inside = torch._C._dispatch_tls_local_include_set()
    outside = torch._C._dispatch_tls_local_exclude_set().remove(torch._C.DispatchKey.AutogradFunctionality)
    return torch._C._ForceDispatchKeyGuard(inside, outside)


def _gradients(given: Given, found: Decision, qkv: Three, rest: Three) -> tuple[list[Tensor], Tensor | None]:
    """By weft. rest: out, lse, dout."""
    out, lse, dout = rest
    sinks, scale, softcap = given.sinks, given.scale, named(given.name).softcap
    q, k, v, out, dout = _four(*qkv, out, dout)
    key = ("recognised", id(found.pattern), q.shape, k.shape, v.shape, q.dtype, q.device, scale, softcap)
    call = eager.find(key)
    if call is None:
        assert found.pattern is not None
        options = Options(None, None, scale, softcap, "auto", False)
        call = eager.prepare(key, problem_of(q, k, v), found.pattern, options)
    deterministic, dsinks = _get_deterministic_algorithms(), None
    at_once = None
    if call.kernels.ready is not None and sinks is None:
        at_once = call.at_once([q, k, v, out, lse], dout, deterministic)
    if at_once is None:
        saved = (q, k, v, out, lse, sinks)
        *at_once, dsinks, _ = gradients(call.kernels, call.plan, call.how, (dout, None), saved, deterministic)
    return (at_once if qkv[0].dim() == 4 else [x[0] for x in at_once]), dsinks


def _four(*tensors: Tensor) -> tuple[Tensor, ...]:
    """As (B, H, S, D)."""
    return tensors if tensors[0].dim() == 4 else tuple(x[None] for x in tensors)


def _empty(q: Tensor, v: Tensor, one: Replaced, with_lse: bool) -> tuple[Tensor, Tensor]:
    """Room for the results, as fake tensors too have it."""
    batch_and_heads = q.shape[:2] if q.dim() == 4 else (1, q.shape[0])
    rows = q.shape[-2] if with_lse else 0
    lse = q.new_empty((*batch_and_heads, rows), dtype=ACCUMULATE.get(q.dtype, torch.float32))
    if q.dim() == 4 and one.as_query:
        return rows_in_order_of(q, v.shape[3], q.dtype), lse
    return q.new_empty((*q.shape[:-1], v.shape[-1])), lse


def _like(x: Tensor) -> Tensor:
    return rows_in_order_of(x, x.shape[3], x.dtype) if x.dim() == 4 else x.new_empty(x.shape)


def _laid_out(result: Tensor, room: Tensor) -> Tensor:
    return result if result.stride() == room.stride() else room.copy_(result)


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, name, _place, with_lse = rest
    return _empty(q, v, named(name), with_lse)


def _backward_fake(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> Four:
    sinks = Given(*rest).sinks
    return _like(q), _like(k), _like(v), q.new_empty(0) if sinks is None else torch.empty_like(sinks)


# ---- autograd --------------------------------------------------------------------------------------------------------
def _below_autograd(*args: Any) -> tuple[Tensor, Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        out, lse = torch.ops.weft.recognised_attention.default(*args)
    return out, lse


class _Recorded(torch.autograd.Function):
    """The operator with its gradients; masks have none."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Any, rest: Any) -> tuple[Tensor, Tensor]:
        ctx.scale, leaves, *ctx.rest = rest
        out, lse = _below_autograd(q, k, v, sinks, *rest, True)
        ctx.save_for_backward(q, k, v, out, lse, sinks, *leaves)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, sinks, *leaves = ctx.saved_tensors
        given = (sinks, ctx.scale, leaves, *ctx.rest)
        dq, dk, dv, dsinks = torch.ops.weft.recognised_attention_backward(dout, q, k, v, out, lse, *given)
        return dq, dk, dv, None if sinks is None else dsinks, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise refusal("forward-mode differentiation", *DERIVATIVES)


def _autograd(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    if _are_functorch_transforms_active():
        raise refusal("a torch.func transform", *TRANSFORMS)
    *given, with_lse = rest
    wanted = any(x is not None and x.requires_grad for x in (q, k, v, sinks))
    if (torch.is_grad_enabled() and wanted) or forward_ad._current_level >= 0:
        out, lse = _Recorded.apply(q, k, v, sinks, tuple(given))
        return out, lse
    return _below_autograd(q, k, v, sinks, *given, with_lse)


def _refuse_double(*_: Any, **__: Any) -> Any:
    raise refusal("double backward", *DERIVATIVES)


for _name, _real, _fake in (
    ("recognised_attention", _forward, _forward_fake),
    ("recognised_attention_backward", _backward, _backward_fake),
):
    LIB.impl(_name, _real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"weft::{_name}", _fake, lib=LIB)
LIB.impl("recognised_attention", _autograd, "Autograd")
torch.library.register_autograd("weft::recognised_attention_backward", _refuse_double, lib=LIB)
RECOGNISED = torch.ops.weft.recognised_attention.default
