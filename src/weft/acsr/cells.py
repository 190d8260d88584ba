"""Live pairs in each cell of a picture, counted exactly: a cell is a run of queries by a run of keys.

Counted are the pairs of a term before a corner: those of earlier queries and earlier keys. The four corners of a cell
give its pairs. Bounds are monotone. So the rows of an axis that have ended before a key come first. Those that it cuts
follow, then those that begin later. Sums over rows serve all corners. A grid takes its axes one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import lcm
from typing import TypeAlias

import numpy as np

from weft.acsr.bits import bit_count
from weft.acsr.format import BLOCK, Remainder, Term
from weft.pattern import counting
from weft.pattern.bounds import Ints, coordinates
from weft.pattern.listed import EVERY, ByClass, Listed
from weft.pattern.relation import NDBool, Relation

STRIP = 1 << 16  # rows of an axis taken together: what a core's cache holds
PAIRS = 1 << 20  # numbers held for some listed rows
BATCH = 1 << 12  # blocks of a remainder taken together

Counts: TypeAlias = Callable[[Ints], Ints]  # some rows -> their keys before each corner, (rows, corners)


def term_cells(term: Term, queries: Ints, keys: Ints) -> Ints:
    """Pairs of a term in each cell, (queries.size - 1, keys.size - 1); a cell lies between neighbours of either."""
    if term.is_ordered:
        return _of_order(term, queries, keys)
    return np.diff(np.diff(_before(term, queries, keys), axis=0), axis=1)


def _of_order(term: Term, queries: Ints, keys: Ints) -> Ints:
    """The same of tokens in another order: for each cell of keys how many of them lie before each place."""
    rows, columns = (grid.tokens(np.arange(grid.size)) for grid in (term.q, term.k))
    cell = np.searchsorted(queries, rows, "right") - 1
    of_key = np.searchsorted(keys, columns, "right") - 1
    lo, hi = term.axes[0].interval(np.arange(rows.size, dtype=np.int64), columns.size)
    found = np.zeros((queries.size - 1, keys.size - 1), np.int64)
    inside = (cell >= 0) & (cell < queries.size - 1) & (lo < hi)
    for column in range(keys.size - 1):
        before = np.append(0, np.cumsum(of_key == column))
        np.add.at(found[:, column], cell[inside], (before[hi] - before[lo])[inside])
    return found


def _before(term: Term, x: Ints, y: Ints) -> Ints:
    """Pairs of a term before each corner, (x.size, y.size). A set is its list, or everything less its list; the pairs
    of a product of two sets are counted part by part.
    """
    found = np.zeros((x.size, y.size), np.int64)
    of_rows, of_keys = term.rows.tokens.array, term.keys.tokens.array
    if not (term.rows.kept or term.keys.kept):
        found += _of_all(term, x, y)
    if of_rows.size and not term.keys.kept:
        found += _sign(term.rows) * _summed(lambda rows: _keys_before(term, rows, y), of_rows, x, y.size)
    if of_keys.size and not term.rows.kept:
        turned = term.transpose()
        found += _sign(term.keys) * _summed(lambda keys: _keys_before(turned, keys, x), of_keys, y, x.size).T
    if of_rows.size and of_keys.size:
        held = max(y.size, of_keys.size if term.rank > 1 else 0)
        both = _summed(lambda rows: _listed_before(term, rows, y), of_rows, x, held)
        found += _sign(term.rows) * _sign(term.keys) * both
    return found


def _sign(listed: Listed) -> int:
    return 1 if listed.kept else -1


def _summed(counts: Counts, rows: Ints, x: Ints, held: int) -> Ints:
    """The counts of all `rows` (ascending) before each x, (x.size, corners); held: numbers that a row takes."""
    chunk, found = max(1, PAIRS // max(1, held)), np.zeros((x.size, 1), np.int64)
    for first in range(0, rows.size, chunk):
        some = rows[first : first + chunk]
        found = found + _sums(counts(some))[np.searchsorted(some, x)]
    return found


def _sums(values: Ints | NDBool) -> Ints:
    """Sums of the first 0, 1, ... of the values, along the first axis."""
    sums = np.zeros((len(values) + 1, *values.shape[1:]), np.int64)
    np.cumsum(values, axis=0, out=sums[1:])
    return sums


# ---- every row -------------------------------------------------------------------------------------------------------
def _of_all(term: Term, x: Ints, y: Ints) -> Ints:
    """Pairs that are live by the axes before each corner, (x.size, y.size)."""
    if term.q.size < x.size:
        rows = term.q.origin + np.arange(term.q.size, dtype=np.int64)
        return _summed(lambda some: _keys_before(term, some, y), rows, x, y.size)
    q, k = (np.clip(z - grid.origin, 0, grid.size) for z, grid in ((x, term.q), (y, term.k)))
    return _of_axis(term.axes[0], term.k.size, q, k) if term.rank == 1 else _of_grid(term, q, k)


def _of_grid(term: Term, q: Ints, k: Ints) -> Ints:
    """The same of several axes; q, k: corners as tokens of the grids.

    A token comes before another if it does on the first axis, or is its equal there and comes before it on the others.
    So a corner takes four products of one axis and those that follow. The last corner is the end of every axis.
    """
    q, k = np.append(q, 0), np.append(k, 0)
    found = np.zeros((q.size, k.size), np.int64)
    found[-1, -1] = 1
    of_axes = zip(term.axes, coordinates(q, term.q.shape), coordinates(k, term.k.shape), strict=True)
    for (axis, i, j), m, n in reversed(list(zip(of_axes, term.q.shape, term.k.shape, strict=True))):
        i[-1], j[-1] = m, n
        pairs = _of_axis(axis, n, np.append(i, np.minimum(i + 1, m)), np.append(j, np.minimum(j + 1, n)))
        before, upto = pairs[: i.size], pairs[i.size :] - pairs[: i.size]
        corner, edge = before[:, : j.size], before[:, j.size :] - before[:, : j.size]
        row, here = upto[:, : j.size], upto[:, j.size :] - upto[:, : j.size]
        found = corner * found[-1, -1] + row * found[:, -1:] + edge * found[-1:] + here * found
    return found[:-1, :-1]


def _of_axis(relation: Relation, n: int, x: Ints, y: Ints) -> Ints:
    """Pairs of an axis with n keys before each corner, (x.size, y.size)."""
    found, last = np.zeros((x.size, y.size), np.int64), int(x.max())
    if counting.is_closed(relation, last // max(1, x.size)):
        return _of_rows(relation, n, x, y)
    for first in range(0, last, STRIP):
        rows = np.arange(first, min(first + STRIP, last), dtype=np.int64)
        found += _of_strip(relation, rows, n, (np.clip(x - first, 0, rows.size), y))
    return found


def _of_rows(relation: Relation, n: int, x: Ints, y: Ints) -> Ints:
    """The same by closed sums, of the rows between neighbouring corners. Bounds are monotone, so most of these have
    ended before a key, or begin after it.
    """
    corners, keys = np.unique(np.append(0, x)), np.clip(y, 0, n)
    found = np.zeros((corners.size, y.size), np.int64)
    for at, (first, after) in enumerate(pairwise(corners.tolist()), 1):
        lo, hi = (side.tolist() for side in relation.interval(np.array([first, after - 1]), n))
        cut = {key: counting.between(relation, first, after, key) for key in set(keys.tolist()) if lo[0] < key < hi[1]}
        whole = counting.between(relation, first, after, n) if (keys >= hi[1]).any() else 0
        found[at] = [cut.get(key, whole if key >= hi[1] else 0) for key in keys.tolist()]
    return np.cumsum(found, axis=0)[np.searchsorted(corners, x)]


def _of_strip(relation: Relation, rows: Ints, n: int, corners: tuple[Ints, Ints]) -> Ints:
    """The same of consecutive rows alone; corners: x counts from the first of them."""
    x, y = corners
    lo, hi = relation.interval(rows, n)
    step, phase, agree = relation.key_classes(rows)
    some = relation.rows.holds(rows) & agree
    skipped = np.where(some, -((phase - lo) // step), 0)  # keys of the row's class from its phase on and below lo
    count = np.where(some, np.maximum(-((phase - hi) // step) - skipped, 0), 0)
    ended = np.searchsorted(hi, y, "right")
    begun = np.maximum(np.searchsorted(lo, y), ended)
    first, last = np.minimum(x[:, None], ended), np.minimum(x[:, None], begun)  # rows that y cuts, of those before x
    skips, present = _sums(skipped), _sums(some)
    found = _sums(count)[first] + (present[last] - present[first]) * (y // step) - (skips[last] - skips[first])
    if step > 1:
        period = min(rows.size, lcm(relation.rows.step, relation.diagonal.step))
        for column, rest in enumerate((y % step).tolist()):  # one more key where the class has one in y's last step
            sums = _sums(some[:period] & (phase[:period] < rest))
            one, two = ((z // period) * sums[-1] + sums[z % period] for z in (first[:, column], last[:, column]))
            found[:, column] += two - one
    return found


# ---- listed rows -----------------------------------------------------------------------------------------------------
def _keys_before(term: Term, rows: Ints, y: Ints) -> Ints:
    """Keys before each y that some queries see by the axes, (rows.size, y.size)."""
    _, at = term.q.coordinates(rows)
    k = coordinates(np.clip(y - term.k.origin, 0, term.k.size), term.k.shape)
    found, total = np.zeros((rows.size, y.size), np.int64), np.ones((rows.size, 1), np.int64)
    for axis, i, j, n in reversed(list(zip(term.axes, at, k, term.k.shape, strict=True))):
        start, step, count = (np.reshape(x, (-1, 1)) for x in axis.affine_rows(i, n))
        before, upto = (np.clip(-((start - z) // step), 0, count) for z in (j, j + 1))
        found, total = before * total + (upto - before) * found, total * count
    return found


def _listed_before(term: Term, rows: Ints, y: Ints) -> Ints:
    """Listed keys before each y that some queries see by the axes, (rows.size, y.size)."""
    keys = term.keys.tokens.array
    if term.rank > 1:
        live = replace(term, rows=EVERY, keys=EVERY).contains(rows[:, None], keys)
        return _sums(live.T)[np.searchsorted(keys, y)].T
    (axis,), i = term.axes, rows - term.q.origin
    lo, hi = (x[:, None] for x in axis.interval(i, term.k.size))
    step, phase, agree = axis.key_classes(i)
    classes = ByClass.of(keys - term.k.origin, step)
    found = classes.count(phase[:, None], lo, np.minimum(hi, y - term.k.origin))
    return np.where((axis.rows.holds(i) & agree)[:, None], found, 0)


# ---- blocks ----------------------------------------------------------------------------------------------------------
def remainder_cells(remainder: Remainder, queries: Ints, keys: Ints) -> Ints:
    """Pairs of a remainder in each cell, as `term_cells` has those of a term; the cells hold all queries and keys."""
    of_queries, of_keys = _cells_of(queries), _cells_of(keys)
    found = np.zeros((queries.size, keys.size))
    for whole in (True, False):
        blocks = np.flatnonzero((remainder.bit_index < 0) == whole)
        for first in range(0, blocks.size, BATCH):
            some = blocks[first : first + BATCH]
            bits = None if whole else remainder.bits[remainder.bit_index[some]]
            _add_blocks(found, of_queries[remainder.rows[some]], of_keys[remainder.cols[some]], bits)
    return found[:-1, :-1].astype(np.int64)


def _cells_of(edges: Ints) -> Ints:
    """(blocks, BLOCK): the cell of each token; of those that fill up the last block, one cell more."""
    end = -(-int(edges[-1]) // BLOCK) * BLOCK
    return np.repeat(np.arange(edges.size), np.diff(edges, append=end)).reshape(-1, BLOCK)


def _add_blocks(found: np.ndarray, q: Ints, k: Ints, bits: np.ndarray | None) -> None:
    """Adds the pairs of blocks to `found`; q, k: the cells of their tokens, (blocks, BLOCK); no bits: all are live."""
    for cell in range(int((k[:, -1] - k[:, 0]).max()) + 1):  # of those that a block reaches
        inside = k == k[:, :1] + cell
        here = np.flatnonzero(inside.any(axis=1))
        if bits is None:
            pairs = np.repeat(inside[here].sum(axis=1), BLOCK)
        else:
            pairs = bit_count(bits[here] & np.packbits(inside[here], axis=1)[:, None]).sum(axis=2).reshape(-1)
        at = q[here] * found.shape[1] + k[here, :1] + cell
        found += np.bincount(at.reshape(-1), pairs, found.size).reshape(found.shape)
