"""Is what the fused backward computes what the pattern says?"""

from __future__ import annotations

import numpy as np

from weft.acsr.format import Acsr, Term
from weft.acsr.proof import require
from weft.planning.families.fused_backward import SEEN, FusedBackward, ShortWindow
from weft.planning.families.sparse_keys import TILE, SparseKeys
from weft.planning.verify import ROWS


def verify_fused(fused: FusedBackward, acsr: Acsr) -> None:
    """Raise VerificationError unless a window and sparse keys are each a term, and there is no other."""
    terms = sorted([fused.term, *(term for term, _ in fused.beside)])
    require(terms == list(range(len(acsr.terms))), f"terms {terms} are walked, there are {len(acsr.terms)}")
    require(not len(acsr.remainder), "one pass leaves blocks of single pairs out")
    verify_window(fused.window, acsr.terms[fused.term], acsr.m)
    for term, sparse in fused.beside:
        verify_sparse_keys(sparse, acsr.terms[term])


def verify_window(window: ShortWindow, term: Term, length: int) -> None:
    """Raise VerificationError unless rows see the keys of a short window and no other, in the tiles of one pass."""
    require(term.nnz == _pairs(window), f"rows do not see the {window}")
    for start in range(0, length, ROWS):
        rows = np.arange(start, min(start + ROWS, length))
        low, high = term.axes[0].interval(rows, length)
        same = np.array_equal(low, np.maximum(rows - window.left, 0))
        same &= np.array_equal(high, np.minimum(rows + window.right + 1, length))
        require(bool(same), f"rows do not see the {window}")
        first = rows // TILE * TILE - window.shift
        inside = (low >= first) & (high <= first + SEEN * TILE)
        require(bool(inside.all()), f"rows see more than {SEEN} tiles of the {window}")


def verify_sparse_keys(sparse: SparseKeys, term: Term) -> None:
    """Raise VerificationError unless queries see these keys and no others.

    Of each key the first and the last query see it, and the queries before and after do not. The number of pairs is the
    term's.
    """
    keys, size = sparse.base + sparse.step * np.arange(sparse.count), term.q.size
    inside = (sparse.low >= 0) & (sparse.high <= size) & (sparse.low < sparse.high)
    require(bool(inside.all()), f"queries of {sparse.count} keys beside a window are not there")
    seen = term.contains(sparse.low, keys) & term.contains(sparse.high - 1, keys)
    for beyond, exists in ((sparse.low - 1, sparse.low > 0), (sparse.high, sparse.high < size)):
        seen &= ~(exists & term.contains(np.where(exists, beyond, 0), keys))
    same = bool(seen.all()) and int((sparse.high - sparse.low).sum()) == term.nnz
    require(same, f"queries do not see the {sparse.count} keys beside a window")


def _pairs(window: ShortWindow) -> int:
    """How many it has."""
    rows = np.arange(window.length)
    return int((np.minimum(rows + window.right + 1, window.length) - np.maximum(rows - window.left, 0)).sum())
