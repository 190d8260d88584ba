"""What a score function means: its steps in float64, with numpy's broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.score.derive import derived
from weft.score.expression import Expression, Step


@dataclass(frozen=True, eq=False)
class Rule:
    """A score function with its tables, as arrays of a backend. wanted: which tables' gradients are asked for; () means
    none.
    """

    expression: Expression
    tables: tuple[Any, ...] = ()
    wanted: tuple[bool, ...] = ()


@dataclass(frozen=True, eq=False)
class Evaluated:
    """score: the result. slope: its derivative by the score. by_entry: of each read of a real table (its number, the
    indices that were read, the derivative by what they gave). All broadcast to the pairs.
    """

    score: NDArray[np.float64]
    slope: NDArray[np.float64]
    by_entry: tuple[tuple[int, tuple[NDArray[np.int64], ...], NDArray[np.float64]], ...]


def evaluate(rule: Rule, env: Mapping[str, Any], clamps: bool = False) -> Evaluated:
    """One score function over pairs. env: score, b, h, q, k and shift, which broadcast against each other.

    An index beyond a table's end is an IndexError: calls are checked beforehand. clamps: it is the table's end, as in
    kernels, whose tiles have pairs that nobody sees.
    """
    found = derived(rule.expression)
    values: list[Any] = []
    with np.errstate(all="ignore"):  # where() computes both of its sides
        for step in found.steps:
            values.append(_step(step, values, (rule.tables, clamps), env))
    shape = np.broadcast_shapes(*(np.shape(x) for x in env.values()))
    slope = 0.0 if found.by_score is None else values[found.by_score]
    by_entry = []
    for read, by in found.by_read:
        step = found.steps[read]
        indices = tuple(np.broadcast_to(x, shape) for x in _places(step, values, (rule.tables, clamps)))
        by_entry.append((step.value, indices, np.broadcast_to(values[by], shape)))
    return Evaluated(np.broadcast_to(values[found.result], shape), np.broadcast_to(slope, shape), tuple(by_entry))


def _places(step: Step, values: Sequence[Any], tables: tuple[Sequence[Any], bool]) -> list[Any]:
    """The indices of a read."""
    args = [values[a] for a in step.args]
    if tables[1]:
        return [np.clip(i, 0, n - 1) for i, n in zip(args, np.shape(tables[0][step.value]), strict=True)]
    if any(np.any(np.asarray(i) < 0) for i in args):
        raise IndexError(f"table {step.value} is read below 0")
    return args


def _step(step: Step, values: Sequence[Any], tables: tuple[Sequence[Any], bool], env: Mapping[str, Any]) -> Any:
    args = [values[a] for a in step.args]
    if step.op in env:
        return np.asarray(env[step.op], np.float64 if step.kind == "real" else np.int64)
    if step.op == "const":
        return step.value
    if step.op == "size":
        table, axis = step.value
        return np.shape(tables[0][table])[axis]
    if step.op == "read":
        return np.asarray(tables[0][step.value])[tuple(_places(step, values, tables))]
    return OPERATIONS[step.op](*args)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "abs": np.abs, "floordiv": np.floor_divide, "mod": np.mod, "where": np.where,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "floor": np.floor,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "real": lambda x: np.asarray(x, np.float64), "int": lambda x: np.trunc(x).astype(np.int64),
}  # fmt: skip
