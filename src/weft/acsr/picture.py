"""Which term of an Acsr owns each cell of a picture, counted from the affine rows: no mask is made at any length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from weft.acsr.format import Acsr, Term
from weft.pattern.bounds import Ints

LOOKS = 8  # queries of a cell that are counted


@dataclass(frozen=True, eq=False)
class Owned:
    """Which term owns each cell of a picture of (m, n) pairs.

    owners (rows, columns): 0 for none, 1 + i for the commonest term i, one more for the remainder. share: live pairs,
    counted over all keys and LOOKS queries of a cell; exact where a row of cells is one query.
    """

    acsr: Acsr
    owners: np.ndarray
    share: np.ndarray

    @property
    def exact(self) -> bool:
        """Whether every cell is one pair."""
        return self.owners.shape == (self.acsr.m, self.acsr.n)

    @property
    def pairs(self) -> dict[str, int]:
        """Live pairs of the kinds 1, 2, ... of `owners`, by name."""
        acsr = self.acsr
        found = {f"term {i}": term.nnz for i, term in enumerate(acsr.terms)}
        return found | ({"remainder": acsr.remainder.count(acsr.m, acsr.n)} if len(acsr.remainder) else {})


def owned(acsr: Acsr, rows: int, cols: int) -> Owned:
    """The terms in a picture of at most rows x cols cells."""
    queries, edges = _looked_at(acsr.m, rows), _edges(acsr.n, cols)
    counts = [_counts(term, queries.reshape(-1), edges) for term in acsr.terms]
    if len(acsr.remainder):
        rest = replace(acsr, terms=())
        counts.append(_expanded(rest.columns, queries.reshape(-1), edges))
    found = np.zeros((len(counts) + 1, len(queries), edges.size - 1))
    for kind, one in enumerate(counts):
        found[kind + 1] = one.reshape(*queries.shape, -1).mean(axis=1)
    return Owned(acsr, found.argmax(axis=0), found.sum(axis=0) / np.diff(edges))


def _edges(length: int, cells: int) -> Ints:
    """Where `cells` even cells, or as many as there are tokens, begin and end."""
    count = min(length, cells)
    return np.arange(count + 1, dtype=np.int64) * length // max(1, count)


def _looked_at(length: int, cells: int) -> Ints:
    """(cells, LOOKS) rows: first and last of each cell, so that a global row at an end is never missed, and others at
    irregular places, so that no period is; (length, 1) where every row is a cell.
    """
    edges = _edges(length, cells)
    if edges.size == length + 1:
        return edges[:-1, None]
    places = (np.arange(LOOKS - 2) + np.random.default_rng(0).random((edges.size - 1, LOOKS - 2))) / (LOOKS - 2)
    between = edges[:-1, None] + (places * np.diff(edges)[:, None]).astype(np.int64)
    return np.concatenate([edges[:-1, None], between, edges[1:, None] - 1], axis=1)


def _counts(term: Term, queries: Ints, edges: Ints) -> Ints:
    """Keys of each query between edges, (queries, cells)."""
    if term.rank > 1 or not term.keys.is_every:
        return _expanded(term.columns, queries, edges)
    inside, (at,) = term.q.coordinates(queries)
    start, step, count = term.axes[0].affine_rows(at, term.k.size)
    before = np.clip(-((start[:, None] + term.k.origin - edges) // step), 0, count[:, None])
    return np.diff(before, axis=1) * (inside & term.rows.holds(queries))[:, None]


def _expanded(columns: Callable[[int], Ints], queries: Ints, edges: Ints) -> Ints:
    """The same from the keys of each query, listed in order."""
    return np.diff([np.searchsorted(columns(query), edges) for query in queries.tolist()], axis=1)
