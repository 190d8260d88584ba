"""What producers of gradients ask for by blocks of rows: `bwd_summed`, `bwd_lists` and `bwd_apart`."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import Run, keys_of, place_of, run_of
from weft.kernels.gpu.hopper.ops.layouts import by_rows, sides
from weft.kernels.gpu.hopper.ops.stats import STATS


@aggregate
class Visit:
    """What a producer asks for: a block's batch row, head of keys, first head of queries and how many.

    start: its first row; place, lane: of its rows. run: what it walks, from token `first` on.
    """

    batch: gl.tensor
    kv_head: gl.tensor
    head: gl.tensor
    share: gl.tensor
    start: gl.tensor
    place: gl.tensor
    lane: gl.tensor
    run: Run
    first: gl.tensor

    @gluon.jit
    def number(self, h, origin, state):
        """The number among all queries of the first that is walked, of the h-th head that shares the block's keys."""
        return (self.batch.to(gl.int64) * state.heads + self.head + h) * state.length + origin + self.first


@gluon.jit
def visit_of(number, scheduler):
    """That of a block."""
    member, item = scheduler.places(scheduler.where(number))
    batch, kv_head, head, share = gl.load(member), gl.load(member + 1), gl.load(member + 2), gl.load(member + 3)
    place, lane = place_of(item, 0, 1)
    run = run_of(item, 0, 1)
    first, _ = keys_of(item, 0)  # what an item walks is called keys wherever it is read
    return Visit(batch, kv_head, head, share, gl.load(item), place, lane, run, first)


@gluon.jit
def load_pair(i, where, state):
    """Ask for a tile of queries and of dO as tile i of the ring."""
    queries = state.queries
    queries.acquire(i)
    queries.expect(i, state.q_box.block_type.nbytes + state.do_box.block_type.nbytes)
    queries.copy(i, state.q_box, where, state.q, queries.stage(i))
    queries.copy(i, state.do_box, where, state.do, queries.stage(i))


@gluon.jit
def rows_of_stats(cfg: gl.constexpr):
    """The rows of a tile, and the numbers of one, as a producer's threads ask for them."""
    r, numbers = sides(cfg.columns, STATS, by_rows(STATS, cfg.producer_warps))
    return r, gl.expand_dims(numbers, 0)


@gluon.jit
def load_stats(to, at, first, count, rows):
    """Ask for what a tile's scores and their gradients subtract. at: where those of a run of so many queries begin;
    first: the tile's first in it; rows: see `load_queries`.
    """
    r, numbers, step = rows
    copy_stats(to, at, (first + gl.minimum(r, count - 1 - first)) * step, numbers)


@gluon.jit
def copy_stats(to, at, row, numbers):
    """Ask for the numbers of some rows. row: how far each is from where `at` points."""
    async_copy.async_copy_global_to_shared(to, at + (gl.expand_dims(row * STATS, 1) + numbers))


@gluon.jit
def load_side(t, where, side, box, to):
    """Ask for the keys of block t, or for their values, once those of the block before are not read any more."""
    side.load(t, box, where, to)
