"""Tables of documents, one after the other: the columns of each tile of rows by its first and its last row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.documents.spec import DOCUMENT, HEADER, ITEM
from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Call, Ints, Reals
from weft.kernels.gpu.tables.pack import HEAD, reciprocal

FAR = 1 << 30


class Document(NamedTuple):
    """First row and column, rows, columns, and what is added to rows before bounds are asked, and to these."""

    first_row: int
    first_col: int
    rows: int
    cols: int
    into: int
    out: int


def tables(call: Call) -> None:
    """A record of every document and of the tokens after them, an item of each tile, and its members."""
    words = call.flat("Tables")
    items_at, heads_at, tiles = (call.integer(x) for x in ("items_at", "heads_at", "tiles"))
    documents, bounds = [_document(call, i) for i in range(call.integer("documents") + 1)], call.table("Bounds")
    pages = _pages(call) if call.spec.paged else np.zeros((len(documents), 0))
    found = []
    for number, one in enumerate(documents):
        record = _record(call, bounds, one)
        if call.spec.paged:
            record[HEADER + 1] = call.integer("pages_at") + number * pages.shape[1] - DOCUMENT * number
        words.store(np.array(record, np.float64), DOCUMENT * number + np.arange(DOCUMENT))
        rows = range(0, one.rows, call.spec.rows)
        found += [(number, _item(call, bounds, one, row)) for row in (rows if call.spec.of_keys else reversed(rows))]
    for number in range(tiles):
        document, item = found[number] if number < len(found) else (0, (0,) * ITEM)
        at = items_at + ITEM * number
        words.store(np.array(item, np.float64), at + np.arange(ITEM))
        for head in range(call.grid[1]):
            place = DOCUMENT * document, int(number < len(found)), ITEM, 1, HEADER, at - DOCUMENT * document
            member = np.array((0, *_owner(call, head), *place), np.float64)
            words.store(member, heads_at + HEAD * (number * call.grid[1] + head) + np.arange(HEAD))

    if pages.size:
        words.store(pages.reshape(-1), call.integer("pages_at") + np.arange(pages.size))


def _pages(call: Call) -> Reals:
    """The first token of each page, (documents, pages of each)."""
    table = call.indices("BlockTable", call.integer("table_row"))
    law(table.shape[1] == call.integer("width"), "a block table has other rows than the kernel is told")
    law(call.integer("room") % table.shape[1] == 0, "a document has room for whole pages")
    return (np.clip(table, 0, call.integer("pages") - 1) * call.integer("step")).astype(np.float64)


def _owner(call: Call, head: int) -> tuple[int, int, int]:
    """Key head, first query head, query heads."""
    group = call.integer("group")
    return (head, head * group, group) if call.spec.of_keys else (head // group, head, 1)


def _document(call: Call, number: int) -> Document:
    count, lengths = call.integer("documents"), [call.integer(x) for x in ("my_length", "their_length")]
    ends = [_span(call, name, number, length) for name, length in zip(("OfRows", "OfCols"), lengths, strict=True)]
    (row, rows), (col, cols) = ((begin, end - begin) for begin, end in ends)
    cols = cols if number < count else 0
    if call.spec.paged:
        col, cols = 0, min(cols, call.integer("room"))
    shift = (rows - cols if call.spec.of_keys else cols - rows) if call.spec.from_end else 0
    return Document(row, col, rows, cols, *((0, -shift) if call.spec.of_keys else (shift, 0)))


def _span(call: Call, name: str, number: int, length: int) -> tuple[int, int]:
    begin = min(max(call.counted(name, number), 0), length) if number else 0
    end = call.counted(name, number + 1) if number < call.integer("documents") else length
    return begin, min(max(end, begin), length)


def _record(call: Call, bounds: Ints, one: Document) -> list[int]:
    inverse, digits = reciprocal(1)
    inverse -= (inverse >= 1 << 31) << 32  # as 32 bits with a sign
    log = call.spec.cols.bit_length() - 1
    found = [one.first_row, 0, 0, 1, one.rows, one.first_col, 0, 0, 0, 1, log, one.cols, 0, inverse, digits]
    for at in range(0, 32, 8):
        rise, run, shift, base, *ends = (int(x) for x in bounds[at : at + 8])
        whole, rest = divmod(shift + one.into, run)
        out, into = ([_moved(x, by) for x in two] for two, by in ((ends[:2], one.out), (ends[2:], -one.into)))
        found += [rise, run, rest, base + rise * whole + one.out, *out, *into]
    return found


def _item(call: Call, bounds: Ints, one: Document, first: int) -> tuple[int, ...]:
    cols, end = call.spec.cols, min(first + call.spec.rows, one.rows)
    lows, highs = zip(*(_columns(bounds, row, one) for row in (first, end - 1)), strict=True)
    start, stop = lows[0], max(highs[1], lows[0])
    if stop == start:
        return first, end - first, 0, 0, 0, 0
    tiles = np.arange(start, stop, cols)
    seen = [lows[1] <= x and x + cols <= min(highs[0], stop) for x in tiles.tolist()]  # of all rows, and wholly
    full = sum(seen)
    left = int(np.argmax(seen)) if full else min(max(-((start - lows[1]) // cols), 0), tiles.size)
    return first, end - first, start, stop - start, left, full


def _columns(bounds: Ints, row: int, one: Document) -> tuple[int, int]:
    """(first column, column after the last) of a row."""
    low, high = ([_stair(bounds[at : at + 8], row, one) for at in (begin, begin + 8)] for begin in (0, 16))
    return min(max(*low, 0), one.cols), max(min(*high, one.cols), 0)


def _stair(record: Ints, row: int, one: Document) -> int:
    rise, run, shift, base, out_lo, out_hi, in_lo, in_hi = (int(x) for x in record)
    i = row + one.into
    if not in_lo <= i < in_hi:
        return -FAR if i < in_lo else FAR
    return _moved(min(max(rise * ((i + shift) // run) + base, out_lo), out_hi), one.out)


def _moved(x: int, by: int) -> int:
    return x if abs(x) >= FAR else min(max(x + by, -FAR), FAR)
