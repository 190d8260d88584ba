"""Conditions on the coordinates of a grid: what speaks of q // W and k // W alone, and what of q % W and k % W alone.

No width is guessed: it is the period of the functions that have no form on the flat sequence.
"""

from __future__ import annotations

from math import lcm

import numpy as np

from weft.errors import LengthError
from weft.pattern import algebra as ops
from weft.pattern import composites, pieces
from weft.pattern import library as lib
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import INF
from weft.pattern.leaves import Affine
from weft.pattern.relation import Relation
from weft.recognition import forms, grids, spell
from weft.recognition.bitrows import BitRows
from weft.recognition.forms import All, Always, Atom, Cell, Formula, Side, Some
from weft.recognition.lines import Line
from weft.recognition.lower import atoms, lower
from weft.recognition.parts import Known
from weft.recognition.periodic import NoFormError
from weft.recognition.search import search
from weft.recognition.spans import Size

MAX_AXIS = 512  # an axis of at most so many places is looked at pair by pair for its name


def on_grid(parts: tuple[Formula, ...], failed: list[Formula], size: Size, said: list[Pattern]) -> Pattern:
    """The conjunction of parts of which `failed` have no flat form, and `said` is what the others came out as."""
    width = _width(failed)
    rows: list[Formula] = []
    places: list[Formula] = []
    for part in parts:
        for which, kept in ((_rows, rows), (_places, places)):
            try:
                kept.append(_mapped(part, which, width))
                break
            except NoFormError:
                continue
        else:
            if part in failed:
                raise NoFormError(f"a condition that follows no grid of rows of {width}")
    others = [p for part, p in _flat_ones(parts, failed, said) if not _follows(part, width)]
    return spell.meet([_product(tuple(rows), tuple(places), width, size), *others])


def _flat_ones(parts: tuple[Formula, ...], failed: list[Formula], said: list[Pattern]) -> list[tuple[Formula, Pattern]]:
    """The parts that have a flat form, with it. (Documents come first in `said` and have no part left.)"""
    flat = [part for part in parts if part not in failed]
    lead: list[tuple[Formula, Pattern]] = [(forms.TRUE, p) for p in said[: len(said) - len(flat)]]
    return [*lead, *zip(flat, said[len(lead) :], strict=True)]


def _follows(part: Formula, width: int) -> bool:
    if isinstance(part, Always):
        return False
    for which in (_rows, _places):
        try:
            _mapped(part, which, width)
        except NoFormError:
            continue
        return True
    return False


def _width(failed: list[Formula]) -> int:
    """The longest period of a function that is not monotone."""
    lines = [line for part in failed for a in atoms(part) for line in _lines(a)]
    periods = [p.period for line in lines if not line.bounded and not (line.rises or line.falls)
               for p in line.pieces if p.length >= INF // 2]  # fmt: skip
    inner = [p.period for line in lines if line.bounded and not (line.rises or line.falls)
             for p in line.pieces if p.period < p.length]  # fmt: skip
    width = lcm(*periods, *inner)
    if width < 2 or width not in (*periods, *inner):
        raise NoFormError("a condition that follows no grid")
    return width


def _lines(part: Atom) -> tuple[Line, ...]:
    return (part.test,) if isinstance(part, Side) else (part.f, part.g)


def _mapped(part: Formula, which: object, width: int) -> Formula:
    """The formula with every function of an index replaced by one of its row, or of its place in the row."""
    if isinstance(part, Always):
        return part
    if isinstance(part, (All, Some)):
        return type(part)(tuple(_mapped(p, which, width) for p in part.parts))
    if isinstance(part, Side):
        return forms.side(part.axis, which(part.test, width))  # type: ignore[operator]
    f, g = which(part.f, width), which(part.g, width)  # type: ignore[operator]
    return Cell(part.table, f, g) if isinstance(part, Cell) else forms.atom(part.test, f, g)


def _rows(line: Line, width: int) -> Line:
    """h with f(x) = h(x // width): h(y) = f(width y), if that holds for every x."""
    stop = line.hi if line.hi >= INF else -(-line.hi // width)
    found = line.of(Line.index(0, stop, width))
    back = found.of(Line.floor(width).restricted(line.lo, line.hi))
    return _if_same(found, back, line)


def _places(line: Line, width: int) -> Line:
    """h with f(x) = h(x % width): f on the first row, if every row is like it."""
    if line.hi < width:
        raise NoFormError("a grid of less than one row")
    only = line.pieces[0]
    if not only.slope and only.length == line.hi - line.lo and width % only.period == 0:
        return line.restricted(0, width)
    found = line.restricted(0, width)
    back = found.of(Line.modulo(width).restricted(line.lo, line.hi))
    return _if_same(found, back, line)


def _if_same(found: Line, back: Line, line: Line) -> Line:
    if not back.same(line):
        raise NoFormError("a function of more than one coordinate")
    return found


# ---- axes -----------------------------------------------------------------------------------------------------------
def _product(rows: tuple[Formula, ...], places: tuple[Formula, ...], width: int, size: Size) -> Pattern:
    """Rows and places as a product; a neighbourhood where every axis is one."""
    inner = _axis(places, Size(width, width))
    known = size.m is not None and size.n is not None
    if not known or size.m % width or size.n % width:  # type: ignore[operator]
        return pieces.folded(lower(forms.both(*rows), Size()), inner, width)
    outer_size = Size(size.m // width, size.n // width)  # type: ignore[operator]
    if outer_size == Size(1, 1):  # a single row: only its places are left to tell apart
        alone = forms.truth(forms.both(*rows), np.zeros(1, np.int64), np.zeros(1, np.int64))
        return _of_one_row(inner if alone[0] else lib.nothing(), width)
    outer = _axis(tuple(_cut(part, outer_size) for part in rows), outer_size)
    axes, shape = [outer], [outer_size.m]
    if isinstance(inner, ops.Call) and inner.name in ("product", "neighborhood"):
        more, lengths = _axes_of(inner)
        axes, shape = [*axes, *more], [*shape, *lengths]
    else:
        axes, shape = [*axes, inner], [*shape, width]
    if size.square and all(isinstance(axis, ops.Call) and axis.name == "neighborhood" for axis in axes):
        return grids.neighborhood([a for axis in axes for a in grids.axes_in(dict(axis.args))])  # type: ignore[attr-defined]
    return composites.product(axes, shape, None if size.square else [outer_size.n, *shape[1:]])


def _of_one_row(inner: Pattern, width: int) -> Pattern:
    """The pattern of a grid's only row, for its length alone: more tokens would have more rows."""
    try:
        inner.check(2 * width, 2 * width, "")
    except LengthError:  # it says so itself
        return inner
    return pieces.sized(inner, width, width)


def _axes_of(inner: ops.Call) -> tuple[list[Pattern], list[int]]:
    """The axes of a product or a neighbourhood, one by one."""
    args = dict(inner.args)
    if inner.name == "product":
        return list(args["patterns"]), args["shape"].array.tolist()
    found = grids.axes_in(args)
    return [grids.neighborhood([axis]) for axis in found], [axis.length for axis in found]


def _cut(part: Formula, size: Size) -> Formula:
    """The formula on the first rows only: a grid has no others."""
    if isinstance(part, (All, Some)):
        return type(part)(tuple(_cut(p, size) for p in part.parts))
    if isinstance(part, Side):
        return forms.side(part.axis, part.test.restricted(0, (size.m if part.axis == "q" else size.n) or 0))
    if isinstance(part, Always):
        return part
    f, g = part.f.restricted(0, size.m or 0), part.g.restricted(0, size.n or 0)
    return Cell(part.table, f, g) if isinstance(part, Cell) else forms.atom(part.test, f, g)


def _axis(parts: tuple[Formula, ...], size: Size) -> Pattern:
    """One axis of known lengths: by the rules; where they fail, and it is short, by a search over all of its pairs."""
    formula = forms.both(*parts)
    try:
        found = lower(formula, size)
    except NoFormError:
        if max(size.m or 0, size.n or 0) > MAX_AXIS:
            raise
        return _searched(formula, size)
    found = pieces.unsized(found, size.m or 0, size.n or 0)  # an axis has no other lengths
    axis = _neighbors(found, size.m or 0) if size.square else None
    return grids.neighborhood([axis]) if axis else found


def _neighbors(pattern: Pattern, length: int) -> grids.Axis | None:
    """The neighbourhood that the bounds of an axis are, if they are one."""
    parts = pattern.parts if isinstance(pattern, ops.And) else (pattern,)
    relation = Relation()
    for part in parts:
        body = part.body if isinstance(part, ops.Call) else None
        met = relation.meet(body.relation) if isinstance(body, Affine) else None
        if met is None:
            return None
        relation = met
    row = np.arange(length, dtype=np.int64)
    first, stop = relation.interval(row, length)
    size = int(stop[0] - first[0])
    if length < 2 or size < 1 or relation.diagonal.step > 1 or ((stop - first) != size).any():
        return None
    jumps = np.diff(np.flatnonzero(np.diff(first)))
    axis = grids.Axis(length, size, min(int(jumps[0]) if jumps.size else 1, size), 1, False)
    rule = grids.neighborhood([axis]).body.parts[0].relation  # type: ignore[attr-defined]
    return axis if all(map(np.array_equal, rule.interval(row, length), (first, stop))) else None


def _searched(formula: Formula, size: Size) -> Pattern:
    """An axis as a mask: its pairs are all there is to know of it."""
    rows = _bits(formula, size)
    found = search(Known(rows, rows.inverted()))
    if found.loose is not None:
        raise NoFormError("an axis of a grid that is not affine")
    return found.pattern if size.square else found.pattern.filled("top-left")


def _bits(formula: Formula, size: Size) -> BitRows:
    """The formula on every pair of an axis."""
    m, n = size.m or 0, size.n or 0
    q, k = np.arange(m, dtype=np.int64)[:, None], np.arange(n, dtype=np.int64)[None]
    return BitRows.pack(np.broadcast_to(forms.truth(formula, q, k), (m, n)))
