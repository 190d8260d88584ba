"""Two terms that differ in one bound as one, where the larger of both bounds, or the smaller, is a stair.

`causal() | prefix(L)` is k < i + 1 or k < L, which is k < max(i + 1, L): a stair that is clipped. As one term it is one
run of keys a row, which every kernel walks; as two, rows have a run of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from weft.acsr.format import Term
from weft.pattern.bounds import INF, Bound, Stair
from weft.pattern.relation import Relation

Bounds: TypeAlias = tuple[Bound, ...]


def joined_sides(terms: Iterable[Term]) -> list[Term]:
    """The union of some terms as no more terms: upper bounds are joined, then lower ones."""
    found = _joined(terms, lambda axis: axis.upper, lambda axis, bounds: replace(axis, upper=bounds), _larger)
    return _joined(found, lambda axis: axis.lower, lambda axis, bounds: replace(axis, lower=bounds), _smaller)


def _joined(
    terms: Iterable[Term],
    side: Callable[[Relation], Bounds],
    made: Callable[[Relation, Bounds], Relation],
    both: Callable[[Stair, Stair], Stair | None],
) -> list[Term]:
    """Terms that are alike but for one stair of a side as one, where `both` is a stair."""
    found: list[Term] = []
    places: dict[tuple[object, ...], int] = {}
    for term in terms:
        bounds = side(term.axes[0]) if term.rank == 1 and not term.is_ordered else ()
        if len(bounds) != 1:
            found.append(term)
            continue
        key = made(term.axes[0], ()), term.q, term.k, term.rows, term.keys
        place = places.setdefault(key, len(found))
        if place == len(found):
            found.append(term)
            continue
        (bound,) = side(found[place].axes[0])
        stair = both(bound, bounds[0]) if isinstance(bound, Stair) and isinstance(bounds[0], Stair) else None
        if stair is None:
            found.append(term)
        else:
            found[place] = replace(found[place], axes=(made(found[place].axes[0], (stair,)),))
    return found


def _larger(a: Stair, b: Stair) -> Stair | None:
    """i -> max(a(i), b(i)), of a stair and a constant."""
    stair, constant = (a, b) if b.is_constant else (b, a)
    if not constant.is_constant or stair.is_constant or stair.is_threshold or stair.in_lo > -INF:
        return None
    least = constant.out_lo
    return None if least >= stair.out_hi else replace(stair, out_lo=max(stair.out_lo, least))


def _smaller(a: Stair, b: Stair) -> Stair | None:
    """i -> min(a(i), b(i)), likewise."""
    stair, constant = (a, b) if b.is_constant else (b, a)
    if not constant.is_constant or stair.is_constant or stair.is_threshold or stair.in_hi < INF:
        return None
    most = constant.out_lo
    return None if most <= stair.out_lo else replace(stair, out_hi=min(stair.out_hi, most))
