"""Captured arrays read by a traced index: `ids[q]`, `left_padding[b]`, `mask[b, k]`, `offsets[document[q]]`.

A table read by a function of one index is a function of that index, of the table's length and no longer. Torch hands
such a read to the index by itself; numpy does not, so captured numpy arrays are put into a `Watched` view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from weft.pattern.bounds import INF
from weft.recognition import forms, runs
from weft.recognition.forms import Term
from weft.recognition.lines import Line
from weft.recognition.operations import as_table, cast, modest, operand, operation
from weft.recognition.periodic import LARGEST, LONGEST, BeyondTableError, NoFormError, Piece, tidied
from weft.recognition.tracer import (
    NOT_COMMON,
    NeedLengthError,
    ReadByRowError,
    Trace,
    Traced,
    UntraceableError,
    known,
    note,
    number,
)  # fmt: skip
from weft.tracing.capture import replaced

BEYOND = "a table of numbers beyond any index"
SOME = 64  # entries that two reads are compared by before they are on all


@runtime_checkable
class Reader(Protocol):
    """An index that reads a table by itself."""

    def read_from(self, table: Any, index: Any) -> Any: ...


class Watched(np.ndarray):
    """A numpy array that lets a traced index read it."""

    def __getitem__(self, index: Any) -> Any:
        at = index if isinstance(index, tuple) else (index,)
        traced = [i for i in at if isinstance(i, Traced)]
        if traced:
            return read(traced[0].trace, self.view(np.ndarray), index)
        other = next((i for i in at if isinstance(i, Reader)), None)
        return super().__getitem__(index) if other is None else other.read_from(self.view(np.ndarray), index)

    def take(self, indices: Any, *args: Any, **options: Any) -> Any:
        if isinstance(indices, Traced):
            return _take(indices.trace, self.view(np.ndarray), indices, *args, **options)
        return super().take(indices, *args, **options)


def watched(function: Any) -> Any:
    """The function, reading its captured numpy arrays through views that a traced index can read."""
    return replaced(function, _watched)


def _watched(value: Any) -> Any:
    return value.view(Watched) if type(value) is np.ndarray and value.dtype.kind in "biu" else value


@operation("getitem")
def read(trace: Trace, table: Any, index: Any) -> Any:
    """table[index]; batch rows and heads are known numbers in every trace, q and k are not."""
    if isinstance(table, Traced):
        raise UntraceableError("an index into what is no table")
    at = index if isinstance(index, tuple) else (index,)
    if any(_root(i) and trace.varies(i.root) for i in at):
        return _read_in_rows(trace, table, at)
    fixed: list[Any] = []
    varying: list[Term] = []
    for axis, i in enumerate(at):
        fixed.append(_position(i, table.shape[axis], varying) if isinstance(i, Traced) else i)
    marks = tuple(_root(i) or x for i, x in zip(at, fixed, strict=True))
    roots = [(root, axis) for axis, i in enumerate(at) if (root := _root(i))]
    if roots:
        _offer_rows(trace, table, roots)
        _note_read(trace, table, marks)
    if not varying:
        part = table[tuple(fixed)]
        return part.view(Watched) if isinstance(part, np.ndarray) else part
    values = as_table(table)
    if values is None:
        raise UntraceableError(f"a read of a table of {table.dtype}")
    values = values[tuple(fixed)]
    if values.ndim != len(varying):
        raise UntraceableError("a read of a whole row of a table")
    return _looked_up(trace, values, varying, str(values.dtype))


def _offer_rows(trace: Trace, table: Any, roots: list[tuple[str, int]]) -> None:
    """Raise ReadByRowError where one trace could read all rows of a table; those of an expanded one are all alike."""
    (root, axis), *more = roots
    lengths = trace.m is not None and trace.n is not None
    values = as_table(table)
    if lengths and not (trace.alone or trace.rows or more) and values is not None and values.strides[axis]:
        raise ReadByRowError(root, values.shape[axis])


def _read_in_rows(trace: Trace, table: Any, at: tuple[Any, ...]) -> Any:
    """table[b, x] in a trace of several rows: the rows of the table one after the other, and a place in them. Where no
    other index is left, what all rows have in common.
    """
    values = as_table(table)
    if values is None or values.ndim != len(at):
        raise UntraceableError("a read of a row of a table, for several rows")
    varying: list[Term] = []
    fixed: list[Any] = []
    for axis, i in enumerate(at):
        known_in_rows = _root(i) and trace.varies(i.root)
        if known_in_rows:
            trace.used.setdefault(i.root, []).append(values.shape[axis])
        place = [row[i.root] for row in trace.rows] if known_in_rows else i
        fixed.append(_position(i, values.shape[axis], varying) if isinstance(place, Traced) else place)
    _note_read(trace, table, tuple(_root(i) or x for i, x in zip(at, fixed, strict=True)))
    if not varying:
        common = values[tuple(fixed)]
        if common.ndim != 1 or (values.dtype == np.bool_ and (common != common[0]).any()):
            raise UntraceableError(NOT_COMMON)
        if (common == common[0]).all():
            return common[0]
        return trace.each([modest(x) for x in common.tolist()], str(values.dtype))
    kinds = [type(i) for i in fixed]
    if len(varying[0].axis) != 1 or kinds.count(slice) != 1 or not set(kinds) <= {int, list, slice}:
        raise UntraceableError("a read of a table of pairs, for several rows")
    what = id(table), repr(fixed)  # the table is held beside its function, so that no other one comes by its id
    if what not in trace.lines:
        trace.lines[what] = table, _function(_in_rows(values, fixed).reshape(-1))
    return _looked_up_in_rows(trace, trace.lines[what][1], varying[0], str(values.dtype))


def _note_read(trace: Trace, table: Any, marks: tuple[Any, ...]) -> None:
    """Queries and keys often read one table alike, which is one read."""
    if not any(other is table and _same_place(known, marks) for other, known in trace.reads):
        trace.reads.append((table, marks))


def same_kind(a: Trace, b: Trace) -> bool:
    """Whether two runs read the same tables, in the same order and at the same places."""
    pairs = zip(a.reads, b.reads, strict=False)
    return len(a.reads) == len(b.reads) and all(x is y and _same_place(i, j) for (x, i), (y, j) in pairs)


def _same_place(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two plain indices are equal; those with lists or arrays in them are not looked into."""
    return all(isinstance(x, (str, int, slice)) for x in a + b) and a == b


def _in_rows(values: Any, fixed: list[Any]) -> Any:
    """(rows, length): the part of a table that each row reads; `slice` marks the axis that is left."""
    left = next(axis for axis, i in enumerate(fixed) if isinstance(i, slice))
    others = [i for i in fixed if not isinstance(i, slice)]
    values = np.moveaxis(values, left, -1)
    first = others[0] if len(others) == 1 else None
    if first and first == list(range(first[0], first[0] + len(first))):
        return values[first[0] : first[0] + len(first)]
    return values[tuple(others)]


def _looked_up_in_rows(trace: Trace, line: Line, at: Term, dtype: str) -> Traced:
    """The function that the rows of a table are, one after the other, of a place in its own row."""
    (low, high), length = at.extent, line.hi // len(trace.rows)
    if low < 0 or high >= length:
        raise BeyondTableError(f"a row of {length} entries is read at {low} to {high}")
    found = forms.on_axis(at.axis, line.of(at.only + trace.row_numbers(at.axis, line.hi)), at)
    return _read_out(trace, found, dtype)


def _root(index: Any) -> str:
    """ "b" or "h" if an index is that argument itself."""
    return index.root if isinstance(index, Traced) and index.root in ("b", "h") else ""


@dataclass(frozen=True, eq=False)
class Reads:
    """What a batch row and head read, as vectors, and some of it: what differs mostly does so at some places."""

    parts: list[Any]
    some: bytes

    def same(self, other: Reads | None) -> bool:
        return other is not None and self.some == other.some and all(map(_alike, self.parts, other.parts))


def reads(trace: Trace, at: dict[str, int]) -> Reads | None:
    """What a batch row and head would read where a finished trace did; None if that is not all that matters."""
    if not trace.only_reads:
        return None
    try:
        parts = [as_table(table[_place(marks, at)]) for table, marks in trace.reads]
    except IndexError:  # the run for that row says so
        return None
    if any(part is None for part in parts):
        return None
    parts = [part.reshape(-1) for part in parts]
    return Reads(parts, b"".join(part[:: max(1, part.size // SOME)].tobytes() for part in parts))


def _place(marks: tuple[Any, ...], at: dict[str, int]) -> tuple[Any, ...]:
    return tuple(at[mark] if isinstance(mark, str) else mark for mark in marks)


def _alike(a: Any, b: Any) -> bool:
    """Whether two reads of one table hold the same; rows of an expanded table are one place in memory."""
    places = [(x.__array_interface__["data"], x.strides) for x in (a, b)]
    return places[0] == places[1] or np.array_equal(a, b)


def _position(index: Traced, length: int, varying: list[Term]) -> Any:
    """The number that an index is, or a slice, with the index entered in `varying`."""
    if index.is_condition or index.lost:
        raise UntraceableError("an index that is a condition" if index.is_condition else "an index that is not known")
    value = known(index)
    if value is not None:
        note(index, length)
        return value
    assert isinstance(index.form, tuple)  # conditions were refused above
    if len(index.form) != 1:
        raise UntraceableError("a read of a table by a number that falls into cases")
    varying.append(index.form[0][1])
    return slice(None)


def _looked_up(trace: Trace, values: Any, at: list[Term], dtype: str) -> Traced:
    _demand_lengths(values.shape, at)
    if len(at) == 1:
        found = forms.applied(_line(trace, values, at[0]), at[0])
    elif len({x.axis for x in at}) == 1 and len(at[0].axis) == 1:
        found = _many_axes(values, at)
    elif dtype == "bool" and [x.axis for x in at] == ["q", "k"] and not all(_is_index(x) for x in at):
        return Traced(trace, forms.Cell(values, at[0].f.scaled(1, at[0].g.value), at[1].only), "bool")
    else:
        raise UntraceableError("a read of a table of pairs, by q and k together")
    return _read_out(trace, found, dtype)


def _read_out(trace: Trace, found: Term, dtype: str) -> Traced:
    if dtype == "bool":
        test = Line.between(1, 2) if found.outer is None else found.outer
        return Traced(trace, forms.atom(test, found.f, found.g), "bool")
    return Traced(trace, ((forms.TRUE, found),), dtype)


def _is_index(at: Term) -> bool:
    """Whether a function is x + c: a table of all such pairs is a mask, and no layout."""
    return len(at.only.pieces) == 1 and at.only.pieces[0].straight and at.only.pieces[0].slope == 1


def _line(trace: Trace, values: Any, at: Term) -> Line:
    """The table as a function; an index below 0 counts from its end."""
    below = at.extent[0] < 0
    where = values.__array_interface__["data"][0], values.strides, values.size, values.dtype.str, below
    if where not in trace.lines:
        made = _function(np.concatenate([values, values]), -values.size) if below else _function(values)
        trace.lines[where] = values, made
    return trace.lines[where][1]


def _many_axes(values: Any, at: list[Term]) -> Term:
    """table[a(x), b(x)] is a function of x."""
    lines = [x.only for x in at]
    places = tuple(line.all() for line in lines)
    try:
        found = values[places]
    except IndexError as error:
        raise BeyondTableError(str(error)) from None
    return forms.on_axis(at[0].axis, _function(found, lines[0].lo), at[0])


def _function(values: Any, lo: int = 0) -> Line:
    """x -> values[x - lo], of numbers whose sums stay within 64 bits."""
    if values.dtype == np.uint64 and values.size and int(values.max()) > LARGEST:
        raise UntraceableError(BEYOND)
    found = Line.table(values, lo)
    if max(map(abs, found.extent)) > LARGEST:
        raise UntraceableError(BEYOND)
    return found


def _demand_lengths(shape: tuple[int, ...], at: list[Term]) -> None:
    """Raise NeedLengthError if an index of a table runs over a side whose length is not known."""
    limits: dict[str, int | None] = {}
    for length, x in zip(shape, at, strict=True):
        for axis, line in (("q", x.f), ("k", x.g)):
            if not line.is_constant and not line.bounded:
                limits[axis] = _fitting(x, length) if axis not in limits else None
    if limits:
        raise NeedLengthError(limits)


def _fitting(at: Term, length: int) -> int | None:
    """How far x may run where x // b + c reads a table of that length; None for other functions of x."""
    if len(at.axis) != 1 or len(at.only.pieces) != 1:
        return None
    (piece,) = at.only.pieces
    plain = piece.values.size == piece.slope == 1
    return max(0, length - int(piece.values[0])) * piece.run if plain else None


@operation("take")
def _take(trace: Trace, table: Any, index: Any, *args: Any, **options: Any) -> Any:
    special = [x for x in (*args, *options.values()) if x not in (None, "raise")]
    if len(table.shape) != 1 or special:
        raise UntraceableError("`take` with these arguments")
    return read(trace, table, index)


@operation("searchsorted")
def _searchsorted(trace: Trace, table: Any, x: Any, side: Any = None, sorter: Any = None, **options: Any) -> Any:
    """How many entries of a sorted table lie below x (left), or not above it (right)."""
    right, narrow = (bool(options.pop(name, False)) for name in ("right", "out_int32"))
    if options or sorter is not None or side not in (None, "left", "right") or (right and side == "left"):
        raise UntraceableError("`searchsorted` with these arguments")
    values = as_table(table)
    if values is None or values.ndim != 1 or not isinstance(x, Traced) or (values[1:] < values[:-1]).any():
        raise UntraceableError("`searchsorted` in what is not a sorted row of integers")
    steps = _steps(values.astype(np.int64), "right" if right or side == "right" else "left")
    found = Traced(trace, forms.mapped(steps, number(operand(trace, x))), "int64")
    return cast(trace, found, "int32") if narrow else found


@operation("bucketize")
def _bucketize(trace: Trace, x: Any, table: Any, **options: Any) -> Any:
    """torch's name for `searchsorted` with its operands exchanged."""
    return _searchsorted(trace, table, x, **options)


def _steps(values: Any, side: str) -> Line:
    """x -> searchsorted(values, x)."""
    if not values.size:
        return Line.constant(0)
    lo, hi = int(values[0]), int(values[-1]) + 2
    if hi - lo > LONGEST:
        raise NoFormError("the entries of `searchsorted` lie too far apart")
    distinct = runs.merged(values)
    begin, count = distinct + (side == "left"), np.searchsorted(values, distinct, side="right")
    if begin[0] > lo:
        begin, count = np.append(lo, begin), np.append(0, count)
    ends = [Piece(-INF, lo, np.zeros(1, np.int64)), Piece(hi, INF, np.array([values.size]))]
    return Line(tuple(tidied([ends[0], *runs.pieces_of(runs.Runs.steps(begin, count, hi)), ends[1]])))
