"""Documents among the parts of a conjunction: labels that are equal, in tables of queries and keys."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import and_

import numpy as np

from weft.acsr.format import MAX_TERMS
from weft.acsr.labels import axes_of_labels
from weft.pattern import composites
from weft.pattern import library as lib
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import IntTable
from weft.recognition import forms, runs, spell
from weft.recognition.forms import Formula, Pair, Side
from weft.recognition.lines import Line
from weft.recognition.periodic import tidied
from weft.recognition.runs import Runs
from weft.recognition.spans import Documents, Size, Spans


def labels(part: Pair, size: Size) -> Line | None:
    """A label for each token, if the pair means that two labels are equal."""
    f, g = part.f, part.g
    if not (size.square and f.bounded and g.bounded and (f.lo, f.hi) == (g.lo, g.hi)):
        return None
    gap = f.gap(-g)
    wanted = gap is not None and _only(part.test)
    if not wanted or not int(part.test.at(np.array([gap]))[0]):
        return None
    first, last = f.at(np.array([f.lo, f.hi - 1]))
    return f if first <= last else g  # equal to it but for the sign, and sooner in order


def _only(test: Line) -> bool:
    """Whether a set is one number."""
    found = spell.combs(test)
    return len(found) == 1 and found[0].first == found[0].last


def named(found: Line, within: Documents | None) -> Pattern:
    """Tokens of one label; of one label and one document, where only pairs of one document matter."""
    labels = found.steps
    if within is not None:
        labels = within.queries.cut(labels)
        rank = _ranked(labels)
        label = rank + (int(rank.max(initial=0)) + 1) * within.queries.of(labels.begin)
        labels = Runs.steps(labels.begin, label, labels.stop).joined()
    if runs.distinct(labels.value):
        return lib.documents(IntTable.taking(labels.lengths))
    where = np.unique(labels.value, return_inverse=True)[1]
    ids = np.repeat(where.reshape(-1), labels.lengths)
    axes = axes_of_labels(ids)
    if axes is None:
        return lib.documents(ids=ids)
    return composites.product([_axis(lengths) for lengths in axes], [int(lengths.sum()) for lengths in axes])


def _axis(lengths: np.ndarray) -> Pattern:
    """Contiguous labels of an axis by the lengths of their runs."""
    size = int(lengths[0])
    if lengths.size == 1:
        return lib.full()
    return lib.chunks(size) if (lengths[:-1] == size).all() and lengths[-1] <= size else lib.documents(lengths)


def crossed(part: Pair) -> Pattern | None:
    """Queries and keys with one label in tables of their own, in any order; None if the pair does not say so."""
    if not (part.f.bounded and part.g.bounded and _only(part.test) and part.f.lo == part.g.lo == 0):
        return None
    wanted = spell.combs(part.test)[0].first
    tables = [np.repeat(side.value, side.lengths) for side in (part.f.steps, part.g.scaled(-1, wanted).steps)]
    where = np.unique(np.concatenate(tables), return_inverse=True)[1].reshape(-1)
    return lib.documents(ids=where[: tables[0].size], key_ids=where[tables[0].size :])


def unlike(formula: Formula) -> Pattern | None:
    """Queries and keys whose labels differ, where labels come in many runs: two terms. None where a formula says
    something else.
    """
    if not (isinstance(formula, Pair) and formula.f.bounded and formula.g.bounded):
        return None
    same = replace(formula, test=~formula.test)
    sides = same.f.steps, same.g.steps
    if any(side.begin.size <= MAX_TERMS or runs.distinct(side.value) for side in sides):
        return None
    found = crossed(same)
    return None if found is None else ~found


def _ranked(found: Runs) -> np.ndarray:
    """Numbers that are equal where the values of some runs are, not larger than what a product may hold."""
    low, high = found.extent
    if high - low < spell.FAR:
        return found.value - low
    return np.unique(found.value, return_inverse=True)[1].reshape(-1)


def find(parts: tuple[Formula, ...], size: Size) -> tuple[tuple[Formula, ...], Documents | None]:
    """(the other parts, documents that all of them are confined to).

    Labels that queries of a set carry in one run each are documents for these queries, whatever the other labels do.
    """
    for part in parts:
        same = labels(part, size) if isinstance(part, Pair) else None
        if same is None:
            continue
        found = same.steps
        tests = [p.test for p in parts if isinstance(p, Side) and p.axis == "q" and p.test.bounded]
        if _once(found, tests):
            spans = Spans(found.begin, found.stop)
            return tuple(p for p in parts if p is not part), Documents(spans, spans)
    for part in parts:
        two = _two_sided(part) if isinstance(part, Pair) else None
        if two is not None:
            return (*(p for p in parts if p is not part), *two[1]), two[0]
    return parts, None


def _two_sided(part: Pair) -> tuple[Documents, list[Formula]] | None:
    """Documents that queries and keys have labels of in tables of their own, as a pair that says that two labels are
    equal. With it come the tokens that have a label of the other side. Labels come in one run each, in one order.
    """
    if not (part.f.bounded and part.g.bounded and _only(part.test)):
        return None
    wanted = spell.combs(part.test)[0].first
    sides = part.f.steps, part.g.scaled(-1, wanted).steps
    if not all(runs.distinct(side.value) for side in sides):
        return None
    common = np.intersect1d(sides[0].value, sides[1].value, assume_unique=True)
    shared = [np.isin(side.value, common) for side in sides]
    if not common.size or not np.array_equal(sides[0].value[shared[0]], sides[1].value[shared[1]]):
        return None
    spans, tests = [], []
    for axis, side, some in zip("qk", sides, shared, strict=True):
        first = side.begin[some].copy()
        first[0] = 0  # tokens without a like on the other side join the document before them, and a condition
        spans.append(Spans(first, side.stop))
        if not some.all():
            live = Runs.steps(side.begin, some.astype(np.int64), side.stop).joined()
            tests.append(forms.side(axis, Line(tuple(tidied(runs.pieces_of(live))))))
    return Documents(spans[0], spans[1]), tests


def _once(labels: Runs, tests: list[Line]) -> bool:
    """Whether the labels of the queries that are in every one of some sets come in one run each."""
    if not tests:
        return runs.distinct(labels.value)
    live = reduce(and_, tests).steps
    begin = runs.merged(labels.begin, live.begin)
    used = runs.merged(labels.cut(begin).value[live.cut(begin).value != 0])
    return used.size == 0 or bool(used.size == runs.among(labels.value, used).sum())
