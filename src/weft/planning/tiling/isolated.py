"""Tiles of rows on a line, parted where a row and the next have no column in common, as at the end of a document.

A tile multiplies what it reads with weights of 0 too, and NaN survives that. A tile of one document reads nothing else:
its run of columns ends where the document does. So what a document holds reaches no other one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.acsr.format import MAX_TERMS
from weft.pattern.bounds import Ints, Stair, Steps
from weft.planning.tiles import LoopNest, Part, axis_plan

LONGEST = 16  # tiles of a lane: tables of an axis have a place for each lane and each tile of the longest


def isolated(nest: LoopNest) -> LoopNest | None:
    """The nest with a lane for each document, or several for a long one; None where its tiles part rows so already.

    Documents have a table of bounds, and rows that see nothing are apart there too. Parts of a sequence, as segments
    are, have bounds on queries alone. Chunks and steps have neither: their rows part too often for a tile each.
    """
    lanes = nest.lanes[0]
    if len(nest.box) > 1 or lanes.queries is not None or any(p.axes[0].lanes.keys is not None for p in nest.parts):
        return None
    table = any(map(_has_table, nest.parts))
    if not table and not any(map(_is_stated, nest.parts)):
        return None
    which, row = lanes.every_row()
    cuts = _cuts(nest, which, row, table)
    if not (row[cuts] % nest.box[0]).any() or (cuts.size > MAX_TERMS and not table):
        return None
    first = _pieces(np.union1d(np.flatnonzero(row == 0), cuts), row.size, LONGEST * nest.box[0])
    rows = np.diff(first, append=row.size)
    return replace(nest, parts=tuple(_parted(part, (which[first], row[first], rows)) for part in nest.parts))


def _cuts(nest: LoopNest, which: Ints, row: Ints, alone: bool) -> Ints:
    """Rows that see a column, and share none with the last one before them that does; places among all rows.

    alone: also those before or after which rows see nothing.
    """
    bounds = [p.axes[0].lanes.bounds(p.axes[0].relation, p.axes[0].n, which, row) for p in nest.parts]
    seen = np.logical_or.reduce([hi > lo for lo, hi in bounds])
    seeing = np.flatnonzero(seen)
    one, next_ = seeing[:-1], seeing[1:]
    joined = which[one] != which[next_]
    for lo, hi in bounds:
        joined |= (lo[next_] < hi[one]) & (lo[one] < hi[one]) & (lo[next_] < hi[next_])
    turns = 1 + np.flatnonzero((seen[1:] != seen[:-1]) & (row[1:] > 0)) if alone else next_[:0]
    return np.union1d(next_[~joined], turns)


def _pieces(first: Ints, rows: int, longest: int) -> Ints:
    """Where pieces of at most so many rows begin; none begins before its part."""
    count = -(-np.diff(first, append=rows) // longest)
    number = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(first, count) + number * longest


def _parted(part: Part, pieces: tuple[Ints, Ints, Ints]) -> Part:
    """pieces: of each its lane, first row and rows."""
    (axis,), (lane, first, rows) = part.axes, pieces
    lanes = axis.lanes
    lanes = replace(
        lanes, q_first=lanes.q_first[lane] + lanes.q_step * first, rows=rows, k_first=lanes.k_first[lane],
        live=lanes.live[lane],
    )  # fmt: skip
    return replace(part, axes=(axis_plan(axis.relation, axis.n, lanes, axis.block_q, axis.block_k),))


def _is_stated(part: Part) -> bool:
    """Whether a bound says of queries alone that they see nothing."""
    relation = part.axes[0].relation
    return any(isinstance(bound, Stair) and bound.is_threshold for bound in relation.lower + relation.upper)


def _has_table(part: Part) -> bool:
    relation = part.axes[0].relation
    return any(isinstance(bound, Steps) for bound in relation.lower + relation.upper)
