# ruff: noqa: PLR0913 - what a kernel is told
"""Items of tiles of rows, for documents whose lengths the device has: what a program does. Functions of Triton."""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = tl.constexpr(64)  # tiles of a program
ITEM = tl.constexpr(6)  # integers of an item, see `spec`
FAR = tl.constexpr(1 << 30)


@triton.jit
def items_of(of_queries, of_keys, bounds, items, tiles, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Items of BLOCK tiles of one document: (first query, queries, first key, keys, tiles before full ones, full ones).

    of_queries, of_keys: running sums of lengths. tiles: of the longest document; those beyond a document have no rows.
    """
    document = tl.program_id(1)
    m = tl.load(of_queries + document + 1) - tl.load(of_queries + document)
    n = tl.load(of_keys + document + 1) - tl.load(of_keys + document)
    tile = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    begin = tile * ROWS
    exists = begin < m
    last = tl.minimum(begin + ROWS, m) - 1
    first = tl.minimum(begin, last)
    # keys of some row are start to stop, those of all rows inner_start to inner_stop: bounds rise with rows
    start, inner_stop = keys_of(bounds, first + (n - m), n)
    inner_start, stop = keys_of(bounds, last + (n - m), n)
    stop = tl.where(exists, tl.maximum(stop, start), start)
    count = (stop - start + COLS - 1) // COLS
    left = tl.minimum(tl.maximum((inner_start - start + COLS - 1) // COLS, 0), count)
    whole = tl.where(inner_stop >= stop, count, tl.maximum(inner_stop - start, 0) // COLS) - left
    full = tl.where(inner_stop <= inner_start, 0, tl.maximum(tl.minimum(whole, count - left), 0))
    full = tl.minimum(full, tl.maximum((stop - start) // COLS - left, 0))  # one that ends early needs a mask
    some = stop > start
    at, mask = items + (document * tiles + tile) * ITEM, tile < tiles
    tl.store(at, tl.where(exists, begin, 0), mask=mask)
    tl.store(at + 1, tl.where(exists, last + 1 - begin, 0), mask=mask)
    tl.store(at + 2, tl.where(some, start, 0), mask=mask)
    tl.store(at + 3, tl.where(some, stop - start, 0), mask=mask)
    tl.store(at + 4, tl.where(some, left, 0), mask=mask)
    tl.store(at + 5, tl.where(some, full, 0), mask=mask)


@triton.jit
def keys_of(bounds, row, n):
    """(first key, key after the last) of rows, within 0 and n; the first row of a document may be before row 0."""
    low = tl.maximum(floor_stair(bounds, row), floor_stair(bounds + 8, row))
    high = tl.minimum(floor_stair(bounds + 16, row), floor_stair(bounds + 24, row))
    return tl.minimum(tl.maximum(low, 0), n), tl.maximum(tl.minimum(high, n), 0)


@triton.jit
def floor_stair(record, i):
    """As `ops.bounds.stair`, and right below zero, where a division of integers rounds up."""
    run, value = tl.load(record + 1), i + tl.load(record + 2)
    value = value // run - (value % run < 0).to(tl.int32)
    value = value * tl.load(record) + tl.load(record + 3)
    value = tl.minimum(tl.maximum(value, tl.load(record + 4)), tl.load(record + 5))
    value = tl.where(i < tl.load(record + 6), -FAR, value)
    return tl.where(i >= tl.load(record + 7), FAR, value)
