"""What of a pattern crosses into a compiled graph: its expression without the integers, and the integers.

`causal() & window(left=1023)` is `and_(causal(offset=_), window(left=_))` and an int64 array with 0 and 1023 in it. A
graph is compiled for the first and takes the second as data; `decode` makes the pattern of both again.

One record for each call: [its length, integers, tables, records of the patterns among its arguments, zeros]. `_`
stands for an integer, `T` for a table and its length, `R` for a list of short tables, `B` for rows of booleans. A
record's length is 13 mod 16, seldom the size of another dimension, which torch would take for the same number.

The expression may travel with the integers, behind the record (`packed`): then it is data too, and one graph serves
patterns of any expression.
"""

from __future__ import annotations

import ast
import functools
import operator
from typing import Any

import numpy as np

from weft.caching import cached
from weft.errors import InputError

MARK = 0x77656674  # of an expression behind a record
# arguments that are lists of short tables, and are spelled so when they are empty too
ROWS = {"pairs": "R", "allowed": "B"}
integers: tuple[type, ...] = (int,)  # weft.torch adds torch.SymInt
tracer: Any = (
    None  # set by weft.torch: is_compiling(), record(own, tables), column(values), call(name, args), tensor_of
)


class Bare(TypeError):
    """A leaf without the library call that made it: it does not cross."""


def tracing() -> bool:
    """Whether torch.compile or torch.export is writing down what runs now."""
    return tracer is not None and tracer.is_compiling()


def record(own: list[int], tables: list[Any]) -> Any:
    """One record."""
    if tracing():
        return tracer.record(own, tables)
    size = 1 + len(own) + sum([len(t) for t in tables])
    out = np.zeros(size + (13 - size) % 16, np.int64)  # owns its data and is no view: Dynamo needs that
    out[:size] = np.concatenate([np.array([len(out), *own], np.int64), *tables])
    return out


def keep(pattern: Any) -> None:
    """Give a pattern its integers as a tensor, where torch is there: the arrays of a compiled graph fail torch's own
    guards in inference mode.
    """
    if tracer is not None and not tracing() and "numbers" in pattern.__dict__:
        found = tracer.tensor_of(packed(pattern.structure, pattern.numbers))
        if found is not None:
            pattern.__dict__["tensor"] = found


def packed(structure: str, numbers: Any) -> Any:
    """A record with the expression behind it: [record, MARK, bytes of the expression, these as integers, zeros].

    Its length is 13 mod 64, so that most patterns have one length, which torch would else compile anew for.
    """
    text = structure.encode()
    words = np.frombuffer(text + b"\0" * (-len(text) % 8), np.int64)
    size = len(numbers) + 2 + len(words)
    out = np.zeros(_padded(size), np.int64)
    out[:size] = np.concatenate([numbers, [MARK, len(text)], words])
    return out


def _padded(size: int) -> int:
    """The length of a record with its expression."""
    return size + (13 - size) % 64


def column(values: Any) -> Any:
    """A list of integers as a table."""
    return tracer.column(values) if tracing() else np.asarray(values, np.int64)


def cross(name: str, args: list[tuple[str, Any]]) -> tuple[str, Any]:
    """(structure, numbers) of the call `name(**args)`; an empty key is a positional argument."""
    words: list[str] = []
    own: list[int] = []
    tables: list[Any] = []
    inner: list[Any] = []
    for key, value in args:
        words.append((key + "=" if key else "") + _word(value, own, tables, inner, ROWS.get(key, "")))
    return name + "(" + ", ".join(words) + ")", record(own, tables + inner)


def _word(value: Any, own: list[int], tables: list[Any], inner: list[Any], rows: str = "") -> str:
    if value is None or isinstance(value, (bool, str)):
        return repr(value)
    if isinstance(value, integers):
        own.append(value)  # type: ignore[arg-type]
        return "_"
    if hasattr(value, "structure"):
        # a tensor, because torch.export loses the content of an array
        inner.append(value.tensor if tracing() and hasattr(value, "tensor") else value.numbers)
        return value.structure
    if hasattr(value, "holds"):
        raise Bare(type(value).__name__)
    if isinstance(value, (tuple, list)) and (rows or any([not _plain(v) for v in value])):
        if rows != "B" and not all([_ragged(v) for v in value]):
            return "(" + "".join([_word(v, own, tables, inner) + ", " for v in value]) + ")"
        flat: list[Any] = []
        for v in value:
            flat.append(len(v))
            flat.extend([int(x) for x in (v.array if hasattr(v, "array") else v)])
        word, table = rows or "R", column(flat)
    else:
        word, table = (
            "T",
            value.array if hasattr(value, "array") else value if hasattr(value, "shape") else column(value),
        )
    own.append(table.shape[0])
    tables.append(table)
    return word


def _plain(value: Any) -> bool:
    return isinstance(value, integers) and not isinstance(value, bool)


def _ragged(value: Any) -> bool:
    return hasattr(value, "array") or (isinstance(value, (tuple, list)) and all([_plain(v) for v in value]))


# ---- back again ------------------------------------------------------------------------------------------------------
@cached(1024)
def decode(structure: str, numbers: bytes) -> Any:
    """The pattern again; `numbers` are the bytes of its record, or of what `packed` made, where structure may be ""."""
    values = np.frombuffer(numbers, np.int64)
    size = int(values[0]) if len(values) else 0
    behind = values[size:] if size > 0 else values[:0]
    marked = len(behind) > 1 and behind[0] == MARK and 0 < behind[1] <= 8 * (len(behind) - 2)
    if not (marked or (structure and len(values) == size > 0)):
        raise InputError(
            f"read the pattern {structure} from a graph", f"its record of {len(values)} integers is damaged",
            "make the graph anew, of a pattern that was made after torch was imported",
        )  # fmt: skip
    expression = structure or behind[2:].tobytes()[: int(behind[1])].decode()
    try:
        return _Reader(values[:size]).pattern(ast.parse(expression, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):  # Python reads 200 brackets within each other
        raise InputError(
            f"read a pattern of {len(expression)} characters from a graph", "it is nested too deep to cross into one",
            "join its parts at one level (a | b | c), or recognize its mask once and pass that pattern",
        ) from None  # fmt: skip


class _Reader:
    """Reads one record: its integers first, then its tables, then the patterns inside."""

    def __init__(self, values: Any) -> None:
        self.values, self.at = values, 1

    def take(self, count: int) -> Any:
        self.at += count
        return self.values[self.at - count : self.at]

    def pattern(self, node: Any) -> Any:
        from weft.pattern.arguments import function

        found = [*node.args, *(word.value for word in node.keywords)]
        for step in (self._integers, self._tables, self._patterns):
            found = [step(word) for word in found]
        args, name = found[: len(node.args)], node.func.id
        kwargs = dict(zip([word.arg for word in node.keywords], found[len(args) :], strict=True))
        if name in ("and_", "or_"):
            return functools.reduce(getattr(operator, name), args)
        if name == "invert":
            return ~args[0]
        if name in ("shift", "aligned"):
            return getattr(args[0], name)(*args[1:], **kwargs)
        return function(name)(*args, **kwargs)

    def _integers(self, word: Any) -> Any:
        if isinstance(word, ast.Tuple):
            return tuple(self._integers(w) for w in word.elts)
        if not isinstance(word, ast.Name):
            return word
        number = int(self.take(1)[0])
        return number if word.id == "_" else (word.id, number)

    def _tables(self, word: Any) -> Any:
        if not isinstance(word, tuple):
            return word
        if len(word) != 2 or word[0] not in ("T", "R", "B"):
            return tuple(self._tables(w) for w in word)
        table = self.take(word[1]).copy()
        if word[0] == "T":
            return table
        rows, at, kind = [], 0, bool if word[0] == "B" else int
        while at < len(table):
            rows.append(tuple(kind(x) for x in table[at + 1 : at + 1 + table[at]]))
            at += 1 + int(table[at])
        return tuple(rows)

    def _record(self) -> Any:
        """The next record; what `packed` put behind it is passed over."""
        first, size = self.at, int(self.values[self.at])
        record = self.take(size)
        if self.at + 1 < len(self.values) and self.values[self.at] == MARK:
            self.at = first + _padded(size + 2 + -(-int(self.values[self.at + 1]) // 8))
        return record

    def _patterns(self, word: Any) -> Any:
        if isinstance(word, tuple):
            return tuple(self._patterns(w) for w in word)
        if isinstance(word, ast.Call):
            return _Reader(self._record()).pattern(word)
        return ast.literal_eval(word) if isinstance(word, ast.AST) else word
