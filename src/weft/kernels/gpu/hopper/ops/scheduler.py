"""The tile scheduler: a program lives as long as the launch and takes blocks from a list, in turn or by claims.

`weft.kernels.gpu.tables.tile_scheduler` wrote the list, and `weft.kernels.gpu.tables.pack` what it refers to. A block
is a tile of rows (an item) of a head (a member).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language import debug_barrier

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.channel import Ring, ring, stage_of
from weft.kernels.gpu.hopper.ops.layouts import flat, line
from weft.kernels.gpu.hopper.ops.values import uniform
from weft.kernels.gpu.tables import pack

MEMBER, PART = gl.constexpr(pack.HEAD), gl.constexpr(pack.PART)  # integers of a member, and of a part before its axes
TOLD = gl.constexpr(2)  # numbers of blocks that readers may be behind


@aggregate
class Block:
    """A tile of rows of one head: batch row, heads of keys and of queries, first row and rows.

    Its run of tiles has a first position and a length.
    """

    batch: gl.tensor
    kv_head: gl.tensor
    head: gl.tensor
    start: gl.tensor
    height: gl.tensor
    first: gl.tensor
    count: gl.tensor


@aggregate
class TileScheduler:
    """The packed tables of a launch, and where its parts begin in them. blocks: how many there are."""

    table: gl.tensor
    record: gl.tensor
    parts_at: gl.tensor
    items_at: gl.tensor
    heads_at: gl.tensor
    blocks_at: gl.tensor
    blocks: gl.tensor

    @gluon.jit
    def part(self):
        """The numbers of the first term."""
        return self.table + self.parts_at

    @gluon.jit
    def rows(self):
        """(the first row of the grid, the step from row to row), in tokens"""
        return gl.load(self.table), gl.load(self.table + 3)

    @gluon.jit
    def walked_rows(self):
        """The same of the rows that the first term walks."""
        part = self.part()
        return gl.load(part), gl.load(part + PART)

    @gluon.jit
    def where(self, number):
        """(item, member) of a block; beyond the last one those of that."""
        at = self.table + self.blocks_at + 2 * gl.minimum(number, self.blocks - 1)
        return gl.load(at), gl.load(at + 1)

    @gluon.jit
    def places(self, where):
        """Pointers to the integers of a block's member and of its item."""
        item, member = where
        return self.table + self.heads_at + MEMBER * member, self.table + self.items_at + self.record * item


@aggregate
class Claims:
    """Blocks that programs claim: who is done first takes the next of the list.

    A program's block 0 has the program's number. The producer claims each later one from a counter in memory, and tells
    all other warps. counter: its address; the launch before sets it to 0. numbers: of the last blocks that were
    claimed. told, heard: a number is there; all readers have it.
    """

    counter: gl.tensor
    numbers: gl.shared_memory_descriptor
    told: Ring
    heard: Ring

    @gluon.jit
    def claim(self, t):
        """The number of the program's block t > 0, for the producer, which is one warp."""
        number = gl.num_programs(0) + gl.atomic_add(self.counter, 1, sem="relaxed")
        self.heard.wait_before(t - 1)
        self.numbers.index(stage_of(t - 1, TOLD, True)).store(gl.full([1], number, gl.int32, line(1, 1)))
        debug_barrier()  # a lane stores the number, and another may say that it is there
        self.told.arrive(t - 1)
        return uniform(number)

    @gluon.jit
    def hear(self, t, WARPS: gl.constexpr):
        """The same number, for a reader of so many warps."""
        self.told.wait(t - 1)
        number = gl.max(self.numbers.index(stage_of(t - 1, TOLD, True)).load(line(1, WARPS)), 0)
        debug_barrier()  # of the reader's warps: one thread says that all have it
        self.heard.arrive(t - 1)
        return uniform(number)


@gluon.jit
def claims(counter, READERS: gl.constexpr):
    """Claims of a program with so many readers."""
    numbers = gl.allocate_shared_memory(gl.int32, [TOLD, 1], flat(1))
    return Claims(counter, numbers, ring(TOLD, 1), ring(TOLD, READERS))


@gluon.jit
def counted(s):
    """A scheduler whose tables say how many blocks there are."""
    blocks = gl.load(s.table + s.blocks_at - 1)
    return TileScheduler(s.table, s.record, s.parts_at, s.items_at, s.heads_at, s.blocks_at, blocks)


@gluon.jit
def block_at(scheduler, where):
    """A block with its run of the first term."""
    member, item = scheduler.places(where)
    return Block(
        gl.load(member), gl.load(member + 1), gl.load(member + 2), gl.load(item), gl.load(item + 1), gl.load(item + 2),
        gl.load(item + 3),
    )  # fmt: skip
