"""What who loads tells the groups of a short forward of each block, through shared memory: the block's numbers and its
rows' bounds. Functions of Gluon, inlined into an emitted kernel.

Groups that read numbers from global memory, and make bounds of them, do nothing else meanwhile; the four warps that
load wait most of their time. So these do it, while they ask for the block before, and the barrier of a group's queries
says that it is done. All groups read theirs when they begin a block, and then its place is free again.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language import debug_barrier

from weft.kernels.triton import shares
from weft.kernels.triton.groups import axis_of, barriers, bounds, places_of
from weft.kernels.triton.query_blocks import RUN, SHARE, TERM, keys_of, tiles_of

# A block's numbers: GROUP of each of four groups, their shares of either term; from ITEM on first row, rows, keys of
# either run, place and lane of the first query and of either run, batch row, head of keys and of queries.
NUMBERS, GROUP, ITEM, FLAT = (gl.constexpr(x) for x in (64, 12, 48, gl.SwizzledSharedLayout(1, 1, 1, [0])))
PLACES, OF_MEMBER, END = gl.constexpr(4), gl.constexpr(10), gl.constexpr(13)  # of those from ITEM on
HALF = gl.constexpr(shares.MOST.bit_length())  # bits of a bound


@gluon.jit
def room(WIDE: gl.constexpr, TERMS: gl.constexpr):
    """For numbers, for bounds, and a barrier that says when they are heard."""
    gl.static_assert(WIDE * GROUP <= ITEM)
    told = gl.allocate_shared_memory(gl.int32, [1, NUMBERS], FLAT)
    return told, gl.allocate_shared_memory(gl.int32, [TERMS, WIDE * 64], FLAT), barriers(1, WIDE)


# ---- telling ---------------------------------------------------------------------------------------------------------
@gluon.jit
def numbers_of(member, mine, WIDE: gl.constexpr, TERMS: gl.constexpr):
    """A block's numbers, of each thread one."""
    each = gl.arange(0, NUMBERS, layout=gl.BlockedLayout([1], [32], [4], [0]))
    places: gl.constexpr = 2 + RUN * TERMS
    field, p = each % GROUP, each - ITEM
    share = places + 2 * (1 + TERMS) + SHARE * (WIDE * (field // SHARE) + each // GROUP) + field % SHARE
    keys = gl.where(p == 2, 3, 3 + RUN * (TERMS - 1))
    place = places + p - PLACES + gl.where(p < PLACES + 4, 0, 2 * TERMS - 4)
    at = gl.where(p < 2, p, gl.where(p < PLACES, keys, place))
    at = gl.where(p < 0, share, at)
    at = gl.where(p < OF_MEMBER, mine + at, member + (p - OF_MEMBER))
    return gl.load(at, mask=gl.where(p < 0, field < SHARE * TERMS, p < END), other=0)


@gluon.jit
def bounds_of_rows(mine, tables, term: gl.constexpr, WIDE: gl.constexpr):
    """Of a block's rows and one term, of each thread two: positions in the run that they see, the first and the one
    after the last, in one word.
    """
    start, height, pace = gl.load(mine), gl.load(mine + 1), gl.load(tables[0] + 3)
    first, count = keys_of(mine, term)
    r = gl.arange(0, WIDE * 64, layout=gl.BlockedLayout([2], [32], [4], [0]))
    axis = axis_of(tables[0] + tables[2] + TERM * term)
    low, high = bounds(axis, start + gl.minimum(r, height - 1) * pace, first, count)
    low = gl.minimum(low, count)
    return low | (gl.maximum(low, high) << HALF)


@gluon.jit
def of_block(tables, where, WIDE: gl.constexpr, TERMS: gl.constexpr):
    """What there is to tell of a block."""
    member, mine = places_of(tables, where)
    near, far = bounds_of_rows(mine, tables, 0, WIDE), bounds_of_rows(mine, tables, TERMS - 1, WIDE)
    return numbers_of(member, mine, WIDE, TERMS), near, far


@gluon.jit
def tell(rooms, t, what, TERMS: gl.constexpr):
    """Leave it for who waits for what is asked for after it."""
    told, of_rows, heard = rooms
    mbarrier.wait(heard.index(0), (t & 1) ^ 1)
    told.index(0).store(what[0])
    for term in gl.static_range(TERMS):
        of_rows.index(term).store(what[1 + term])
    debug_barrier()  # all four warps have, before one of them says so


# ---- hearing ---------------------------------------------------------------------------------------------------------
@gluon.jit
def number(told, at):
    """One of a block's numbers."""
    alone: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    return gl.max(told._reinterpret(gl.int32, [NUMBERS, 1], FLAT).index(at).load(alone), 0)


@gluon.jit
def run_told(told, term: gl.constexpr):
    """(keys, place and lane of the first) of a run."""
    at: gl.constexpr = ITEM + PLACES + 2 * (1 + term)
    return number(told, ITEM + 2 + term), number(told, at), number(told, at + 1)


@gluon.jit
def block_told(told):
    """(batch row, head of keys, of queries, first row, rows, place and lane of the first)"""
    at: gl.constexpr = ITEM + OF_MEMBER
    batch, kv_head, head = number(told, at), number(told, at + 1), number(told, at + 2)
    start, height = number(told, ITEM), number(told, ITEM + 1)
    return batch, kv_head, head, start, height, number(told, ITEM + PLACES), number(told, ITEM + PLACES + 1)


@gluon.jit
def term_told(rooms, C, term: gl.constexpr, WIDE: gl.constexpr, TERMS: gl.constexpr, lies: gl.constexpr):
    """Of group C and a term: the first tile that it sees and the one after the last, tiles after that, tiles below and
    from which bounds cut, and both bounds of its rows in one word.
    """
    told, of_rows, _ = rooms
    at = GROUP * C + SHARE * term
    begin, end, below, beyond = number(told, at), number(told, at + 1), number(told, at + 2), number(told, at + 3)
    both = of_rows._reinterpret(gl.int32, [TERMS * WIDE, 64], FLAT).index(term * WIDE + C).load(gl.SliceLayout(1, lies))
    return begin, end, tiles_of(number(told, ITEM + 2 + term)) - end, below, beyond, both


@gluon.jit
def bounds_of(term):
    """Positions in a term's run that rows see, the first and the one after the last, and where they cut."""
    _, _, _, below, beyond, both = term
    return both & ((1 << HALF) - 1), both >> HALF, below, beyond
