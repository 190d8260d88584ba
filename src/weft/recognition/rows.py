"""Several batch rows in one trace: what was found over the indices of all of them, one after the other, row by row."""

from __future__ import annotations

import numpy as np

from weft.recognition import forms, runs
from weft.recognition.forms import All, Always, Formula, Pair, Side, Some
from weft.recognition.lines import Line
from weft.recognition.periodic import NoFormError, Piece, tidied
from weft.recognition.remember import remembered
from weft.recognition.runs import Ragged, Runs


def in_rows(formula: Formula, count: int) -> list[Formula]:
    """The formula of each of `count` rows, from the one that a trace of all of them found."""
    if isinstance(formula, Always):
        return [formula] * count
    if isinstance(formula, Side):
        return [forms.side(formula.axis, test) for test in cut(formula.test, count)]
    if isinstance(formula, Pair):
        return [forms.atom(formula.test, f, g) for f, g in _sides(formula, count)]
    if isinstance(formula, (All, Some)):
        parts = zip(*(in_rows(part, count) for part in formula.parts), strict=True)
        return [_joined(formula, each) for each in parts]
    raise NoFormError("a layout in a trace of several rows")


def _joined(whole: All | Some, parts: tuple[Formula, ...]) -> Formula:
    """Parts that are of the kind that they are for all rows are joined no further than these are."""
    if [type(part) for part in parts] == [type(part) for part in whole.parts]:
        return type(whole)(parts)
    return forms.both(*parts) if isinstance(whole, All) else forms.either(*parts)


def _sides(pair: Pair, count: int) -> list[tuple[Line, Line]]:
    """f and g of each row; where one is the other with a sign, as labels that are compared are, so it is in each."""
    gap = pair.g.gap(pair.f, -1) if (pair.f.lo, pair.f.hi) == (pair.g.lo, pair.g.hi) else None
    first = cut(pair.f, count)
    second = cut(pair.g, count) if gap is None else [line.scaled(-1, gap) for line in first]
    return list(zip(first, second, strict=True))


@remembered
def cut(line: Line, count: int) -> tuple[Line, ...]:
    """A function of the indices of all rows as a function of the indices of each."""
    length = line.hi // count
    if line.is_constant:
        return (Line.constant(line.value, 0, length),) * count
    if len(line.pieces) == 1 and isinstance(line.pieces[0], Ragged):
        return tuple(_spelled(part) for part in _cut(line.pieces[0].runs, count, length))
    return tuple(line.of(Line.index(0, length, 1, length * row)) for row in range(count))


def _cut(found: Runs, count: int, length: int) -> list[Runs]:
    """The runs of each row, from the one that its first index is in to the one that its last index is in."""
    edges = np.arange(count + 1, dtype=np.int64) * length
    first = found.place(edges[:-1]).tolist()
    stop = np.searchsorted(found.begin, edges[1:]).tolist()
    parts = []
    for edge, a, b in zip(edges.tolist(), first, stop, strict=False):
        begin, value = found.begin[a:b] - edge, found.value[a:b].copy()
        value[0] -= found.slope[a] * begin[0]
        begin[0] = 0
        parts.append(Runs(begin, value, found.slope[a:b], length))
    return parts


def _spelled(found: Runs) -> Line:
    """Runs as the function that they are without the other rows."""
    if found.begin.size > runs.FEW:
        return Line((_regular(found) or Ragged(found),))
    if found.begin.size == 1 and found.slope[0]:
        return Line.index(0, found.stop, int(found.slope[0]), int(found.value[0]))
    return Line(tuple(tidied(runs.pieces_of(found))))


def _regular(found: Runs) -> Piece | None:
    """Steps of one width and one height as a rule: x // width is one, whatever else reads tables."""
    if found.begin.size < 3:
        return None
    inner, rise = found.lengths[1:-1], int(found.value[2] - found.value[1])
    width = int(inner[0])
    if found.slope.any() or (inner != width).any() or (np.diff(found.value) != rise).any() or not rise:
        return None
    if found.begin[1] % width or found.lengths[0] > width or found.lengths[-1] > width:
        return None
    return Piece(0, found.stop, found.value[:1], rise, width)
