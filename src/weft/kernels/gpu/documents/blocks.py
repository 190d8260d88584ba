"""The tables of documents for forwards by warp groups: what two kernels do. Functions of Triton.

All documents are one launch on one axis here. The first kernel writes the item of a tile, with what its rows see
(`tables.consumer_ranges`). The second sorts tiles by their length, and lists the blocks (`tables.tile_scheduler`).
Programs then take these in turn, or claim them.

A forward is told how many blocks there are. The kernel of gradients has no register for that. It takes as many as there
is room for, and the last of these have neither rows nor columns.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.kernels.gpu.documents import spec
from weft.kernels.gpu.documents.kernel import _columns, _document, _find, _span
from weft.kernels.gpu.tables import consumer_ranges, pack, tile_scheduler

GROUP, RANGE = tl.constexpr(consumer_ranges.GROUP), tl.constexpr(consumer_ranges.RANGE)
BESIDE = tl.constexpr(consumer_ranges.BESIDE)
HEADER, HEAD, TERM = tl.constexpr(spec.HEADER), tl.constexpr(pack.HEAD), tl.constexpr(spec.DOCUMENT - spec.HEADER)
RANGES = tl.constexpr(spec.RANGES)
ORDERED, COMPARED = tl.constexpr(spec.ORDERED), tl.constexpr(512)  # tiles of a program; others at a time
LAST, LAST_OF = (tl.constexpr(x) for x in tile_scheduler.LAST)
FAR = tl.constexpr(1 << 30)
HALF = tl.constexpr(-(1 << 31))  # the bits of 2^31, the reciprocal of a step of 1

# Where tables go: how many tiles they have room for, integers of an item, and where items, members, works and blocks
# begin. The integer before the blocks says how many there are.
Blocks = namedtuple("Blocks", "tables tiles record items_at heads_at works_at blocks_at")


@triton.jit
def items_of(C: tl.constexpr, every, made, bounds):
    """The item of a tile and how long it takes; -1 where there is no such tile. C: a `TablesSpec`."""
    if C.chained:
        gdc_launch_dependents()
    number = tl.program_id(0)
    places, firsts, total = _find(C, every, number + tl.arange(0, 1))
    place, first = tl.sum(places, 0), tl.sum(firsts, 0)
    work = -1
    if number < total:
        work = _put_item(C, every, made, bounds, place, number - first)
    elif C.of_keys:
        _put_nothing(C, made)
    tl.store(made.tables + made.works_at + number, work)


@triton.jit
def _put_item(C: tl.constexpr, every, made, bounds, place, tile):
    """That of a tile of a document. Returns how long groups take for it together, in half tiles."""
    one, r = _document(C, every, place, ()), tl.arange(0, C.rows)
    begin = tile * C.rows
    height = tl.minimum(one.rows - begin, C.rows)
    low, high = _columns(bounds, begin + tl.minimum(r, height - 1), one)  # rows beyond the last see what that sees
    live = low < high
    start, stop = tl.min(tl.where(live, low, FAR), 0), tl.max(tl.where(live, high, 0), 0)
    start = tl.minimum(start, stop)
    first, count, moved = _run(C, every, one.first_col + start, stop - start)
    low, high = tl.where(live, low - start + moved, 0), tl.where(live, high - start + moved, 0)
    item = made.tables + made.items_at + (tl.program_id(0) * made.record).to(tl.int64)
    row = one.first_row + begin
    words = (row, height, first, count, 0, 0, row, 0, first, 0)
    for n in tl.static_range(RANGES):
        tl.store(item + n, words[n])
    told, there = item + RANGES + RANGE * (C.rows // GROUP), r < height
    tl.store(told + r, tl.where(there, low, 0))
    tl.store(told + C.rows + r, tl.where(there, high, 0))
    return _put_ranges(C, item + RANGES, (low, high, live), height)


@triton.jit
def _put_nothing(C: tl.constexpr, made):
    """An item without rows and columns."""
    item = made.tables + made.items_at + (tl.program_id(0) * made.record).to(tl.int64)
    for n in tl.static_range(RANGES + RANGE * (C.rows // GROUP)):
        tl.store(item + n, 0)
    told = item + RANGES + RANGE * (C.rows // GROUP) + tl.arange(0, 2 * C.rows)
    tl.store(told, tl.zeros((2 * C.rows,), tl.int32))


@triton.jit
def _run(C: tl.constexpr, every, first, count):
    """(first column, columns, how many columns earlier it begins) of a run. A forward's last tile ends with the last
    document at most, since beyond that columns may hold anything. Kernels of gradients clear these themselves. They add
    to boxes of dQ, which may not begin before its first row.
    """
    if C.of_keys:
        return first, count, count * 0
    _, end = _span(every.cols, every.count - 1, every.count, every.other)
    whole = tl.cdiv(count, C.cols) * C.cols
    moved = tl.where(first + whole > end, whole - count, 0)
    return first - moved, count + moved, moved


@triton.jit
def _put_ranges(C: tl.constexpr, at, seen, height):
    """The tiles that each group sees. seen: bounds of rows, and which see something."""
    GROUPS: tl.constexpr = C.rows // GROUP
    low, high, live = seen
    g = tl.arange(0, GROUPS)
    exists = g * GROUP < height
    begin = tl.min(tl.reshape(tl.where(live, low, FAR), (GROUPS, GROUP)), 1) // C.cols
    end = tl.where(exists, tl.cdiv(tl.max(tl.reshape(high, (GROUPS, GROUP)), 1), C.cols), 0)
    begin = tl.minimum(begin, end)
    below = tl.cdiv(tl.max(tl.reshape(low, (GROUPS, GROUP)), 1), C.cols)
    beyond = tl.min(tl.reshape(high, (GROUPS, GROUP)), 1) // C.cols
    if C.of_keys:  # every row counts there, also those that do not exist
        beyond = tl.where(g * GROUP + GROUP <= height, beyond, 0)
    words = (begin, end, below, beyond, g * 0)
    for n in tl.static_range(RANGE):
        tl.store(at + RANGE * g + n, words[n])
    return tl.sum(2 * (end - begin) + tl.where(exists, BESIDE, 0), 0)


@triton.jit
def blocks_of(C: tl.constexpr, made, sizes, group, programs):
    """The blocks of ORDERED tiles. sizes: heads, rows, columns. programs: that take these.

    Blocks of queries are taken in turn: of `C.together` heads after those of others, sorted by their length. Lengths
    fall and rise in turn, and fall at last. So a round of programs with blocks of two groups of heads has blocks of
    about one length. Where all fall, some programs have the longest at each such round.

    Blocks of keys are claimed, those of a head after those of others. Of the last heads the longest come first, so that
    programs end together.
    """
    if C.chained:
        gdc_wait()
    heads, rows, cols = sizes
    number = tl.program_id(0) * ORDERED + tl.arange(0, ORDERED)
    works = made.tables + made.works_at
    work = tl.load(works + number, mask=number < made.tiles, other=-1)
    rank, total = number * 0, 0
    longest, whole = 0, 0
    for start in range(0, made.tiles, COMPARED):
        other = start + tl.arange(0, COMPARED)
        theirs = tl.load(works + other, mask=other < made.tiles, other=-1)
        before = (theirs[None, :] > work[:, None]) | (
            (theirs[None, :] == work[:, None]) & (other[None, :] < number[:, None])
        )
        rank += tl.sum((before & (theirs >= 0)[None, :]).to(tl.int32), 1)
        total += tl.sum((theirs >= 0).to(tl.int32), 0)
        longest, whole = tl.maximum(longest, tl.max(theirs, 0)), whole + tl.sum(tl.maximum(theirs, 0), 0)
    last = tl.minimum(tl.cdiv(longest * programs * LAST, tl.maximum(whole, 1) * LAST_OF), heads)
    listed = number < (made.tiles if C.of_keys else total)
    for one in range(heads):
        head = number * 0 + one
        side = head % C.together
        beside = tl.minimum(heads - head + side, C.together)
        if C.of_keys:
            among = (heads - last) * total + rank * last + head - (heads - last)
            place = tl.where(head < heads - last, head * total + number, among)
        else:
            rises = ((heads - 1) // C.together - head // C.together) % 2 == 1
            among = tl.where(rises, total - 1 - rank, rank)
            place = _back_and_forth((head - side) * total + among * beside + side, heads * total, programs)
        place = tl.where(number < total, place, heads * number + head)  # after all tiles that there are
        at = made.tables + made.blocks_at + 2 * place
        tl.store(at, number, mask=listed)
        tl.store(at + 1, head, mask=listed)
    if tl.program_id(0) == 0:
        tl.store(made.tables + made.blocks_at - 1, heads * (made.tiles if C.of_keys else total))
        _put_launch(C, made, rows, cols)
        _put_members(C, made, heads, group)


@triton.jit
def _back_and_forth(place, total, programs):
    """Places where every second round is taken backwards, if it is whole: else the first programs would always have
    the longest blocks of a round.
    """
    begin = place // programs * programs
    turned = (place // programs % 2 == 1) & (begin + programs <= total)
    return tl.where(turned, 2 * begin + programs - 1 - place, place)


@triton.jit
def _put_members(C: tl.constexpr, made, heads, group):
    """A member for each head of the side that stays."""
    for head in range(heads):
        if C.of_keys:
            kv_head, first, count = head, head * group, group
        else:
            kv_head, first, count = head // group, head, 1
        words = (0, kv_head, first, count, 0, made.tiles, made.record, 1, HEADER, made.items_at)
        for n in tl.static_range(HEAD):
            tl.store(made.tables + made.heads_at + HEAD * head + n, words[n])


@triton.jit
def _put_launch(C: tl.constexpr, made, rows, cols):
    """The launch of all tokens, as `tables.pack` writes it. Bounds are with the items."""
    log: tl.constexpr = C.cols.bit_length() - 1
    words = (0, 0, 0, 1, rows, 0, 0, 0, 0, 1, log, cols, 0, HALF, 0)
    for n in tl.static_range(HEADER + TERM):
        if n < len(words):
            tl.store(made.tables + n, words[n])
        else:
            tl.store(made.tables + n, 0)
