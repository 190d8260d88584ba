"""Items of documents: the keys of each tile of rows, by its first and its last row, since bounds rise with rows."""

from __future__ import annotations

import numpy as np

from weft.kernels.gpu.documents.spec import ITEM
from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Call, Ints


def items(call: Call) -> None:
    """Of every tile of every document (first query, queries, first key, keys, tiles before full ones, full ones)."""
    tiles, (rows, cols) = call.integer("tiles"), (call.spec.rows, call.spec.cols)
    for document in range(call.grid[1]):
        m, n = (_length(call, name, document) for name in ("OfQueries", "OfKeys"))
        law(m <= tiles * rows, "a document is longer than the longest")
        for tile in range(tiles):
            found = _item(call.table("Bounds"), (tile * rows, min((tile + 1) * rows, m)), (m, n), cols)
            call.flat("Items", ITEM).store(np.array(found, np.float64), document * tiles + tile)


def _length(call: Call, name: str, document: int) -> int:
    return call.counted(name, document + 1) - call.counted(name, document)


def _item(bounds: Ints, rows: tuple[int, int], sizes: tuple[int, int], cols: int) -> tuple[int, ...]:
    first, end = rows
    (m, n), count = sizes, end - first
    if count <= 0:
        return (0,) * ITEM
    lows, highs = zip(*(_keys(bounds, row + n - m, n) for row in (first, end - 1)), strict=True)
    start, stop = lows[0], max(highs[1], lows[0])
    if stop == start:
        return first, count, 0, 0, 0, 0
    tiles = np.arange(start, stop, cols)
    seen = [lows[1] <= x and x + cols <= min(highs[0], stop) for x in tiles.tolist()]  # of all rows, and wholly
    full = sum(seen)
    left = int(np.argmax(seen)) if full else min(max(-((start - lows[1]) // cols), 0), tiles.size)
    return first, count, start, stop - start, left, full


def _keys(bounds: Ints, row: int, n: int) -> tuple[int, int]:
    """(first key, key after the last) of a row."""
    low, high = ([_stair(bounds[at : at + 8], row) for at in (first, first + 8)] for first in (0, 16))
    return min(max(*low, 0), n), max(min(*high, n), 0)


def _stair(record: Ints, row: int) -> int:
    rise, run, shift, base, out_lo, out_hi, in_lo, in_hi = (int(x) for x in record)
    if not in_lo <= row < in_hi:
        return -(1 << 30) if row < in_lo else 1 << 30
    return min(max(rise * ((row + shift) // run) + base, out_lo), out_hi)
