"""A pattern as packed rows: its meaning on every pair, fast enough to hold a candidate against a whole mask.

Every leaf is evaluated from the data that gives it its meaning (bounds, residues, tables). What has no quick way is
asked pair by pair through `holds`.
"""

from __future__ import annotations

from functools import singledispatch
from itertools import pairwise

import numpy as np

from weft.pattern import algebra as ops
from weft.pattern import leaves
from weft.pattern.algebra import Pattern, Where
from weft.pattern.pieces import Bits, Coarse, Folded, OnlyAt
from weft.pattern.relation import Relation
from weft.recognition.bitrows import BitRows, Words, packed, strips, width


@singledispatch
def raster(pattern: Pattern, m: int, n: int) -> BitRows:
    """The pattern at m queries and n keys; it tells no heads or batch rows apart and its lengths are checked."""
    words = np.zeros((m, width(n)), np.uint64)
    keys = np.arange(n, dtype=np.int64)[None]
    for a, b in strips(m, n * 8):
        live = pattern.holds(np.arange(a, b, dtype=np.int64)[:, None], keys, Where(m, n))
        words[a:b] = BitRows.pack(np.broadcast_to(live, (b - a, n))).words
    return BitRows(words, n)


@raster.register
def _(pattern: ops.Call, m: int, n: int) -> BitRows:
    return raster(pattern.body, m, n)


@raster.register
def _(pattern: OnlyAt, m: int, n: int) -> BitRows:
    return raster(pattern.part, m, n)


@raster.register
def _(pattern: leaves.Sized, m: int, n: int) -> BitRows:
    return raster(pattern.resolve(m, n), m, n)


@raster.register
def _(pattern: leaves.Affine, m: int, n: int) -> BitRows:
    return of_relation(pattern.relation_at(m, n), m, n)


def of_relation(relation: Relation, m: int, n: int) -> BitRows:
    """Bounds as an interval for each row, congruences as vectors over rows, keys and diagonals."""
    q, k = np.arange(m, dtype=np.int64), np.arange(n, dtype=np.int64)
    lo, hi = relation.interval(q, n)
    live = BitRows.of_intervals(lo, np.where(relation.rows.holds(q), hi, 0), n)
    if relation.keys.step > 1:
        live = live & BitRows.of_keys(relation.keys.holds(k), m)
    if relation.diagonal.step > 1:
        live = live & BitRows.of_diagonals(relation.diagonal.holds(np.arange(1 - m, n, dtype=np.int64)), m, n)
    return live


@raster.register
def _(pattern: ops.Or, m: int, n: int) -> BitRows:
    live = raster(pattern.parts[0], m, n)
    for part in pattern.parts[1:]:
        live = live | raster(part, m, n)
    return live


@raster.register
def _(pattern: ops.And, m: int, n: int) -> BitRows:
    live = raster(pattern.parts[0], m, n)
    for part in pattern.parts[1:]:
        live = live & raster(part, m, n)
    return live


@raster.register
def _(pattern: ops.Not, m: int, n: int) -> BitRows:
    return raster(pattern.part, m, n).inverted()


@raster.register
def _(pattern: Bits, m: int, n: int) -> BitRows:
    return BitRows(pattern.rows.view(np.uint64), n)


@raster.register
def _(pattern: Coarse, m: int, n: int) -> BitRows:
    return enlarged(raster(pattern.part, *pattern.sizes(m, n)), (pattern.block_q, pattern.block_k), m, n)


@raster.register
def _(pattern: leaves.BlockList, m: int, n: int) -> BitRows:
    size = -(-m // pattern.block_q), -(-n // pattern.block_k)
    rows, cols = pattern.rows.array, pattern.cols.array
    inside = (rows < size[0]) & (cols < size[1])
    words = np.zeros((size[0], width(size[1])), np.uint64)
    bit = np.left_shift(np.uint64(1), (cols[inside] % 64).astype(np.uint64))
    np.bitwise_or.at(words, (rows[inside], cols[inside] // 64), bit)
    return enlarged(BitRows(words, size[1]), (pattern.block_q, pattern.block_k), m, n)


def enlarged(small: BitRows, block: tuple[int, int], m: int, n: int) -> BitRows:
    """Every bit as a block of bits, cut at (m, n)."""
    if block == (1, 1):
        return small
    words = np.empty((m, width(n)), np.uint64)
    step = max(1, (1 << 22) // max(1, n))
    for a in range(0, small.m, step):
        bits = small.dense(slice(a, a + step))
        wide = BitRows.pack(np.repeat(bits, block[1], axis=1)[:, :n] if block[1] > 1 else bits).words
        first, last = a * block[0], min((a + step) * block[0], m)
        words[first:last] = np.repeat(wide, block[0], axis=0)[: last - first]
    return BitRows(words, n)


@raster.register
def _(pattern: leaves.Product, m: int, n: int) -> BitRows:
    shapes = zip(pattern.parts, pattern.shape, pattern.key_shape, strict=True)
    return kronecker([raster(part, a, b) for part, a, b in shapes])


def kronecker(axes: list[BitRows]) -> BitRows:
    """The product over axes of a row-major grid, last axis fastest."""
    out = axes[-1]
    for axis in reversed(axes[:-1]):
        words = np.empty((axis.m * out.m, width(axis.n * out.n)), np.uint64)
        for a, b in strips(out.m, axis.n * out.n * 2):  # some rows of the inner axis, in all their places along a row
            repeated = _places(out.dense(slice(a, b)), axis.n)
            for i in range(axis.m):
                row = packed(np.repeat(axis.dense(slice(i, i + 1))[0], out.n))
                words[i * out.m + a : i * out.m + b] = repeated & row
        out = BitRows(words, axis.n * out.n)
    return out


def _places(rows: np.ndarray, times: int) -> Words:
    return BitRows.pack(np.tile(rows, (1, times))).words


@raster.register
def _(pattern: leaves.Labels, m: int, n: int) -> BitRows:
    """Rows of one label are one row."""
    every = np.concatenate([pattern.ids.array, pattern.of_keys.array])
    labels, place = np.unique(every, return_inverse=True)
    queries, keys = np.split(place.reshape(-1), [m])
    words = np.zeros((labels.size, width(n)), np.uint64)
    k = np.arange(n)
    bit = np.left_shift(np.uint64(1), (k % 64).astype(np.uint64))
    np.bitwise_or.at(words, (keys, k // 64), bit)
    return BitRows(words[queries], n)


@raster.register
def _(pattern: leaves.Segments, m: int, n: int) -> BitRows:
    cuts = np.concatenate([[0], np.cumsum(pattern.lengths)]).tolist()
    words = np.zeros((m, width(n)), np.uint64)
    for (a, b), row in zip(pairwise(cuts), pattern.cells, strict=False):
        if a < b:
            sizes = zip(row, pattern.key_lengths, strict=True)
            dense = [raster(cell, b - a, size).dense() for cell, size in sizes if size]
            words[a:b] = BitRows.pack(np.concatenate([*dense, np.zeros((b - a, 0), np.bool_)], axis=1)).words
    return BitRows(words, n)


@raster.register
def _(pattern: Folded, m: int, n: int) -> BitRows:
    rows, width = pattern.rows(m, n), pattern.width
    whole = kronecker([raster(pattern.outer, *rows), raster(pattern.inner, width, width)])
    return whole if (whole.m, whole.n) == (m, n) else BitRows.pack(whole.dense(slice(0, m))[:, :n])
