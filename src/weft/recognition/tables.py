"""Captured arrays read by a traced index: `ids[q]`, `left_padding[b]`, `mask[b, k]`, `offsets[document[q]]`.

A table read by a function of one index is a function of that index, of the table's length and no longer. Torch hands
such a read to the index by itself; numpy does not, so captured numpy arrays are put into a `Watched` view.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.pattern.bounds import INF
from weft.recognition import forms
from weft.recognition.forms import Term
from weft.recognition.lines import Line
from weft.recognition.operations import as_table, operation
from weft.recognition.periodic import LONGEST, BeyondTableError, NoFormError, Piece, tidied
from weft.recognition.tracer import NeedLengthError, Trace, Traced, UntraceableError, known, note


class Watched(np.ndarray):
    """A numpy array that lets a traced index read it."""

    def __getitem__(self, index: Any) -> Any:
        traced = [i for i in (index if isinstance(index, tuple) else (index,)) if isinstance(i, Traced)]
        return read(traced[0].trace, self.view(np.ndarray), index) if traced else super().__getitem__(index)

    def take(self, indices: Any, *args: Any, **options: Any) -> Any:
        if isinstance(indices, Traced):
            return _take(indices.trace, self.view(np.ndarray), indices, *args, **options)
        return super().take(indices, *args, **options)


@operation("getitem")
def read(trace: Trace, table: Any, index: Any) -> Any:
    """table[index]; batch rows and heads are known numbers in every trace, q and k are not."""
    if isinstance(table, Traced):
        raise UntraceableError("an index into what is no table")
    at = index if isinstance(index, tuple) else (index,)
    fixed: list[Any] = []
    varying: list[Term] = []
    for axis, i in enumerate(at):
        fixed.append(_position(i, table.shape[axis], varying) if isinstance(i, Traced) else i)
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


def _position(index: Traced, length: int, varying: list[Term]) -> Any:
    """The number that an index is, or a slice, with the index entered in `varying`."""
    if index.is_condition:
        raise UntraceableError("an index that is a condition")
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
        found = forms.applied(_line(values, at[0]), at[0])
    elif len({x.axis for x in at}) == 1 and len(at[0].axis) == 1:
        found = _many_axes(values, at)
    elif dtype == "bool" and [x.axis for x in at] == ["q", "k"] and not any(_is_index(x) for x in at):
        return Traced(trace, forms.Cell(values, at[0].f.scaled(1, at[0].g.value), at[1].only), "bool")
    else:
        raise UntraceableError("a read of a table of pairs, by q and k together")
    if dtype == "bool":
        test = Line.between(1, 2) if found.outer is None else found.outer
        return Traced(trace, forms.atom(test, found.f, found.g), "bool")
    return Traced(trace, ((forms.TRUE, found),), dtype)


def _is_index(at: Term) -> bool:
    """Whether a function is x + c: a table of all such pairs is a mask, and no layout."""
    return len(at.only.pieces) == 1 and at.only.pieces[0].straight and at.only.pieces[0].slope == 1


def _line(values: Any, at: Term) -> Line:
    """The table as a function; an index below 0 counts from its end."""
    numbers = _numbers(values)
    if at.extent[0] < 0:
        return Line.table(np.concatenate([numbers, numbers]), -numbers.size)
    return Line.table(numbers)


def _many_axes(values: Any, at: list[Term]) -> Term:
    """table[a(x), b(x)] is a function of x."""
    lines = [x.only for x in at]
    places = tuple(line.all() for line in lines)
    try:
        numbers = _numbers(values[places])
    except IndexError as error:
        raise BeyondTableError(str(error)) from None
    return forms.on_axis(at[0].axis, Line.table(numbers, lines[0].lo), at[0])


def _numbers(values: Any) -> Any:
    if values.size > LONGEST:
        raise NoFormError(f"a table of {values.size} entries is too long to be written down")
    if values.dtype == np.uint64 and values.size and int(values.max()) > INF:
        raise UntraceableError("a table of numbers beyond any index")
    return values.astype(np.int64)


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
def _searchsorted(trace: Trace, table: Any, x: Any, side: str = "left", right: bool = False, **_: Any) -> Any:
    """How many entries of a sorted table lie below x (left), or not above it (right)."""
    values = as_table(table)
    if values is None or values.ndim != 1 or not isinstance(x, Traced) or (np.diff(values) < 0).any():
        raise UntraceableError("`searchsorted` in what is not a sorted row of integers")
    steps = _steps(values.astype(np.int64), "right" if right else side)
    assert isinstance(x.form, tuple)
    return Traced(trace, forms.mapped(steps, x.form), "int64")


@operation("bucketize")
def _bucketize(trace: Trace, x: Any, table: Any, right: bool = False, **_: Any) -> Any:
    return _searchsorted(trace, table, x, right=right)


def _steps(values: Any, side: str) -> Line:
    """x -> searchsorted(values, x)."""
    if not values.size:
        return Line.constant(0)
    lo, hi = int(values[0]), int(values[-1]) + 2
    if hi - lo > LONGEST:
        raise NoFormError("the entries of `searchsorted` lie too far apart")
    counts = np.searchsorted(values, np.arange(lo, hi, dtype=np.int64), side=side)  # type: ignore[call-overload]
    ends = [Piece(-INF, lo, np.zeros(1, np.int64)), Piece(hi, INF, np.array([values.size]))]
    return Line(tuple(tidied([ends[0], *Line.table(counts, lo).pieces, ends[1]])))
