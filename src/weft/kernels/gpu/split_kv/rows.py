"""Which rows a program has, and how many keys there are. Functions of Triton."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from weft.kernels.gpu.split_kv import tables as packed

MEMBER = tl.constexpr(packed.MEMBER)


class Deal(NamedTuple):
    """How rows and keys are dealt out to programs.

    members_at: where the members lie in the tables, or the terms where all heads have the same. groups: programs of a
    member. lanes, span: a program has `span` of the m rows of each head, `lanes` apart. splits: shares of the keys.
    """

    tables: Any
    members_at: Any
    groups: Any
    lanes: Any
    span: Any
    splits: Any
    all_heads: Any
    m: Any


class Keys(NamedTuple):
    """How many keys there are, and where queries stand among them.

    The host gives shift and beside, from a query to its row among a term's and to the key beside it, and length. Or
    the device knows: pointers key_count, offset and window, of a cache of `capacity` tokens; see `spec.Counts`.

    block_table: of a cache in pages of `page` tokens, a pointer to (batch rows, pages of each), with stride table_row.
    It holds numbers of the `pages` that there are.
    """

    shift: Any = None
    beside: Any = None
    length: Any = None
    key_count: Any = None
    offset: Any = None
    window: Any = None
    capacity: Any = None
    per_batch: Any = False
    ring: Any = False
    block_table: Any = None
    table_row: Any = None
    pages: Any = None
    page: Any = 0


class Rows(NamedTuple):
    """Rows of a program.

    row, head, valid, sees (rows,): which exist, and which may see a key. i_0, i: the first and all, as terms count
    rows. least (rows,): the first key that each may see, whatever its terms say. length: keys that there are. beside:
    from a row to the key beside it. terms, count: where the records of its terms are, and how many. split: which share
    of their keys.
    """

    batch: Any
    kv_head: Any
    row: Any
    head: Any
    valid: Any
    sees: Any
    i_0: Any
    i: Any
    least: Any
    length: Any
    beside: Any
    tables: Any
    terms: Any
    count: Any
    split: Any


class Member(NamedTuple):
    """Query heads [first, first + heads) of one key/value head of a batch row, and where their `count` terms are."""

    batch: Any
    kv_head: Any
    first: Any
    heads: Any
    count: Any
    terms: Any


@triton.jit
def member_of(C: tl.constexpr, deal, place):
    """A member by its number. Where all heads have the same terms nothing is read: keys wait for one load less."""
    if C.group:
        PARTS: tl.constexpr = C.group // C.heads
        kv_heads, kv = deal.all_heads // C.group, place // PARTS
        kv_head = kv % kv_heads
        first = kv_head * C.group + place % PARTS * C.heads
        found = Member((kv // kv_heads).to(tl.int64), kv_head.to(tl.int64), first, C.heads, C.terms, deal.members_at)
    else:
        at = deal.tables + deal.members_at + MEMBER * place
        batch, kv_head = tl.load(at).to(tl.int64), tl.load(at + 1).to(tl.int64)
        found = Member(batch, kv_head, tl.load(at + 2), tl.load(at + 3), tl.load(at + 4), tl.load(at + 5))
    return found


@triton.jit
def rows_of(C: tl.constexpr, deal, keys):
    """The rows of this program: row_0, row_0 + lanes, ... of the query heads of one key/value head."""
    place, split = tl.program_id(0), tl.program_id(1)
    member = member_of(C, deal, place // deal.groups)
    batch, heads = member.batch, member.heads
    place = place % deal.groups
    r = tl.arange(0, C.rows)
    if C.plain:  # one lane
        row_0 = place * deal.span
        row = row_0 + r // heads
    else:
        row_0 = place % deal.lanes + place // deal.lanes * (deal.lanes * deal.span)
        row = row_0 + deal.lanes * (r // heads)
    head = member.first + r % heads  # (rows,)
    valid = (r < deal.span * heads) & (row < deal.m)
    shift, beside, length = counted(keys, batch, deal.m)
    sees = valid
    if keys.key_count is not None:
        sees = valid & (row + shift >= 0)  # others are written too: they see nothing
    i_0, i = row_0 + shift, row + shift
    if keys.key_count is not None:
        i_0 += tl.where(i_0 < 0, deal.lanes * deal.m, 0)  # a row of the same residue classes that exists
    least = least_key(keys, i, batch, length)
    return Rows(
        batch, member.kv_head, row, head, valid, sees, i_0, i, least, length, beside, deal.tables,
        deal.tables + member.terms, member.count, split,
    )  # fmt: skip


@triton.jit
def counted(keys, batch, m):
    """(shift, beside, length), see `Keys`."""
    shift, beside, length = keys.shift, keys.beside, keys.length
    if keys.key_count is not None:
        length = of_batch(keys.key_count, batch, keys.per_batch)
        shift = length - m
        if keys.offset is not None:
            shift = of_batch(keys.offset, batch, keys.per_batch)
        beside = shift
        if not keys.ring:
            length = tl.minimum(length, keys.capacity)  # what lies beyond the cache is never read
    return shift, beside, length


@triton.jit
def of_batch(pointer, batch, PER_BATCH: tl.constexpr):
    """An integer of a device slot: that of a batch row, or one for all."""
    at = pointer + batch if PER_BATCH else pointer
    return tl.load(at).to(tl.int32)


@triton.jit
def least_key(keys, i, batch, length):
    """The first key that rows i may see, whatever their terms say: older ones are overwritten, or before a window."""
    least = tl.zeros_like(i)
    if keys.ring:
        least = tl.maximum(least, length - keys.capacity)
    if keys.window is not None:
        least = tl.maximum(least, i + 1 - of_batch(keys.window, batch, keys.per_batch))
    return least


@triton.jit
def column_of(C: tl.constexpr, place):
    """The column of the block table for a place, from 0 on: shifts take fewer instructions than a signed division."""
    SHIFT: tl.constexpr = C.page.bit_length() - 1
    return place >> SHIFT if C.page == 1 << SHIFT else place // C.page


@triton.jit
def page_of(C: tl.constexpr, keys, batch, place):
    """The number of the page that holds each place of a batch row's cache, (cols,).

    A place beyond the table counts as its last, and a number that is no page as the nearest. So nothing outside of
    table and cache is read. A page that no query sees may be gone, and lie between some that are seen.
    """
    last = keys.capacity // C.page - 1
    column = tl.minimum(tl.maximum(column_of(C, place), 0), last)
    number = tl.load(keys.block_table + batch * keys.table_row + column)
    return tl.minimum(tl.maximum(number, 0), keys.pages - 1)
