"""The fused backward's arguments, shared memory and channels, and its producer: see `bwd_fused`."""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.channel import Channel, Ring
from weft.kernels.gpu.hopper.ops.layouts import by_rows, line, matrix
from weft.kernels.gpu.hopper.ops.values import LOG2E

OUTS = gl.constexpr(2)  # stages of O
QUARTERS = gl.constexpr(4)  # of a tile, in which deltas are made for lack of registers


class HeadBoxes:
    """Where boxes are, by sizes that have kv_heads and share."""

    @gluon.jit
    def queries_at(self, member, h, first):
        """Where a box of queries is. member: a head of keys, of all batch rows; h: which of the heads that share it."""
        return [member // self.kv_heads, (member % self.kv_heads) * self.share + h, first, 0, 0]

    @gluon.jit
    def keys_at(self, member, first, lane=0):
        """Where a box of keys is."""
        return [member // self.kv_heads, member % self.kv_heads, first, lane, 0]


@aggregate
class Sizes(HeadBoxes):
    """items: runs of all heads of keys; runs: of a head; per: key tiles of a run; tiles: of a head; shift, length:
    tokens; kv_heads; share: heads of queries to each of these.
    """

    items: gl.tensor
    runs: gl.tensor
    per: gl.tensor
    tiles: gl.tensor
    shift: gl.tensor
    length: gl.tensor
    kv_heads: gl.tensor
    share: gl.tensor


@aggregate
class Gradients:
    """The kernel's arguments, shared memory and channels.

    queries: the ring of Q and dO, and of what their scores subtract (stats: lse and delta of each stage). keys: the
    ring of K and V. outs: O, for deltas alone. ds: what scores take, for dQ. results: a tile of each consumer.
    """

    cfg: gl.constexpr
    dq_box: Any
    dk_box: Any
    dv_box: Any
    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    stats: gl.shared_memory_descriptor
    ds: gl.shared_memory_descriptor
    results: gl.shared_memory_descriptor
    queries: Channel
    keys: Channel
    deltas: Ring
    ds_ready: Ring
    ds_used: Ring
    sizes: Sizes
    left: gl.tensor
    right: gl.tensor
    scale: gl.tensor
    q_box: Any
    k_box: Any
    v_box: Any
    do_box: Any
    o_box: Any
    Lse: gl.tensor
    DLse: gl.tensor
    Delta: gl.tensor
    o: gl.shared_memory_descriptor
    outs_used: Ring


# ---- where things are ------------------------------------------------------------------------------------------------
@aggregate
class Run:
    """Key tiles of a head of keys from begin to before end, which a program writes; its walk begins at tile `first`."""

    member: gl.tensor
    begin: gl.tensor
    end: gl.tensor
    first: gl.tensor


@gluon.jit
def run_of(item, sizes, LEAD: gl.constexpr):
    """A run."""
    begin = (item % sizes.runs) * sizes.per
    return Run(item // sizes.runs, begin, gl.minimum(begin + sizes.per, sizes.tiles), gl.maximum(begin - LEAD, 0))


# ---- producer --------------------------------------------------------------------------------------------------------
@gluon.jit
def of_rows(Rows, head, i, length, r, TILE: gl.constexpr):
    """The numbers of a tile's queries. head: of all batch rows."""
    row = i * TILE + r
    return gl.load(Rows + head.to(gl.int64) * length + row, mask=row < length, other=0.0)


@gluon.jit
def lse_in_bits(state, head, i, r):
    """The lse of a tile's queries, in bits; 0 where there is no key."""
    lse = of_rows(state.Lse, head, i, state.sizes.length, r, state.cfg.rows)
    return gl.where(lse == float("-inf"), 0.0, lse) * LOG2E


@gluon.jit
def leave_deltas(s, head, i, state):
    """Leave the sums of dO * O of query tile s of the ring, less what lse's gradient left there. i: which tile of its
    head it is.
    """
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.rows
    PART: gl.constexpr = TILE // QUARTERS
    layout: gl.constexpr = by_rows(cfg.width, cfg.producer_warps)
    at, out_at, length = state.queries.stage(s), s & (OUTS - 1), state.sizes.length
    state.queries.wait(s)
    for quarter in gl.static_range(QUARTERS):
        x = matrix(state.do.index(at)).slice(PART * quarter, PART).load(layout).to(gl.float32)
        y = matrix(state.o.index(out_at)).slice(PART * quarter, PART).load(layout).to(gl.float32)
        delta = gl.sum(x * y, 1)
        left = state.stats.index(2 * at + 1).slice(PART * quarter, PART)
        if cfg.lse_gradient:
            delta -= left.load(gl.SliceLayout(1, layout))
        left.store(delta)
        if cfg.with_delta:
            row = i * TILE + PART * quarter + gl.arange(0, PART, layout=gl.SliceLayout(1, layout))
            gl.store(state.Delta + head.to(gl.int64) * length + row, delta, mask=row < length)
    state.outs_used.arrive(s)
    state.deltas.arrive(s)


@gluon.jit
def load_queries(s, where, state):
    """Ask for tile s of the ring of queries, and O."""
    queries = state.queries
    at, out_at = queries.stage(s), s & (OUTS - 1)
    queries.acquire(s)
    state.outs_used.wait_before(s)
    queries.expect(s, 3 * state.q_box.block_type.nbytes)
    queries.copy(s, state.q_box, where, state.q, at)
    queries.copy(s, state.do_box, where, state.do, at)
    queries.copy(s, state.o_box, where, state.o, out_at)


@gluon.jit
def load_keys(n, where, state):
    """Ask for tile n of the ring of keys."""
    keys = state.keys
    keys.acquire(n)
    keys.expect(n, 2 * state.k_box.block_type.nbytes)
    keys.copy(n, state.k_box, where, state.k, keys.stage(n))
    keys.copy(n, state.v_box, where, state.v, keys.stage(n))


@gluon.jit
def producer(state):
    """Ask for tiles, and then find what scores subtract of the tile before."""
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.rows
    SEEN: gl.constexpr = cfg.consumers
    LEAD: gl.constexpr = SEEN - 1
    sizes = state.sizes
    r = gl.arange(0, TILE, layout=line(1, cfg.producer_warps))
    shift, length, share = sizes.shift, sizes.length, sizes.share
    s = 0
    n = 0
    before, tile_before = 0, 0  # the tile that was asked for last: its head of all batch rows, and which it is
    for item in range(gl.program_id(0), sizes.items, gl.num_programs(0)):
        run = run_of(item, sizes, LEAD)
        member, end, first = run.member, run.end, run.first
        lse = lse_in_bits(state, member * share, first, r)
        for i in range(first, end):
            for h in range(0, share):
                at = state.queries.stage(s)
                where = sizes.queries_at(member, h, i * TILE)
                load_queries(s, where, state)
                state.stats.index(2 * at).store(lse)
                head = member * share + h
                if cfg.lse_gradient:
                    state.stats.index(2 * at + 1).store(of_rows(state.DLse, head, i, length, r, TILE))
                last = h + 1 == share
                lse = lse_in_bits(state, gl.where(last, head - h, head + 1), i + gl.where(last, 1, 0), r)
                if s > 0:
                    leave_deltas(s - 1, before, tile_before, state)
                before, tile_before = head, i
                since = gl.where(i == first, i, i + LEAD)
                for c in range(gl.where(h == 0, since, i + SEEN), i + SEEN):
                    load_keys(n, sizes.keys_at(member, c * TILE - shift), state)
                    n += 1
                s += 1
    if s > 0:
        leave_deltas(s - 1, before, tile_before, state)
