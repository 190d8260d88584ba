"""Score functions on the CPU: their steps as torch operations over the scores of some tiles, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.score.derive import Derived, derived
from weft.score.expression import Expression, Step

Env = Mapping[str, torch.Tensor]
FEW = 1 << 20  # entries of a table whose gradient is summed in float64


@dataclass(frozen=True, eq=False)
class Rule:
    """A score function with its tables, and where their gradients are added: tensors of a table's shape, or None."""

    expression: Expression
    tables: tuple[torch.Tensor, ...] = ()
    grads: tuple[torch.Tensor | None, ...] = ()

    @staticmethod
    def of(expression: Expression, tables: tuple[torch.Tensor, ...], wanted: Sequence[bool]) -> Rule:
        """With room for gradients of the tables that are wanted, in float64 where entries may be met many times."""
        return Rule(expression, tables, tuple(_room(x) if w else None for x, w in zip(tables, wanted, strict=False)))


def _room(table: torch.Tensor) -> torch.Tensor:
    return torch.zeros(table.shape, dtype=torch.float64 if table.numel() <= FEW else table.dtype)


@dataclass(frozen=True, eq=False)
class Heads:
    """Which (batch row, query head) the pairs of a call are. b: (pairs,), h: (pairs, group)."""

    b: torch.Tensor
    h: torch.Tensor

    def of_head(self, pair: int, head: int) -> Heads:
        """Those of one head of one pair."""
        return Heads(self.b[pair : pair + 1], self.h[pair : pair + 1, head : head + 1])

    def indices(self) -> dict[str, torch.Tensor]:
        """b and h, which broadcast against scores (tiles, pairs, group, rows, width)."""
        return {"b": self.b[:, None, None, None], "h": self.h[:, :, None, None]}


@dataclass(frozen=True, eq=False)
class Applied:
    """One score function at some pairs: values of its steps, made when they are asked for."""

    rule: Rule
    env: Env
    found: Derived
    values: dict[int, Any] = field(default_factory=dict)

    @staticmethod
    def to(rule: Rule, env: Env) -> Applied:
        return Applied(rule, env, derived(rule.expression))

    @property
    def score(self) -> torch.Tensor:
        """Of every pair."""
        return self._expanded(self.value(self.found.result))

    def value(self, ref: int) -> Any:
        """The result of a step: a tensor that broadcasts to the pairs, or a number."""
        if ref not in self.values:
            step = self.found.steps[ref]
            self.values[ref] = self._step(step, [self.value(a) for a in step.args])
        return self.values[ref]

    def gradient(self, ds: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The gradient by the score before the function, of that after it; those of tables are added on the way.

        Nothing comes of pairs without a weight, whatever their derivatives are.
        """
        for read, by in self.found.by_read:
            step = self.found.steps[read]
            total = self.rule.grads[step.value] if self.rule.grads else None
            if total is not None:
                part = torch.where(weights > 0, ds * self.value(by), 0.0)
                _add_at(total, [self.value(a) for a in step.args], part)
        if self.found.by_score is None:
            return torch.zeros_like(ds)
        slope = self.value(self.found.by_score)
        if not isinstance(slope, torch.Tensor):
            return ds if slope == 1.0 else ds * slope
        return torch.where(weights > 0, ds * slope, 0.0)

    def _expanded(self, x: Any) -> torch.Tensor:
        like = self.env["score"]
        return x.to(like.dtype).expand(like.shape) if isinstance(x, torch.Tensor) else torch.full_like(like, x)

    def _step(self, step: Step, args: list[Any]) -> Any:
        if step.op in self.env:
            return self.env[step.op]
        if step.op == "const":
            return float(step.value) if step.kind == "real" else step.value
        if step.op == "size":
            table, axis = step.value
            return self.rule.tables[table].shape[axis]
        if step.op == "read":
            table = self.rule.tables[step.value]
            return table[tuple(_within(i, length) for i, length in zip(args, table.shape, strict=True))]
        if step.op == "real":
            return args[0].to(self.env["score"].dtype) if isinstance(args[0], torch.Tensor) else float(args[0])
        tensors = [torch.as_tensor(x, dtype=self._dtype(x)) for x in args]
        return OPERATIONS[step.op](*tensors)

    def _dtype(self, x: Any) -> torch.dtype | None:
        """Of a number beside tensors: as wide as scores, which torch's own default is not."""
        return self.env["score"].dtype if isinstance(x, float) else None


def _within(index: Any, length: int) -> Any:
    """An index that dead pairs of a tile may have beyond the table's end; those of live pairs were checked."""
    return index.clamp(0, length - 1) if isinstance(index, torch.Tensor) else index


def _add_at(total: torch.Tensor, indices: list[Any], part: torch.Tensor) -> None:
    """total[indices] += part, (tiles, pairs, group, rows, width), in a fixed order."""
    places = torch.zeros((), dtype=torch.int64)
    for index, length, pace in zip(indices, total.shape, total.stride(), strict=True):
        places = places + torch.as_tensor(_within(index, length)) * pace
    part = part.sum_to_size(_shape_beside(places, part))
    flat = places.expand(part.shape).reshape(-1)
    total.view(-1).index_add_(0, flat, part.reshape(-1).to(total.dtype))


def _shape_beside(x: torch.Tensor, like: torch.Tensor) -> tuple[int, ...]:
    """The shape of x with axes of 1 before it, as long as that of like."""
    return (*(1,) * (like.dim() - x.dim()), *x.shape)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.true_divide, "min": torch.minimum,
    "max": torch.maximum, "neg": torch.neg, "abs": torch.abs, "floordiv": torch.floor_divide, "mod": torch.remainder,
    "where": torch.where, "lt": torch.lt, "le": torch.le, "eq": torch.eq, "ne": torch.ne, "and": torch.logical_and,
    "or": torch.logical_or, "xor": torch.logical_xor, "not": torch.logical_not, "exp": torch.exp, "log": torch.log,
    "tanh": torch.tanh, "sqrt": torch.sqrt, "sin": torch.sin, "cos": torch.cos, "floor": torch.floor,
    "erf": torch.erf, "int": lambda x: x.trunc().to(torch.int64),
}  # fmt: skip
