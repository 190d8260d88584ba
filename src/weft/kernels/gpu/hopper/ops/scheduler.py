"""The tile scheduler: a program lives as long as the launch and takes blocks from a list in turn.

`weft.kernels.gpu.tables.tile_scheduler` wrote the list, and `weft.kernels.gpu.tables.pack` what it refers to. A block
is a tile of rows (an item) of a head (a member).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.tables import pack

MEMBER, PART = gl.constexpr(pack.HEAD), gl.constexpr(pack.PART)  # integers of a member, and of a part before its axes


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
