"""Whether score functions read their tables within their ends at every live pair; asked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

from weft.caching import cached
from weft.errors import OptionError
from weft.planning.attention_plan import AttentionPlan
from weft.score.evaluate import Rule
from weft.score.expression import Expression
from weft.score.ranges import PAIRS, Beyond, beyond, beyond_at, live_pairs


def check_reads(plan: AttentionPlan, rules: tuple[Rule, ...], shift: int) -> None:
    """Raise OptionError for a table that is read beyond its end."""
    for rule in rules:
        if not rule.tables:
            continue
        shapes = tuple(tuple(x.shape) for x in rule.tables)
        integers = tuple(x for x, kind in zip(rule.tables, rule.expression.tables, strict=True) if kind == "int")
        # what tables of integers hold decides where others are read
        found = _looked_at(plan, rule, shift) if integers else _known(plan, rule.expression, shapes, shift)
        if found is not None:
            _refuse(rule, found)


@cached(256)
def _known(plan: AttentionPlan, expression: Expression, shapes: Any, shift: int) -> Beyond | None:
    return _looked_at(plan, Rule(expression, tuple(np.broadcast_to(0.0, shape) for shape in shapes)), shift)


def _looked_at(plan: AttentionPlan, rule: Rule, shift: int) -> Beyond | None:
    problem, shapes = plan.problem, [tuple(x.shape) for x in rule.tables]
    lengths = {"b": problem.batch, "h": problem.q_heads, "q": problem.m, "k": problem.n}
    if not all(lengths.values()):
        return None
    limits = {**{name: (0, length - 1) for name, length in lengths.items()}, "shift": (shift, shift)}

    def contents(table: int) -> tuple[float, float]:
        x = rule.tables[table]
        return (int(x.min()), int(x.max())) if x.numel() else (0, 0)

    found = beyond(rule.expression, limits, shapes, contents)
    if found is None:
        return None
    live = sum(share.plan.acsr.nnz * _heads(share) for share in plan.forward)
    if live > PAIRS:
        return found
    tables = [x.numpy() if isinstance(x, Tensor) and not x.is_floating_point() else None for x in rule.tables]
    return beyond_at(rule.expression, _pairs(plan, shift), shapes, tables)


def _heads(share: Any) -> int:
    return sum(prod(stop - first for first, stop in (h.batch, h.kv, h.group)) for h in share.heads)


def _pairs(plan: AttentionPlan, shift: int) -> Iterator[Mapping[str, Any]]:
    """Live pairs of all heads, as `beyond_at` takes them."""
    for share in plan.forward:
        where = [
            (b, kv * plan.problem.group + g)
            for heads in share.heads
            for b in range(*heads.batch) for kv in range(*heads.kv) for g in range(*heads.group)
        ]  # fmt: skip
        yield from live_pairs(share.plan.acsr.rows(), where, shift)


def _refuse(rule: Rule, found: Beyond) -> None:
    shape = tuple(rule.tables[found.table].shape)
    read = (
        f"from {found.low:g} to {found.high:g}" if abs(found.low) + abs(found.high) < 1e18 else "by what is not known"
    )
    raise OptionError(
        f"attention(score or bias: {rule.expression})".replace("\n", "; "),
        f"a table of shape {shape} is read beyond its end: axis {found.axis} has {found.length} entries, read {read}",
        "pass a longer table, or clamp the index: (k - q).clamp(-R, R) + R",
    )
