"""Terms seen through a box of queries and a box of keys: see `weft.pattern.excerpt`."""

from __future__ import annotations

import numpy as np

from weft.acsr.format import Grid, NotAffineError, Term
from weft.acsr.ordered import placed
from weft.acsr.terms import chosen_of, moved, refine
from weft.pattern.bounds import IntTable
from weft.pattern.excerpt import Box
from weft.pattern.listed import EVERY
from weft.pattern.relation import Relation


def cut(term: Term, q: Box, k: Box) -> list[Term]:
    """The pairs of a term between two boxes, as terms on the boxes' own indices.

    Boxes of consecutive tokens cut flat terms as they are, and terms on a grid where they take whole rows of it. Other
    boxes cut terms on their own grid; a flat term is first written on that. Raises NotAffineError else.
    """
    if term.is_ordered:
        return _of_order(term, q, k)
    if q.span is not None and k.span is not None:
        found = _by_tokens(term, q.span, k.span)
        if found is not None:
            return found
    return [piece for part in _on_grid(term, q, k) for piece in _by_boxes(part, q, k)]


def _of_order(term: Term, q: Box, k: Box) -> list[Term]:
    """The cut of a term of tokens in another order: what is left of either order, and bounds among that."""
    (axis,) = term.axes
    (in_q, queries), (in_k, keys) = (
        box.places(grid.tokens(np.arange(grid.size, dtype=np.int64))) for box, grid in ((q, term.q), (k, term.k))
    )
    low, high = axis.interval(np.flatnonzero(in_q), term.k.size)
    before = np.concatenate([[0], np.cumsum(in_k)])
    left_q, left_k = (Grid(0, (int(some.sum()),), IntTable(at[some])) for some, at in ((in_q, queries), (in_k, keys)))
    found = placed(left_q, left_k, before[low], before[high])
    return [] if found is None else [found]


def _by_tokens(term: Term, q: tuple[int, int], k: tuple[int, int]) -> list[Term] | None:
    """The cut by runs of tokens; None for a term on a grid of which they take parts of rows."""
    at_q, at_k = (-q[0], term.q.origin + term.q.size, q[1] - q[0]), (-k[0], term.k.origin + term.k.size, k[1] - k[0])
    if term.rank == 1:
        return moved(_from_0(term), at_q, at_k)
    rows, keys = _whole_rows(term.q, q), _whole_rows(term.k, k)
    if rows is None or keys is None:
        return None
    if rows[0] >= rows[1] or keys[0] >= keys[1]:
        return []
    first = term.axes[0].within(rows, keys).moved(-rows[0], -keys[0])
    inner_q, inner_k = term.q.size // term.q.shape[0], term.k.size // term.k.shape[0]
    grids = (
        Grid(term.q.origin + rows[0] * inner_q - q[0], (rows[1] - rows[0], *term.q.shape[1:])),
        Grid(term.k.origin + keys[0] * inner_k - k[0], (keys[1] - keys[0], *term.k.shape[1:])),
    )
    return [_with_sets(term, (*grids, (first, *term.axes[1:])), (q[0], k[0]))]


def _from_0(term: Term) -> Term:
    """A term of one axis on grids that begin with the first token."""
    if not (term.q.origin or term.k.origin):
        return term
    (q0, rows), (k0, keys) = ((grid.origin, grid.size) for grid in (term.q, term.k))
    axis = term.axes[0].moved(q0, k0).within((q0, q0 + rows), (k0, k0 + keys))
    return Term.flat(axis, q0 + rows, k0 + keys, term.rows, term.keys)


def _whole_rows(grid: Grid, span: tuple[int, int]) -> tuple[int, int] | None:
    """The rows of a grid's first axis that a run of tokens holds; None where it holds a part of one."""
    inner = grid.size // max(1, grid.shape[0])
    first, after = (min(max(x - grid.origin, 0), grid.size) for x in span)
    if not inner or first % inner or after % inner:
        return None
    return first // inner, after // inner


def _on_grid(term: Term, q: Box, k: Box) -> list[Term]:
    """A term written on the whole grids of two boxes."""
    whole_q, whole_k = Grid(0, q.shape), Grid(0, k.shape)
    if (term.q, term.k) == (whole_q, whole_k):
        return [term]
    if term.rank > 1 or (term.q.origin, term.k.origin) != (0, 0):
        raise NotAffineError("a box of one grid is cut out of another")
    return [piece for part in refine(term.axes[0], whole_q, whole_k) for piece in chosen_of(part, term.rows, term.keys)]


def _by_boxes(term: Term, q: Box, k: Box) -> list[Term]:
    if not (term.rows.is_every and term.keys.is_every):
        raise NotAffineError("a box is cut out of a grid without some of its tokens")
    if not (q.size and k.size):
        return []
    axes: list[Relation] = []
    for axis, a, b, rows, keys in zip(term.axes, q.first, k.first, q.sizes, k.sizes, strict=True):
        axes.append(axis.within((a, a + rows), (b, b + keys)).moved(-a, -b).tidied(rows, keys))
    return [Term(Grid(0, q.sizes), Grid(0, k.sizes), tuple(axes))]


def _with_sets(term: Term, made: tuple[Grid, Grid, tuple[Relation, ...]], by: tuple[int, int]) -> Term:
    """A term with the sets of another, moved."""
    found = Term(*made)
    if term.rows.is_every and term.keys.is_every:
        return found
    return found.chosen(
        *(EVERY if x.is_every else x.moved(-d) for x, d in zip((term.rows, term.keys), by, strict=True))
    )
