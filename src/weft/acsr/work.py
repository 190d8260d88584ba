"""How many pairs a format makes a kernel compute: tiles of BLOCK queries, each with all keys that its queries reach.

An estimate that needs no plan. The planner chooses its own tiles and counts them exactly.
"""

from __future__ import annotations

import numpy as np

from weft.acsr.format import BLOCK, Acsr, Term
from weft.pattern.bounds import Ints
from weft.pattern.relation import Relation

STRIPS = 4096  # strips of queries that are looked at; of longer axes every so many


def computed(acsr: Acsr) -> int:
    """Pairs in the tiles of all terms and in the blocks of the remainder, live or not."""
    return sum(map(_of_term, acsr.terms)) + len(acsr.remainder) * BLOCK * BLOCK


def share_of_dense(acsr: Acsr) -> float:
    """Computed pairs over all pairs: 1.0 is what the dense mask costs."""
    return computed(acsr) / max(1, acsr.m * acsr.n)


def _of_term(term: Term) -> int:
    height = max(1, round(BLOCK ** (1 / term.rank)))
    if term.rank > 1:
        sizes = zip(term.axes, term.q.shape, term.k.shape, strict=True)
        return int(np.prod([_of_axis(axis, np.arange(m, dtype=np.int64), n, height) for axis, m, n in sizes]))
    rows = term.rows.tokens.array if term.rows.kept else np.arange(term.q.size, dtype=np.int64)
    keys = term.keys.tokens.array if term.keys.kept else None
    return _of_axis(term.axes[0], rows, term.k.size, height, keys)


def _of_axis(axis: Relation, rows: Ints, n: int, height: int, keys: Ints | None = None) -> int:
    """The same of one axis. Queries of one residue class are tiled together; keys: those that a list keeps."""
    step, _, some = axis.key_classes(rows)
    rows = rows[some & axis.rows.holds(rows)]
    if axis.diagonal.step > 1:
        rows = rows[np.argsort(rows % axis.diagonal.step, kind="stable")]
    every = max(1, -(-rows.size // height) // STRIPS)
    lo, hi = axis.interval(rows, n)
    if keys is not None:
        lo, hi = np.searchsorted(keys, lo), np.searchsorted(keys, hi)
    first = np.arange(0, rows.size, height)[::every]
    if not first.size:
        return 0
    strips = np.minimum(first[:, None] + np.arange(height), rows.size - 1)
    live = lo[strips] < hi[strips]
    low = np.where(live, lo[strips], n).min(axis=1)
    high = np.where(live, hi[strips], 0).max(axis=1)
    count = np.minimum(height, rows.size - first)
    return int((np.maximum(high - low, 0) * count).sum() * every // step)
