"""Whether a score function reads its tables within their ends: by intervals; where these do not tell, by pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from weft.score.evaluate import OPERATIONS
from weft.score.expression import Expression, Step

Interval: TypeAlias = tuple[float, float]
EVERY: Interval = (-math.inf, math.inf)
TRUTH: Interval = (0, 1)
PAIRS = 1 << 26  # that are looked at one by one, at most
TOGETHER = 1 << 16  # pairs of a group


@dataclass(frozen=True)
class Beyond:
    """A read that may leave its table: which table and axis, its length, and from where to where it is read."""

    table: int
    axis: int
    length: int
    low: float
    high: float


def beyond(
    expression: Expression,
    limits: Mapping[str, Interval],
    shapes: Sequence[tuple[int, ...]],
    contents: Callable[[int], Interval],
) -> Beyond | None:
    """The first read that may leave its table, as far as intervals tell; None if none can.

    limits: of b, h, q, k and shift. contents: the least and the largest entry of a table of integers.
    """  # fmt: skip
    found = intervals(expression, limits, shapes, contents)
    for step in expression.steps:
        for axis, a in enumerate(step.args) if step.op == "read" else ():
            (low, high), length = found[a], shapes[step.value][axis]
            if low < 0 or high >= length:
                return Beyond(step.value, axis, length, low, high)
    return None


def intervals(
    expression: Expression,
    limits: Mapping[str, Interval],
    shapes: Sequence[tuple[int, ...]],
    contents: Callable[[int], Interval],
) -> list[Interval]:
    """From where to where each step's value may go; see `beyond`."""  # fmt: skip
    found: list[Interval] = []
    for step in expression.steps:
        if step.op == "read":
            found.append(EVERY if step.kind == "real" else TRUTH if step.kind == "bool" else contents(step.value))
        else:
            found.append(_interval(step, [found[a] for a in step.args], limits, shapes))
    return found


def _interval(
    step: Step, args: list[Interval], limits: Mapping[str, Interval], shapes: Sequence[tuple[int, ...]]
) -> Interval:
    if step.op in limits:
        return limits[step.op]
    if step.op == "const":
        return (step.value, step.value) if step.value == step.value else EVERY
    if step.op == "size":
        table, axis = step.value
        return (shapes[table][axis],) * 2
    if step.kind == "bool":
        return TRUTH
    if step.op in RULES:
        low, high = RULES[step.op](*args)
        return EVERY if math.isnan(low) or math.isnan(high) else (low, high)
    return EVERY


def _corners(operation: Callable[[float, float], float]) -> Callable[[Interval, Interval], Interval]:
    def rule(x: Interval, y: Interval) -> Interval:
        values = [operation(a, b) for a in x for b in y]
        return (math.nan,) * 2 if any(map(math.isnan, values)) else (min(values), max(values))

    return rule


def _divided(x: Interval, y: Interval) -> Interval:
    if y[0] != y[1] or y[0] == 0 or not all(map(math.isfinite, x)):
        return EVERY
    return min(x[0] // y[0], x[1] // y[0]), max(x[0] // y[0], x[1] // y[0])


def _remainder(x: Interval, y: Interval) -> Interval:
    if y[0] <= 0:
        return EVERY
    return x if 0 <= x[0] and x[1] < y[0] else (0, y[1] - 1)


def _rising(operation: Callable[[float], float]) -> Callable[[Interval], Interval]:
    def rule(x: Interval) -> Interval:
        try:
            return operation(x[0]), operation(x[1])
        except (ValueError, OverflowError):
            return EVERY

    return rule


def _absolute(x: Interval) -> Interval:
    return (0.0 if x[0] <= 0 <= x[1] else min(map(abs, x))), max(map(abs, x))


RULES: dict[str, Callable[..., Interval]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]), "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "neg": lambda x: (-x[1], -x[0]), "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])), "mul": _corners(lambda a, b: a * b), "abs": _absolute,
    "floordiv": _divided, "mod": _remainder, "where": lambda _, x, y: (min(x[0], y[0]), max(x[1], y[1])),
    "real": lambda x: x, "int": _rising(math.trunc), "floor": _rising(math.floor), "tanh": _rising(math.tanh),
    "erf": _rising(math.erf),
    "exp": _rising(math.exp), "log": _rising(math.log), "sqrt": _rising(math.sqrt),
    "sin": lambda _: (-1.0, 1.0), "cos": lambda _: (-1.0, 1.0),
}  # fmt: skip


def beyond_at(
    expression: Expression, pairs: Iterable[Mapping[str, Any]], shapes: Sequence[tuple[int, ...]], tables: Sequence[Any]
) -> Beyond | None:
    """The first read that leaves its table at some pairs, looked at one group after the other; None if none does.

    pairs: b, h, q, k and shift of each group, which broadcast. tables: arrays, of which those of integers are read.
    """
    for env in pairs:
        found: list[Any] = []
        for step in expression.steps:
            args = [found[a] for a in step.args]
            made = _read(step, args, shapes, tables) if step.op == "read" else _at(step, args, env, shapes)
            if isinstance(made, Beyond):
                return made
            found.append(made)
    return None


def live_pairs(
    rows: Iterable[Any], heads: Sequence[tuple[int, int]], shift: int
) -> Iterator[Mapping[str, Any]]:  # fmt: skip
    """Live pairs as `beyond_at` takes them, in groups of rows: q and k (pairs,), b and h (heads, 1).

    rows: the keys of each query. heads: (b, h) of those that have them.
    """
    b, h = (np.array(x)[:, None] for x in zip(*heads, strict=True))
    queries: list[Any] = []
    keys: list[Any] = []
    held = 0
    for row, columns in enumerate(rows):
        queries.append(np.full(columns.size, row))
        keys.append(columns)
        held += columns.size
        if held * len(heads) >= TOGETHER:
            yield {"b": b, "h": h, "q": np.concatenate(queries), "k": np.concatenate(keys), "shift": shift}
            queries, keys, held = [], [], 0
    if held:
        yield {"b": b, "h": h, "q": np.concatenate(queries), "k": np.concatenate(keys), "shift": shift}


def _read(step: Step, args: list[Any], shapes: Sequence[tuple[int, ...]], tables: Sequence[Any]) -> Any:
    if any(x is None for x in args):
        return Beyond(step.value, 0, shapes[step.value][0], *EVERY)
    for axis, index in enumerate(args):
        low, high, length = int(np.min(index)), int(np.max(index)), shapes[step.value][axis]
        if low < 0 or high >= length:
            return Beyond(step.value, axis, length, low, high)
    return None if step.kind == "real" else np.asarray(tables[step.value])[tuple(args)]


def _at(step: Step, args: list[Any], env: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> Any:
    """The value of a step, None where it depends on what is not looked at: scores and real tables."""
    if step.op in env:
        return np.asarray(env[step.op])
    if step.op == "const":
        return step.value
    if step.op == "size":
        table, axis = step.value
        return shapes[table][axis]
    if step.op == "score" or any(x is None for x in args):
        return None
    with np.errstate(all="ignore"):
        return OPERATIONS[step.op](*args)
