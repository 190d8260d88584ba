"""Documents of unlike lengths of queries and keys, each under one pattern at its own lengths.

`packed` is a library function that the front end writes, as recognition has some of its own. It prints, compares and
crosses as the call that makes it, with two tables of lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.acsr import build, lower
from weft.acsr.format import MAX_TERMS, Acsr, Grid, NotAffineError, Term
from weft.errors import LengthError, PatternError
from weft.pattern.algebra import Operator, Pattern, Where
from weft.pattern.arguments import integers, library
from weft.pattern.bounds import Ints, IntTable, Steps
from weft.pattern.leaves import PerBatch
from weft.pattern.relation import ANY, NDBool, Relation

Interval = tuple[Ints, Ints]  # of each query: its first key, and the one after the last


@dataclass(frozen=True)
class Packed(Operator):
    """Queries of document i see keys of document i as `part` says at (lengths[i], key_lengths[i]).

    Where the part tells batch rows apart, row i of it is for document i.
    """

    part: Pattern
    lengths: IntTable
    key_lengths: IntTable

    @property
    def parts(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return (self.part,)

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return replace(self, part=parts[0])

    def extent(self) -> tuple[int | None, int | None]:
        rows, heads = self.part.extent()
        if rows is not None and rows != len(self.lengths):
            raise PatternError(
                f"packed documents under {self.part}",
                f"it tells {rows} batch rows apart, and there are {len(self.lengths)} documents",
                "give one row for each document",
            )
        return None, heads

    def at(self, batch: int, head: int) -> Pattern:
        rows, heads = self.part.extent()
        if heads is None:
            return self
        each = [self.part.at(i, head) for i in range(rows or 1)]
        return replace(self, part=each[0] if rows is None else PerBatch(tuple(each)))

    def of(self, document: int) -> Pattern:
        """The pattern of one document, which tells no heads apart."""
        return self.part.at(document if self.part.extent()[0] is not None else 0, 0)

    def placed(self) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
        """(document, (first query, queries), (first key, keys)), of those that have both."""
        queries, keys = self.lengths.array, self.key_lengths.array
        first_q, first_k = (np.cumsum(x) - x for x in (queries, keys))
        for i in np.flatnonzero((queries > 0) & (keys > 0)).tolist():
            yield i, (int(first_q[i]), int(queries[i])), (int(first_k[i]), int(keys[i]))

    def check(self, m: int, n: int, asked: str) -> None:
        totals = int(self.lengths.array.sum()), int(self.key_lengths.array.sum())
        if (m, n) != totals:
            raise LengthError(
                asked, f"the documents have {totals[0]} queries and {totals[1]} keys", "make M, N and the lengths agree"
            )
        self.extent()
        if self.part.extent()[0] is None:  # the same question for documents of the same lengths
            for size in sorted({(length_q, length_k) for _, (_, length_q), (_, length_k) in self.placed()}):
                self.part.check(*size, asked)
        else:
            for i, (_, length_q), (_, length_k) in self.placed():
                self.part.at(i, 0).check(length_q, length_k, asked)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        live = np.zeros(np.broadcast_shapes(q.shape, k.shape), np.bool_)
        for i, (q0, length_q), (k0, length_k) in self.placed():
            inside = (q >= q0) & (q < q0 + length_q) & (k >= k0) & (k < k0 + length_k)
            if inside.any():
                local = np.clip(q - q0, 0, length_q - 1), np.clip(k - k0, 0, length_k - 1)
                live |= inside & self.part.holds(*local, Where(length_q, length_k, i, at.head))
        return live


@library
def packed(pattern: Any, lengths: Any, key_lengths: Any) -> Pattern:
    """Document i has lengths[i] queries and key_lengths[i] keys, and `pattern` relates them as if they were alone."""
    queries, keys = integers("packed", "lengths", lengths), integers("packed", "key_lengths", key_lengths)
    if not isinstance(pattern, Pattern) or len(queries) != len(keys):
        raise PatternError(
            f"packed({pattern}, ...)", f"there are {len(queries)} lengths of queries and {len(keys)} of keys",
            "pass a pattern, and two lengths for each document",
        )  # fmt: skip
    return Packed(pattern, queries, keys)


@lower.lower.register
def _(pattern: Packed, m: int, n: int) -> lower.Union:
    """A term for each interval that the rows of a document are unions of; no row is looked at but by its bounds."""
    found: list[tuple[tuple[int, int], list[Interval]]] = []
    for i, (q0, length_q), (k0, length_k) in pattern.placed():
        intervals = intervals_of(pattern.of(i), length_q, length_k)
        if intervals is None:
            raise NotAffineError("rows of a document are not a few intervals")
        found.append(((q0, k0), intervals))
    count = max((len(intervals) for _, intervals in found), default=0)
    return lower.Union([Term.flat(_joined(pattern, found, number), m, n) for number in range(count)])


def intervals_of(pattern: Pattern, m: int, n: int) -> list[Interval] | None:
    """The rows of a pattern as unions of intervals, one of every row in each entry; None where they are none.

    The pattern tells no heads apart.
    """
    acsr = build.build(pattern, m, n)
    if len(acsr.terms) > MAX_TERMS or len(acsr.remainder) or not all(_is_plain(term, acsr) for term in acsr.terms):
        return None
    rows = np.arange(m, dtype=np.int64)
    return [term.axes[0].interval(rows, n) for term in acsr.terms]


def _is_plain(term: Term, acsr: Acsr) -> bool:
    """Whether each row of a term is an interval of keys."""
    if term.rank > 1 or not (term.rows.is_every and term.keys.is_every):
        return False
    axis = term.axes[0]
    whole = (term.q, term.k) == (Grid(0, (acsr.m,)), Grid(0, (acsr.n,)))
    return whole and axis.rows == axis.keys == axis.diagonal == ANY


def _joined(pattern: Packed, found: list[tuple[tuple[int, int], list[Interval]]], number: int) -> Relation:
    """Interval `number` of every document's rows, one behind the other; documents that have fewer see nothing."""
    ends = np.cumsum(pattern.key_lengths.array)
    first = np.repeat(ends - pattern.key_lengths.array, pattern.lengths.array)
    after = first.copy()
    for (q0, k0), intervals in found:
        if number < len(intervals):
            low, high = intervals[number]
            first[q0 : q0 + low.size], after[q0 : q0 + low.size] = k0 + low, k0 + high
    return Relation((_table(first),), (_table(after),))


def _table(values: Ints) -> Steps:
    """A value for each row, non-decreasing, as the places where it changes."""
    changes = np.flatnonzero(np.diff(values)) + 1
    return Steps(IntTable(changes), IntTable(values[np.append(0, changes)]))
