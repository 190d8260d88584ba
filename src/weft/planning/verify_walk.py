"""Is what one walk makes gradients of what the pattern says?"""

from __future__ import annotations

import numpy as np

from weft.acsr.format import Acsr, Term
from weft.planning.few_keys import FewKeys
from weft.planning.short import SEEN, TILE, ShortWindow
from weft.planning.verify import ROWS, require
from weft.planning.walk import Walk


def verify_walk(walk: Walk, acsr: Acsr) -> None:
    """Raise VerificationError unless a window and few keys are each a term, and there is no other."""
    terms = sorted([walk.term, *(term for term, _ in walk.beside)])
    require(terms == list(range(len(acsr.terms))), f"terms {terms} are walked, there are {len(acsr.terms)}")
    require(not len(acsr.remainder), "a walk leaves blocks of single pairs out")
    verify_window(walk.window, acsr.terms[walk.term], acsr.m)
    for term, few in walk.beside:
        verify_few_keys(few, acsr.terms[term])


def verify_window(window: ShortWindow, term: Term, length: int) -> None:
    """Raise VerificationError unless rows see the keys of a short window and no other, in the tiles of one walk."""
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


def verify_few_keys(few: FewKeys, term: Term) -> None:
    """Raise VerificationError unless queries see these keys and no other: of each key the first and the last query do,
    the ones before and after do not, and there are as many pairs.
    """
    keys, size = few.base + few.step * np.arange(few.count), term.q.size
    inside = (few.low >= 0) & (few.high <= size) & (few.low < few.high)
    require(bool(inside.all()), f"queries of {few.count} keys beside a window are not there")
    seen = term.contains(few.low, keys) & term.contains(few.high - 1, keys)
    for beyond, exists in ((few.low - 1, few.low > 0), (few.high, few.high < size)):
        seen &= ~(exists & term.contains(np.where(exists, beyond, 0), keys))
    same = bool(seen.all()) and int((few.high - few.low).sum()) == term.nnz
    require(same, f"queries do not see the {few.count} keys beside a window")


def _pairs(window: ShortWindow) -> int:
    """How many it has."""
    rows = np.arange(window.length)
    return int((np.minimum(rows + window.right + 1, window.length) - np.maximum(rows - window.left, 0)).sum())
