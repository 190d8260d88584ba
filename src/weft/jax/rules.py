"""Score functions in jax.numpy: their steps, their derivatives, and gradients of the tables that they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from weft.score.derive import derived
from weft.score.expression import Step
from weft.score.value import composed


class Entry(NamedTuple):
    """What a read of a table gave: the table's number, the indices, and the derivative of the score by it."""

    table: int
    indices: tuple[Any, ...]
    by: Any


class Evaluated(NamedTuple):
    """A score, its derivative by the score it was made of, and those by entries of tables."""

    score: Array
    slope: Array
    entries: tuple[Entry, ...]


def evaluate(text: str, env: Mapping[str, Any], tables: Sequence[Array]) -> Evaluated:
    """Score functions over pairs. env: score, b, h, q, k and shift, which broadcast against each other.

    An index beyond a table's end is the end: tiles have pairs that nobody sees, and calls are checked beforehand.
    """
    found = derived(composed(text))
    shape, kind = jnp.shape(env["score"]), env["score"].dtype
    values: list[Any] = []
    for step in found.steps:
        values.append(_step(step, values, tables, env))
    slope = 0.0 if found.by_score is None else values[found.by_score]
    entries = tuple(
        Entry(found.steps[read].value, _indices(found.steps[read], values, tables), values[by])
        for read, by in found.by_read
    )
    score, slope = (jnp.broadcast_to(jnp.asarray(x, kind), shape) for x in (values[found.result], slope))
    return Evaluated(score, slope, entries)


def indices_of(text: str, read: int, env: Mapping[str, Any], tables: Sequence[Array]) -> tuple[Any, ...]:
    """The indices of one read of score functions, within the table. read: its step."""
    steps = composed(text).steps
    values: list[Any] = []
    for step in steps[:read]:
        values.append(_step(step, values, tables, env))
    return _indices(steps[read], values, tables)


def _step(step: Step, values: Sequence[Any], tables: Sequence[Array], env: Mapping[str, Any]) -> Any:
    if step.op in env:
        return env[step.op]
    if step.op == "const":
        return step.value if step.kind != "real" else float(step.value)
    if step.op == "size":
        table, axis = step.value
        return tables[table].shape[axis]
    if step.op == "read":
        found = tables[step.value][_indices(step, values, tables)]
        return found.astype(jnp.bool_) if step.kind == "bool" else found
    args = [values[arg] for arg in step.args]
    if step.op == "real":
        return jnp.asarray(args[0], env["score"].dtype)
    return OPERATIONS[step.op](*args)


def _indices(step: Step, values: Sequence[Any], tables: Sequence[Array]) -> tuple[Any, ...]:
    """Of a read, within the table; a table without axes has one entry."""
    args = [values[arg] for arg in step.args] or [0]
    return tuple(jnp.clip(i, 0, n - 1) for i, n in zip(args, tables[step.value].shape, strict=True))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.true_divide, "min": jnp.minimum,
    "max": jnp.maximum, "neg": jnp.negative, "abs": jnp.abs, "floordiv": jnp.floor_divide, "mod": jnp.mod,
    "where": jnp.where, "lt": jnp.less, "le": jnp.less_equal, "eq": jnp.equal, "ne": jnp.not_equal,
    "and": jnp.logical_and, "or": jnp.logical_or, "xor": jnp.logical_xor, "not": jnp.logical_not,
    "exp": jnp.exp, "log": jnp.log, "tanh": jnp.tanh, "sqrt": jnp.sqrt, "sin": jnp.sin, "cos": jnp.cos,
    "floor": jnp.floor, "int": lambda x: jnp.trunc(x).astype(jnp.int32),
}  # fmt: skip


def added(sums: tuple[Array | None, ...], entries: Sequence[Entry], by_score: Array) -> tuple[Array | None, ...]:
    """Gradients of tables after those of some pairs; None of a table that is not wanted. by_score: (P, G, rows, keys),
    the derivative by the scores that the functions gave, 0 where dead.
    """
    found = list(sums)
    for table, indices, by in entries:
        held = found[table]
        if held is None:
            continue
        share = jnp.where(by_score == 0, 0, by_score * by)  # of dead pairs `by` may be anything
        places = [_as_pairs(i) for i in indices]
        alike = tuple(axis for axis in range(4) if all(place.shape[axis] == 1 for place in places))
        found[table] = held.at[tuple(places)].add(share.sum(alike, keepdims=True).astype(held.dtype))
    return tuple(found)


def _as_pairs(index: Any) -> Array:
    index = jnp.asarray(index)
    return index.reshape((1,) * (4 - index.ndim) + index.shape)
