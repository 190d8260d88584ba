"""Fewer terms for the same pairs: terms that differ only in the queries or the keys that they take become one.

A term of one axis is a core on a set of queries and a set of keys. A core is bounds that relate queries to keys, and a
residue of their difference. Terms with one core are a union of rectangles. Such a union has a form with one rectangle
for each class of queries, or of keys, that are alike. Sets are spelled as bounds and residues where they can be, and as
lists otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.acsr.format import Term
from weft.pattern.bounds import Bound, IntTable, Stair
from weft.pattern.listed import EVERY, Listed
from weft.pattern.relation import ANY, NDBool, Relation, Residue

MAX_TOKENS = 1 << 24  # tokens up to which sets are kept as vectors
MAX_CELLS = 1 << 28  # entries of all the vectors of a union
MAX_BOXES = 64  # rectangles of one core whose classes are told apart by the bits of a word
COMPARED = 16  # terms that each of a union is compared with, where one may hold it
LEAST_RUN = 4  # tokens from which on an arithmetic sequence is a residue class and not a list
HOLES = 64  # a list says what is left out where that is less than every so many tokens: it then cuts few tiles


@dataclass(frozen=True, eq=False)
class Rectangle:
    """A rectangle: a set of queries (m,) and a set of keys (n,), as booleans."""

    rows: NDBool
    keys: NDBool


def merged(terms: Sequence[Term], m: int, n: int) -> list[Term]:
    """The union of some terms as no more terms, which may overlap. Terms of several axes stay as they are, and so
    do those of tokens in another order.
    """
    flat = [term for term in terms if term.rank == 1 and not term.is_ordered]
    if max(m, n) > MAX_TOKENS or len(flat) * (m + n) > MAX_CELLS:
        return list(terms)
    by_core: dict[tuple[object, ...], list[Term]] = {}
    for term in flat:
        by_core.setdefault(_key(_core(term)), []).append(term)
    found = [term for term in terms if term.rank > 1 or term.is_ordered]
    for alike in by_core.values():
        given = [_box(term, m, n) for term in alike] if len(alike) > 1 else []
        boxes = fewest(given)
        if given and not any(box.rows.any() and box.keys.any() for box in given):
            continue  # none of them has a pair
        if not 0 < len(boxes) < len(alike):
            found += alike
        else:
            found += [restricted(_core(alike[0]), box.rows, box.keys) for box in boxes]
    return found


def absorbed(terms: Sequence[Term]) -> list[Term]:
    """The union of some terms without those that one of the others holds, as bounds say it; pairs are not looked at.

    Each is compared with the latest COMPARED that are left, so that many cost no more than a few each.
    """
    left: list[Term] = []
    for term in terms:
        if not any(_holds(other, term) for other in left[-COMPARED:]):
            left[-COMPARED:] = [other for other in left[-COMPARED:] if not _holds(term, other)]
            left.append(term)
    return left


def _holds(a: Term, b: Term) -> bool:
    """True if every pair of b is one of a, as the integers of their bounds say it; False if that is not known."""
    if (a.q, a.k, a.rows, a.keys) != (b.q, b.k, b.rows, b.keys):
        return False
    return all(_is_within(y, x) for x, y in zip(a.axes, b.axes, strict=True))


def _is_within(relation: Relation, other: Relation) -> bool:
    both = (other.rows, relation.rows), (other.keys, relation.keys), (other.diagonal, relation.diagonal)
    classes = all(x in (ANY, y) for x, y in both)
    lower = all(any(bound.never_above(mine) for mine in relation.lower) for bound in other.lower)
    return classes and lower and all(any(mine.never_above(bound) for mine in relation.upper) for bound in other.upper)


# ---- a term taken apart ----------------------------------------------------------------------------------------------
def _is_plain(bound: Bound) -> bool:
    """Whether a bound is about the queries alone or the keys alone."""
    return isinstance(bound, Stair) and (bound.is_constant or bound.is_threshold)


def _core(term: Term) -> Relation:
    axis = term.axes[0]
    lower, upper = (tuple(b for b in side if not _is_plain(b)) for side in (axis.lower, axis.upper))
    return Relation(lower, upper, diagonal=axis.diagonal)


def _key(core: Relation) -> tuple[object, ...]:
    """Equal for equal cores, in whatever order their bounds are written."""
    return frozenset(core.lower), frozenset(core.upper), core.diagonal


def _box(term: Term, m: int, n: int) -> Rectangle:
    """The queries and the keys that a term of one axis takes."""
    axis = term.axes[0]
    rows = term.rows.holds(np.arange(m, dtype=np.int64)) & _residue(axis.rows, m)
    keys = term.keys.holds(np.arange(n, dtype=np.int64)) & _residue(axis.keys, n)
    for bound, lower in [(b, True) for b in axis.lower] + [(b, False) for b in axis.upper]:
        if not isinstance(bound, Stair):
            continue
        if bound.is_constant:
            at = min(max(bound.out_lo, 0), n)
            keys[slice(0, at) if lower else slice(at, n)] = False
        elif bound.is_threshold:
            at = min(max(bound.in_lo, 0), m)
            rows[slice(at, m) if lower else slice(0, at)] = False
    return Rectangle(rows, keys)


def _residue(residue: Residue, length: int) -> NDBool:
    live = np.zeros(length, np.bool_)
    live[residue.phase :: residue.step] = True
    return live


# ---- a union of rectangles -------------------------------------------------------------------------------------------
def fewest(boxes: list[Rectangle]) -> list[Rectangle]:
    """The same pairs as few rectangles."""
    boxes = [box for box in boxes if box.rows.any() and box.keys.any()]
    before = len(boxes) + 1
    while len(boxes) < before:
        before = len(boxes)
        boxes = _joined(boxes, lambda box: box.rows, Rectangle, lambda box: box.keys)
        boxes = _joined(boxes, lambda box: box.keys, lambda keys, rows: Rectangle(rows, keys), lambda box: box.rows)
    if not 2 < len(boxes) <= MAX_BOXES:
        return boxes
    by_rows = [Rectangle(a, b) for a, b in _classes([box.rows for box in boxes], [box.keys for box in boxes])]
    by_keys = [Rectangle(b, a) for a, b in _classes([box.keys for box in boxes], [box.rows for box in boxes])]
    return min((boxes, by_rows, by_keys), key=len)


def _joined(
    boxes: list[Rectangle],
    same: Callable[[Rectangle], NDBool],
    made: Callable[[NDBool, NDBool], Rectangle],
    other: Callable[[Rectangle], NDBool],
) -> list[Rectangle]:
    """Boxes with one set on a side as one box, with the union of their sets on the other side."""
    found: dict[bytes, tuple[NDBool, NDBool]] = {}
    for box in boxes:
        key = same(box).tobytes()
        found[key] = (same(box), found[key][1] | other(box) if key in found else other(box))
    return [made(a, b) for a, b in found.values()]


def _classes(sides: list[NDBool], others: list[NDBool]) -> list[tuple[NDBool, NDBool]]:
    """Tokens of a side that lie in the same boxes, with the union of the other sides of these. Those that see the same
    are one class.
    """
    word = np.zeros(sides[0].size, np.uint64)
    for place, side in enumerate(sides):
        word |= side.astype(np.uint64) << np.uint64(place)
    found: dict[bytes, tuple[NDBool, NDBool]] = {}
    for value in np.unique(word):
        if value:
            seen = np.logical_or.reduce([x for place, x in enumerate(others) if int(value) >> place & 1])
            tokens = word == value
            key = seen.tobytes()
            found[key] = (found[key][0] | tokens if key in found else tokens, seen)
    return list(found.values())


# ---- sets as conditions ----------------------------------------------------------------------------------------------
def restricted(core: Relation, rows: NDBool, keys: NDBool) -> Term:
    """The pairs of a relation with their query in one set and their key in another."""
    relation, lists = core, []
    for live, of_rows in ((rows, True), (keys, False)):
        span, listed = spelled(live, of_rows)
        both = relation.meet(span)
        assert both is not None  # a core has neither residue
        relation = both
        lists.append(listed)
    return Term.flat(relation, rows.size, keys.size, *lists)


def spelled(live: NDBool, of_rows: bool) -> tuple[Relation, Listed]:
    """A set of queries or keys, which is not empty, as a relation and a list. It is bounds, a residue class, or a list
    of what is in it or of what it lacks.
    """
    tokens = np.flatnonzero(live)
    first, after = int(tokens[0]), int(tokens[-1]) + 1
    step = int(tokens[1]) - first if tokens.size > 1 else 1
    if after - first == tokens.size or (tokens.size >= LEAST_RUN and (np.diff(tokens) == step).all()):
        at = Residue(step, first) if step > 1 and tokens.size < after - first else ANY
        open_left, open_right = first < step, after + step > live.size
        return _span(0 if open_left else first, live.size if open_right else after, live.size, of_rows, at), EVERY
    holes = np.flatnonzero(~live[first:after]) + first
    if holes.size * HOLES <= after - first:
        return _span(first, after, live.size, of_rows, ANY), Listed(IntTable(holes), kept=False)
    return Relation(), Listed(IntTable(tokens))


def _span(first: int, after: int, length: int, of_rows: bool, residue: Residue) -> Relation:
    """Relation.span without the bounds that all tokens obey."""
    span = Relation.span(first, after, of_rows, residue)
    if of_rows:
        lower = span.lower if after < length else ()
        upper = span.upper if first > 0 else ()
    else:
        lower = span.lower if first > 0 else ()
        upper = span.upper if after < length else ()
    return replace(span, lower=lower, upper=upper)
