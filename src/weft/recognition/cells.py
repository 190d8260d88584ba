"""Functions that are not monotone but made of few monotone pieces: the formula on each cell of queries by keys.

Queries and keys are cut where a function stops rising, or falling. On a cell every function never turns back, so the
rules for bounds can say it. What compares one index with a constant mostly holds throughout or nowhere. The union over
cells is the formula.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from itertools import pairwise

import numpy as np

from weft.acsr.cover import of_intervals
from weft.acsr.format import MAX_TERMS
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import INF, Ints
from weft.recognition import forms, names, spell
from weft.recognition.forms import All, Always, Formula, Pair, Side, Some
from weft.recognition.lines import Line
from weft.recognition.periodic import NoFormError, Piece, tidied
from weft.recognition.runs import Ragged
from weft.recognition.spans import Size
from weft.recognition.terms import spelled

MAX_CUTS = 8  # of an axis
MAX_CELLS = 24
LONGEST = 1 << 21  # entries of a table that is looked through for turns

Span = tuple[int, int]
_inside: ContextVar[bool] = ContextVar("inside", default=False)  # whether the formula is on a cell already


def in_cells(formula: Formula, size: Size) -> Pattern:
    """The pattern of a formula, cell by cell. NoFormError where no function turns, or one does so too often."""
    from weft.recognition.lower import lower

    cuts = {axis: _cuts(formula, axis) for axis in "qk"}
    if _inside.get() or not any(cuts.values()):
        raise NoFormError("no function is made of pieces")
    ends = {axis: _ends(formula, axis) for axis in "qk"}
    spans = {axis: list(pairwise([ends[axis][0], *cuts[axis], ends[axis][1]])) for axis in "qk"}
    if len(spans["q"]) * len(spans["k"]) > MAX_CELLS:
        raise NoFormError(f"its functions fall into {len(spans['q'])} x {len(spans['k'])} pieces")
    found = []
    token = _inside.set(True)
    try:
        for keys in spans["k"]:
            for queries in spans["q"]:
                cell = _on_cell(formula, queries, keys)
                if cell != forms.FALSE:
                    sides = [_within(axis, at, ends[axis]) for axis, at in (("q", queries), ("k", keys))]
                    found.append(lower(forms.both(*sides, cell), size))
    finally:
        _inside.reset(token)
    return names.union(found)


def _within(axis: str, span: Span, ends: Span) -> Formula:
    """The index lies in a span."""
    return forms.side(axis, Line.between(*span).restricted(*ends))


# ---- where functions turn --------------------------------------------------------------------------------------------
def _lines(formula: Formula, axis: str) -> Iterable[Line]:
    """The functions of one index in the pairs of a formula."""
    if isinstance(formula, (All, Some)):
        for part in formula.parts:
            yield from _lines(part, axis)
    elif isinstance(formula, Pair):
        yield formula.f if axis == "q" else formula.g


def _tests(formula: Formula, axis: str) -> Iterable[Line]:
    if isinstance(formula, (All, Some)):
        for part in formula.parts:
            yield from _tests(part, axis)
    elif isinstance(formula, Side) and formula.axis == axis:
        yield formula.test


def _ends(formula: Formula, axis: str) -> Span:
    """First index, and the one after the last, of all functions of one index."""
    lines = [*_lines(formula, axis), *_tests(formula, axis)]
    return max((line.lo for line in lines), default=0), min((line.hi for line in lines), default=INF)


def _cuts(formula: Formula, axis: str) -> list[int]:
    found: set[int] = set()
    for line in _lines(formula, axis):
        found.update(turns(line))
    low, high = _ends(formula, axis)
    return sorted(at for at in found if low < at < high)


def turns(line: Line) -> list[int]:
    """Where a function that is not monotone is to be cut, so that it never turns back between the cuts."""
    if line.rises or line.falls:
        return []
    if line.bounded and line.hi - line.lo <= LONGEST:
        found = [_turns_of(line, sign) for sign in (1, -1)]
        best: list[int] = min(found, key=len)
    else:
        best = [piece.start for piece in line.pieces[1:]]
        if not all(piece.slope or piece.constant for piece in line.pieces):
            return []
    if len(best) > MAX_CUTS:
        raise NoFormError(f"a function turns back in {len(best)} places")
    return best


def _turns_of(line: Line, sign: int) -> list[int]:
    """The places where a bounded function falls (sign 1) or rises (-1)."""
    if len(line.pieces) == 1 and isinstance(line.pieces[0], Ragged):
        found = line.pieces[0].runs
        if (sign * found.slope[found.lengths > 1] < 0).any():
            return [0] * (MAX_CUTS + 1)
        return (found.begin[1:][sign * (found.value[1:] - found.last[:-1]) < 0]).tolist()
    values = line.all()
    if values.size != line.hi - line.lo:  # cells of several indices
        values = line.at(np.arange(line.lo, line.hi, dtype=np.int64))
    places = np.flatnonzero(sign * np.diff(values) < 0)
    return (places[: MAX_CUTS + 1] + 1 + line.lo).tolist()


# ---- a formula on a cell ---------------------------------------------------------------------------------------------
def _on_cell(formula: Formula, queries: Span, keys: Span) -> Formula:
    """A formula that agrees with another one on a cell, and of which nothing turns."""
    if isinstance(formula, Side):
        span = queries if formula.axis == "q" else keys
        part = formula.test.restricted(*span)
        return Always(bool(part.value)) if part.is_constant else formula
    if isinstance(formula, Pair):
        return forms.atom(formula.test, prolonged(formula.f, queries), prolonged(formula.g, keys))
    if isinstance(formula, (All, Some)):
        parts = [_on_cell(part, queries, keys) for part in formula.parts]
        return forms.both(*parts) if isinstance(formula, All) else forms.either(*parts)
    return formula


def prolonged(line: Line, span: Span) -> Line:
    """A function that agrees with another one on a span, and goes on beyond it as it is there."""
    start, stop = max(span[0], line.lo), min(span[1], line.hi)
    if (start, stop) == (line.lo, line.hi):
        return line
    part = line.restricted(start, stop)
    (piece, *more) = part.pieces
    if not more and not piece.is_runs and (piece.constant or piece.slope):
        return Line(tuple(tidied([Piece(line.lo, line.hi, piece.values, piece.slope, piece.run)])))
    if not more and isinstance(piece, Ragged) and piece.runs.begin.size == 1:
        slope, value = int(piece.runs.slope[0]), int(piece.runs.value[0])
        return Line.index(line.lo, line.hi, slope, value - slope * start)
    if part.rises or part.falls:
        return _held(part, line)
    raise NoFormError("a function that turns back within a period")


def _held(part: Line, like: Line) -> Line:
    """A function that never turns, constant before its first index and after its last."""
    first, last = (part.at(np.array([x])) for x in (part.lo, part.hi - 1))
    return Line(tuple(tidied([Piece(like.lo, part.lo, first), *part.pieces, Piece(part.hi, like.hi, last)])))


# ---- one run of keys for each query ----------------------------------------------------------------------------------
def by_runs(parts: Iterable[Formula], size: Size) -> Pattern:
    """The pattern of conditions that leave each query one run of keys, or each key one run of queries, at a known size.
    It is as few chains of runs. NoFormError where they do not.
    """
    if size.m is None or size.n is None:
        raise NoFormError("a comparison of functions that turn")
    parts = list(parts)
    for turned in (False, True):
        inner, m, n = ("q", size.n, size.m) if turned else ("k", size.m, size.n)
        sets = [part for part in parts if isinstance(part, Side) and part.axis == inner]
        found = _intervals([_turned(p) if turned else p for p in parts if p not in sets], m, n)
        terms = None if found is None else of_intervals(*found, n, MAX_TERMS)
        if terms is None:
            continue
        said = spelled([term.transpose() for term in terms] if turned else terms, size.m, size.n)
        if said is not None:
            return spell.meet([said, *(spell.of_queries(p.test) if turned else spell.of_keys(p.test) for p in sets)])
    raise NoFormError("a comparison of functions that turn too often")


def _turned(part: Formula) -> Formula:
    """The condition with queries and keys exchanged."""
    if isinstance(part, Side):
        return Side("k" if part.axis == "q" else "q", part.test)
    return Pair(part.test, part.g, part.f) if isinstance(part, Pair) else part


def _intervals(parts: Iterable[Formula], m: int, n: int) -> tuple[Ints, Ints] | None:
    """First key, and the one after the last, of each of m queries; None where a condition leaves more than a run."""
    low, high = np.zeros(m, np.int64), np.full(m, n, np.int64)
    query = np.arange(m, dtype=np.int64)
    for part in parts:
        found = _interval(part, query, n)
        if found is None:
            return None
        low, high = np.maximum(low, found[0]), np.minimum(high, found[1])
    return low, np.maximum(low, high)


def _interval(part: Formula, query: Ints, n: int) -> tuple[Ints, Ints] | None:
    """The same of one condition: k is compared through a function that never turns."""
    first, after = np.zeros_like(query), np.full_like(query, n)
    if isinstance(part, Side) and part.axis == "q":
        return first, np.where(part.test.at(query) != 0, n, 0)
    combs = spell.combs(part.test) if isinstance(part, Pair) else []
    if not isinstance(part, Pair) or len(combs) != 1 or not combs[0].solid:
        return None
    (comb,), f, g = combs, part.f.at(query), part.g.at(np.arange(n, dtype=np.int64))
    sign = 1 if part.g.rises else -1
    if sign < 0 and not part.g.falls:
        return None
    ends = [None if comb.open_left else comb.first - f, None if comb.open_right else comb.last - f]
    least, most = (None if end is None else sign * end for end in ends[::sign])
    if least is not None:
        first = np.searchsorted(sign * g, least, side="left")
    if most is not None:
        after = np.searchsorted(sign * g, most, side="right")
    return first, after
