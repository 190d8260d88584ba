"""Score functions as text, which is how they cross into compiled graphs: lines of Python's arithmetic, the result last.

>>> str(parse("score - abs(q - k) * real0[h]"))
'score - abs(q - k) * real0[h]'

A table is named by its kind and number: real0, int1, bool2; size(0, 1) is the length of axis 1 of table 0. What is used
twice is a line of its own: `v0 = k - q`.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from functools import lru_cache

from weft.score.expression import COMPARE, KINDS, LEAVES, REALS, Builder, Expression, Ref, Step

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "and": "&", "or": "|",
         "xor": "^", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}  # fmt: skip
RANKS = [("or",), ("xor",), ("and",), ("add", "sub"), ("mul", "div", "floordiv", "mod"), ("neg", "not")]
RANK = {**dict.fromkeys(COMPARE, 0), **{op: i + 1 for i, ops in enumerate(RANKS) for op in ops}}
ATOM = 9
BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod",
          ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor"}  # fmt: skip
COMPARED = {ast.Lt: ("lt", False), ast.LtE: ("le", False), ast.Eq: ("eq", False), ast.NotEq: ("ne", False),
            ast.Gt: ("lt", True), ast.GtE: ("le", True)}  # fmt: skip
NAMED = {"inf": math.inf, "nan": math.nan, "True": True, "False": False}


SEPARATOR = "\n\n"  # between functions, each of the result of the one before it


# ---- writing ---------------------------------------------------------------------------------------------------------
def written(expression: Expression) -> str:
    """The text of an expression; `parse` of it gives the expression again."""
    uses = Counter(arg for step in expression.steps for arg in step.args)
    texts: list[tuple[str, int]] = []
    lines: list[str] = []
    for i, step in enumerate(expression.steps):
        text = _text(step, texts)
        if i != expression.result and uses[i] > 1 and step.args:
            lines.append(f"v{len(lines)} = {text[0]}")
            text = f"v{len(lines) - 1}", ATOM
        texts.append(text)
    return "\n".join([*lines, texts[-1][0]])


def _text(step: Step, texts: list[tuple[str, int]]) -> tuple[str, int]:
    """(text, rank) of one step."""
    args, op = [texts[a] for a in step.args], step.op
    if op in LEAVES:
        return op, ATOM
    if op == "const":
        text = repr(step.value) if step.kind != "real" else repr(float(step.value))
        return text, RANK["neg"] if text.startswith("-") else ATOM
    if op == "size":
        return f"size({step.value[0]}, {step.value[1]})", ATOM
    if op == "read":
        return f"{step.kind}{step.value}[{', '.join(text for text, _ in args) or '()'}]", ATOM
    if op in INFIX:
        rank = RANK[op]
        left, right = (_within(text, rank, strict) for text, strict in zip(args, (op in COMPARE, True), strict=True))
        return f"{left} {INFIX[op]} {right}", rank
    if op in ("neg", "not"):
        return f"{'-' if op == 'neg' else '~'}{_within(args[0], RANK[op], True)}", RANK[op]
    return f"{op}({', '.join(text for text, _ in args)})", ATOM


def _within(text: tuple[str, int], rank: int, strict: bool) -> str:
    return f"({text[0]})" if text[1] < rank + strict else text[0]


# ---- reading ---------------------------------------------------------------------------------------------------------
@lru_cache(1024)
def parse(text: str) -> Expression:
    """The expression that a text is. Raises ValueError for what is none."""
    reader = _Reader()
    *lines, last = ast.parse(text).body
    for line in lines:
        if not (isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)):
            raise ValueError(f"no line of a score function: {ast.unparse(line)}")
        reader.names[line.targets[0].id] = reader.read(line.value)
    if not isinstance(last, ast.Expr):
        raise ValueError(f"no result of a score function: {ast.unparse(last)}")
    found = reader.read(last.value)
    return reader.builder.expression(reader.builder.to("real", found))


class _Reader:
    """names: the lines above."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.names: dict[str, Ref] = {}

    def read(self, node: ast.expr) -> Ref:
        make = self.builder
        match node:
            case ast.Constant(value=value) if isinstance(value, (bool, int, float)):
                return make.const(value)
            case ast.Name(id=name):
                return self._name(name)
            case ast.Subscript(value=ast.Name(id=name), slice=at):
                indices = at.elts if isinstance(at, ast.Tuple) else [at]
                kind = name.rstrip("0123456789")
                if kind in KINDS and kind != name:
                    return make.read(int(name[len(kind) :]), kind, tuple(map(self.read, indices)))
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return make.unary("neg", self.read(x))
            case ast.UnaryOp(op=ast.Invert(), operand=x):
                return make.unary("not", self.read(x))
            case ast.BinOp(left=x, op=op, right=y) if type(op) in BINARY:
                name = BINARY[type(op)]
                return (make.divided if name in ("floordiv", "mod") else make.binary)(name, self.read(x), self.read(y))
            case ast.Compare(left=x, ops=[op], comparators=[y]) if type(op) in COMPARED:
                name, swapped = COMPARED[type(op)]
                a, b = self.read(x), self.read(y)
                return make.binary(name, b, a) if swapped else make.binary(name, a, b)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self._call(name, args)
        raise ValueError(f"no part of a score function: {ast.unparse(node)}")

    def _name(self, name: str) -> Ref:
        if name in self.names:
            return self.names[name]
        if name in NAMED:
            return self.builder.const(NAMED[name])
        if name not in LEAVES:
            raise ValueError(f"a score function has no {name}")
        return self.builder.leaf(name)

    def _call(self, name: str, nodes: list[ast.expr]) -> Ref:
        make = self.builder
        if name == "size":
            table, axis = (node.value for node in nodes if isinstance(node, ast.Constant))
            return make.size(int(str(table)), int(str(axis)))
        args = [self.read(node) for node in nodes]
        if name in ("min", "max"):
            return make.binary(name, *args)
        if name == "abs" or name in REALS:
            return make.unary(name, *args)
        if name == "where":
            return make.where(*args)
        if name in KINDS:
            return make.to(name, *args)
        raise ValueError(f"a score function has no {name}(...)")
