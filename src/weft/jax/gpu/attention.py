"""Attention by weft's GPU kernels, differentiable; arrays in the caller's memory order, no transposes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from weft.jax.gpu.bind import order, physical, run
from weft.kernels.gpu.layout import Layout, Options, Vector
from weft.kernels.gpu.program import LaunchProgram, Slot, row_major
from weft.kernels.gpu.programs.backward import backward_program
from weft.kernels.gpu.programs.forward import forward_program
from weft.kernels.gpu.programs.sinks import sink_gradient_program
from weft.kernels.gpu.programs.split_kv import split_kv_program
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.problem import Problem
from weft.target import Gpu

AXES = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3)}  # where batch, head, token and channel are


@dataclass(frozen=True, eq=False)
class Call:
    """What is static about a call: its plan, what scores become, and how its arrays lie. Compared by identity."""

    plan: AttentionPlan
    options: Options
    layout: str

    @property
    def gpu(self) -> Gpu:
        """The card that it is planned for."""
        assert isinstance(self.plan.target, Gpu)
        return self.plan.target


def call_of(pattern: Pattern, problem: Problem, options: Options, layout: str, gpu: Gpu) -> Call:
    """A call, planned. options: `one_argument`, since a result of XLA is one buffer. Raises what planning raises."""
    return Call(plan_attention(pattern, problem, gpu), options._replace(one_argument=True), layout)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(call: Call, q: Array, k: Array, v: Array, sinks: Array | None, slopes: Array | None) -> tuple[Array, Array]:
    """(out in q's layout, lse (B, Hq, M) in float32). sinks, slopes: (Hq,) or None; slopes have no gradient."""
    return _forward(call, q, k, v, sinks, slopes)


def _forward(call: Call, q: Array, k: Array, v: Array, sinks: Any, slopes: Any) -> tuple[Array, Array]:
    given = {"q": q, "k": k, "v": v}
    layout = _layout(call, given, sinks=sinks, slopes=slopes)
    plan = call.plan
    if plan.by_rows is not None:
        program = split_kv_program(plan.by_rows.plan, layout, call.options, call.gpu.processors)
    else:
        program = forward_program(plan, layout, call.options)
    out, lse = _run(call, program, given | _present(sinks=sinks, slopes=slopes))
    return out, lse


def _saved(call: Call, q: Array, k: Array, v: Array, sinks: Any, slopes: Any) -> Any:
    out, lse = _forward(call, q, k, v, sinks, slopes)
    return (out, lse), (q, k, v, out, lse, sinks, slopes)


def _gradients(call: Call, saved: Any, given: Any) -> Any:
    q, k, v, out, lse, sinks, slopes = saved
    dout, dlse = given
    options = call.options._replace(with_delta=sinks is not None)
    tensors = {"q": q, "k": k, "v": v, "out": out, "dout": dout.astype(q.dtype)}
    layout = _layout(call, tensors, dlse=dlse, slopes=slopes)
    program = backward_program(call.plan, layout, options)
    dq, dk, dv, *delta = _run(call, program, tensors | {"lse": lse} | _present(dlse=dlse, slopes=slopes))
    dsinks = None
    if sinks is not None:
        form = Vector(str(sinks.dtype), (1,))
        found = sink_gradient_program(tuple(lse.shape), form)
        (dsinks,) = _run(call, found, {"sinks": sinks, "lse": lse, "delta": delta[0]})
    return dq, dk, dv, dsinks, None if slopes is None else jnp.zeros_like(slopes)


attend.defvjp(_saved, _gradients)


# ---- arrays and slots ------------------------------------------------------------------------------------------------
def _present(**vectors: Array | None) -> dict[str, Array]:
    return {name: x for name, x in vectors.items() if x is not None}


def _layout(call: Call, tensors: dict[str, Array], **vectors: Array | None) -> Layout:
    axes = AXES[call.layout]
    strides = [row_major(x.shape) for x in tensors.values()]
    forms = {name: Vector(str(x.dtype), row_major(x.shape)) for name, x in _present(**vectors).items()}
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
