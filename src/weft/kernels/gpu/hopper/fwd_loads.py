# ruff: noqa: SIM113 - Gluon is not all of Python
"""The forward's arguments, shared memory and channels, and its producer: see `fwd`."""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import Run, place_of, run_of, tile_at, tiles_of
from weft.kernels.gpu.hopper.ops.broadcast import axes_at, metadata, numbers_at, publish_bounds, publish_numbers
from weft.kernels.gpu.hopper.ops.channel import Channel
from weft.kernels.gpu.hopper.ops.scheduler import TileScheduler
from weft.kernels.gpu.hopper.ops.values import Tensor


@aggregate
class Forward:
    """The kernel's arguments, shared memory and channels.

    q: a ring of blocks for each consumer; k, v: the ring of tiles, or where these are overlapped a ring of keys and
    one of values. out: a tile of results of each consumer.
    overflow: of each consumer's rows whether any is marked. heads, length: of queries. broadcast: of short runs alone.
    """

    cfg: gl.constexpr
    Out: Tensor
    Lse: gl.tensor
    out: gl.shared_memory_descriptor
    out_box: Any
    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    overflow: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    tiles: Channel
    values: Channel
    scheduler: TileScheduler
    heads: gl.tensor
    length: gl.tensor
    scale: gl.tensor
    Sinks: gl.tensor
    broadcast: Any
    q_box: Any
    k_box: Any
    v_box: Any
    k_far: Any
    v_far: Any

    @gluon.jit
    def queries(self, consumer_id):
        """The ring of the consumer's queries."""
        STAGES: gl.constexpr = self.cfg.query_stages
        return Channel(self.q_full, self.q_empty, STAGES * consumer_id, STAGES, True)


# ---- producer --------------------------------------------------------------------------------------------------------
@aggregate
class BlockBoxes:
    """Where a block's boxes are: batch row and heads, place and lane of its first query, and its runs."""

    batch: gl.tensor
    kv_head: gl.tensor
    head: gl.tensor
    place: gl.tensor
    lane: gl.tensor
    near: Run
    far: Run


@gluon.jit
def boxes_of(scheduler, where, TERMS: gl.constexpr):
    """Those of a block, from global memory."""
    member, item = scheduler.places(where)
    batch, kv_head, head = gl.load(member), gl.load(member + 1), gl.load(member + 2)
    place, lane = place_of(item, 0, TERMS)
    return BlockBoxes(batch, kv_head, head, place, lane, run_of(item, 0, TERMS), run_of(item, TERMS - 1, TERMS))


@gluon.jit
def boxes_published(shared):
    """Those of a block, as published."""
    block = metadata(shared)
    near, far = shared.run(0), shared.run(shared.TERMS - 1)
    return BlockBoxes(block.batch, block.kv_head, block.head, block.place, block.lane, near, far)


@gluon.jit
def load_run(i, run, k_box, v_box, heads, state):
    """Ask for the tiles of a run. heads: (batch row, head of keys). Returns the tile after them."""
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.columns
    tiles = state.tiles
    for j in range(0, tiles_of(run.count, TILE)):
        at = tiles.stage(i)
        tiles.acquire(i)
        tiles.expect(i, k_box.block_type.nbytes + v_box.block_type.nbytes)
        where = [heads[0], heads[1], run.place + j * TILE, run.lane, 0]
        tiles.copy(i, k_box, where, state.k, at)
        tiles.copy(i, v_box, where, state.v, at)
        i += 1
    return i


@gluon.jit
def load_box(i, box, memory, channel, where):
    """Ask for tile i of a ring."""
    channel.load(i, box, where, memory)


@gluon.jit
def load_apart(i, run, k_box, v_box, heads, state):
    """As `load_run`, keys and values each in a ring of their own. Values come a tile later, as they are needed."""
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.columns
    table = state.scheduler.table
    for j in range(0, tiles_of(run.count, TILE)):
        place, _ = tile_at(table, j, run, cfg)
        state.tiles.load(i, k_box, [heads[0], heads[1], place, run.lane, 0], state.k)
        if j > 0:
            place, _ = tile_at(table, j - 1, run, cfg)
            state.values.load(i - 1, v_box, [heads[0], heads[1], place, run.lane, 0], state.v)
        i += 1
    if run.count > 0:
        place, _ = tile_at(table, tiles_of(run.count, TILE) - 1, run, cfg)
        state.values.load(i - 1, v_box, [heads[0], heads[1], place, run.lane, 0], state.v)
    return i


@gluon.jit
def load_tiles(i, run, k_box, v_box, heads, state):
    """`load_run`, or `load_apart`."""
    if state.cfg.overlapped:
        i = load_apart(i, run, k_box, v_box, heads, state)
    else:
        i = load_run(i, run, k_box, v_box, heads, state)
    return i


@gluon.jit
def load_queries(c, t, where, state):
    """Ask for consumer c's queries of block t."""
    queries = state.queries(c)
    queries.acquire(t)
    queries.copy(t, state.q_box, where, state.q, queries.stage(t))


@gluon.jit
def producer(state):
    """Queries of each consumer, two blocks ahead at most; keys and values as many tiles ahead as there are stages.

    What the first consumer needs comes first, so that it begins while others wait. Where
    queries have one place, tiles come before these, which wait for the block before. Of short runs consumers hear of a
    block before it is theirs.
    """
    cfg: gl.constexpr = state.cfg
    FIRST: gl.constexpr = cfg.first_tiles * cfg.columns
    LAST: gl.constexpr = min(cfg.query_stages, cfg.consumers) - 1
    CONSUMERS: gl.constexpr = cfg.consumers
    TERMS: gl.constexpr = cfg.terms
    scheduler, shared = state.scheduler, state.broadcast
    i = 0
    t = 0
    where = scheduler.where(gl.program_id(0))
    if cfg.short:
        ahead = numbers_at(scheduler, where, CONSUMERS, TERMS)
        shared.axes.index(0).store(axes_at(scheduler, TERMS))
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        if cfg.short:
            publish_numbers(shared, t, ahead)
            block = boxes_published(shared)
        else:
            block = boxes_of(scheduler, where, TERMS)
        where = scheduler.where(number + gl.num_programs(0))
        heads, near, far = (block.batch, block.kv_head), block.near, block.far
        for c in gl.static_range(CONSUMERS):
            if c == LAST:
                run = Run(gl.minimum(near.count, FIRST), near.place, near.lane)
                i = load_tiles(i, run, state.k_box, state.v_box, heads, state)
            load_queries(c, t, [block.batch, block.head, block.place + c * cfg.rows, block.lane, 0], state)
        if cfg.short:
            publish_bounds(shared)
            ahead = numbers_at(scheduler, where, CONSUMERS, TERMS)
        for c in gl.static_range(CONSUMERS):
            state.queries(c).expect(t, state.q_box.block_type.nbytes)
        PLACES: gl.constexpr = cfg.first_tiles if cfg.listed else FIRST
        run = Run(near.count - gl.minimum(near.count, FIRST), near.place + PLACES, near.lane)
        i = load_tiles(i, run, state.k_box, state.v_box, heads, state)
        if TERMS == 2:
            i = load_tiles(i, far, state.k_far, state.v_far, heads, state)
        t += 1
