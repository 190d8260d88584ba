"""Terms between tokens that are taken in another order: scattered members of one set lie side by side there.

Membership of sets, `ids[q] == ids[k]`, is contiguous documents once tokens are sorted by their set. In that order the
tokens of a set still rise. So any interval of keys is an interval of places, and what else a pattern says of a query is
a bound again. `Grid.order` holds the order; nothing else of a term differs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.acsr.format import Grid, NotAffineError, Term
from weft.pattern.bounds import Bound, Ints, IntTable, Stair, Steps
from weft.pattern.listed import EVERY, SPAN, Listed
from weft.pattern.relation import ANY, Relation


def of_labels(queries: Ints, keys: Ints) -> Term | None:
    """Queries see the keys that carry their label, as one term; None if there is no pair.

    >>> of_labels(np.array([7, 3, 7]), np.array([7, 3, 7])).q.order
    [1, 0, 2]
    """
    of_queries, of_keys = (np.argsort(labels, kind="stable") for labels in (queries, keys))
    first = np.searchsorted(keys[of_keys], queries[of_queries])
    after = np.searchsorted(keys[of_keys], queries[of_queries], "right")
    k = Grid(0, (keys.size,), IntTable(of_keys))
    same = np.array_equal(of_queries, of_keys)
    return placed(k if same else Grid(0, (queries.size,), IntTable(of_queries)), k, first, after)


def placed(q: Grid, k: Grid, lo: Ints, hi: Ints) -> Term | None:
    """The term in which the query at each place of q sees the places lo <= x < hi of k; None if it has no pair.

    Queries that see nothing leave the order. Raises NotAffineError where lo or hi falls from one query to the next.
    """
    live = lo < hi
    if not live.any():
        return None
    if not live.all():
        q = Grid(0, (int(live.sum()),), IntTable(q.tokens(np.flatnonzero(live))))
        lo, hi = lo[live], hi[live]
    if (np.diff(lo) < 0).any() or (np.diff(hi) < 0).any():
        raise NotAffineError("queries in another order have keys that rise and fall")
    lower = () if not lo.any() else (_bound(lo),)
    upper = () if (hi == k.size).all() else (_bound(hi),)
    return Term(q, k, (Relation(lower, upper),))


def _bound(values: Ints) -> Bound:
    """The values of places 0, 1, ...: in steps of one size, one more at each place, or a table."""
    places = np.arange(values.size)
    changes = np.flatnonzero(np.diff(values)) + 1
    base, run = int(values[0]), int(changes[0]) if changes.size else values.size
    rise = int(values[changes[0]]) - base if changes.size else 1
    stair = Stair(rise, run, base=base)
    if np.array_equal(stair(places), values):
        return stair
    return Steps(IntTable(changes), IntTable(values[np.append(0, changes)]))


def meet(a: Term, b: Term) -> list[Term]:
    """The pairs in both, one or both of which are in an order of their own; their sets of tokens are not looked at."""
    if a.is_ordered and b.is_ordered:
        return _of_two(a, b)
    ordered, flat = (a, b) if a.is_ordered else (b, a)
    if flat.rank > 1 or flat.axes[0].diagonal != ANY:
        raise NotAffineError("residues of distances, or a grid, meet tokens in another order")
    (axis,) = flat.axes
    if axis.keys != ANY:
        tokens = flat.k.tokens(np.flatnonzero(axis.keys.holds(np.arange(flat.k.size))))
        rest = Term(flat.q, flat.k, (replace(axis, keys=ANY),))
        return [both for one in restricted(ordered, EVERY, Listed(IntTable(tokens))) for both in meet(one, rest)]
    lo, hi = _places(ordered)
    whole = flat.k.origin == 0 and flat.k.size > int(ordered.k.tokens(np.arange(ordered.k.size)).max())
    if not (axis.lower or axis.upper) and whole:  # all keys, whatever their order
        inside, (at,) = flat.q.coordinates(ordered.q.tokens(np.arange(ordered.q.size)))
        inside &= axis.rows.holds(at)
        return [ordered] if inside.all() else _found(ordered.q, ordered.k, lo, np.where(inside, hi, lo))
    queries, keys = (grid.tokens(np.arange(grid.size)) for grid in (ordered.q, ordered.k))
    inside, (at,) = flat.q.coordinates(queries)
    inside &= axis.rows.holds(at)
    first, after = (x + flat.k.origin for x in axis.interval(at, flat.k.size))
    run = np.append(0, np.cumsum(np.diff(keys) < 0))  # of places whose tokens rise
    live = inside & (lo < hi)
    if (run[np.where(live, hi - 1, 0)] != run[np.where(live, lo, 0)]).any():
        raise NotAffineError("keys of a query do not rise in the other order")
    number, mine = run * SPAN + keys, run[np.where(live, lo, 0)] * SPAN
    lo, hi = (np.clip(np.searchsorted(number, mine + np.clip(x, 0, SPAN - 1)), lo, hi) for x in (first, after))
    return _found(ordered.q, ordered.k, lo, np.where(live, hi, lo))


def restricted(term: Term, rows: Listed, keys: Listed) -> list[Term]:
    """The pairs of a term, which is in an order of its own, with these queries and keys: the others leave the order."""
    lo, hi = _places(term)
    q, k = term.q, term.k
    if not keys.is_every:
        tokens = k.tokens(np.arange(k.size))
        kept = keys.holds(tokens)
        before = np.append(0, np.cumsum(kept))
        lo, hi, k = before[lo], before[hi], Grid(0, (int(kept.sum()),), IntTable(tokens[kept]))
    if not rows.is_every:
        hi = np.where(rows.holds(q.tokens(np.arange(q.size))), hi, lo)
    return _found(q, k, lo, hi)


def moved(term: Term, q: tuple[int, int], k: tuple[int, int]) -> list[Term]:
    """The term with queries q[0] and keys k[0] tokens on, of q[1] and k[1] in all; those beyond leave the order."""
    lo, hi = _places(term)
    grids = []
    for grid, (by, length) in ((term.q, q), (term.k, k)):
        tokens = grid.tokens(np.arange(grid.size)) + by
        if ((tokens < 0) | (tokens >= length)).any():
            raise NotAffineError("tokens in another order are moved across the end of the sequence")
        grids.append(Grid(0, (tokens.size,), IntTable(tokens)))
    return _found(grids[0], grids[1], lo, hi)


def complement(term: Term, m: int, n: int) -> list[Term]:
    """The pairs of m queries and n keys that are not in a term: keys before its own in its order, and keys after them.

    Tokens that its order leaves out follow those that it has.
    """
    lo, hi = _places(term)
    q, k = (_whole(grid, length) for grid, length in ((term.q, m), (term.k, n)))
    rest = np.full(m - term.q.size, n)
    before, after = np.append(lo, rest), np.append(np.maximum(lo, hi), rest)
    found = []
    for relation in (Relation((), (_bound(before),)), Relation((_bound(after),), ())):
        one = Term(q, k, (relation,))
        found += [] if one.is_empty() else [one]
    return found


def _whole(grid: Grid, length: int) -> Grid:
    """The order of a grid with all tokens of a sequence."""
    tokens = grid.tokens(np.arange(grid.size))
    missing = np.ones(length, np.bool_)
    missing[tokens] = False
    return Grid(0, (length,), IntTable(np.append(tokens, np.flatnonzero(missing))))


def _of_two(a: Term, b: Term) -> list[Term]:
    """The same where both are: their keys, or their queries, have one order."""
    if a.k != b.k and a.q == b.q:
        return [both.transpose() for both in _of_two(a.transpose(), b.transpose())]
    if a.k != b.k or _has_residues(a.axes[0]) or _has_residues(b.axes[0]):
        raise NotAffineError("tokens in two orders meet")
    queries = a.q.tokens(np.arange(a.q.size))
    inside, (at,) = b.q.coordinates(queries)
    mine, others = _places(a), _places(b)
    lo, hi = np.maximum(mine[0], others[0][at]), np.minimum(mine[1], others[1][at])
    return _found(a.q, a.k, lo, np.where(inside, np.maximum(lo, hi), lo))


def _found(q: Grid, k: Grid, lo: Ints, hi: Ints) -> list[Term]:
    term = placed(q, k, lo, hi)
    return [] if term is None else [term]


def _places(term: Term) -> tuple[Ints, Ints]:
    """The places [lo, hi) of the keys of each place of queries."""
    if _has_residues(term.axes[0]):
        raise NotAffineError("residues of places in another order")
    return term.axes[0].interval(np.arange(term.q.size, dtype=np.int64), term.k.size)


def _has_residues(relation: Relation) -> bool:
    return not (relation.rows == relation.keys == relation.diagonal == ANY)
