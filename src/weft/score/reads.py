"""What the index of a read depends on: where sums over pairs are the gradients of a table's entries.

"rows": on b, h and q alone, "columns": on b, h and k, "diagonals": on b, h and k - q, "dense": the read is at (b, h, q,
k), but for axes of 1 or none before q; "pairs": on anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from weft.score.derive import derived
from weft.score.expression import Expression, Ref, Step

Kind: TypeAlias = Literal["rows", "columns", "diagonals", "dense", "pairs"]
Factors: TypeAlias = tuple[int, int]  # of q and k, in a sum with what depends on b and h alone
FREE: Factors = (0, 0)


@dataclass(frozen=True)
class Read:
    """A read of a real table that the result depends on. step: of the expression; by: the step of the derivative by
    what it gave, among those of `derived`.
    """

    step: Ref
    by: Ref
    table: int
    kind: Kind


@lru_cache(256)
def reads_of(expression: Expression) -> tuple[Read, ...]:
    """All reads of real tables that the result depends on."""
    forms: list[Factors | Kind] = []
    for step in expression.steps:
        forms.append(_form(step, [forms[a] for a in step.args], expression))
    return tuple(
        Read(ref, by, step.value, _kind(expression, step, forms))
        for ref, by in derived(expression).by_read for step in (expression.steps[ref],)
    )  # fmt: skip


def _kind(expression: Expression, step: Step, forms: list[Factors | Kind]) -> Kind:
    if shared_axes(expression, step) is not None:
        return "dense"
    return _together([forms[a] for a in step.args])


def shared_axes(expression: Expression, step: Step) -> tuple[bool, bool] | None:
    """Of a read at (b, h, q, k): whether it is the same for all b, and for all h; None of any other read."""
    names = [_name(expression.steps[a]) for a in step.args]
    if len(names) < 2 or names[-2:] != ["q", "k"] or len(names) > 4:
        return None
    h, b = (*names[-3::-1], "0", "0")[:2]
    return (b != "b", h != "h") if b in ("b", "0") and h in ("h", "0") else None


def _name(step: Step) -> str:
    return "0" if step.op == "const" and step.value == 0 else step.op


def _form(step: Step, args: list[Factors | Kind], expression: Expression) -> Factors | Kind:
    """Factors of an integer that is a sum of multiples of q and k, else what a value depends on."""
    if step.op in ("q", "k"):
        return (1, 0) if step.op == "q" else (0, 1)
    if step.op == "score":
        return "pairs"
    linear = [x for x in args if isinstance(x, tuple)]
    if step.kind == "int" and len(linear) == len(args):
        if step.op in ("add", "sub"):
            sign = 1 if step.op == "add" else -1
            return linear[0][0] + sign * linear[1][0], linear[0][1] + sign * linear[1][1]
        if step.op == "neg":
            return -linear[0][0], -linear[0][1]
        if step.op == "mul":
            return _times(step, linear, expression)
    found = _together(args)
    return FREE if found == "rows" and all(x == FREE for x in args) else found


def _times(step: Step, args: list[Factors], expression: Expression) -> Factors | Kind:
    for ref, other in ((step.args[0], args[1]), (step.args[1], args[0])):
        if expression.steps[ref].op == "const":
            return other[0] * expression.steps[ref].value, other[1] * expression.steps[ref].value
    return FREE if all(x == FREE for x in args) else _together([*args])


def _together(args: list[Factors | Kind]) -> Kind:
    """What a value depends on that is made of others."""
    kinds = {_as_kind(x) for x in args} - {"free"}
    if not kinds:
        return "rows"
    return kinds.pop() if len(kinds) == 1 else "pairs"  # type: ignore[return-value]


def _as_kind(x: Factors | Kind) -> str:
    if not isinstance(x, tuple):
        return x
    if x == FREE:
        return "free"
    if x[1] == 0:
        return "rows"
    if x[0] == 0:
        return "columns"
    return "diagonals" if x[0] == -x[1] else "pairs"
