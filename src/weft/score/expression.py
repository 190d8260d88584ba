"""A score function as straight-line steps: each step is one operation on the results of steps before it.

Steps are interned, so equal subexpressions are one step, and simplified where a constant makes an operation trivial.
Kinds are "real", "int" and "bool"; a conversion between them is a step of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from weft.errors import OptionError

Ref: TypeAlias = int  # the number of a step
Literal: TypeAlias = float | int | bool

INDICES = ("b", "h", "q", "k")
LEAVES = {"score": "real", **dict.fromkeys((*INDICES, "shift"), "int")}
KINDS = ("bool", "int", "real")  # in order of promotion
SAME = ("add", "sub", "mul", "min", "max")  # of two operands of one kind, int or real
UNARY = ("neg", "abs")  # int or real
REALS = ("exp", "log", "tanh", "sqrt", "sin", "cos", "erf", "floor")
COMPARE = ("lt", "le", "eq", "ne")
LOGIC = ("and", "or", "xor")
MOST = 4096  # steps


@dataclass(frozen=True)
class Step:
    """One operation. value: of a constant; the table of a read; (table, axis) of a size.

    op: a leaf is "score", "b", "h", "q", "k" or "shift", which is what alignment adds to q. Others are "const", "size",
    "read", "where", "div" (real), "floordiv" and "mod" (int, by a constant) and "not". There are the conversions "real"
    and "int", and the lists above.
    """

    op: str
    kind: str
    args: tuple[Ref, ...] = ()
    value: Any = None


@dataclass(frozen=True)
class Expression:
    """A score function: the result is the last step. Two of the same steps are equal, and have one hash."""

    steps: tuple[Step, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.steps)

    @property
    def result(self) -> Ref:
        return len(self.steps) - 1

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The kind of each captured table, by its number."""
        found: dict[int, str] = {}
        for step in self.steps:
            if step.op == "read":
                found[step.value] = step.kind
        return tuple(found.get(i, "real") for i in range(max(found, default=-1) + 1))

    @cached_property
    def leaves(self) -> frozenset[str]:
        """Which of score, b, h, q, k and shift it reads."""
        return frozenset(step.op for step in self.steps if step.op in LEAVES)

    @cached_property
    def addend(self) -> tuple[str, Ref] | None:
        """("add" or "sub", x) of a bias: score + x or score - x, where x does not depend on the score; None."""
        last = self.steps[-1]
        if last.op not in ("add", "sub"):
            return None
        left, right = (self.steps[a].op == "score" for a in last.args)
        once = sum(self.steps[a].op == "score" for step in self.steps for a in step.args) == 1
        if not once or not (left or (right and last.op == "add")):
            return None
        return last.op, last.args[1 if left else 0]

    def __str__(self) -> str:
        from weft.score.text import written

        return written(self)


class Builder:
    """Makes steps. Every method takes and gives numbers of steps."""

    def __init__(self, steps: tuple[Step, ...] = ()) -> None:
        self.steps = list(steps)
        self._known = {step: i for i, step in enumerate(self.steps)}

    def expression(self, result: Ref) -> Expression:
        """The steps that the result needs, operands first and left to right, so equal functions are equal."""
        order: dict[Ref, int] = {}
        waiting = [(result, False)]
        while waiting:
            ref, seen = waiting.pop()
            if ref in order:
                continue
            if seen:
                order[ref] = len(order)
            else:
                waiting += [(ref, True), *((arg, False) for arg in reversed(self.steps[ref].args))]
        return Expression(tuple(self._moved(self.steps[ref], order) for ref in order))

    @staticmethod
    def _moved(step: Step, place: dict[Ref, Ref]) -> Step:
        return Step(step.op, step.kind, tuple(place[a] for a in step.args), step.value)

    def kind(self, x: Ref) -> str:
        return self.steps[x].kind

    def known(self, x: Ref) -> Literal | None:
        """The value of a constant, None of anything else."""
        step = self.steps[x]
        if step.op != "const":
            return None
        return float(step.value) if step.kind == "real" else step.value  # beside ints too, unlike _Signed

    def step(self, op: str, kind: str, args: tuple[Ref, ...] = (), value: Any = None) -> Ref:
        """Enter a step as it is."""
        made = Step(op, kind, args, _Signed(value) if isinstance(value, float) else value)
        found = self._known.get(made)
        if found is None:
            if len(self.steps) >= MOST:
                raise OptionError("a score function", f"it takes more than {MOST} steps", "write it without long loops")
            found = self._known[made] = len(self.steps)
            self.steps.append(made)
        return found

    # ---- leaves ------------------------------------------------------------------------------------------------------
    def leaf(self, name: str) -> Ref:
        return self.step(name, LEAVES[name])

    def const(self, value: Literal) -> Ref:
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "real"
        return self.step("const", kind, (), value)

    def size(self, table: int, axis: int) -> Ref:
        """The length of a table's axis."""
        return self.step("size", "int", (), (table, axis))

    def read(self, table: int, kind: str, indices: tuple[Ref, ...]) -> Ref:
        """An entry of a table."""
        return self.step("read", kind, tuple(self.to("int", i) for i in indices), table)

    # ---- conversions -------------------------------------------------------------------------------------------------
    def to(self, kind: str, x: Ref) -> Ref:
        """x as another kind; a real number becomes an int by dropping its fraction, and true where it is not 0."""
        mine = self.kind(x)
        if mine == kind:
            return x
        value = self.known(x)
        if value is not None and not (kind == "int" and not math.isfinite(value)):
            return self.const({"bool": bool, "int": int, "real": float}[kind](value))
        if kind == "bool":
            return self.binary("ne", x, self.const(0))
        return self.step(kind, kind, (x,))

    # ---- operations --------------------------------------------------------------------------------------------------
    def binary(self, op: str, x: Ref, y: Ref) -> Ref:
        """An operation of SAME, COMPARE or LOGIC, or "div"."""
        if op in LOGIC:
            return self._logic(op, self.to("bool", x), self.to("bool", y))
        kind = "real" if op == "div" else max("int", self.kind(x), self.kind(y), key=KINDS.index)
        x, y = self.to(kind, x), self.to(kind, y)
        a, b = self.known(x), self.known(y)
        if a is not None and b is not None and not (op == "div" and b == 0):
            return self.to("bool" if op in COMPARE else kind, self.const(FOLDED[op](a, b)))
        simple = self._simple(op, x, y)
        if simple is not None:
            return simple
        return self.step(op, "bool" if op in COMPARE else kind, (x, y))

    def _simple(self, op: str, x: Ref, y: Ref) -> Ref | None:
        """What x op y is where one of them is a constant that changes nothing, or makes it 0."""
        a, b = self.known(x), self.known(y)
        if op == "add":
            return x if b == 0 else y if a == 0 else None
        if op == "sub":
            return x if b == 0 else self.unary("neg", y) if a == 0 else None
        if op == "mul":
            if a == 0 or b == 0:
                return self.const(0 if self.kind(x) == "int" else 0.0)
            if a == -1 or b == -1:
                return self.unary("neg", y if a == -1 else x)
            return x if b == 1 else y if a == 1 else None
        if op == "div" and b == 1:
            return x
        return None

    def _logic(self, op: str, x: Ref, y: Ref) -> Ref:
        for a, b in ((self.known(x), y), (self.known(y), x)):
            if a is not None and op == "and":
                return b if a else self.const(False)
            if a is not None and op == "or":
                return self.const(True) if a else b
        return self.step(op, "bool", (x, y))

    def unary(self, op: str, x: Ref) -> Ref:
        """An operation of UNARY or REALS, or "not"."""
        x = self.to("bool" if op == "not" else "real" if op in REALS else max("int", self.kind(x), key=KINDS.index), x)
        value = self.known(x)
        if value is not None and (op not in REALS or (op in ("exp", "tanh", "sin", "cos", "erf") and abs(value) < 700)):
            return self.const(FOLDED[op](value))
        if op in ("neg", "not") and self.steps[x].op == op:
            return self.steps[x].args[0]
        return self.step(op, self.kind(x), (x,))

    def divided(self, op: str, x: Ref, y: Ref) -> Ref:
        """x // y or x % y, rounded down, of ints by a constant, or by what does not depend on the pair."""
        x, y = self.to("int", x), self.to("int", y)
        a, b = self.known(x), self.known(y)
        if a is not None and b:
            return self.const(a // b if op == "floordiv" else a % b)
        if b == 1:
            return x if op == "floordiv" else self.const(0)
        return self.step(op, "int", (x, y))

    def where(self, test: Ref, x: Ref, y: Ref) -> Ref:
        test, kind = self.to("bool", test), max(self.kind(x), self.kind(y), key=KINDS.index)
        x, y = self.to(kind, x), self.to(kind, y)
        value = self.known(test)
        if value is not None or x == y:
            return y if value is False else x
        return self.step("where", kind, (test, x, y))


class _Signed(float):
    """A constant: unlike Python's floats, 0.0 is not -0.0, and NaN is itself. It equals no int."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and repr(float(self)) == repr(float(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(repr(float(self)))


FOLDED: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "min": min, "max": max, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b, "neg": lambda a: -a, "abs": abs, "not": lambda a: not a,
    "exp": math.exp, "tanh": math.tanh, "sin": math.sin, "cos": math.cos, "erf": math.erf,
}  # fmt: skip
