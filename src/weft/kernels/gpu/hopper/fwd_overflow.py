# ruff: noqa: PLR0913 - kernels take as many arguments as they need
"""Rows of a forward whose sums left the range, computed again with their largest score taken off (online softmax).

The consumers mark such rows in lse and go on; when all blocks are done, the kernel's own warps compute them. So the
code for it is there once, and nowhere between blocks.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from weft.kernels.gpu.hopper.ops.affine import affine_bounds
from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import TERM, keys_of, row_bounds, rows_seen, run_of, tiles_of
from weft.kernels.gpu.hopper.ops.grids import GridRows, box_tokens, grid_cut, grid_rows, grid_tiles, grid_words
from weft.kernels.gpu.hopper.ops.layouts import WARPS, accumulator, by_rows, first_factor, matrix, sides, zeros
from weft.kernels.gpu.hopper.ops.mask import mask_words, masked
from weft.kernels.gpu.hopper.ops.scheduler import PART, block_at
from weft.kernels.gpu.hopper.ops.softmax import online, times_rows, with_sink
from weft.kernels.gpu.hopper.ops.values import LN2, LOG2E, UNIT


@aggregate
class Online:
    """Sums of values and of weights, and the largest score so far, in bits, which is taken off."""

    acc: gl.tensor
    total: gl.tensor
    largest: gl.tensor


@aggregate
class Term:
    """A term's run for some rows: their bounds, the first position and how many, the first token and the step."""

    low: gl.tensor
    high: gl.tensor
    first: gl.tensor
    count: gl.tensor
    origin: gl.tensor
    step: gl.tensor


@gluon.jit
def fetch(to, tensor, heads, first, rows, DIMS: gl.constexpr, BEFORE: gl.constexpr = False):
    """A tile of rows, by the warps that compute, when nothing else runs. heads: (batch row, head); rows: (how many,
    their step). BEFORE: the first may be before row 0; rows that there are not are that row.
    """
    count, step = rows
    ROWS: gl.constexpr = to.type.shape[0]
    WIDTH: gl.constexpr = to.type.shape[1]
    layout: gl.constexpr = by_rows(WIDTH, WARPS)
    r = gl.minimum(gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout)), count - 1)
    if BEFORE:
        r = gl.maximum(r, -first)
    fetch_tokens(to, tensor, heads, first, r * step, DIMS)


@gluon.jit
def fetch_tokens(to, tensor, heads, first, away, DIMS: gl.constexpr):
    """Rows of tokens, so far from the first one."""
    WIDTH: gl.constexpr = to.type.shape[1]
    layout: gl.constexpr = by_rows(WIDTH, WARPS)
    d = gl.expand_dims(gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout)), 0)
    at = tensor.row(heads[0], heads[1], first)
    at = at + (gl.expand_dims(away * (tensor.per_row * UNIT), 1) + d)
    if DIMS < WIDTH:
        to.store(gl.load(at, mask=gl.expand_dims(away >= 0, 1) & (d < DIMS), other=0.0))
    else:
        to.store(gl.load(at))
    fence_async_shared()


@gluon.jit
def add_fetched(sums, words, bit, state):
    """Online sums after the tile of keys and values that was fetched. words, bit: what rows see of it."""
    cfg: gl.constexpr = state.cfg
    q, k, v = matrix(state.q.index(0)), matrix(state.k.index(0)), matrix(state.v.index(0))
    x = warpgroup_mma(q, k.permute((1, 0)), zeros(cfg.rows, cfg.columns), use_acc=False, is_async=True)
    x = masked(warpgroup_mma_wait(0, (x,)), words, bit, float("-inf"))
    p, kept, largest = online(x, sums.largest, state.scale * LOG2E)
    total = sums.total * kept + gl.sum(p, 1)
    weights = gl.convert_layout(p.to(k.dtype), first_factor(cfg.width_v))
    y = warpgroup_mma(weights, v, times_rows(sums.acc, kept), is_async=True)
    return Online(warpgroup_mma_wait(0, (y,)), total, largest)


@gluon.jit
def add_term(sums, state, inputs, heads, term, columns):
    """Online sums after one term more. inputs: K, V; heads: (batch row, head of keys)."""
    cfg: gl.constexpr = state.cfg
    TILE: gl.constexpr = cfg.columns
    k, v = matrix(state.k.index(0)), matrix(state.v.index(0))
    for j in range(0, tiles_of(term.count, TILE)):
        if cfg.listed:  # its first is where the list is
            first = gl.load(state.scheduler.table + term.first + j) * TILE
        else:
            first = term.origin + term.first + j * TILE * term.step
        count = term.count - j * TILE
        fetch(k, inputs[0], heads, first, (count, term.step), cfg.d, cfg.counted)
        fetch(v, inputs[1], heads, first, (count, term.step), cfg.dv, cfg.counted)
        words, bit = mask_words(term.low - j * TILE, term.high - j * TILE, columns)
        sums = add_fetched(sums, words, bit, state)
    return sums


@gluon.jit
def add_grid(sums, state, inputs, heads, item, rows, columns):
    """The same of a block on a grid. item: a pointer to its integers; rows: those that are computed."""
    cfg: gl.constexpr = state.cfg
    table, part = state.scheduler.table, state.scheduler.part()
    tiles = grid_tiles(table, item, cfg)
    cut = grid_cut(table, part, tiles, rows, cfg)
    k, v = matrix(state.k.index(0)), matrix(state.v.index(0))
    r = gl.arange(0, cfg.columns, layout=gl.SliceLayout(1, by_rows(cfg.width, WARPS)))
    r_v = gl.arange(0, cfg.columns, layout=gl.SliceLayout(1, by_rows(cfg.width_v, WARPS)))
    for j in range(0, tiles.count):
        word = gl.load(tiles.words + j)
        at = tiles.place(j, cfg)
        fetch_tokens(k, inputs[0], heads, gl.to_tensor(0), box_tokens(part, at, r, cfg).to(gl.int64), cfg.d)
        fetch_tokens(v, inputs[1], heads, gl.to_tensor(0), box_tokens(part, at, r_v, cfg).to(gl.int64), cfg.dv)
        words, bit = grid_words(word, cut, columns, cfg)
        sums = add_fetched(sums, words, bit, state)
    return sums


@gluon.jit
def seen_of(part, item, r, block, term: gl.constexpr, state):
    """Positions of a term's run that rows r of a block see. part, item: where their numbers are."""
    if state.cfg.overlapped:
        low, high = row_bounds(item, r, term, state.cfg)
    else:
        _, pace = state.scheduler.rows()
        low, high = rows_seen(affine_bounds(part), block.start, r, (pace, block.height), keys_of(item, term))
    return low, high


@gluon.jit
def rows_of(block, item, r, state):
    """Rows r of a block: GridRows, of a line without coordinates."""
    if state.cfg.axes:
        rows = grid_rows(state.scheduler.table, item, r, state.cfg)
    else:
        _, pace = state.scheduler.rows()
        rows = GridRows((), block.start + gl.minimum(r, block.height - 1) * pace, r < block.height)
    return rows


@gluon.jit
def fetch_queries(c, block, item, tensor, state):
    """A consumer's rows of a block."""
    cfg: gl.constexpr = state.cfg
    ROWS: gl.constexpr = cfg.rows
    origin, pace = state.scheduler.rows()
    to, heads = matrix(state.q.index(0)), (block.batch, block.head)
    if cfg.axes:
        r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, by_rows(cfg.width, WARPS)))
        token = rows_of(block, item, r + c * ROWS, state).token
        fetch_tokens(to, tensor, heads, origin, token.to(gl.int64), cfg.d)
    else:
        first = origin + block.start + c * ROWS * pace
        fetch(to, tensor, heads, first, (block.height - c * ROWS, pace), cfg.d)


@gluon.jit
def sums_of_terms(item, rows, r, block, inputs, columns, state):
    """Online sums of rows r of a block over all that they see. rows: see `rows_of`."""
    cfg: gl.constexpr = state.cfg
    of_rows: gl.constexpr = r.type.layout
    none = gl.full([cfg.rows], float("-inf"), gl.float32, of_rows)
    sums = Online(zeros(cfg.rows, cfg.width_v), gl.zeros([cfg.rows], gl.float32, of_rows), none)
    here, heads = state.scheduler.part(), (block.batch, block.kv_head)
    if cfg.axes:
        sums = add_grid(sums, state, inputs, heads, item, rows, columns)
    else:
        low, high = seen_of(here, item, r, block, 0, state)
        first = run_of(item, 0, cfg.terms).place if cfg.listed else block.first
        term = Term(low, high, first, block.count, gl.load(here), gl.load(here + PART))
        sums = add_term(sums, state, inputs, heads, term, columns)
    if cfg.terms == 2:
        other = here + TERM
        low, high = seen_of(other, item, r, block, 1, state)
        far_first, far_count = keys_of(item, 1)
        term = Term(low, high, far_first, far_count, gl.load(other), gl.load(other + PART))
        sums = add_term(sums, state, inputs, heads, term, columns)
    return sums


@gluon.jit
def overflowed_rows(state, inputs):
    """The rows of a program's blocks that are marked. inputs: the tensors Q, K and V. Shared memory is free by now."""
    cfg: gl.constexpr = state.cfg
    ROWS: gl.constexpr = cfg.rows
    WIDTH_V: gl.constexpr = cfg.width_v
    r, columns = sides(ROWS, cfg.columns, accumulator(cfg.columns))
    dims = gl.arange(0, WIDTH_V, layout=gl.SliceLayout(0, accumulator(WIDTH_V)))
    scheduler = state.scheduler
    origin, _ = scheduler.rows()
    for number in range(gl.program_id(0), scheduler.blocks, gl.num_programs(0)):
        where = scheduler.where(number)
        block = block_at(scheduler, where)
        item = scheduler.places(where)[1]
        for c in range(0, cfg.consumers):
            mine = r + c * ROWS
            rows = rows_of(block, item, mine, state)
            row = rows.token
            lse_at = state.Lse + (block.batch.to(gl.int64) * state.heads + block.head) * state.length + origin + row
            before = gl.load(lse_at, mask=rows.valid, other=0.0)
            marked = before != before
            if gl.max(marked.to(gl.int32), 0) != 0:
                fetch_queries(c, block, item, inputs[0], state)
                sums = sums_of_terms(item, rows, mine, block, (inputs[1], inputs[2]), columns, state)
                acc, total, largest = sums.acc, sums.total, sums.largest
                if cfg.sinks:
                    sink = gl.load(state.Sinks + block.head) * LOG2E
                    less, more, largest = with_sink(total == 0, sink, largest)
                    acc, total = times_rows(acc, less), total * less + more
                out = times_rows(acc, gl.where(total == 0, 0.0, 1.0 / total))
                lse = gl.where(total == 0, float("-inf"), (largest + gl.log2(total)) * LN2)
                gl.store(lse_at, lse, mask=marked)
                of_acc: gl.constexpr = gl.SliceLayout(1, accumulator(WIDTH_V))
                out_row = gl.convert_layout(row, of_acc).to(gl.int64)
                at = gl.expand_dims(out_row * (state.Out.per_row * UNIT), 1) + gl.expand_dims(dims, 0)
                at = state.Out.row(block.batch, block.head, origin) + at
                mask = gl.expand_dims(gl.convert_layout(marked, of_acc), 1)
                if cfg.dv < WIDTH_V:
                    mask = mask & gl.expand_dims(dims < cfg.dv, 0)
                gl.store(at, out.to(state.Out.pointer.dtype.element_ty), mask=mask)
