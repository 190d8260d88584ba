"""Attention by weft's GPU kernels, differentiable; arrays in the caller's memory order, no transposes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from weft.bias import ALIBI
from weft.caching import cached
from weft.jax.gpu.bind import order, physical, run
from weft.jax.gpu.entries import gradients_of_tables
from weft.jax.operator import Wanted, is_primal, is_zero, one_by_one
from weft.kernels.gpu.layout import OF_CALL, Layout, Options, TableForm, Vector
from weft.kernels.gpu.program import LaunchProgram, Slot, row_major
from weft.kernels.gpu.programs.backward import backward_program
from weft.kernels.gpu.programs.forward import chosen_forward
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.problem import Problem
from weft.score.text import SEPARATOR
from weft.target import Gpu

Arrays = dict[str, Array]
AXES = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3)}  # where batch, head, token and dim are


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

    def wanting(self, wanted: tuple[bool, ...]) -> Call:
        """The same with gradients of tables."""
        return replace(self, options=self.options._replace(wanted=wanted))

    def with_slopes(self) -> Call:
        """The same with slopes as the last table."""
        text = f"{self.options.score}{SEPARATOR if self.options.score else ''}{ALIBI}"
        return replace(self, options=self.options._replace(score=text))

    def times(self, size: int) -> Call:
        """The same for so many times the batch rows."""
        return replace(self, problem=replace(self.problem, batch=size * self.problem.batch))


_planned = cached(256)(plan_attention)


class Rows(NamedTuple):
    """What a call brings beside q, k and v: sinks and slopes (Hq,), the halves of a seed (2,), and tables that score
    functions read. None where there is none.
    """

    sinks: Array | None = None
    slopes: Array | None = None
    seed: Array | None = None
    tables: tuple[Array, ...] = ()

    @property
    def named(self) -> Arrays:
        """By slots."""
        every = {"sinks": self.sinks, "slopes": self.slopes, "seed": self.seed}
        found = {name: x for name, x in every.items() if x is not None}
        return found | {f"table_{number}": x for number, x in enumerate(self.tables)}


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(call: Call, q: Array, k: Array, v: Array, rows: Rows) -> tuple[Array, Array]:
    """(out in q's layout, lse (B, Hq, M) in float32)."""
    out, lse = _operator(call, _forward)({"q": q, "k": k, "v": v}, rows.named)
    return out, lse


def _saved(call: Call, q: Any, k: Any, v: Any, rows: Any) -> Any:
    learned = rows.slopes is not None and rows.slopes.perturbed
    if learned:  # then they are a table like any other
        rows = rows._replace(slopes=None, tables=(*rows.tables, rows.slopes))
        call = call.with_slopes()
    wanted = tuple(Wanted() if x.perturbed else None for x in rows.tables)
    q, k, v, rows = jax.tree.map(lambda x: x.value, (q, k, v, rows), is_leaf=is_primal)
    out, lse = attend(call, q, k, v, rows)
    return (out, lse), (q, k, v, out, lse, rows, wanted, Wanted() if learned else None)


def _gradients(call: Call, saved: Any, given: Any) -> Any:
    q, k, v, out, lse, rows, wanted, learned = saved
    call = call if learned is None else call.with_slopes()
    call = call.wanting(tuple(x is not None for x in wanted))
    dout, dlse = (None if is_zero(x) else x for x in given)
    dout = jnp.zeros_like(out) if dout is None else dout.astype(q.dtype)
    tensors = {"q": q, "k": k, "v": v, "out": out, "dout": dout, "lse": lse} | ({} if dlse is None else {"dlse": dlse})
    dq, dk, dv, *rest = _operator(call, _backward)(tensors, rows.named)
    left = iter(rest)
    dsinks = None if rows.sinks is None else next(left).sum(0).astype(rows.sinks.dtype)
    tables = [next(left) if want is not None else None for want in wanted]
    slopes = None if learned is None else tables.pop()
    return dq, dk, dv, Rows(dsinks, slopes, None, tuple(tables))


attend.defvjp(_saved, _gradients, symbolic_zeros=True)


# ---- programs --------------------------------------------------------------------------------------------------------
def _forward(call: Call, tensors: Arrays, rows: Arrays) -> list[Array]:
    """out, lse."""
    layout, plan = _layout(call, tensors, rows), call.plan
    made = _run(call, chosen_forward(plan, layout, call.options, call.gpu.processors), tensors | rows)
    return [made["out"], made["lse"]]


def _backward(call: Call, tensors: Arrays, rows: Arrays) -> list[Array]:
    """dq, dk, dv, where there are sinks their gradient of each batch row, (B, Hq), and gradients of wanted tables."""
    options = call.options._replace(with_delta="sinks" in rows)
    given = {name: tensors[name] for name in OF_CALL}
    vectors = {name: x for name, x in (tensors | rows).items() if name not in (*OF_CALL, "sinks", "lse")}
    program = backward_program(call.plan, _layout(call, given, vectors), options)
    made = _run(call, program, tensors | vectors)
    found = [made[name] for name in ("dq", "dk", "dv")]
    if "sinks" in rows:
        sinks, lse = rows["sinks"].astype(jnp.float32)[None, :, None], tensors["lse"]
        share = jnp.where(lse == -jnp.inf, 0.0, jnp.exp(jnp.minimum(sinks - lse, 0.0)))  # lse is rounded
        found.append(-(share * made["delta"]).sum(2))
    return found + gradients_of_tables(options, _tables(rows), made, call.plan)


def _operator(call: Call, program: Callable[[Call, Arrays, Arrays], list[Array]]) -> Callable[..., Any]:
    """A program as a function of arrays that jax.vmap maps by more batch rows. Where anything depends on batch rows, or
    vectors and tables are mapped, one element follows the other.
    """

    def one(tensors: Arrays, rows: Arrays) -> list[Array]:
        return program(call, tensors, rows)

    def more(size: int, mapped: Any, tensors: Arrays, rows: Arrays) -> tuple[list[Array], list[bool]]:
        flags, told = jax.tree.leaves(mapped), call.pattern.extent()[0] is not None
        if told or call.options.by_pairs or any(jax.tree.leaves(mapped[1])):
            leaves, tree = jax.tree.flatten((tensors, rows))
            made = one_by_one(lambda *args: found(*jax.tree.unflatten(tree, args)), size, flags, leaves)
            return made, [True] * len(made)
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
def _tables(rows: Arrays) -> list[Array]:
    """Of score functions, in order."""
    return [rows[f"table_{number}"] for number in range(sum(name.startswith("table_") for name in rows))]


def _layout(call: Call, tensors: Arrays, vectors: Arrays) -> Layout:
    axes = AXES[call.layout]
    strides = [row_major(tensors[name].shape) for name in OF_CALL if name in tensors]  # JAX sorts keys of a dict
    named = {name: x for name, x in vectors.items() if name in ("dlse", "sinks", "slopes")}
    forms: dict[str, Any] = {name: Vector(str(x.dtype), row_major(x.shape)) for name, x in named.items()}
    tables = tuple(TableForm(str(x.dtype), x.shape, row_major(x.shape)) for x in _tables(vectors))
    return Layout(tuple(tuple(one[axis] for axis in axes) for one in strides), True, **forms, tables=tables)


def _run(call: Call, program: LaunchProgram, given: Arrays) -> Arrays:
    """The outputs of a program by slot; those of q, k and v in the call's layout."""
    arrays = {slot.name: _as_slot(given[slot.name], slot) for slot in program.of_role("input")}
    made = run(program, arrays, call.gpu)
    return {slot.name: _in_layout(call, slot, x) for slot, x in zip(program.of_role("output"), made, strict=True)}


def _as_slot(x: Array, slot: Slot) -> Array:
    """An array in the order of its slot's memory; a seed stays two halves of its number."""
    return x if slot.name == "seed" else x.reshape(physical(slot))


def _in_layout(call: Call, slot: Slot, x: Array) -> Array:
    """An output as callers have it: its memory has the axes of the layout in order, but for axes of one."""
    if slot.name not in ("out", "dq", "dk", "dv"):
        return x
    axes = AXES[call.layout]
    wanted, there = ([axis for axis in some if slot.shape[axis] > 1] for some in (axes, order(slot)))
    assert wanted == there, f"{slot.name} lies otherwise than its call's arrays"
    return x.reshape(tuple(slot.shape[axis] for axis in axes))
