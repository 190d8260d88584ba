# ruff: noqa: SIM102, SIM113 - kernels take as many arguments as they need, and Gluon is not all of Python
"""The forward: a producer loads by tensor descriptors, consumers keep their queries' sums in registers.

Each consumer has its rows of a block of queries. One or two terms, whose tiles follow each other in one ring. Boxes are
of (batch row, head, place, lane, dim), where tokens are step * place + lane (`weft.planning.tma`). It means what
`weft.kernels.gpu.tile.fwd` does, without options that add to scores. `config.RowMax` says what is taken off scores.
Rows whose sums leave the range are marked, and computed again when all blocks are done (`fwd_overflow`).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from weft.kernels.gpu.compile.dedup import COPIES, like_the_group_before, which_group
from weft.kernels.gpu.hopper.fwd_grid import grid_producer, grid_sums, store_grid_block
from weft.kernels.gpu.hopper.fwd_loads import Forward, producer
from weft.kernels.gpu.hopper.fwd_overflow import overflowed_rows
from weft.kernels.gpu.hopper.fwd_overlapped import overlapped_sums
from weft.kernels.gpu.hopper.fwd_short import hear, short_sums
from weft.kernels.gpu.hopper.fwd_tile import Scoring, add_tile, no_sums, scores_of
from weft.kernels.gpu.hopper.ops.affine import affine_bounds
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import TERM, keys_of, place_of, range_of, rows_seen, tiles_of
from weft.kernels.gpu.hopper.ops.broadcast import broadcast
from weft.kernels.gpu.hopper.ops.channel import barriers, channel
from weft.kernels.gpu.hopper.ops.epilogue import Rows, store_result
from weft.kernels.gpu.hopper.ops.layouts import WARPS, accumulator, boxes, flat, marks, matrix, sides, zeros
from weft.kernels.gpu.hopper.ops.mask import Cut
from weft.kernels.gpu.hopper.ops.softmax import fast_inverse, fast_log2, in_parts, largest_rounded, with_sink
from weft.kernels.gpu.hopper.ops.values import LN2, LOG2E, opaque


# ---- consumers -------------------------------------------------------------------------------------------------------
@gluon.jit
def written_before(x):
    """x, once what the bulk engine was asked to write is written: rows that go again are stored by others after it."""
    return gl.inline_asm_elementwise(
        "cp.async.bulk.wait_group 0; mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1
    )


@aggregate
class Span:
    """A consumer's tiles of a block. near: tiles of the first term. near_begin, far_begin: where the consumer begins in
    either run. tiles: of both. between, after: tiles of others between the terms and after all. cut, far_cut: where
    bounds cut in either run.
    """

    near: gl.tensor
    near_begin: gl.tensor
    far_begin: gl.tensor
    tiles: gl.tensor
    between: gl.tensor
    after: gl.tensor
    cut: Cut
    far_cut: Cut

    @gluon.jit
    def tile(self, s, TERMS: gl.constexpr):
        """(which tile of its run the consumer's tile s is, where bounds cut there)"""
        j = s + self.near_begin
        here = self.cut
        if TERMS == 2:
            near, beyond = self.cut, self.far_cut
            far = s >= self.near
            j = gl.where(far, s - self.near + self.far_begin, j)
            low, high = gl.where(far, beyond.low, near.low), gl.where(far, beyond.high, near.high)
            below, end = gl.where(far, beyond.below, near.below), gl.where(far, beyond.beyond, near.beyond)
            here = Cut(low, high, below, end)
        return j, here

    @gluon.jit
    def keys(self, TERMS: gl.constexpr):
        """How many keys each row sees."""
        keys = gl.maximum(self.cut.high - self.cut.low, 0)
        if TERMS == 2:
            keys += gl.maximum(self.far_cut.high - self.far_cut.low, 0)
        return keys


@gluon.jit
def span_of(consumer_id, item, state, scoring):
    """The tiles of the consumer in a block. item: a pointer to the block's integers.

    What bounds are made of is read again for each block, since what is held for all blocks is spilled.
    """
    cfg: gl.constexpr = state.cfg
    TERMS: gl.constexpr = cfg.terms
    CONSUMERS: gl.constexpr = cfg.consumers
    here, r, pace = state.scheduler.part(), scoring.rows + consumer_id * cfg.rows, scoring.pace
    start, height = gl.load(item), gl.load(item + 1)
    first, count = keys_of(item, 0)
    near = range_of(item, consumer_id, 0, CONSUMERS, TERMS)
    low, high = rows_seen(affine_bounds(here), start, r, (pace, height), (first, count))
    n = tiles_of(count, cfg.columns)
    cut, none = Cut(low, high, near.below, near.beyond), gl.to_tensor(0)
    own = near.end - near.begin
    span = Span(own, near.begin, near.begin, own, none, n - near.end, cut, cut)
    if TERMS == 2:
        run = keys_of(item, 1)
        far = range_of(item, consumer_id, 1, CONSUMERS, TERMS)
        axis = affine_bounds(here + TERM)
        far_low, far_high = rows_seen(axis, start, r, (pace, height), run)
        m = tiles_of(run[1], cfg.columns)
        both = far.end > far.begin
        between = gl.where(both, n - near.end + far.begin, 0)
        after = gl.where(both, m - far.end, n - near.end + m)
        far_cut, all_tiles = Cut(far_low, far_high, far.below, far.beyond), own + far.end - far.begin
        span = Span(own, near.begin, far.begin, all_tiles, between, after, cut, far_cut)
    return span


@gluon.jit
def walk(i, q, span, state, scoring):
    """(tiles so far, sums) over a consumer's tiles."""
    cfg: gl.constexpr = state.cfg
    TERMS: gl.constexpr = cfg.terms
    sums = no_sums(scoring, cfg)
    for s in range(0, span.tiles):
        if TERMS == 2:
            if s == span.near:
                i = state.tiles.pass_over(i, span.between)
        i = opaque(i)  # else four multiplications more a tile, and 1.12 on long runs (benchmarks/notes/triton.md, T72)
        x = scores_of(i, q, state, scoring)
        j, here = span.tile(s, TERMS)  # after the wait: before it, ptxas makes other code
        sums = add_tile(i, j, s, x, sums, here, state, scoring)
        i += 1
    return i, sums


@gluon.jit
def sums_of(i, consumer_id, item, t, state, scoring):
    """(tiles so far, sums, keys that each row sees, how many tiles of others come after) over the consumer's tiles of
    block t.
    """
    cfg: gl.constexpr = state.cfg
    queries = state.queries(consumer_id)
    at, arrival = queries.stage(t), queries.arrival(t)
    span = span_of(consumer_id, item, state, scoring)
    arrival.wait()
    i = state.tiles.pass_over(i, span.near_begin)
    i, sums = walk(i, matrix(state.q.index(at)), span, state, scoring)
    return i, sums, span.keys(cfg.terms), span.after


@gluon.jit
def finished(sums, keys, valid, sink, dtype: gl.constexpr, cfg: gl.constexpr):
    """(out, lse, which rows go again) of a consumer's sums. keys: how many a row sees; sink: the head's.

    Rows that go again have NaN for lse: those whose sum of weights leaves its range, or whose sums are no numbers.
    """
    acc, total = sums.acc, sums.total
    finite = gl.convert_layout(in_parts(acc * 0.0), total.type.layout)  # 0, or NaN
    whole = gl.convert_layout(gl.sum(total + finite, 1), keys.type.layout)
    if cfg.row_max == "online":
        wild = (keys > 0) & (whole != whole) & valid
    else:
        tame = (whole <= cfg.most) & (whole >= cfg.least)
        wild = (keys > 0) & (tame == 0) & valid
    # Large weights as their values met them (docs/decisions/0015). Divided by this sum, a row's only value is exact.
    # One that has most of a row's weight is nearly so.
    weight = whole
    if cfg.row_max != "online":
        weight = gl.convert_layout(gl.sum(largest_rounded(total, sums.top, dtype), 1), keys.type.layout)
    if cfg.row_max == "none":
        above = gl.zeros_like(whole)
    else:
        above = sums.largest
    if cfg.sinks:
        less, more, above = with_sink(keys == 0, sink * LOG2E, above)
        inverse = gl.where(keys == 0, 0.0, less / (weight * less + more))
        lse = gl.where(keys == 0, sink, (above + fast_log2(whole * less + more)) * LN2)
    else:
        inverse = gl.where(keys == 0, 0.0, fast_inverse(weight))
        logarithm = fast_log2(whole)
        if cfg.row_max != "none":
            logarithm += above
        lse = gl.where(keys == 0, float("-inf"), logarithm * LN2)
    inverse = gl.convert_layout(inverse, gl.SliceLayout(1, acc.type.layout))
    return (acc * gl.expand_dims(inverse, 1)).to(dtype), gl.where(wild, float("nan"), lse), wild


@gluon.jit
def store_block(result, rows, place, consumer_id, state):
    """Write the consumer's rows, whole tiles by a descriptor where there is one. place: the block's, and its lane."""
    cfg: gl.constexpr = state.cfg
    where = [rows.batch, rows.head, place[0] + consumer_id * cfg.rows, place[1], 0]
    store_result(result, where, rows, rows.height >= consumer_id * cfg.rows + cfg.rows, consumer_id, state)


@gluon.jit
def scoring_of(pace, state):
    """What all tiles of a consumer need. pace: the step between rows."""
    cfg: gl.constexpr = state.cfg
    r, columns = sides(cfg.rows, cfg.columns, accumulator(cfg.columns))
    zero, none = zeros(cfg.rows, cfg.columns), zeros(cfg.rows, cfg.width_v)
    return Scoring(r, pace, columns, state.scale * LOG2E, zero, none)


@gluon.jit
def consumer(consumer_id, state):
    """out and lse of one warp group's queries, block after block."""
    cfg: gl.constexpr = state.cfg
    ROWS: gl.constexpr = cfg.rows
    Lse, result = state.Lse, state.out.index(consumer_id)
    scheduler, queries = state.scheduler, state.queries(consumer_id)
    origin, pace = scheduler.rows()
    scoring = scoring_of(pace, state)
    r = scoring.rows
    i, t = 0, 0
    marked = gl.zeros_like(r)  # int32, as rows are
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        at = queries.stage(t)
        if cfg.short:
            queries.wait(t)
            heard = hear(state, consumer_id)
            block = heard.block
            batch, head, start, height = block.batch, block.head, block.start, block.height
            place, lane = block.place, block.lane
            i, sums, keys, after = short_sums(i, heard, at, state, scoring)
        else:
            member, item = scheduler.places(scheduler.where(number))
            if cfg.axes:
                i, sums, keys, rows = grid_sums(i, consumer_id, item, t, state, scoring)
            elif cfg.overlapped:
                i, sums, keys, after = overlapped_sums(i, consumer_id, item, t, state, scoring)
            else:
                i, sums, keys, after = sums_of(i, consumer_id, item, t, state, scoring)
        if cfg.query_stages > 1:
            queries.release(t)
        if not cfg.overlapped:
            i = state.tiles.pass_over(i, after)
        if not cfg.short:
            batch, head = gl.load(member), gl.load(member + 2)
            start, height = gl.load(item), gl.load(item + 1)
        valid = rows.valid if cfg.axes else r + consumer_id * ROWS < height
        sink = gl.load(state.Sinks + head) if cfg.sinks else 0.0
        out, lse, wild = finished(sums, keys, valid, sink, state.out.dtype, cfg)
        marked = marked | wild.to(gl.int32)
        if cfg.query_stages > 1:
            tma.store_wait(0)  # for the result of the block before
        matrix(result).store(out)
        if cfg.axes:
            store_grid_block(result, (batch, head), item, consumer_id, state)
            row = rows.token
        else:
            if not cfg.short:
                place, lane = place_of(item, 0, cfg.terms)
            # the step is hidden, so that no address is made before all blocks, and held
            own = Rows(batch, head, origin + start, height, opaque(pace))
            store_block(result, own, (place, lane), consumer_id, state)
            # after the fence, which waits for what was stored before it
            row = origin + start + gl.minimum(r + consumer_id * ROWS, height - 1) * pace
        if cfg.query_stages == 1:
            fence_async_shared()  # between results, which these threads wrote, and the queries that come there
            tma.store_wait(0)
            queries.release(t)
        gl.store(Lse + (batch.to(gl.int64) * state.heads + head) * state.length + row, lse, mask=valid)
        t += 1
    state.overflow.index(consumer_id).store(gl.expand_dims(written_before(marked), 1))


@gluon.jit
def any_consumer(state):
    """`consumer`, of whichever warp group."""
    consumer(which_group(), state)


@gluon.jit
def next_consumer(state):
    """`any_consumer`, of the warp groups after the first one."""
    if COPIES:
        any_consumer(state)
    else:
        like_the_group_before()


# ---- the kernel ------------------------------------------------------------------------------------------------------
@gluon.jit
def state_of(outputs, read, scheduler, sizes, cfg: gl.constexpr):
    """Shared memory and barriers, with the arguments."""
    ROWS: gl.constexpr = cfg.rows
    CONSUMERS: gl.constexpr = cfg.consumers
    KEYS: gl.constexpr = cfg.ring_of_keys
    q = boxes(read[0], cfg.query_stages * CONSUMERS)
    k, v = boxes(read[1], KEYS), boxes(read[2], cfg.stages)
    out = boxes(outputs[2], CONSUMERS) if cfg.query_stages > 1 else q
    if cfg.short:
        shared = broadcast(CONSUMERS, cfg.terms, ROWS)
        overflow = marks(shared.bounds, CONSUMERS, ROWS)  # bounds of its own that a consumer needs no more
    else:
        overflow = gl.allocate_shared_memory(gl.int32, [CONSUMERS, ROWS, 1], flat(2))
        shared = overflow
    q_full, q_empty = barriers(cfg.query_stages * CONSUMERS, 1), barriers(cfg.query_stages * CONSUMERS, 1)
    tiles = channel(KEYS, 1, CONSUMERS)
    values = channel(cfg.stages, 1, CONSUMERS) if cfg.overlapped else tiles
    return Forward(
        cfg, outputs[0], outputs[1], out, outputs[2], q, k, v, overflow, q_full, q_empty, tiles, values, scheduler,
        sizes[0], sizes[1], sizes[2], sizes[3], shared, read[0], read[1], read[2], read[3], read[4],
    )  # fmt: skip


@gluon.jit
def recompute_marked(state, inputs):
    """Rows of which a consumer said that their sums left the range."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0])
    marked = 0
    for c in gl.static_range(state.cfg.consumers):
        marked = gl.maximum(marked, gl.max(gl.max(state.overflow.index(c).load(layout), 1), 0))
    if marked != 0:
        overflowed_rows(state, inputs)


@gluon.jit
def fwd(inputs, read, outputs, scheduler, sizes, cfg: gl.constexpr):
    """out and lse. inputs: the tensors Q, K and V; read: descriptors of these, and of K and V as the second term walks
    them; outputs: the tensor Out, the pointer Lse and a descriptor of Out; sizes: (heads of queries, queries, scale,
    the pointer Sinks).
    """
    state = state_of(outputs, read, scheduler, sizes, cfg)
    COMPUTE: gl.constexpr = cfg.consumer_registers
    LOAD: gl.constexpr = cfg.producer_registers
    if cfg.consumers == 1:
        gl.warp_specialize([
            (consumer, (0, state)), (grid_producer if cfg.axes else producer, (state,)),
        ], [cfg.producer_warps], [LOAD])  # fmt: skip
    elif cfg.consumers == 2:
        gl.warp_specialize([
            (consumer, (0, state)), (consumer, (1, state)), (grid_producer if cfg.axes else producer, (state,)),
        ], [WARPS, cfg.producer_warps], [COMPUTE, LOAD])  # fmt: skip
    else:
        gl.static_assert(cfg.consumers == 4)
        gl.warp_specialize([
            (consumer, (0, state)), (consumer, (1, state)), (consumer, (2, state)), (consumer, (3, state)),
            (grid_producer if cfg.axes else producer, (state,)),
        ], [WARPS, WARPS, WARPS, cfg.producer_warps], [COMPUTE, COMPUTE, COMPUTE, LOAD])  # fmt: skip
    recompute_marked(state, inputs)


@gluon.jit
def fwd_short(inputs, read, outputs, scheduler, sizes, cfg: gl.constexpr):
    """As `fwd`, of short runs. Consumers are not told which they are, so they share their code; the kernel's own four
    warps load (docs/decisions/0010).
    """
    state = state_of(outputs, read, scheduler, sizes, cfg)
    COMPUTE: gl.constexpr = cfg.consumer_registers
    gl.static_assert(cfg.consumers == 4)
    gl.warp_specialize([
        (producer, (state,)), (any_consumer, (state,)), (next_consumer, (state,)), (next_consumer, (state,)),
        (next_consumer, (state,)),
    ], [WARPS, WARPS, WARPS, WARPS], [COMPUTE, COMPUTE, COMPUTE, COMPUTE])  # fmt: skip
    recompute_marked(state, inputs)
