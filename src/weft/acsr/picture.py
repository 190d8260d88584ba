"""Which term of an Acsr owns each cell of a picture, and how much of it is live: no mask is made at any length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.acsr.cells import remainder_cells, term_cells
from weft.acsr.format import Acsr
from weft.pattern.bounds import Ints
from weft.pattern.draw import edges


@dataclass(frozen=True, eq=False)
class Owned:
    """Which term owns each cell of a picture of (m, n) pairs.

    owners (rows, columns): 0 for none, 1 + i for the commonest term i, one more for the remainder. share: live pairs
    over all pairs of a cell, counted and not sampled: 0 only where none is live, 1 only where all are.
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
    queries, keys = edges(acsr.m, rows), edges(acsr.n, cols)
    area = np.diff(queries)[:, None] * np.diff(keys)
    owners, live, most = (np.zeros_like(area) for _ in range(3))
    for kind, counts in enumerate(_counted(acsr, queries, keys), 1):
        owners[counts > most] = kind
        live, most = live + counts, np.maximum(most, counts)
    return Owned(acsr, owners, live / area)


def _counted(acsr: Acsr, queries: Ints, keys: Ints) -> Iterator[Ints]:
    """The pairs in each cell, of one term after the other and of the remainder."""
    for term in acsr.terms:
        yield term_cells(term, queries, keys)
    if len(acsr.remainder):
        yield remainder_cells(acsr.remainder, queries, keys)
