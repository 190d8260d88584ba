"""The tables of documents whose lengths the device has: what a program does. Functions of Triton."""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu.documents import spec
from weft.kernels.gpu.tables import pack

BLOCK, CHUNK = tl.constexpr(64), tl.constexpr(64)  # tiles of a program; documents that are counted at a time
ITEM, HEAD, DOCUMENT = tl.constexpr(spec.ITEM), tl.constexpr(pack.HEAD), tl.constexpr(spec.DOCUMENT)
HEADER, PART, AXIS = tl.constexpr(spec.HEADER), tl.constexpr(pack.PART), tl.constexpr(pack.AXIS)
FAR = tl.constexpr(1 << 30)
HALF = tl.constexpr(-(1 << 31))  # the bits of 2^31, the reciprocal of a step of 1

# Documents by running sums of both sides: so many, and tokens of the side of rows and of columns.
Documents = namedtuple("Documents", "rows cols count length other")

# Where tables go: how many tiles they have room for, and where items and members begin.
Made = namedtuple("Made", "tables tiles items_at heads_at")

# Keys in pages. table: numbers of pages, `width` of each document; its rows are `row` apart. `pages`: that there are.
# They begin `step` tokens apart. `room`: tokens of a document. at: where in the tables its pages go. () where keys lie
# one after the other.
Paged = namedtuple("Paged", "table row width pages step room at")

# A document: its first row and column, rows, columns, and what is added to rows before bounds are asked, and to these.
Document = namedtuple("Document", "first_row first_col rows cols into out")


@triton.jit
def tables_of(C: tl.constexpr, every, made, bounds, group, paged):
    """BLOCK tiles of one head; of the first head also their items, and BLOCK documents. C: a `TablesSpec`."""
    number, head = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    place, first, total = _find(C, every, number)
    there = number < made.tiles
    exists = there & (number < total)
    place = tl.where(exists, place, 0)
    record, item = place * DOCUMENT, made.items_at + number * ITEM
    member = made.tables + made.heads_at + (number * tl.num_programs(1) + head) * HEAD
    _put_member(C, member, (head, group), (exists, record, item - record), there)
    if head == 0:
        one = _document(C, every, place, paged)
        tile = number - first
        if not C.of_keys:  # under a causal mask later queries see more, and earlier keys are seen by more
            tile = tl.cdiv(one.rows, C.rows) - 1 - tile
        _put_item(C, made.tables + item, _run_of(C, bounds, one, tile * C.rows, exists), there)
        place = tl.minimum(number, every.count)
        pages_at = place * 0
        if C.paged:
            pages_at = paged.at + place * paged.width - place * DOCUMENT
            _put_pages(made.tables + paged.at, every.count, paged)
        one = _document(C, every, place, paged)
        _put_document(C, made.tables + number * DOCUMENT, bounds, (one, pages_at), number <= every.count)


# ---- documents -------------------------------------------------------------------------------------------------------
@triton.jit
def _span(sums, document, count, length):
    """First token of documents, and the one after the last; after the last document come the tokens of none."""
    begin = tl.load(sums + document, mask=(document > 0) & (document <= count), other=0)
    end = tl.load(sums + document + 1, mask=document < count, other=0)
    begin = tl.minimum(tl.maximum(tl.where(document > count, length, begin), 0), length)
    end = tl.minimum(tl.maximum(tl.where(document >= count, length, end), begin), length)
    return begin, end


@triton.jit
def _find(C: tl.constexpr, every, number):
    """The document of each tile, the number of its first tile, and how many tiles there are."""
    place, first, total = number * 0, number * 0, 0
    for start in range(0, every.count + 1, CHUNK):
        document = start + tl.arange(0, CHUNK)
        begin, end = _span(every.rows, document, every.count, every.length)
        tiles = tl.where(document <= every.count, tl.cdiv(end - begin, C.rows), 0)
        after = total + tl.cumsum(tiles, 0)
        passed = (after[None, :] <= number[:, None]) & (document <= every.count)[None, :]
        place += tl.sum(passed.to(tl.int32), 1)
        first = tl.maximum(first, tl.max(tl.where(passed, after[None, :], 0), 1))
        total += tl.sum(tiles, 0)
    return place, first, total


@triton.jit
def _document(C: tl.constexpr, every, place, paged):
    first_row, end_row = _span(every.rows, place, every.count, every.length)
    first_col, end_col = _span(every.cols, place, every.count, every.other)
    rows, cols = end_row - first_row, tl.where(place < every.count, end_col - first_col, 0)
    if C.paged:
        first_col, cols = first_col * 0, tl.minimum(cols, paged.room)
    into, out = rows * 0, rows * 0
    if C.from_end and C.of_keys:
        out = cols - rows
    elif C.from_end:
        into = cols - rows
    return Document(first_row, first_col, rows, cols, into, out)


# ---- what is written -------------------------------------------------------------------------------------------------
@triton.jit
def _put_member(C: tl.constexpr, at, owner, place, mask):
    """owner: the head, query heads of a key head. place: whether a tile exists, its document's record, its item."""
    head, group = owner
    exists, record, item = place
    zero = record * 0
    kv_head, first, count = (head, head * group, group) if C.of_keys else (head // group, head, 1)
    words = (
        zero, zero + kv_head, zero + first, zero + count, record, exists.to(tl.int32), zero + ITEM, zero + 1,
        zero + HEADER, item,
    )  # fmt: skip
    for n in tl.static_range(HEAD):
        tl.store(at + n, words[n], mask=mask)


@triton.jit
def _run_of(C: tl.constexpr, bounds, one, begin, exists):
    """The item of a tile whose first row is `begin`: bounds rise with rows, so its ends say which columns it has."""
    last = tl.minimum(begin + C.rows, one.rows) - 1
    # columns of some row are start to stop, those of all rows inner_start to inner_stop
    start, inner_stop = _columns(bounds, begin, one)
    inner_start, stop = _columns(bounds, last, one)
    stop = tl.where(exists, tl.maximum(stop, start), start)
    count = tl.cdiv(stop - start, C.cols)
    left = tl.minimum(tl.maximum((inner_start - start + C.cols - 1) // C.cols, 0), count)
    whole = tl.where(inner_stop >= stop, count, tl.maximum(inner_stop - start, 0) // C.cols) - left
    full = tl.where(inner_stop <= inner_start, 0, tl.maximum(tl.minimum(whole, count - left), 0))
    full = tl.minimum(full, tl.maximum((stop - start) // C.cols - left, 0))  # one that ends early needs a mask
    rows, some = exists.to(tl.int32), (stop > start).to(tl.int32)
    return begin * rows, (last + 1 - begin) * rows, start * some, (stop - start) * some, left * some, full * some


@triton.jit
def _put_item(C: tl.constexpr, at, words, mask):
    for n in tl.static_range(ITEM):
        tl.store(at + n, words[n], mask=mask)


@triton.jit
def _put_document(C: tl.constexpr, at, bounds, document, mask):
    """A launch on one axis, as `tables.pack` writes it: header, part, axis, bounds. document: itself, and where its
    pages are.
    """
    one, pages_at = document
    zero = one.rows * 0
    log: tl.constexpr = C.cols.bit_length() - 1
    header = (one.first_row, zero, zero, zero + 1, one.rows)
    part = (one.first_col, pages_at, zero, zero, zero + 1, zero + log, one.cols, zero, zero + HALF, zero)
    words = header + part
    for n in tl.static_range(HEADER + PART + AXIS):
        tl.store(at + n, words[n], mask=mask)
    for n in tl.static_range(4):
        _put_stair(at + HEADER + PART + AXIS + 8 * n, bounds + 8 * n, one, mask)


@triton.jit
def _put_pages(at, documents, paged):
    """The first token of each page, of all documents: this program's share. A number that is none counts as the
    nearest, since a page that no query sees may be gone.
    """
    for start in range(tl.program_id(0) * BLOCK, documents * paged.width, tl.num_programs(0) * BLOCK):
        place = start + tl.arange(0, BLOCK)
        there = place < documents * paged.width
        row = (place // paged.width).to(tl.int64)
        number = tl.load(paged.table + row * paged.row + place % paged.width, mask=there, other=0)
        number = tl.minimum(tl.maximum(number, 0), paged.pages - 1)
        tl.store(at + place, number * paged.step, mask=there)


@triton.jit
def _put_stair(at, record, one, mask):
    """A staircase that counts rows and columns from the first ones of a document, with a shift from 0 on."""
    rise, run = tl.load(record), tl.load(record + 1)
    shift = tl.load(record + 2) + one.into
    whole = _floor(shift, run)
    tl.store(at, one.into * 0 + rise, mask=mask)
    tl.store(at + 1, one.into * 0 + run, mask=mask)
    tl.store(at + 2, shift - whole * run, mask=mask)
    tl.store(at + 3, tl.load(record + 3) + whole * rise + one.out, mask=mask)
    for n in tl.static_range(2):
        tl.store(at + 4 + n, _moved(tl.load(record + 4 + n), one.out), mask=mask)
        tl.store(at + 6 + n, _moved(tl.load(record + 6 + n), -one.into), mask=mask)


@triton.jit
def _moved(x, by):
    """x + by; what is beyond every token stays there."""
    return tl.where((x <= -FAR) | (x >= FAR), x, tl.minimum(tl.maximum(x + by, -FAR), FAR))


# ---- bounds ----------------------------------------------------------------------------------------------------------
@triton.jit
def _columns(bounds, row, one):
    """(first column, column after the last) of rows, within 0 and those that the document has."""
    low = tl.maximum(_stair(bounds, row, one), _stair(bounds + 8, row, one))
    high = tl.minimum(_stair(bounds + 16, row, one), _stair(bounds + 24, row, one))
    return tl.minimum(tl.maximum(low, 0), one.cols), tl.maximum(tl.minimum(high, one.cols), 0)


@triton.jit
def _stair(record, row, one):
    """As `ops.bounds.stair`, and right below zero, where a division of integers rounds up."""
    i = row + one.into
    value = _floor(i + tl.load(record + 2), tl.load(record + 1)) * tl.load(record) + tl.load(record + 3)
    value = tl.minimum(tl.maximum(value, tl.load(record + 4)), tl.load(record + 5))
    value = tl.where(i < tl.load(record + 6), -FAR, value)
    value = tl.where(i >= tl.load(record + 7), FAR, value)
    return _moved(value, one.out)


@triton.jit
def _floor(x, run):
    return x // run - (x % run < 0).to(tl.int32)
