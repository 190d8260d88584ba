"""Attention by weft's GPU kernels, differentiable; arrays in the caller's memory order, no transposes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from weft.caching import cached
from weft.errors import UnsupportedError
from weft.jax.gpu.bind import order, physical, run
from weft.jax.operator import check_slopes, is_primal, is_zero
from weft.kernels.gpu.layout import OF_CALL, Layout, Options, Vector
from weft.kernels.gpu.program import LaunchProgram, Slot, row_major
from weft.kernels.gpu.programs.backward import backward_program
from weft.kernels.gpu.programs.forward import chosen_forward
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.problem import Problem
from weft.target import Gpu

AXES = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3)}  # where batch, head, token and channel are


@dataclass(frozen=True)
class Call:
    """What is static about a call: mask, sizes, card, what scores become, and how its arrays lie."""

    pattern: Pattern
    problem: Problem
    gpu: Gpu
    options: Options
    layout: str

    @property
    def plan(self) -> AttentionPlan:
        """Its plan. Raises what planning raises."""
        return _planned(self.pattern, self.problem, self.gpu)

    def times(self, size: int) -> Call:
        """The same for so many times the batch rows."""
        if self.pattern.extent()[0] is not None:
            raise UnsupportedError(
                f"jax.vmap of attention under {self.pattern}", "its mask tells batch rows apart",
                "map over a call whose mask does not, or fold the dimension into the batch yourself",
            )  # fmt: skip
        return replace(self, problem=replace(self.problem, batch=size * self.problem.batch))


_planned = cached(256)(plan_attention)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(call: Call, q: Array, k: Array, v: Array, sinks: Array | None, slopes: Array | None) -> tuple[Array, Array]:
    """(out in q's layout, lse (B, Hq, M) in float32). sinks, slopes: (Hq,) or None; slopes have no gradient."""
    out, lse = _operator(call, _forward)({"q": q, "k": k, "v": v}, _present(sinks=sinks, slopes=slopes))
    return out, lse


def _saved(call: Call, q: Any, k: Any, v: Any, sinks: Any, slopes: Any) -> Any:
    check_slopes(slopes)
    q, k, v, sinks, slopes = jax.tree.map(lambda x: x.value, (q, k, v, sinks, slopes), is_leaf=is_primal)
    out, lse = attend(call, q, k, v, sinks, slopes)
    return (out, lse), (q, k, v, out, lse, sinks, slopes)


def _gradients(call: Call, saved: Any, given: Any) -> Any:
    q, k, v, out, lse, sinks, slopes = saved
    dout, dlse = (None if is_zero(x) else x for x in given)
    dout = jnp.zeros_like(out) if dout is None else dout.astype(q.dtype)
    tensors = {"q": q, "k": k, "v": v, "out": out, "dout": dout, "lse": lse} | _present(dlse=dlse)
    dq, dk, dv, *dsinks = _operator(call, _backward)(tensors, _present(sinks=sinks, slopes=slopes))
    total = dsinks[0].sum(0).astype(sinks.dtype) if dsinks else None
    return dq, dk, dv, total, None if slopes is None else jnp.zeros_like(slopes)


attend.defvjp(_saved, _gradients, symbolic_zeros=True)


# ---- programs --------------------------------------------------------------------------------------------------------
Arrays = dict[str, Array]


def _forward(call: Call, tensors: Arrays, rows: Arrays) -> list[Array]:
    """out, lse."""
    layout, plan = _layout(call, tensors, rows), call.plan
    return _run(call, chosen_forward(plan, layout, call.options, call.gpu.processors), tensors | rows)


def _backward(call: Call, tensors: Arrays, rows: Arrays) -> list[Array]:
    """dq, dk, dv, and where there are sinks their gradient of each batch row, (B, Hq)."""
    options = call.options._replace(with_delta="sinks" in rows)
    given = {name: tensors[name] for name in OF_CALL}
    vectors = {name: x for name, x in (tensors | rows).items() if name in ("dlse", "slopes")}
    program = backward_program(call.plan, _layout(call, given, vectors), options)
    dq, dk, dv, *delta = _run(call, program, tensors | vectors)
    if not delta:
        return [dq, dk, dv]
    sinks, lse = rows["sinks"].astype(jnp.float32)[None, :, None], tensors["lse"]
    share = jnp.where(lse == -jnp.inf, 0.0, jnp.exp(jnp.minimum(sinks - lse, 0.0)))  # lse is rounded
    return [dq, dk, dv, -(share * delta[0]).sum(2)]


def _operator(call: Call, program: Callable[[Call, Arrays, Arrays], list[Array]]) -> Callable[..., Any]:
    """A program as a function of arrays that jax.vmap maps by more batch rows."""

    def one(tensors: Arrays, rows: Arrays) -> list[Array]:
        return program(call, tensors, rows)

    def more(size: int, mapped: Any, tensors: Arrays, rows: Arrays) -> tuple[list[Array], list[bool]]:
        if any(jax.tree.leaves(mapped[1])):
            raise UnsupportedError(
                "jax.vmap of attention over sinks or slopes", "batch rows share them", "use jax.lax.map over them"
            )
        every = {
            name: x if mapped[0][name] else jnp.broadcast_to(x[None], (size, *x.shape)) for name, x in tensors.items()
        }
        folded = {name: x.reshape(size * x.shape[1], *x.shape[2:]) for name, x in every.items()}
        made = _operator(call.times(size), program)(folded, rows)
        return [x.reshape(size, x.shape[0] // size, *x.shape[1:]) for x in made], [True] * len(made)

    found = custom_vmap(one)
    found.def_vmap(more)
    return found


# ---- arrays and slots ------------------------------------------------------------------------------------------------
def _present(**vectors: Array | None) -> dict[str, Array]:
    return {name: x for name, x in vectors.items() if x is not None}


def _layout(call: Call, tensors: Arrays, vectors: Arrays) -> Layout:
    axes = AXES[call.layout]
    strides = [row_major(tensors[name].shape) for name in OF_CALL if name in tensors]  # JAX sorts keys of a dict
    forms: dict[str, Any] = {name: Vector(str(x.dtype), row_major(x.shape)) for name, x in vectors.items()}
    return Layout(tuple(tuple(one[axis] for axis in axes) for one in strides), True, **forms)


def _run(call: Call, program: LaunchProgram, given: dict[str, Array]) -> list[Array]:
    """The outputs of a program; those of four axes in the call's layout."""
    arrays = {slot.name: given[slot.name].reshape(physical(slot)) for slot in program.of_role("input")}
    made = run(program, arrays, call.gpu)
    return [_in_layout(call, slot, x) for slot, x in zip(program.of_role("output"), made, strict=True)]


def _in_layout(call: Call, slot: Slot, x: Array) -> Array:
    """An output as callers have it: its memory has the axes of the layout in order, but for axes of one."""
    if len(slot.shape) != 4:
        return x
    axes = AXES[call.layout]
    wanted, there = ([axis for axis in some if slot.shape[axis] > 1] for some in (axes, order(slot)))
    assert wanted == there, f"{slot.name} lies otherwise than its call's arrays"
    return x.reshape(tuple(slot.shape[axis] for axis in axes))
