"""Patterns as text: read as syntax, never run.

A pattern is written as in Python: calls of weft's library functions, `&`, `|`, `~`, `.shift(q=, k=)`, `.aligned(...)`,
and literals. `parse(str(pattern)) == pattern` for every pattern whose text is not shortened.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from weft.errors import ArgumentError, PatternError, WeftError
from weft.pattern.algebra import Pattern
from weft.pattern.arguments import LIBRARY, function

METHODS = ("shift", "aligned")
LARGEST = 1 << 63  # of any integer
LONGEST = 1 << 22  # entries of a range
DEEPEST = 100  # expressions in each other: what the stages below take by recursion
SHOWN = 72  # characters of the text around the place of an error
ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
}  # fmt: skip
CONNECTIVES: dict[type, Callable[[Any, Any], Any]] = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_}
GRAMMAR = 'write calls of weft\'s patterns joined by &, | and ~, such as "causal() & window(left=1023)"'


def parse(text: str) -> Pattern:
    """The pattern that `text` spells. Raises PatternError with the place of what is no pattern."""
    line = " ".join(text.split("\n")).strip()
    reader = _Reader(line)
    try:
        value = reader.value(_syntax(line, reader))
    except RecursionError:
        reader.refuse(0, "it is nested or chained too deeply", "write a shorter expression")
    if not isinstance(value, Pattern):
        reader.refuse(0, f"this is {_kind(value)}, not a pattern", GRAMMAR)
    return value


def _syntax(line: str, reader: _Reader) -> ast.expr:
    try:
        return ast.parse(line, mode="eval").body
    except SyntaxError as error:
        cure = GRAMMAR
        if " in all]" in line:
            cure = "write the lists in full: this text was shortened when it was printed"
        reader.refuse((error.offset or len(line) + 1) - 1, error.msg, cure)
    except (ValueError, MemoryError) as error:
        reader.refuse(0, str(error) or "it is nested too deeply", GRAMMAR)


class _Reader:
    """Turns syntax into values and knows the text, to show the place of what it refuses."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.depth = 0

    def refuse(self, at: int, wrong: str, cure: str) -> NoReturn:
        """Raise, with a caret under character `at`, counted from 0."""
        first = max(0, at - SHOWN // 2)
        shown = self.line[first : first + SHOWN]
        asked = f"the pattern, at column {at + 1}:\n    {shown}\n    {' ' * (at - first)}^"
        raise PatternError(asked, wrong, cure)

    def _at(self, node: ast.AST) -> int:
        """The character where a node begins; ast counts bytes."""
        return len(self.line.encode()[: getattr(node, "col_offset", 0)].decode())

    def value(self, node: ast.expr, deeper: int = 1) -> Any:
        """The pattern, literal or list that a node spells."""
        self.depth += deeper
        if self.depth > DEEPEST:
            self.refuse(self._at(node), "it is nested too deeply", "write a flatter expression")
        found = self._value(node)
        self.depth -= deeper
        return found

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.BoolOp):
            word, sign = ("and", "&") if isinstance(node.op, ast.And) else ("or", "|")
            self.refuse(self._at(node), f"`{word}` does not combine patterns", f"write {sign}")
        if isinstance(node, ast.Name):
            cure = f"call it: {node.id}(...)" if node.id in _names() else _suggest(node.id, _names())
            self.refuse(self._at(node), f"the name {node.id} stands alone", cure)
        self.refuse(self._at(node), f"{_described(node)} cannot be part of a pattern", GRAMMAR)

    def _constant(self, node: ast.Constant) -> Any:
        if node.value is None or isinstance(node.value, (bool, float, str)):
            return node.value
        if isinstance(node.value, int):
            return self._bounded(node, node.value)
        self.refuse(self._at(node), f"{node.value!r} is no literal that a pattern takes", GRAMMAR)

    def _bounded(self, node: ast.expr, value: int) -> int:
        if abs(value) > LARGEST:
            self.refuse(self._at(node), "this integer has more than 64 bits", "use smaller numbers")
        return value

    def _unary(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Invert) and isinstance(value, Pattern):
            return ~value
        if isinstance(node.op, ast.USub) and _is_number(value):
            return -value
        sign = {ast.Invert: "~", ast.USub: "-", ast.UAdd: "+", ast.Not: "not"}[type(node.op)]
        cure = "write ~ for the complement" if isinstance(value, Pattern) else GRAMMAR
        self.refuse(self._at(node), f"`{sign}` before {_kind(value)} means nothing", cure)

    def _binary(self, node: ast.BinOp) -> Any:
        kind = type(node.op)
        chained = isinstance(node.left, ast.BinOp) and type(node.left.op) is kind  # a | b | c is one union of three
        left, right = self.value(node.left, 0 if chained else 1), self.value(node.right)
        if kind in CONNECTIVES and isinstance(left, Pattern) and isinstance(right, Pattern):
            return CONNECTIVES[kind](left, right)
        if kind in ARITHMETIC and _is_integer(left) and _is_integer(right):
            return self._computed(node, left, right)
        wrong = node.right if isinstance(left, Pattern) and kind in CONNECTIVES else node
        self.refuse(
            self._at(wrong),
            f"{_kind(left)} and {_kind(right)} cannot be joined by this operator",
            "join patterns by & and |; compute with integers by + - * // % ** <<",
        )

    def _computed(self, node: ast.BinOp, left: int, right: int) -> int:
        if isinstance(node.op, (ast.Pow, ast.LShift)) and not 0 <= right < 64:
            self.refuse(self._at(node.right), "the exponent is not between 0 and 63", "use a smaller number")
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)) and right == 0:
            self.refuse(self._at(node.right), "this divides by 0", "divide by another number")
        return self._bounded(node, ARITHMETIC[type(node.op)](left, right))

    # ---- calls ---------------------------------------------------------------------------------------------------
    def _call(self, node: ast.Call) -> Any:
        made = self._called(node.func)
        args = [self.value(arg) for arg in node.args]
        named = self._keywords(node, made)
        try:
            return made(*args, **named)
        except ArgumentError as error:  # said with its place
            self.refuse(self._at(node), error.wrong, error.cure)
        except WeftError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            self.refuse(self._at(node), str(error), _usage(made))

    def _called(self, func: ast.expr) -> Callable[..., Any]:
        """The library function, `range`, or the method of a pattern."""
        if isinstance(func, ast.Attribute):
            if isinstance(func.value, ast.Name) and func.value.id == "weft":
                return self._function(func, func.attr)
            owner = self.value(func.value)
            if isinstance(owner, Pattern) and func.attr in METHODS:
                return getattr(owner, func.attr)
            at = self._at(func.value) + len(ast.get_source_segment(self.line, func.value) or "")
            self.refuse(at, f"{_kind(owner)} has no method {func.attr}", _suggest(func.attr, METHODS))
        if isinstance(func, ast.Name):
            return self._range if func.id == "range" else self._function(func, func.id)
        self.refuse(self._at(func), f"{_described(func)} cannot be called", GRAMMAR)

    def _function(self, node: ast.expr, name: str) -> Callable[..., Any]:
        try:
            return function(name)
        except KeyError:
            self.refuse(self._at(node), f"there is no pattern {name}", _suggest(name, _names()))

    def _keywords(self, node: ast.Call, made: Callable[..., Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        known = list(inspect.signature(made).parameters)
        for word in node.keywords:
            if word.arg is None:
                self.refuse(self._at(word), "** cannot be part of a pattern", "name every argument")
            if word.arg in found:
                self.refuse(self._at(word), f"{word.arg} is given twice", "give it once")
            if word.arg not in known:
                self.refuse(self._at(word), f"there is no argument {word.arg}", _suggest(word.arg, known))
            found[word.arg] = self.value(word.value)
        return found

    @staticmethod
    def _range(start: int, stop: int | None = None, step: int = 1, /) -> list[int]:
        """range(stop), range(start, stop) or range(start, stop, step), as a list."""
        found = range(start) if stop is None else range(start, stop, step)
        if len(found) > LONGEST:
            raise ValueError(f"a range of {len(found)} entries is longer than {LONGEST}")
        return list(found)


def _names() -> list[str]:
    """What to suggest. What only recognition makes (`sized` and others) may be called as well."""
    return [name for name in import_module("weft").__all__ if name in LIBRARY]


def _suggest(word: str, known: Iterable[str]) -> str:
    """Near names, or all of them."""
    known = sorted(known)
    near = get_close_matches(word, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"use one of {', '.join(known)}" if known else "leave it out"


def _usage(made: Callable[..., Any]) -> str:
    parameters = inspect.signature(made).parameters.values()
    words = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    return f"call it as {made.__name__.lstrip('_')}({', '.join(words)})"


def _kind(value: Any) -> str:
    if isinstance(value, Pattern):
        return "a pattern"
    names = {bool: "True or False", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), str(value))


def _described(node: ast.AST) -> str:
    """The kind of syntax in words: GeneratorExp -> generator exp."""
    name = type(node).__name__
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
    return f"syntax of the kind `{words}`"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, float)
