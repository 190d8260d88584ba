"""Metadata broadcast: the producer warps publish each block's numbers and row bounds in shared memory.

Consumers that read numbers from global memory, and make bounds of them, do nothing else meanwhile; the producer waits
most of its time. It reads a block's numbers while the block before is asked for, and makes bounds once the block's
first boxes are asked for. The barrier of a consumer's queries says that both are there. Every consumer reads its part
at the start of the block and arrives at `heard`; then the place is free again.

A block's numbers begin with each consumer's ranges in either term. From `item_at` on follow the first row, the rows,
and the keys of either run. Then come place and lane of the first query and of either run, and the batch row. Last are
the heads of keys and of queries, and the first key of either run.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language import debug_barrier

from weft.kernels.gpu.hopper.ops.affine import NUMBERS, AffineBounds
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import RANGE, RUN, TERM, Run, tiles_of
from weft.kernels.gpu.hopper.ops.channel import Ring, ring
from weft.kernels.gpu.hopper.ops.layouts import WARPS, flat, line
from weft.kernels.gpu.tables import consumer_ranges

OWN = gl.constexpr(12)  # numbers of a consumer
PLACES, MEMBER, KEYS, END = (gl.constexpr(x) for x in (4, 10, 13, 15))  # of those from `item_at` on
AXES = gl.constexpr(32)  # numbers of both terms' axes, then a step of queries
AXIS = gl.constexpr(len(NUMBERS.value))  # numbers of one axis
HALF = gl.constexpr(consumer_ranges.MOST.bit_length())  # bits of a bound
PRODUCERS = gl.constexpr(WARPS)


@gluon.constexpr_function
def item_at(consumers):  # type: ignore[no-untyped-def]
    """Where the numbers of the item begin."""
    return OWN.value * consumers


@gluon.constexpr_function
def numbers_of_block(consumers):  # type: ignore[no-untyped-def]
    """How many numbers a block has, as a power of two."""
    return 1 << (OWN.value * consumers + END.value - 1).bit_length()


@aggregate
class Broadcast:
    """Shared memory for a block's numbers and bounds, the barrier at which consumers say that they have them, and what
    bounds are made of.
    """

    numbers: gl.shared_memory_descriptor
    bounds: gl.shared_memory_descriptor
    heard: Ring
    axes: gl.shared_memory_descriptor
    CONSUMERS: gl.constexpr
    TERMS: gl.constexpr
    ROWS: gl.constexpr

    @gluon.jit
    def number(self, at):
        """One of a block's numbers."""
        return one_of(self.numbers, at)

    @gluon.jit
    def of_item(self, at):
        """One of the numbers of its item."""
        return one_of(self.numbers, item_at(self.CONSUMERS) + at)

    @gluon.jit
    def run(self, term: gl.constexpr):
        """The block's run of a term."""
        at: gl.constexpr = PLACES + 2 * (1 + term)
        return Run(self.of_item(2 + term), self.of_item(at), self.of_item(at + 1))


@gluon.jit
def broadcast(CONSUMERS: gl.constexpr, TERMS: gl.constexpr, ROWS: gl.constexpr):
    """Room for the metadata of blocks with so many consumers of so many rows."""
    numbers = gl.allocate_shared_memory(gl.int32, [1, numbers_of_block(CONSUMERS)], flat(1))
    bounds = gl.allocate_shared_memory(gl.int32, [TERMS, CONSUMERS * ROWS], flat(1))
    heard = ring(1, CONSUMERS)
    axes = gl.allocate_shared_memory(gl.int32, [1, AXES], flat(1))
    return Broadcast(numbers, bounds, heard, axes, CONSUMERS, TERMS, ROWS)


@gluon.jit
def one_of(numbers, at):
    """One of the integers of a row of shared memory, read by all threads."""
    COUNT: gl.constexpr = numbers.shape[1]
    return gl.max(numbers._reinterpret(gl.int32, [COUNT, 1], flat(1)).index(at).load(line(1, PRODUCERS)), 0)


# ---- the producer publishes ------------------------------------------------------------------------------------------
@gluon.jit
def numbers_at(scheduler, where, CONSUMERS: gl.constexpr, TERMS: gl.constexpr):
    """A block's numbers from global memory, of each thread one."""
    ITEM: gl.constexpr = item_at(CONSUMERS)
    member, mine = scheduler.places(where)
    each = gl.arange(0, numbers_of_block(CONSUMERS), layout=line(1, PRODUCERS))
    places: gl.constexpr = 2 + RUN * TERMS
    field, p = each % OWN, each - ITEM
    own = places + 2 * (1 + TERMS) + RANGE * (CONSUMERS * (field // RANGE) + each // OWN) + field % RANGE
    keys = gl.where(p == 2, 3, 3 + RUN * (TERMS - 1))
    place = places + p - PLACES + gl.where(p < PLACES + 4, 0, 2 * TERMS - 4)
    at = gl.where(p < 2, p, gl.where(p < PLACES, keys, place))
    at = gl.where(p < KEYS, at, 2 + RUN * (TERMS - 1) * (p - KEYS))
    at = gl.where(p < 0, own, at)
    of_member = (p >= MEMBER) & (p < KEYS)
    at = gl.where(of_member, member + (p - MEMBER), mine + at)
    return gl.load(at, mask=gl.where(p < 0, field < RANGE * TERMS, p < END), other=0)


@gluon.jit
def axes_at(scheduler, TERMS: gl.constexpr):
    """Numbers of the terms' axes, as `affine_bounds` reads them, then the step of queries; of each thread one."""
    each = gl.arange(0, AXES, layout=line(1, PRODUCERS))
    term, field = each // AXIS, each % AXIS
    of_part = each * 0
    for n in gl.static_range(AXIS):
        of_part = gl.where(field == n, NUMBERS[n], of_part)
    at = gl.where(each == 2 * AXIS, 3, scheduler.parts_at + TERM * term + of_part)
    return gl.load(scheduler.table + at, mask=(each < TERMS * AXIS) | (each == 2 * AXIS), other=0)


@gluon.jit
def bounds_of_rows(shared, term: gl.constexpr):
    """The positions in a run that a block's rows see, of one term and of two rows a thread.

    A word has the first position and the one after the last.
    """
    start, height, pace = shared.of_item(0), shared.of_item(1), one_of(shared.axes, 2 * AXIS)
    first, count = shared.of_item(KEYS + term), shared.of_item(2 + term)
    axes, at = shared.axes, AXIS * term
    axis = AffineBounds(
        one_of(axes, at), one_of(axes, at + 1), one_of(axes, at + 2), one_of(axes, at + 3),
        one_of(axes, at + 4), one_of(axes, at + 5), one_of(axes, at + 6), one_of(axes, at + 7),
        one_of(axes, at + 8), one_of(axes, at + 9), one_of(axes, at + 10), one_of(axes, at + 11),
    )  # fmt: skip
    r = gl.arange(0, shared.CONSUMERS * shared.ROWS, layout=line(2, PRODUCERS))
    low, high = axis.positions(start + gl.minimum(r, height - 1) * pace, first, count)
    low = gl.minimum(low, count)
    return low | (gl.maximum(low, high) << HALF)


@gluon.jit
def publish_numbers(shared, t, numbers):
    """Leave the numbers of block t; consumers may read them once bounds are there, too."""
    shared.heard.wait_before(t)
    shared.numbers.index(0).store(numbers)


@gluon.jit
def publish_bounds(shared):
    """And its rows' bounds."""
    for term in gl.static_range(shared.TERMS):
        shared.bounds.index(term).store(bounds_of_rows(shared, term))
    debug_barrier()  # all four warps have, before one of them says so


# ---- consumers read --------------------------------------------------------------------------------------------------
@aggregate
class Metadata:
    """A block: batch row, heads of keys and of queries, first row, rows, place and lane of the first."""

    batch: gl.tensor
    kv_head: gl.tensor
    head: gl.tensor
    start: gl.tensor
    height: gl.tensor
    place: gl.tensor
    lane: gl.tensor


@aggregate
class Seen:
    """What a consumer sees of a run: tiles from begin to before end, how many come after, and where bounds cut.

    Both bounds of a row are in one word.
    """

    begin: gl.tensor
    end: gl.tensor
    after: gl.tensor
    below: gl.tensor
    beyond: gl.tensor
    words: gl.tensor

    @gluon.jit
    def low(self):
        """The first position that each row sees."""
        return self.words & ((1 << HALF) - 1)

    @gluon.jit
    def high(self):
        """The one after the last."""
        return self.words >> HALF


@gluon.jit
def metadata(shared):
    """A block's, as published."""
    batch, kv_head, head = shared.of_item(MEMBER), shared.of_item(MEMBER + 1), shared.of_item(MEMBER + 2)
    start, height = shared.of_item(0), shared.of_item(1)
    return Metadata(batch, kv_head, head, start, height, shared.of_item(PLACES), shared.of_item(PLACES + 1))


@gluon.jit
def seen_of(shared, consumer_id, term: gl.constexpr, TILE: gl.constexpr, layout: gl.constexpr):
    """What the consumer sees of a term's run."""
    at = OWN * consumer_id + RANGE * term
    begin, end = shared.number(at), shared.number(at + 1)
    below, beyond = shared.number(at + 2), shared.number(at + 3)
    of_rows = shared.bounds._reinterpret(gl.int32, [shared.TERMS * shared.CONSUMERS, shared.ROWS], flat(1))
    words = of_rows.index(term * shared.CONSUMERS + consumer_id).load(gl.SliceLayout(1, layout))
    return Seen(begin, end, tiles_of(shared.of_item(2 + term), TILE) - end, below, beyond, words)
