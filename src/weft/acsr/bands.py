"""Hundreds of bands as few terms: bands that overlap, or follow each other, become one before any is subtracted.

Terms of one axis that differ only in how far one stair is moved are intervals of that distance: windows are those of
k - i. A sort merges them, and what is left of one family shares no pair.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from weft.acsr.format import Term
from weft.pattern.bounds import INF, Bound, Stair
from weft.pattern.relation import Relation

Family: TypeAlias = tuple[object, ...]
Band: TypeAlias = tuple[int, int, Term]  # from which distance on, and before which


def merged_bands(terms: Iterable[Term]) -> list[Term]:
    """The union of some terms as no more terms; those that are no bands stay as they are."""
    families: dict[Family, list[Band]] = {}
    found: list[Term] = []
    for term in terms:
        band = _band(term)
        if band is None:
            found.append(term)
        else:
            families.setdefault(band[0], []).append(band[1])
    return found + [term for bands in families.values() for term in _joined(bands)]


def _joined(bands: list[Band]) -> list[Term]:
    """Bands of one family that overlap or touch as one."""
    bands.sort(key=lambda band: band[:2])
    kept = [bands[0]]
    for begin, end, term in bands[1:]:
        first, last, one = kept[-1]
        if begin > last:
            kept.append((begin, end, term))
        elif end > last:
            kept[-1] = first, end, _up_to(one, term)
    return [term for _, _, term in kept]


def _up_to(one: Term, other: Term) -> Term:
    """A band that begins where `one` does and ends where `other` does."""
    (a,), (b,) = one.axes, other.axes
    mine, theirs = _lines(a.upper), _lines(b.upper)
    others = tuple(bound for bound in a.upper if bound not in mine)
    return replace(one, axes=(replace(a, upper=(*others, *theirs)),))


def _band(term: Term) -> tuple[Family, Band] | None:
    """What a band is of, and its interval; None for a term that is no band."""
    if term.rank != 1 or term.is_ordered or term.axes[0].diagonal.step > 1:
        return None
    axis = term.axes[0]
    below, above = _lines(axis.lower), _lines(axis.upper)
    forms = {_form(line) for line in below + above}
    if len(below) > 1 or len(above) > 1 or len(forms) != 1:
        return None
    begin, end = below[0].base if below else -INF, above[0].base if above else INF
    return (forms.pop(), _rest(axis, below, above), term.q, term.k, term.rows, term.keys), (begin, end, term)


def _lines(bounds: tuple[Bound, ...]) -> list[Stair]:
    """Bounds that join queries and keys."""
    return [bound for bound in bounds if isinstance(bound, Stair) and not (bound.is_constant or bound.is_threshold)]


def _form(line: Stair) -> Family:
    """A stair but for how far it is moved; cut lines differ in more than that."""
    return line.rise, line.run, line.shift, line.out_lo, line.out_hi, line.in_lo, line.in_hi


def _rest(axis: Relation, below: list[Stair], above: list[Stair]) -> Family:
    """What is no line of a relation."""
    lower, upper = (
        frozenset(x for x in side if x not in lines) for side, lines in ((axis.lower, below), (axis.upper, above))
    )
    return lower, upper, axis.rows, axis.keys
