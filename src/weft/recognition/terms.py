"""Terms of the format as library calls: what a form that was found among pairs is written as."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from weft.acsr.format import Term
from weft.pattern import library as lib
from weft.pattern.algebra import Align, Pattern
from weft.pattern.bounds import Bound, Stair
from weft.pattern.listed import Listed
from weft.pattern.relation import Relation, Residue
from weft.recognition import names
from weft.recognition.sets import Comb


def spelled(terms: Iterable[Term], m: int, n: int) -> Pattern | None:
    """The union of terms at m queries and n keys; None if one of them is on a grid."""
    terms = list(terms)
    if any(term.rank > 1 for term in terms):
        return None
    return names.union([_of_term(term, m, n) for term in terms])


def without_idle_bounds(pattern: Pattern, m: int, n: int) -> Pattern:
    """The pattern without bounds that all pairs of m queries and n keys obey anyway, where that is shorter to write."""
    if pattern.extent() != (None, None) or not m or not n:
        return pattern
    acsr = pattern.acsr(m, n)
    if len(acsr.remainder) or any(term.rank > 1 or term.is_ordered for term in acsr.terms):
        return pattern
    terms = [replace(term, axes=(_needed(term.axes[0], m, n),)) for term in acsr.terms]
    said = spelled(terms, m, n) if terms != list(acsr.terms) else None
    return pattern if said is None or names.cost(said) >= names.cost(pattern) else said


def _needed(relation: Relation, m: int, n: int) -> Relation:
    """A relation without bounds that others, or the ends, are never behind; bounds rise, so that their ends tell."""
    ends = np.array([0, m - 1])
    lower = _kept([(*bound(ends).tolist(), bound) for bound in relation.lower], 0)
    upper = _kept([(*(-bound(ends[::-1])).tolist(), bound) for bound in relation.upper], -n)
    return replace(relation, lower=lower, upper=upper)


def _kept(bounds: list[tuple[int, int, Bound]], end: int) -> tuple[Bound, ...]:
    """Of (least, most, bound) on one side those that ask for more than `end` and than every other."""
    kept = [one for one in bounds if one[1] > end]
    for one in list(kept):
        if any(other is not one and other[0] >= one[1] for other in kept):
            kept.remove(one)
    return tuple(bound for _, _, bound in kept)


def _of_term(term: Term, m: int, n: int) -> Pattern:
    axis = term.axes[0]
    align: Align = None if m == n else "top-left"
    sides = (("from", axis.lower), ("before", axis.upper))
    parts = [_diagonals(axis.lower, axis.upper, axis.diagonal, m, n)]
    parts += [names.of_bound(side, b, n, align) for side, bounds in sides for b in bounds if not _is_plain(b)]
    rows, keys = (_ends(axis.lower, axis.upper, x, of_rows=side) for x, side in ((m, True), (n, False)))
    parts += _set(term.rows, axis.rows, rows, m, align, of_rows=True)
    parts += _set(term.keys, axis.keys, keys, n, None, of_rows=False)
    return names.intersection([part for part in parts if part is not None])


def _is_diagonal(bound: Bound) -> bool:
    return isinstance(bound, Stair) and bound == Stair(base=bound.base)


def _is_plain(bound: Bound) -> bool:
    """Whether a bound is told as a diagonal, or is about one side alone."""
    return isinstance(bound, Stair) and (_is_diagonal(bound) or bound.is_constant or bound.is_threshold)


def _diagonals(lower: tuple[Bound, ...], upper: tuple[Bound, ...], residue: Residue, m: int, n: int) -> Pattern | None:
    """The differences of key and query that bounds and a residue leave."""
    low = [b.base for b in lower if isinstance(b, Stair) and _is_diagonal(b)]
    high = [b.base - 1 for b in upper if isinstance(b, Stair) and _is_diagonal(b)]
    if not (low or high or residue.step > 1):
        return None
    first, last = max(low, default=1 - m), min(high, default=n - 1)
    first += (residue.phase - first) % residue.step
    last -= (last - residue.phase) % residue.step
    if first > last:
        return lib.nothing()
    comb = Comb(first, last, residue.step, 1, not low and residue.step == 1, not high and residue.step == 1)
    return names.of_diagonals([comb], m, n)


def _ends(lower: tuple[Bound, ...], upper: tuple[Bound, ...], length: int, *, of_rows: bool) -> tuple[int, int]:
    """First token, and the one after the last, that bounds on one side alone leave."""
    first, after = [0], [length]
    for bounds, is_lower in ((lower, True), (upper, False)):
        for bound in bounds:
            if isinstance(bound, Stair) and of_rows and bound.is_threshold and not bound.is_constant:
                (after if is_lower else first).append(bound.in_lo)
            elif isinstance(bound, Stair) and not of_rows and bound.is_constant:
                (first if is_lower else after).append(bound.out_lo)
    return max(first), min(after)


def _set(
    listed: Listed, residue: Residue, ends: tuple[int, int], length: int, align: Align, *, of_rows: bool
) -> list[Pattern]:
    """A set of queries or of keys: a span of a residue class, and a list."""
    first, after = ends
    first += (residue.phase - first) % residue.step
    found = []
    if first > 0 or after < length or residue.step > 1:
        comb = Comb(first, after - 1, residue.step, 1, first < residue.step and ends[0] == 0, after == length)
        found.append(names.of_queries([comb], 0, align) if of_rows else names.of_keys([comb], 0))
    if not listed.is_every:
        options: Any = {"columns": False, "align": align} if of_rows else {"rows": False}
        said: Pattern = lib.global_tokens(listed.tokens, **options)
        found.append(said if listed.kept else ~said)
    return found
