"""Formulas over (q, k) as patterns: every rule here is an identity, NoFormError where none applies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from weft.pattern import library as lib
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import INF, IntTable, Stair, Steps
from weft.recognition import bounds, documents, forms, names, runs, spell
from weft.recognition.forms import All, Always, Atom, Cell, Formula, Pair, Side, Some
from weft.recognition.layouts import of_layout
from weft.recognition.lines import Line
from weft.recognition.periodic import NoFormError, Piece, tidied
from weft.recognition.remember import remembered
from weft.recognition.runs import Runs
from weft.recognition.sets import Comb
from weft.recognition.spans import Documents, Size, Spans

MAX_INTERVALS = 16
MAX_VALUES = 16
SIDES = ("from", "before")

Within: TypeAlias = Documents | None


def lower(formula: Formula, size: Size, within: Within = None) -> Pattern:
    """The pattern of a formula; with `within`, one that agrees with it on the pairs of one document."""
    if isinstance(formula, Always):
        return lib.full() if formula.holds else lib.nothing()
    if isinstance(formula, Side):
        return _side(formula, within)
    if isinstance(formula, Cell):
        return of_layout(formula)
    if isinstance(formula, Some):
        return _union(formula.parts, size, within)
    return conjunction(formula.parts if isinstance(formula, All) else (formula,), size, within)


def _union(parts: Iterable[Formula], size: Size, within: Within) -> Pattern:
    """Part by part; one set of tokens as queries and as keys is global tokens."""
    parts = list(parts)
    said = []
    tests = {part.axis: part for part in parts if isinstance(part, Side)}
    if len(tests) == 2 and within is None:
        queries, keys = tests["q"].test, tests["k"].test
        if queries.same(keys):
            said.append(spell.of_either(queries, keys))
            parts = [part for part in parts if not isinstance(part, Side)]
    return names.union([*(lower(part, size, within) for part in parts), *said])


def conjunction(parts: tuple[Formula, ...], size: Size, within: Within = None) -> Pattern:
    """Part by part, inside documents if one of them says so. What has no form on the sequence is tried on a grid, and
    then value by value.
    """
    from weft.recognition.cells import by_runs, in_cells
    from weft.recognition.grid_forms import on_grid

    given = parts
    parts, inside = documents.find(parts, size) if within is None else (parts, None)
    within = inside or within
    said: list[Pattern] = []
    failed: list[Formula] = []
    reason: NoFormError | None = None
    finer = False
    for part in parts:
        try:
            said.append(_flat(part, size, within))
            finer |= isinstance(part, Pair) and getattr(said[-1], "name", "") == "documents"  # in one document each
        except NoFormError as error:
            failed.append(part)
            reason = reason or error
    if inside and not finer:
        said.insert(0, inside.pattern)
    if reason is None:
        return spell.meet(said)
    every = parts if inside is None else given
    attempts: tuple[Callable[[], Pattern], ...] = (
        lambda: on_grid(parts, failed, size, said),
        lambda: in_cells(forms.both(*every), size),
        lambda: by_runs(every, size),
        lambda: spell.meet([*said, *(_by_values(part, size, within, reason) for part in failed)]),
        lambda: spell.meet([*said, *(_by_labels(part, reason) for part in failed)]),
    )
    for attempt in attempts if within is None or inside else (attempts[0], attempts[-2]):
        with suppress(NoFormError):
            return attempt()
    raise reason


def _flat(part: Formula, size: Size, within: Within) -> Pattern:
    """One part of a conjunction."""
    return pair(part, size, within) if isinstance(part, Pair) else lower(part, size, within)


# ---- one index ------------------------------------------------------------------------------------------------------
def _side(part: Side, within: Within) -> Pattern:
    """A set of queries or of keys. One that is an interval in each document is two bounds: on the keys, or on those
    that a query of it sees.
    """
    spans = None if within is None else within.queries if part.axis == "q" else within.keys
    ends = None if spans is None or not part.test.bounded else _intervals(part.test, spans)
    if within is None or ends is None or spell.is_plain(part.test):
        return spell.of_queries(part.test) if part.axis == "q" else spell.of_keys(part.test)
    if part.axis == "q":
        return spell.meet([_seen(side, at, within) for side, at in zip(SIDES, ends[::-1], strict=True)])
    breaks = IntTable(within.queries.first[1:])
    tables = [Steps(breaks, IntTable(at)) for at in ends]
    return spell.meet([names.of_bound(side, at, spell.FAR, None) for side, at in zip(SIDES, tables, strict=True)])


def _seen(side: str, at: np.ndarray, within: Documents) -> Pattern:
    """Nothing of their document before ("before") or from ("from") the queries `at`, one of each document; from there
    or up to there all of it.
    """
    queries, keys = within.queries, within.keys
    if side == "from" and (at == queries.ends).all():
        return lib.full()
    begin, value = (np.stack(x, 1).reshape(-1) for x in ((queries.first, at), (keys.first, keys.ends)))
    some = np.append(begin[1:], queries.stop) > begin
    found = Runs.steps(begin[some], value[some], queries.stop).joined()
    return bounds.listed(side, Line(tuple(runs.pieces_of(found))), keys.stop, within)


def _intervals(test: Line, within: Spans) -> tuple[np.ndarray, np.ndarray] | None:
    """For each span its first and last + 1 live token; None if some span has a gap between them."""
    cells = within.cut(test.steps)
    live, first = cells.value != 0, np.searchsorted(cells.begin, within.first)
    begin = np.minimum.reduceat(np.where(live, cells.begin, cells.stop), first)
    end = np.maximum.reduceat(np.where(live, cells.begin + cells.lengths, 0), first)
    count = np.add.reduceat(np.where(live, cells.lengths, 0), first)
    some = count > 0
    if (count[some] != (end - begin)[some]).any():
        return None
    return np.where(some, begin, within.ends), np.where(some, end, within.ends)


# ---- q and k --------------------------------------------------------------------------------------------------------
def pair(part: Pair, size: Size, within: Within) -> Pattern:
    """f(q) + g(k) in a set: a set of diagonals, documents, or bounds for each of its intervals."""
    diagonal = _diagonal(part, within)
    if diagonal is not None:
        return spell.of_diagonals(diagonal)
    labels = documents.labels(part, size) if within is None or within.square else None
    if labels is not None:
        return documents.named(labels, within)
    found = spell.combs(part.test)
    if len(found) > MAX_INTERVALS or not all(comb.solid for comb in found):
        raise NoFormError("a congruence of functions of q and k that are not q and k themselves")
    return names.union([_interval(part, comb, within) for comb in found])


def _interval(part: Pair, comb: Comb, within: Within) -> Pattern:
    """first <= f(q) + g(k) <= last, as -f - g < 1 - first and f + g < last + 1."""
    said = []
    if not comb.open_left:
        said.append(bounds.below(-part.f, -part.g, 1 - comb.first, within))
    if not comb.open_right:
        said.append(bounds.below(part.f, part.g, comb.last + 1, within))
    return _chunks(said)


def _chunks(said: list[Pattern]) -> Pattern:
    """Two bounds; where they begin and end the same chunks, these by their name."""
    size = _step(said[0]) if len(said) == 2 else 0
    if size:
        ends = (("from", Stair(size, size)), ("before", Stair(size, size, base=size)))
        wanted = [names.of_bound(side, stair, spell.FAR, None) for side, stair in ends]
        if all(part in said for part in wanted):
            return lib.chunks(size)
    return spell.meet(said)


def _step(said: Pattern) -> int:
    args = dict(getattr(said, "args", ()))
    return int(args["step"].array[1]) if getattr(said, "name", "") == "staircase" else 0


def _diagonal(part: Pair, within: Within) -> Line | None:
    """The set of k - q that a pair means: f(q) = a - s q and g(k) = s k + b, everywhere or in each document."""
    f, g = (line.pieces[0] for line in (part.f, part.g))
    if len(part.f.pieces) == len(part.g.pieces) == 1 and f.straight and g.straight and f.slope == -g.slope:
        return _unscaled(part.test, g.slope, int(f.values[0] + g.values[0]))
    if within is None or not within.square or not (part.f.bounded and part.g.bounded):
        return None  # of documents of unlike lengths a sum at equal indices says nothing
    total = part.f.gap(-part.g)
    if total is None:
        return None
    for scale in (1, -1):
        if _constant_inside(part.f, scale, within):
            return _unscaled(part.test, scale, total)
    return None


def _constant_inside(f: Line, scale: int, within: Documents) -> bool:
    """Whether f(x) + scale * x is constant in each document; added up only where slopes alone do not tell."""
    if runs.straight_between(f.pieces, -scale, within.queries.first):
        return True
    if runs.changes_often(f.pieces, scale, within.queries.first.size):
        return False
    return runs.constant_between((f + Line.index(f.lo, f.hi, scale)).pieces, within.queries.first)


@remembered
def _unscaled(test: Line, scale: int, base: int) -> Line:
    """The d for which scale * d + base is in a set; d from -INF to INF, though only some of them occur."""
    return _prolonged(test).of(Line.index(-INF, INF, scale, base))


def _prolonged(test: Line) -> Line:
    """The same set, beyond the ends of the line as it is at them: no sum lies there."""
    pieces = list(test.pieces)
    if test.lo > -INF:
        pieces.insert(0, Piece(-INF, test.lo, pieces[0].span(test.lo, test.lo + 1)))
    if test.hi < INF:
        pieces.append(Piece(test.hi, INF, pieces[-1].span(test.hi - 1, test.hi)))
    return Line(tuple(tidied(pieces)))


# ---- few values -----------------------------------------------------------------------------------------------------
def _by_labels(part: Formula, reason: NoFormError) -> Pattern:
    """A pair that says that a label of the query equals one of the key, whatever their order."""
    found = documents.crossed(part) if isinstance(part, Pair) else None
    if found is None:
        raise reason
    return found


def _by_values(part: Formula, size: Size, within: Within, reason: NoFormError) -> Pattern:
    """A pair of which one side takes few values v: the union over v of f(q) == v and g(k) + v in the set."""
    if not isinstance(part, Pair):
        raise reason
    test, f, g = _wrapped(part)
    for one, other, axes in ((f, g, "qk"), (g, f, "kq")):
        values = _values(one)
        if values is not None:
            cases = [
                forms.both(
                    forms.side(axes[0], Line.between(v, v + 1).of(one)),
                    forms.side(axes[1], test.of(other.scaled(1, v))),
                )
                for v in values
            ]
            return names.union([lower(case, size, within) for case in cases])
    raise reason


def _wrapped(part: Pair) -> tuple[Line, Line, Line]:
    """(test, f, g) of a pair; where the set is periodic throughout, f and g matter only modulo its period."""
    only = part.test.pieces[0]
    period = only.period
    if len(part.test.pieces) > 1 or period >= only.length:
        return _prolonged(part.test), part.f, part.g
    modulo = Line.modulo(period)
    return Line((only.within(-INF, INF),)), modulo.of(part.f), modulo.of(part.g)


def _values(line: Line) -> list[int] | None:
    """The values of a function that takes few."""
    if any(piece.slope and piece.length >= INF for piece in line.pieces) or len(line.pieces) > MAX_VALUES:
        return None
    parts = []
    for piece in line.pieces:
        if piece.slope and piece.length > MAX_VALUES * piece.period:
            return None
        parts.append(piece.values if not piece.slope else piece.own)
    found = np.unique(np.concatenate(parts))
    return found.tolist() if found.size <= MAX_VALUES else None


def atoms(formula: Formula) -> Iterable[Atom]:
    """Every atom of a formula."""
    if isinstance(formula, (All, Some)):
        for part in formula.parts:
            yield from atoms(part)
    elif not isinstance(formula, Always):
        yield formula
