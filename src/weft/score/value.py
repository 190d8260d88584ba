"""Score: a score function as users hold it, with the tables that it captured."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from weft.score.expression import Builder, Expression
from weft.score.text import SEPARATOR, parse


class Score:
    """A score function as text and captured tables, in the arrays of whatever framework made them.

    text: as `weft.score.text` writes it; real0, int1, ... are the tables by number. name: what made it, for messages.
    tokens: how many queries and keys it is for, None for any. dense: whether table 0 is (B, H, M, N), with axes of 1.
    `a + b` does what a does, then what b does; `parts` are both. Biases are scores that add to `score`.
    """

    def __init__(
        self, text: str, tables: tuple[Any, ...], name: str = "score", tokens: int | None = None, dense: bool = False
    ) -> None:
        # plain attributes, without a look at the text: torch.compile traces this
        self.text, self.tables, self.name, self.tokens, self.dense = text, tables, name, tokens, dense
        self.parts: tuple[Score, ...] = (self,)

    def __add__(self, other: object) -> Score:
        if not isinstance(other, Score):
            return NotImplemented
        made = Score(self.text + SEPARATOR + other.text, self.tables + other.tables, f"{self.name} + {other.name}")
        made.parts = self.parts + other.parts
        return made

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The functions, each of the result of the one before it; each counts its own tables from 0."""
        return expressions(self.text)

    def __repr__(self) -> str:
        return f"Score({self.text!r}, {len(self.tables)} tables)"


@lru_cache(1024)
def expressions(text: str) -> tuple[Expression, ...]:
    """The functions of a text, in order; none of an empty one."""
    return tuple(map(parse, text.split(SEPARATOR))) if text else ()


@lru_cache(256)
def composed(text: str) -> Expression:
    """The functions of a text as one: each is of the result of the one before it, and tables are counted on."""
    make, first = Builder(), 0
    result = make.leaf("score")
    for one in expressions(text):
        found: list[int] = []
        for step in one.steps:
            value = step.value
            if step.op == "read":
                value += first
            elif step.op == "size":
                value = value[0] + first, value[1]
            args = tuple(found[a] for a in step.args)
            found.append(result if step.op == "score" else make.step(step.op, step.kind, args, value))
        result, first = found[-1], first + len(one.tables)
    return make.expression(result)
