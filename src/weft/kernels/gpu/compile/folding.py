"""A function's text without the branches that its constants rule out. It works on the syntax tree and keeps comments.

if C.rank > 1:                   becomes, where C.rank is 2,    corners = corner_penalties(C)
    corners = corner_penalties(C)
else:
    corners = ()
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
UNKNOWN = object()


def folded(text: str, constants: Mapping[str, Any]) -> str:
    """The text of functions without dead branches. constants: what names stand for, such as C for a configuration.

    A branch is dead if its condition is known from constants, their fields and literals. Other conditions lose the
    parts that are known.
    """
    tree = ast.parse(text)
    return "\n".join(_Folding(text.splitlines(), constants).block(tree.body, 1, len(text.splitlines()))) + "\n"


class _Folding:
    def __init__(self, lines: list[str], constants: Mapping[str, Any]) -> None:
        self.lines, self.constants = lines, constants

    # ---- statements --------------------------------------------------------------------------------------------------
    def block(self, body: list[ast.stmt], first: int, last: int) -> list[str]:
        """Lines first to last, of which `body` has the statements."""
        found, at = [], first
        for statement in body:
            found += self.lines[at - 1 : statement.lineno - 1]
            found += self.statement(statement)
            at = (statement.end_lineno or statement.lineno) + 1
        return found + self.lines[at - 1 : last]

    def statement(self, statement: ast.stmt) -> list[str]:
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        if isinstance(statement, ast.If):
            return self.branches(statement)
        if isinstance(statement, ast.FunctionDef | ast.For | ast.While):
            inside = statement.body[0].lineno
            return self.lines[first - 1 : inside - 1] + self.block(statement.body, inside, last)
        return self.choices(statement, self.lines[first - 1 : last])

    def branches(self, statement: ast.If) -> list[str]:
        """A chain of if, elif and else, or what is left of it."""
        found: list[str] = []
        rest: list[ast.stmt] = [statement]
        indent = " " * statement.col_offset
        while len(rest) == 1 and isinstance(one := rest[0], ast.If):
            known = self.value(one.test)
            if known is UNKNOWN:
                test = ast.unparse(self.simplified(one.test))
                found += [f"{indent}{'elif' if found else 'if'} {test}:", *self.branch(one.body, one.test, indent)]
            elif known:
                return found + self.otherwise(one.body, one.test, indent, bool(found))
            rest = one.orelse
        return found + (self.otherwise(rest, None, indent, bool(found)) if rest else [])

    def otherwise(self, body: list[ast.stmt], test: ast.expr | None, indent: str, after: bool) -> list[str]:
        """The branch that is taken if no other is. after: others are left before it."""
        if after:
            return [f"{indent}else:", *self.branch(body, test, indent)]
        return self.inside(body, test, indent)

    def branch(self, body: list[ast.stmt], test: ast.expr | None, indent: str) -> list[str]:
        found = self.inside(body, test, indent + "    ")
        return (
            found
            if any(line.strip() and not line.lstrip().startswith("#") for line in found)
            else [f"{indent}    pass"]
        )

    def inside(self, body: list[ast.stmt], test: ast.expr | None, indent: str) -> list[str]:
        """The statements of a branch and the comments before them, indented anew."""
        first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
        while self.lines[first - 2].lstrip().startswith("#"):
            first -= 1
        found = self.block(body, first, last)
        if test is not None and "  # " in (header := self.lines[(test.end_lineno or test.lineno) - 1]):
            found.insert(0, " " * body[0].col_offset + header[header.rindex("  # ") + 2 :])
        return [indent + line[body[0].col_offset :] if line else line for line in found]

    # ---- expressions -------------------------------------------------------------------------------------------------
    def choices(self, statement: ast.stmt, lines: list[str]) -> list[str]:
        """A statement without conditional expressions that are known, but for those of several lines."""
        first = statement.lineno
        asked = [x for x in ast.walk(statement) if isinstance(x, ast.IfExp) and x.lineno == x.end_lineno]
        for at in {x.lineno for x in asked}:
            lines[at - first] = self.chosen(lines[at - first], [x for x in asked if x.lineno == at])
        return lines

    def chosen(self, line: str, asked: list[ast.IfExp]) -> str:
        """A line without known ones of its conditional expressions: what stands before and after is cut away."""
        cut = set()
        for node in asked:
            known = self.value(node.test)
            if known is not UNKNOWN:
                kept = node.body if known else node.orelse
                cut |= {
                    *range(node.col_offset, kept.col_offset),
                    *range(kept.end_col_offset or 0, node.end_col_offset or 0),
                }
        return "".join(letter for i, letter in enumerate(line) if i not in cut)

    # ---- what is known -----------------------------------------------------------------------------------------------
    def value(self, node: ast.expr) -> Any:
        """What an expression is, or UNKNOWN."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.constants.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            whole = self.value(node.value)
            return UNKNOWN if whole is UNKNOWN else getattr(whole, node.attr, UNKNOWN)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            known = self.value(node.operand)
            return UNKNOWN if known is UNKNOWN else not known
        if isinstance(node, ast.BoolOp):
            return self.value_of_all(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
            found = self.value(node.args[0])
            return len(found) if isinstance(found, tuple) else UNKNOWN
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
            left, right = self.value(node.left), self.value(node.comparators[0])
            return UNKNOWN if UNKNOWN in (left, right) else COMPARED[type(node.ops[0])](left, right)
        return UNKNOWN

    def value_of_all(self, node: ast.BoolOp) -> Any:
        """Of `and` and `or`: one operand may decide."""
        decides = isinstance(node.op, ast.Or)
        known = [self.value(one) for one in node.values]
        if any(one is not UNKNOWN and bool(one) == decides for one in known):
            return decides
        return UNKNOWN if UNKNOWN in known else not decides

    def simplified(self, node: ast.expr) -> ast.expr:
        """A condition that is not known, without operands of `and` and `or` that are."""
        if not isinstance(node, ast.BoolOp):
            return node
        left = [self.simplified(one) for one in node.values if self.value(one) is UNKNOWN]
        return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
