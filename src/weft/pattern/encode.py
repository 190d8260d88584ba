"""A pattern as a structure without sizes, the integers it leaves out, and its tables; and back.

This is how a pattern crosses into a registered operator: the structure is a constant of the compiled graph, integers and
tables are data, so a new window or another split of documents compiles nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from weft.pattern.algebra import And, Call, Not, Or, Pattern, Shift
from weft.pattern.arguments import rebuild
from weft.pattern.bounds import IntTable

OPERATORS: dict[str, type[And] | type[Or] | type[Not]] = {"&": And, "|": Or, "~": Not}
SIGNS = {operator: sign for sign, operator in OPERATORS.items()}


@dataclass(frozen=True)
class Encoded:
    """structure: JSON text; "i" stands for the next integer, "t" for the next table."""

    structure: str
    integers: tuple[int, ...]
    tables: tuple[IntTable, ...]


@lru_cache(maxsize=256)
def encode(pattern: Pattern) -> Encoded:
    """The three parts of a pattern made of library calls and operators."""
    integers: list[int] = []
    tables: list[IntTable] = []
    tree = _tree(pattern, integers, tables)
    return Encoded(json.dumps(tree, separators=(",", ":")), tuple(integers), tuple(tables))


@lru_cache(maxsize=256)
def decode(encoded: Encoded) -> Pattern:
    """The pattern that `encode` took apart; its arguments are checked again."""
    pattern = _value(json.loads(encoded.structure), iter(encoded.integers), iter(encoded.tables))
    assert isinstance(pattern, Pattern)
    return pattern


def _tree(value: Any, integers: list[int], tables: list[IntTable]) -> Any:
    if isinstance(value, Call):
        return [value.name, {key: _tree(arg, integers, tables) for key, arg in value.args}]
    if isinstance(value, (And, Or, Not)):
        return [SIGNS[type(value)], *(_tree(part, integers, tables) for part in value.parts)]
    if isinstance(value, Shift):
        integers += [value.q, value.k]
        return [">", _tree(value.part, integers, tables)]
    if isinstance(value, tuple):
        return {"list": [_tree(item, integers, tables) for item in value]}
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, IntTable):
        tables.append(value)
        return "t"
    if isinstance(value, int) and not isinstance(value, bool):
        integers.append(value)
        return "i"
    if value is None or isinstance(value, bool):
        return value
    raise TypeError(f"{type(value).__name__} is not a part of a pattern")


def _value(tree: Any, integers: Iterator[int], tables: Iterator[IntTable]) -> Any:
    if tree == "i":
        return next(integers)
    if tree == "t":
        return next(tables)
    if isinstance(tree, dict):
        return tree["text"] if "text" in tree else tuple(_value(x, integers, tables) for x in tree["list"])
    if not isinstance(tree, list):
        return tree
    head, *rest = tree
    if head == ">":
        q, k = next(integers), next(integers)
        return Shift(_value(rest[0], integers, tables), q, k)
    if head == "~":
        return Not(_value(rest[0], integers, tables))
    if head in OPERATORS:
        return (And if head == "&" else Or)(tuple(_value(part, integers, tables) for part in rest))
    return rebuild(head, {key: _value(arg, integers, tables) for key, arg in rest[0].items()})
