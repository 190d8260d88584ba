"""Tables of documents, one after the other: the columns of each tile of rows by its first and its last row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.documents.spec import DOCUMENT, HEADER, ITEM
from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Call, Ints, Reals
from weft.kernels.gpu.tables.consumer_ranges import BESIDE, GROUP
from weft.kernels.gpu.tables.pack import HEAD
from weft.kernels.gpu.tables.tile_scheduler import LAST
from weft.kernels.gpu.tables.writer import reciprocal

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


# ---- tables that warp groups read ------------------------------------------------------------------------------------
def items(call: Call) -> None:
    """The item of each tile of all documents, and about how long groups take for it, -1 where there is none."""
    words, tiles, record = call.flat("Tables"), call.integer("tiles"), call.integer("record")
    documents, bounds = [_document(call, i) for i in range(call.integer("documents") + 1)], call.table("Bounds")
    end = max((one.first_col + one.cols for one in documents[:-1]), default=0)
    every = [(one, row) for one in documents for row in range(0, one.rows, call.spec.rows)]
    works = np.full(tiles, -1)
    for number, (one, row) in enumerate(every):
        item, works[number] = _item_of_groups(call, bounds, one, row, end)
        law(len(item) == record, "an item has other integers than the kernel is told")
        at = call.integer("items_at") + record * number
        words.store(np.array(item, np.float64), at + np.arange(record))
    if call.spec.of_keys:  # whose kernel takes items without rows and columns too
        for number in range(len(every), tiles):
            words.store(np.zeros(record), call.integer("items_at") + record * number + np.arange(record))
    words.store(works.astype(np.float64), call.integer("works_at") + np.arange(tiles))


def _item_of_groups(call: Call, bounds: Ints, one: Document, row: int, end: int) -> tuple[list[int], int]:
    """(its integers, how long groups take). end: where the last document ends, in columns."""
    height, cols = min(call.spec.rows, one.rows - row), call.spec.cols
    low, high = np.array([_columns(bounds, row + r, one) for r in range(height)]).T
    live = low < high
    start, stop = (int(low[live].min()), int(high[live].max())) if live.any() else (0, 0)
    first, tiles = one.first_col + start, -(-(stop - start) // cols)
    moved = cols * tiles - (stop - start) if first + cols * tiles > end and not call.spec.of_keys else 0
    low, high = (np.where(live, x - start + moved, 0) for x in (low, high))
    ranges, work = [], 0
    for g in range(0, call.spec.rows, GROUP):
        mine = slice(min(g, height - 1), min(g + GROUP, height))
        begin = int(low[mine][live[mine]].min() // cols) if live[mine].any() else 0
        after = int(-(-high[mine].max() // cols)) if g < height else 0
        begin = min(begin, after) if g < height else 0
        all_see = int(high[mine].min() // cols) if not call.spec.of_keys or g + GROUP <= height else 0
        ranges += [begin, after, int(-(-low[mine].max() // cols)), all_see, 0]
        work += 2 * (after - begin) + BESIDE * (g < height)
    told = [int(x) for side in (low, high) for x in np.pad(side, (0, call.spec.rows - height))]
    place = one.first_row + row
    return [place, height, first - moved, stop - start + moved, 0, 0, place, 0, first - moved, 0, *ranges, *told], work


def blocks(call: Call) -> None:
    """The launch, its members, how many blocks there are, and the blocks. Of queries they are those of a few heads
    after those of others, whose length falls and rises in turn, and falls at last. Of keys see `_claimed`.
    """
    words, tiles, heads = call.flat("Tables"), call.integer("tiles"), call.integer("heads")
    works = words.load(call.integer("works_at") + np.arange(tiles))
    order = [int(i) for i in np.argsort(-works, kind="stable") if works[i] >= 0]
    together, programs = call.spec.together, call.integer("programs")
    found = []
    if call.spec.of_keys:
        found = _claimed(works, heads, programs)
        found += [(item, head) for item in range(len(order), tiles) for head in range(heads)]
    else:
        for first in range(0, heads, together):
            rises = ((heads - 1) // together - first // together) % 2 == 1
            side = range(first, min(first + together, heads))
            found += [(item, head) for item in (order[::-1] if rises else order) for head in side]
        for begin in range(programs, len(found) - programs + 1, 2 * programs):  # every second round backwards
            found[begin : begin + programs] = found[begin : begin + programs][::-1]
    listed = np.array([len(found), *(x for block in found for x in block)], np.float64)
    words.store(listed, call.integer("blocks_at") - 1 + np.arange(listed.size))
    inverse = reciprocal(1)[0] - (1 << 32)
    log = call.spec.cols.bit_length() - 1
    launch = [0, 0, 0, 1, call.integer("my_length"), 0, 0, 0, 0, 1, log, call.integer("their_length"), 0, inverse, 0]
    words.store(np.pad(np.array(launch, np.float64), (0, DOCUMENT - len(launch))), np.arange(DOCUMENT))
    for head in range(heads):
        place = 0, tiles, call.integer("record"), 1, HEADER, call.integer("items_at")
        member = np.array((0, *_owner(call, head), *place), np.float64)
        words.store(member, call.integer("heads_at") + HEAD * head + np.arange(HEAD))


def _claimed(works: Reals, heads: int, programs: int) -> list[tuple[int, int]]:
    """(item, head) of a head after those of others, and of the last heads the longest first."""
    there = [int(i) for i in np.flatnonzero(works >= 0)]
    numerator, denominator = LAST
    whole = max(1, int(np.maximum(works, 0).sum()))
    last = min(heads, -(-numerator * programs * int(works.max(initial=0)) // (denominator * whole)))
    found = [(item, head) for head in range(heads - last) for item in there]
    order = sorted(there, key=lambda item: -works[item])
    return found + [(item, head) for item in order for head in range(heads - last, heads)]


# ---- documents -------------------------------------------------------------------------------------------------------
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
