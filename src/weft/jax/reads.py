"""Whether score functions read their tables within their ends at every live pair; asked while JAX traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from weft.caching import cached
from weft.errors import OptionError
from weft.pattern.algebra import Pattern
from weft.planning.problem import Problem
from weft.score.ranges import EVERY, PAIRS, Beyond, beyond, beyond_at, live_pairs
from weft.score.value import composed


def check_reads(text: str, tables: Sequence[Array], problem: Problem, pattern: Pattern | None) -> None:
    """Raise OptionError for a table that is read beyond its end. pattern: None where the mask was planned before, so
    that intervals alone tell. What traced tables of integers hold is not known: reads by it take the table's ends.
    """
    if not all((problem.batch, problem.q_heads, problem.m, problem.n)):
        return
    held = [_contents(x) for x in tables]
    shapes = tuple(x.shape for x in tables)
    if any(x is not None for x in held):
        found = _beyond(text, shapes, problem, pattern, held)
    else:
        found = _known(text, shapes, problem, pattern)
    if found is not None:
        _refuse(text, shapes[found.table], found)


def _contents(table: Any) -> Any:
    """The entries of a table of integers that is not traced; None of any other."""
    if isinstance(table, jax.core.Tracer) or not np.issubdtype(table.dtype, np.integer):
        return None
    return np.asarray(table)


@cached(256)
def _known(text: str, shapes: Any, problem: Problem, pattern: Pattern | None) -> Beyond | None:
    return _beyond(text, shapes, problem, pattern, [None] * len(shapes))


def _beyond(
    text: str, shapes: Sequence[tuple[int, ...]], problem: Problem, pattern: Pattern | None, held: Sequence[Any]
) -> Beyond | None:
    expression, far = composed(text), abs(problem.n - problem.m)
    lengths = {"b": problem.batch, "h": problem.q_heads, "q": problem.m, "k": problem.n}
    limits = {name: (0, length - 1) for name, length in lengths.items()}
    shift = problem.n - problem.m if pattern is not None and set(pattern.alignments()) == {"bottom-right"} else 0
    limits["shift"] = (shift, shift) if pattern is not None else (-far, far)

    def contents(table: int) -> tuple[float, float]:
        if held[table] is None:
            return EVERY
        return (int(held[table].min()), int(held[table].max())) if held[table].size else (0, 0)

    found = beyond(expression, limits, shapes, contents)
    if found is None or (abs(found.low) == abs(found.high) == float("inf")):
        return None
    if pattern is None or pattern.extent() != (None, None):
        return found
    acsr = pattern.acsr(problem.m, problem.n)
    if acsr.nnz * problem.batch * problem.q_heads > PAIRS:
        return found
    heads = [(b, h) for b in range(problem.batch) for h in range(problem.q_heads)]
    return beyond_at(expression, live_pairs(acsr.rows(), heads, shift), shapes, held)


def _refuse(text: str, shape: tuple[int, ...], found: Beyond) -> None:
    raise OptionError(
        f"attention(score or bias: {composed(text)})".replace("\n", "; "),
        f"a table of shape {shape} is read beyond its end: axis {found.axis} has {found.length} entries, read from "
        f"{found.low:g} to {found.high:g}",
        "pass a longer table, or clip the index: (k - q).clip(-R, R) + R; of a planned mask, pass the pattern itself",
    )
