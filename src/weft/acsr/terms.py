"""The algebra of terms: meet, difference, placement, and the disjoint form.

Terms of one axis live on flattened tokens; terms of several live on a grid. Where the two meet, the flat one is
rewritten on the grid (`refine`) if its integers allow it. What has no exact form raises NotAffineError; nothing is
approximated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product as cartesian
from math import prod

import numpy as np

from weft.acsr import ordered
from weft.acsr.format import MAX_TERMS, Grid, NotAffineError, Term
from weft.pattern.bounds import INF, Bound, IntTable, Stair, Steps
from weft.pattern.listed import EVERY, Listed
from weft.pattern.relation import Relation, low_meets

MAX_ROWS_APART = 1 << 16
MAX_PIECES = 256  # of one difference, most of which may be empty
MAX_MEETS = 1 << 14  # of the terms of two unions
MAX_ADDED = 4 * MAX_TERMS  # terms by which a conjunction may be longer than both unions
MAX_APART = 4 * MAX_TERMS  # terms made disjoint before the largest MAX_TERMS are chosen
Axes = tuple[Relation, ...]


def product(axes: list[list[Term]], shape: tuple[int, ...], key_shape: tuple[int, ...]) -> list[Term]:
    """Every way to take one term (of one axis) per axis, as terms on the grid."""
    if len(shape) == 1:
        return axes[0]
    grid, keys = Grid(0, shape), Grid(0, key_shape)
    if any(term.is_ordered for terms in axes for term in terms):
        raise NotAffineError("an axis of the product has tokens in another order")
    bounded = [[relation for term in terms for relation in _without_lists(term)] for terms in axes]
    return [Term(grid, keys, relations) for relations in cartesian(*bounded)]


def _without_lists(term: Term) -> list[Relation]:
    """A term of one axis as disjoint relations: its lists of tokens become bounds, if they have few runs."""
    found = list(term.axes)
    for listed, grid, on_keys in ((term.rows, term.q, False), (term.keys, term.k, True)):
        if listed.is_every:
            continue
        tokens = listed.tokens.array if listed.kept else np.setdiff1d(np.arange(grid.size), listed.tokens.array)
        boxes = _boxes(Listed(IntTable(tokens)), grid, on_keys=on_keys)
        found = [both for x in found for (y,) in boxes if (both := x.meet(y)) is not None]
    return found


def moved(term: Term, q: tuple[int, int, int], k: tuple[int, int, int]) -> list[Term]:
    """`term`, made for lengths q[1] and k[1], moved to start at q[0], k[0] of total lengths q[2], k[2]; cut at the
    ends.
    """
    (q0, length_q, m), (k0, length_k, n) = q, k
    if (q0, length_q, k0, length_k) == (0, m, 0, n):
        return [term]
    if term.is_ordered:
        return ordered.moved(term, (q0, m), (k0, n))
    rows = max(q0, 0), min(q0 + length_q, m)
    keys = max(k0, 0), min(k0 + length_k, n)
    chosen = term.rows.moved(q0), term.keys.moved(k0)
    if term.rank == 1:
        return [Term.flat(term.axes[0].moved(q0, k0).within(rows, keys), m, n, *chosen)]
    at_q, at_k = Grid(term.q.origin + q0, term.q.shape), Grid(term.k.origin + k0, term.k.shape)
    if not (_inside(at_q, rows) and _inside(at_k, keys)):
        raise NotAffineError("a grid is moved across the end of the sequence")
    return [Term(at_q, at_k, term.axes, *chosen)]


def _inside(grid: Grid, span: tuple[int, int]) -> bool:
    return span[0] <= grid.origin and grid.origin + grid.size <= span[1]


def meet(a: Term, b: Term) -> list[Term]:
    """The pairs in both, as disjoint terms."""
    rows, keys = a.rows.meet(b.rows), a.keys.meet(b.keys)
    if rows.is_empty or keys.is_empty:
        return []
    return [piece for both in _meet_axes(a, b) for piece in chosen_of(both, rows, keys)]


def meet_unions(a: list[Term], b: list[Term]) -> list[Term]:
    """The pairs in a term of `a` and in a term of `b`, as terms that may overlap."""
    a, b = list(dict.fromkeys(a)), list(dict.fromkeys(b))
    most = MAX_ADDED + len(a) + len(b)
    found: dict[Term, None] = {}
    if len(a) * len(b) > MAX_MEETS:
        raise NotAffineError(f"unions of {len(a)} and {len(b)} terms meet")
    for x, y in cartesian(a, b):
        found.update(dict.fromkeys(both for both in meet(x, y) if not both.is_empty()))
        if len(found) > most:
            raise NotAffineError(f"the conjunction of unions of {len(a)} and {len(b)} terms has too many")
    return list(found)


def _meet_axes(a: Term, b: Term) -> list[Term]:
    """The pairs in both but for their sets."""
    if a.is_ordered != b.is_ordered or (a.is_ordered and (a.q, a.k) != (b.q, b.k)):
        return ordered.meet(a, b)
    if (a.q, a.k) == (b.q, b.k):
        axes = [x.meet(y) for x, y in zip(a.axes, b.axes, strict=True)]
        return [Term(a.q, a.k, tuple(x for x in axes if x is not None))] if None not in axes else []
    if not (_overlap(a.q, b.q) and _overlap(a.k, b.k)):
        return []
    if a.rank > 1 and b.rank > 1:
        raise NotAffineError("two different grids meet")
    flat, grid = (a, b) if a.rank == 1 else (b, a)
    try:
        parts = refine(flat.axes[0], grid.q, grid.k)
    except NotAffineError:
        if _apart(flat, grid):
            return []
        raise
    return [both for part in parts for both in _meet_axes(part, grid)]


def chosen_of(term: Term, rows: Listed, keys: Listed) -> list[Term]:
    """`term`, which has no sets, with these; on a grid what is kept becomes boxes, if they are few."""
    if term.is_ordered and not (rows.is_every and keys.is_every):
        return ordered.restricted(term, rows, keys)
    if term.rank == 1 or not (rows.kept or keys.kept):
        return [term.chosen(rows, keys)]
    terms = [term]
    for listed, grid, on_keys in ((rows, term.q, False), (keys, term.k, True)):
        if listed.kept:
            boxes = _boxes(listed.within(grid.origin, grid.origin + grid.size), grid, on_keys=on_keys)
            terms = [both for x in terms for axes in boxes for both in _meet_axes(x, Term(term.q, term.k, axes))]
    left = (x if not x.kept else EVERY for x in (rows, keys))
    rows, keys = left
    return [x.chosen(rows, keys) for x in terms]


def _boxes(listed: Listed, grid: Grid, *, on_keys: bool) -> list[Axes]:
    """The tokens of a list as disjoint boxes of a grid."""
    tokens = listed.tokens.array - grid.origin
    ends = np.flatnonzero(np.append(np.diff(tokens) != 1, True))[: tokens.size]
    starts = np.append(0, ends[:-1] + 1)[: tokens.size]
    if ends.size > MAX_TERMS:
        raise NotAffineError(f"{ends.size} separate runs of tokens on a grid")
    found = []
    for first, last in zip(tokens[starts].tolist(), tokens[ends].tolist(), strict=True):
        below = _cut(last + 1, grid.shape, below=True, on_keys=on_keys)
        above = _cut(first, grid.shape, below=False, on_keys=on_keys)
        pairs = [[x.meet(y) for x, y in zip(a, b, strict=True)] for a, b in cartesian(below, above)]
        found += [tuple(x for x in axes if x is not None) for axes in pairs]
    return found


def _overlap(a: Grid, b: Grid) -> bool:
    return a.origin < b.origin + b.size and b.origin < a.origin + a.size


def _apart(flat: Term, grid: Term) -> bool:
    """True if in every row of the grid the flat term's keys end before the grid term's begin, or the other way round.

    Looked at row by row, so only where the grid has few rows.
    """
    if grid.q.size > MAX_ROWS_APART:
        return False
    tokens = grid.q.origin + np.arange(grid.q.size, dtype=np.int64)
    _, at = grid.q.coordinates(tokens)
    low = high = np.zeros(tokens.shape, np.int64)
    live = np.ones(tokens.shape, np.bool_)
    for axis, i, n in zip(grid.axes, at, grid.k.shape, strict=True):
        lo, hi = axis.interval(i, n)
        live &= lo < hi
        low, high = low * n + lo, high * n + hi - 1
    lo, hi = flat.axes[0].interval(tokens, flat.k.size)
    return bool((~live | (hi <= lo) | (hi <= grid.k.origin + low) | (lo > grid.k.origin + high)).all())


def minus(a: Term, b: Term) -> list[Term]:
    """The pairs in a and not in b, as disjoint terms that are not empty."""
    axes = replace(b, rows=EVERY, keys=EVERY)
    found = _minus_axes(a, axes)
    both = [] if b.rows.is_every and b.keys.is_every else meet(a, axes)
    if not b.rows.is_every:
        found += [piece for x in both for piece in _restricted(x, b.rows.complement(), EVERY)]
    if not b.keys.is_every:
        found += [piece for x in both for piece in _restricted(x, b.rows, b.keys.complement())]
    return [piece for piece in found if not piece.is_empty()]


def _restricted(term: Term, rows: Listed, keys: Listed) -> list[Term]:
    rows, keys = term.rows.meet(rows), term.keys.meet(keys)
    if rows.is_empty or keys.is_empty:
        return []
    return chosen_of(replace(term, rows=EVERY, keys=EVERY), rows, keys)


def _minus_axes(a: Term, b: Term) -> list[Term]:
    """The pairs in a and not in b, which has no sets."""
    if (a.q, a.k) == (b.q, b.k):
        return [piece for piece in _minus_same(a, b) if not piece.is_empty()]
    if b.is_ordered:
        return _minus_ordered(a, b)
    if a.is_ordered:
        if b.rank > 1:
            raise NotAffineError("a grid is subtracted from tokens in another order")
        others = [Term(b.q, b.k, (piece,)) for piece in Relation().minus(b.axes[0])]
        return [piece for other in others for piece in ordered.meet(a, other)]
    if b.rank == 1:
        rest = [a]
        for part in refine(b.axes[0], a.q, a.k):
            rest = [piece for kept in rest for piece in _minus_axes(kept, part)]
        return rest
    if a.rank == 1 and (a.q.size, a.k.size) == (b.q.size, b.k.size):
        parts = [x for part in refine(a.axes[0], b.q, b.k) for x in chosen_of(part, a.rows, a.keys)]
        return [piece for part in parts for piece in _minus_axes(part, b)]
    raise NotAffineError("a grid is subtracted from pairs outside it")


def _minus_ordered(a: Term, b: Term) -> list[Term]:
    """The same where b is in an order of its own: what of a lies before and after its keys in that order."""
    if a.is_ordered or a.rank > 1 or a.q.origin or a.k.origin:
        raise NotAffineError("tokens in another order are subtracted")
    grids = ((a.q.size, b.q), (a.k.size, b.k))
    if any(not grid.lies_within(length) for length, grid in grids):
        raise NotAffineError("tokens in another order are subtracted from a part of the sequence")
    return [piece for other in ordered.complement(b, a.q.size, a.k.size) for piece in meet(other, a)]


def _minus_same(a: Term, b: Term) -> Iterator[Term]:
    kept, count = list(a.axes), 0
    for axis, (x, y) in enumerate(zip(a.axes, b.axes, strict=True)):
        for piece in x.minus(y):
            if (count := count + 1) > MAX_PIECES:
                raise NotAffineError("a difference of too many residue classes")
            yield replace(a, axes=(*kept[:axis], piece, *a.axes[axis + 1 :]))
        both = x.meet(y)
        if both is None:
            return
        kept[axis] = both


def disjoint(terms: list[Term]) -> tuple[list[Term], list[Term]]:
    """(terms that share no pair, terms that could not be made so).

    Terms with few conditions come first: they are the large simple sets, and subtracting a simple set is cheap.
    """
    kept: list[Term] = []
    spilled: list[Term] = []
    for term in sorted(dict.fromkeys(terms), key=_simplicity):
        if term.is_empty():
            continue
        if len(kept) > MAX_APART:
            spilled.append(term)
            continue
        try:
            kept += _minus_all(term, kept)
        except NotAffineError:
            spilled.append(term)
    return kept, spilled


def _simplicity(term: Term) -> tuple[bool, int, int, int, int]:
    """Bounds come before lists: a bound has no holes, and cutting one out of a list leaves a list. Tokens in another
    order come last: they are subtracted from nothing.
    """
    steps = max(max(axis.rows.step, axis.keys.step, axis.diagonal.step) for axis in term.axes)
    lists = (not term.rows.is_every) + (not term.keys.is_every)
    return term.is_ordered, term.rank, steps, sum(axis.conditions for axis in term.axes) + lists, lists


def _minus_all(term: Term, others: list[Term]) -> list[Term]:
    pieces = [term]
    for other in others:
        pieces = [piece for kept in pieces for piece in _minus_if_met(kept, other)]
        if len(pieces) > MAX_TERMS:
            raise NotAffineError("subtracting the other terms leaves too many pieces")
    return pieces


def _minus_if_met(a: Term, b: Term) -> list[Term]:
    """a minus b, and a itself where the two share nothing (which keeps its bounds as they were)."""
    if a.rank == 1 and (a.q, a.k) == (b.q, b.k) and _never_meet(a.axes[0], b.axes[0]):
        return [a]
    listed_on_a_grid = a.rank > 1 and (b.rows.kept or b.keys.kept)  # cut out in one piece, met in many
    if not listed_on_a_grid and all(both.is_empty() for both in meet(a, b)):
        return [a]
    return minus(a, b)


def _never_meet(a: Relation, b: Relation) -> bool:
    """Whether two relations share no pair, read off their bounds alone."""
    pairs = ((one, other) for x, y in ((a, b), (b, a)) for one in x.lower for other in y.upper)
    return any(low_meets(one, other) for one, other in pairs)


# ---- flat relations on a grid ------------------------------------------------------------------------------------
def refine(relation: Relation, q: Grid, k: Grid) -> list[Term]:
    """The pairs of tokens of two grids that a flat relation has, as disjoint terms on those grids."""
    local = relation.moved(-q.origin, -k.origin)
    terms = [Term(q, k, (Relation(),) * len(q.shape))]
    conditions = [
        *(_refine_bound(bound, q, k, lower=True) for bound in local.lower),
        *(_refine_bound(bound, q, k, lower=False) for bound in local.upper),
        [_refine_residues(local, q, k)],
    ]
    for parts in conditions:
        pieces = [Term(q, k, axes) for axes in parts]
        terms = [both for x in terms for y in pieces for both in meet(x, y) if not both.is_empty()]
    return terms


def _refine_bound(bound: Bound, q: Grid, k: Grid, *, lower: bool) -> list[Axes]:
    """k >= bound(i) (lower) or k < bound(i), as disjoint products of axis relations."""
    rank = len(q.shape)
    if isinstance(bound, Stair) and bound.is_constant:
        return _cut(bound.out_lo, k.shape, below=not lower, on_keys=True)
    if isinstance(bound, Stair) and bound.is_threshold:
        return _cut(bound.in_lo, q.shape, below=lower, on_keys=False)
    inner = prod(q.shape[1:])
    if q.shape[1:] == k.shape[1:]:
        coarse = _divided(bound, inner)
        if coarse is not None:
            first = Relation(lower=(coarse,)) if lower else Relation(upper=(coarse,))
            return [(first, *(Relation(),) * (rank - 1))]
        if bound in (Stair(), Stair(base=1)):
            # raster order: k < i or k <= i, or the opposite for a lower bound
            return _raster(rank, below=not lower, equal=(bound == Stair(base=1)) != lower)
    raise NotAffineError(f"a bound on flattened tokens does not follow the grid {'x'.join(map(str, q.shape))}")


def _cut(at: int, shape: tuple[int, ...], *, below: bool, on_keys: bool) -> list[Axes]:
    """The grid points before token `at` (below) or from it on, in raster order, as disjoint boxes."""
    size, inner = prod(shape), prod(shape[1:])
    rest = (Relation(),) * (len(shape) - 1)
    at = min(max(at, 0), size)
    row, within = divmod(at, inner)
    if within == 0:
        return [(_half(row, below, on_keys), *rest)]
    whole = _half(row if below else row + 1, below, on_keys)
    line = _half(row, False, on_keys).meet(_half(row + 1, True, on_keys))
    assert line is not None  # no congruences
    return [(whole, *rest), *((line, *axes) for axes in _cut(within, shape[1:], below=below, on_keys=on_keys))]


def _half(at: int, below: bool, on_keys: bool) -> Relation:
    """x < at (below) or x >= at, for x the key or the query of one axis."""
    bound = Stair.constant(at) if on_keys else Stair.threshold(at)
    return Relation(upper=(bound,)) if below == on_keys else Relation(lower=(bound,))


def _divided(bound: Bound, inner: int) -> Bound | None:
    """The bound on axis 0 that says the same, if every integer of it is a multiple of the inner size."""

    def whole(x: int) -> bool:
        return abs(x) >= INF or x % inner == 0

    def part(x: int) -> int:
        return x if abs(x) >= INF else x // inner

    if isinstance(bound, Steps):
        tables = (bound.breaks.array, bound.values.array)
        if not all(whole(int(x)) for table in tables for x in table):
            return None
        return Steps(*(IntTable([part(int(x)) for x in table]) for table in tables))
    limits = (bound.out_lo, bound.out_hi, bound.in_lo, bound.in_hi)
    steps = (bound.rise, bound.run, bound.shift, bound.base)
    if not all(whole(x) for x in (*steps, *limits)):
        return None
    return Stair(*(part(x) for x in (*steps, *limits)))


def _raster(rank: int, *, below: bool, equal: bool) -> list[Axes]:
    """k before i (below) or after it in raster order, or at it: one product per leading axis that decides."""
    same = Relation(lower=(Stair(),), upper=(Stair(base=1),))
    strict = Relation(upper=(Stair(),)) if below else Relation(lower=(Stair(base=1),))
    loose = Relation(upper=(Stair(base=1),)) if below else Relation(lower=(Stair(),))
    free = Relation()
    return [
        (*(same,) * axis, loose if equal and axis == rank - 1 else strict, *(free,) * (rank - 1 - axis))
        for axis in range(rank)
    ]


def _refine_residues(relation: Relation, q: Grid, k: Grid) -> Axes:
    """The congruences, on the last axis if its length is a multiple of the modulus."""
    for residue, lengths in (
        (relation.rows, (q.shape[-1],)),
        (relation.keys, (k.shape[-1],)),
        (relation.diagonal, (q.shape[-1], k.shape[-1])),
    ):
        if residue.step > 1 and any(length % residue.step for length in lengths):
            raise NotAffineError(f"tokens modulo {residue.step} do not follow the grid")
    last = Relation(rows=relation.rows, keys=relation.keys, diagonal=relation.diagonal)
    return (*(Relation(),) * (len(q.shape) - 1), last)
