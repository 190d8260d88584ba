"""Derivatives of score functions, as score functions: by the score, and by each entry that a real table gave."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from weft.score.expression import Builder, Expression, Ref, Step


@dataclass(frozen=True)
class Derived:
    """The steps of an expression, and after them those of its derivatives.

    result: of the expression. by_score: its derivative by the score, None where that is 0. by_read: of each read of a
    real table that the result depends on, (its step, the derivative by what it gave).
    """

    steps: tuple[Step, ...]
    result: Ref
    by_score: Ref | None
    by_read: tuple[tuple[Ref, Ref], ...]


@lru_cache(256)
def derived(expression: Expression) -> Derived:
    """An expression with its derivatives, by the chain rule from the result back."""
    make = Builder(expression.steps)
    share: dict[Ref, Ref] = {expression.result: make.const(1.0)}
    for i in reversed(range(len(expression.steps))):
        if i not in share:
            continue
        for arg, part in _back(make, i, share[i]):
            if make.kind(arg) == "real" and make.known(part) != 0:
                share[arg] = make.binary("add", share[arg], part) if arg in share else part
    ends = {
        op: [i for i, step in enumerate(expression.steps) if step.op == op and i in share] for op in ("score", "read")
    }
    by_score = share[ends["score"][0]] if ends["score"] else None
    by_read = tuple((i, share[i]) for i in ends["read"] if make.kind(i) == "real")
    return Derived(tuple(make.steps), expression.result, by_score, by_read)


def _back(make: Builder, i: Ref, g: Ref) -> Iterator[tuple[Ref, Ref]]:
    """(operand, its share) of a step whose share is g. At ties min, max and abs have the derivative of the right side,
    0 for abs."""
    step = make.steps[i]
    op, args = step.op, step.args
    zero = make.const(0.0)
    if op in ("add", "sub"):
        yield args[0], g
        yield args[1], g if op == "add" else make.unary("neg", g)
    elif op == "mul":
        yield args[0], make.binary("mul", g, args[1])
        yield args[1], make.binary("mul", g, args[0])
    elif op == "div":
        yield args[0], make.binary("div", g, args[1])
        yield args[1], make.unary("neg", make.binary("div", make.binary("mul", g, i), args[1]))
    elif op in ("min", "max"):
        first = make.binary("lt", *(args if op == "min" else args[::-1]))
        yield args[0], make.where(first, g, zero)
        yield args[1], make.where(first, zero, g)
    elif op == "where":
        yield args[1], make.where(args[0], g, zero)
        yield args[2], make.where(args[0], zero, g)
    elif args and step.kind == "real":
        slope = _slope(make, op, args[0], i)
        if slope is not None:
            yield args[0], make.binary("mul", g, slope)


def _slope(make: Builder, op: str, x: Ref, y: Ref) -> Ref | None:
    """dy/dx of y = op(x); None where it is 0."""
    one, zero = make.const(1.0), make.const(0.0)
    if op == "neg":
        return make.const(-1.0)
    if op == "abs":
        below = make.where(make.binary("lt", x, zero), make.const(-1.0), zero)
        return make.where(make.binary("lt", zero, x), one, below)
    if op == "exp":
        return y
    if op == "log":
        return make.binary("div", one, x)
    if op == "tanh":
        return make.binary("sub", one, make.binary("mul", y, y))
    if op == "sqrt":
        return make.binary("div", make.const(0.5), y)
    if op == "sin":
        return make.unary("cos", x)
    if op == "cos":
        return make.unary("neg", make.unary("sin", x))
    if op == "erf":
        bell = make.unary("exp", make.unary("neg", make.binary("mul", x, x)))
        return make.binary("mul", make.const(2 / math.sqrt(math.pi)), bell)
    return None  # floor, and what converts
