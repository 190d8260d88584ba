"""What who loads tells the groups of a short forward of each block, through shared memory: the block's numbers and its
rows' bounds. Functions of Gluon, inlined into an emitted kernel.

Groups that read numbers from global memory, and make bounds of them, do nothing else meanwhile; the four warps that
load wait most of their time. So these do it: numbers are read while the block before is asked for, bounds made once a
block's first boxes are asked for, and the barrier of a group's queries says that it is done. All groups read theirs
when they begin a block, and then its place is free again.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language import debug_barrier

from weft.kernels.gpu.tables import consumer_ranges
from weft.kernels.triton.groups import OF_BOUNDS, barriers, bounds, places_of
from weft.kernels.triton.query_blocks import RUN, SHARE, TERM, tiles_of

# A block's numbers: GROUP of each of four groups, their shares of either term; from ITEM on first row, rows, keys of
# either run, place and lane of the first query and of either run, batch row, head of keys and of queries, first key of
# either run.
NUMBERS, GROUP, ITEM, FLAT = (gl.constexpr(x) for x in (64, 12, 48, gl.SwizzledSharedLayout(1, 1, 1, [0])))
PLACES, OF_MEMBER, KEYS, END = (gl.constexpr(x) for x in (4, 10, 13, 15))  # of those from ITEM on
AXES = gl.constexpr(32)  # numbers of both terms' axes, then a step of queries
OF_AXIS = gl.constexpr(len(OF_BOUNDS.value))  # of one axis
HALF = gl.constexpr(consumer_ranges.MOST.bit_length())  # bits of a bound


@gluon.jit
def room(WIDE: gl.constexpr, TERMS: gl.constexpr):
    """For numbers, for bounds, a barrier that says when they are heard, and for what bounds are made of."""
    gl.static_assert(WIDE * GROUP <= ITEM)
    told = gl.allocate_shared_memory(gl.int32, [1, NUMBERS], FLAT)
    of_rows = gl.allocate_shared_memory(gl.int32, [TERMS, WIDE * 64], FLAT)
    return told, of_rows, barriers(1, WIDE), gl.allocate_shared_memory(gl.int32, [1, AXES], FLAT)


# ---- telling ---------------------------------------------------------------------------------------------------------
@gluon.jit
def lanes(COUNT: gl.constexpr):
    return gl.arange(0, COUNT, layout=gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def numbers_of(tables, where, WIDE: gl.constexpr, TERMS: gl.constexpr):
    """A block's numbers, of each thread one."""
    member, mine = places_of(tables, where)
    each = lanes(NUMBERS)
    places: gl.constexpr = 2 + RUN * TERMS
    field, p = each % GROUP, each - ITEM
    share = places + 2 * (1 + TERMS) + SHARE * (WIDE * (field // SHARE) + each // GROUP) + field % SHARE
    keys = gl.where(p == 2, 3, 3 + RUN * (TERMS - 1))
    place = places + p - PLACES + gl.where(p < PLACES + 4, 0, 2 * TERMS - 4)
    at = gl.where(p < 2, p, gl.where(p < PLACES, keys, place))
    at = gl.where(p < KEYS, at, 2 + RUN * (TERMS - 1) * (p - KEYS))
    at = gl.where(p < 0, share, at)
    of_member = (p >= OF_MEMBER) & (p < KEYS)
    at = gl.where(of_member, member + (p - OF_MEMBER), mine + at)
    return gl.load(at, mask=gl.where(p < 0, field < SHARE * TERMS, p < END), other=0)


@gluon.jit
def axes_of(tables, TERMS: gl.constexpr):
    """Numbers of the terms' axes, as `groups.axis_of` reads them, then the step of queries; of each thread one."""
    each = lanes(AXES)
    term, field = each // OF_AXIS, each % OF_AXIS
    of_part = each * 0
    for n in gl.static_range(OF_AXIS):
        of_part = gl.where(field == n, OF_BOUNDS[n], of_part)
    at = gl.where(each == 2 * OF_AXIS, 3, tables[2] + TERM * term + of_part)
    return gl.load(tables[0] + at, mask=(each < TERMS * OF_AXIS) | (each == 2 * OF_AXIS), other=0)


@gluon.jit
def bounds_of_rows(told, axes, term: gl.constexpr, WIDE: gl.constexpr):
    """Of a block's rows and one term, of each thread two: positions in the run that they see, the first and the one
    after the last, in one word.
    """
    start, height, pace = number(told, ITEM), number(told, ITEM + 1), number(axes, 2 * OF_AXIS)
    first, count = number(told, ITEM + KEYS + term), number(told, ITEM + 2 + term)
    at: gl.constexpr = OF_AXIS * term
    axis = (
        number(axes, at), number(axes, at + 1), number(axes, at + 2), number(axes, at + 3),
        number(axes, at + 4), number(axes, at + 5), number(axes, at + 6), number(axes, at + 7),
        number(axes, at + 8), number(axes, at + 9), number(axes, at + 10), number(axes, at + 11),
    )  # fmt: skip
    r = gl.arange(0, WIDE * 64, layout=gl.BlockedLayout([2], [32], [4], [0]))
    low, high = bounds(axis, start + gl.minimum(r, height - 1) * pace, first, count)
    low = gl.minimum(low, count)
    return low | (gl.maximum(low, high) << HALF)


@gluon.jit
def tell_numbers(rooms, t, numbers):
    """Leave a block's numbers for who loads; groups may read them when bounds are there, too."""
    mbarrier.wait(rooms[2].index(0), (t & 1) ^ 1)
    rooms[0].index(0).store(numbers)


@gluon.jit
def tell_bounds(rooms, axes, WIDE: gl.constexpr, TERMS: gl.constexpr):
    """And its rows' bounds."""
    for term in gl.static_range(TERMS):
        rooms[1].index(term).store(bounds_of_rows(rooms[0], axes, term, WIDE))
    debug_barrier()  # all four warps have, before one of them says so


# ---- hearing ---------------------------------------------------------------------------------------------------------
@gluon.jit
def number(told, at):
    """One of a block's numbers."""
    alone: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    count: gl.constexpr = told.shape[1]
    return gl.max(told._reinterpret(gl.int32, [count, 1], FLAT).index(at).load(alone), 0)


@gluon.jit
def run_told(told, term: gl.constexpr):
    """(keys, place and lane of the first) of a run."""
    at: gl.constexpr = ITEM + PLACES + 2 * (1 + term)
    return number(told, ITEM + 2 + term), number(told, at), number(told, at + 1)


@gluon.jit
def boxes_told(told, TERMS: gl.constexpr):
    """As `group_queries.boxes_of`."""
    batch, kv_head, head, _, _, place, lane = block_told(told)
    return (batch, head, place, lane), (batch, kv_head), run_told(told, 0), run_told(told, TERMS - 1)


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
    told, of_rows, _, _ = rooms
    at = GROUP * C + SHARE * term
    begin, end, below, beyond = number(told, at), number(told, at + 1), number(told, at + 2), number(told, at + 3)
    both = of_rows._reinterpret(gl.int32, [TERMS * WIDE, 64], FLAT).index(term * WIDE + C).load(gl.SliceLayout(1, lies))
    return begin, end, tiles_of(number(told, ITEM + 2 + term)) - end, below, beyond, both


@gluon.jit
def bounds_of(term):
    """Positions in a term's run that rows see, the first and the one after the last, and where they cut."""
    _, _, _, below, beyond, both = term
    return both & ((1 << HALF) - 1), both >> HALF, below, beyond
