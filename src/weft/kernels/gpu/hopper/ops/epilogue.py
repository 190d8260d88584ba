"""Epilogues: how a consumer's results leave."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.language import debug_barrier

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.grids import grid_rows
from weft.kernels.gpu.hopper.ops.layouts import WARPS, by_rows, matrix
from weft.kernels.gpu.hopper.ops.values import UNIT


@aggregate
class Rows:
    """Where a block's rows are: batch row, head, the first row, how many exist, and the step between them."""

    batch: gl.tensor
    head: gl.tensor
    first: gl.tensor
    height: gl.tensor
    pace: gl.tensor

    @gluon.jit
    def places(self, r):
        """How far rows r are from the first one, and which exist."""
        return r * self.pace, r < self.height


@aggregate
class BoxRows:
    """The same of a block on a grid, whose first row counts as token 0. item: a pointer to its integers."""

    batch: gl.tensor
    head: gl.tensor
    first: gl.tensor | gl.constexpr
    table: gl.tensor
    item: gl.tensor
    cfg: gl.constexpr

    @gluon.jit
    def places(self, r):
        """The tokens of rows r, and which exist."""
        rows = grid_rows(self.table, self.item, r, self.cfg)
        return rows.token.to(gl.int64), rows.valid


@gluon.jit
def store_through(room, sums, tensor, rows, consumer_id):
    """Write the consumer's rows of a gradient, those that exist, through its own shared memory (rows, columns)."""
    WIDTH: gl.constexpr = sums.type.shape[1]
    COLUMNS: gl.constexpr = min(room.shape[1], WIDTH)
    part = room.slice(0, COLUMNS, dim=1)
    layout: gl.constexpr = by_rows(COLUMNS, WARPS)
    if COLUMNS < WIDTH:
        ROWS: gl.constexpr = sums.type.shape[0]
        low, high = gl.split(gl.permute(gl.reshape(sums, [ROWS, WIDTH // COLUMNS, COLUMNS]), (0, 2, 1)))
        gl.static_assert(WIDTH == 2 * COLUMNS)
        parts = (low, high)
    else:
        parts = (sums,)
    for n in gl.static_range(WIDTH // COLUMNS):
        part.store(parts[n].to(part.dtype))
        debug_barrier()  # of the consumer's warps
        store_columns(part.load(layout), tensor, rows, consumer_id, n * COLUMNS, WIDTH)
        debug_barrier()


@gluon.jit
def store_zeros(ROWS: gl.constexpr, WIDTH: gl.constexpr, tensor, rows, consumer_id):
    """Write zeros to the consumer's rows of a gradient, those that exist."""
    none = gl.zeros([ROWS, WIDTH], tensor.pointer.dtype.element_ty, by_rows(WIDTH, WARPS))
    store_columns(none, tensor, rows, consumer_id, 0, WIDTH)


@gluon.jit
def store_columns(result, tensor, rows, consumer_id, first: gl.constexpr, DIMS: gl.constexpr):
    """Write those of the consumer's rows that exist, from a column on. DIMS: columns that there are."""
    layout: gl.constexpr = result.type.layout
    ROWS: gl.constexpr = result.type.shape[0]
    WIDTH: gl.constexpr = result.type.shape[1]
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout)) + consumer_id * ROWS
    d = gl.expand_dims(first + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout)), 0)
    away, exists = rows.places(r)
    at = tensor.row(rows.batch, rows.head, rows.first)
    at = at + (gl.expand_dims(away * (tensor.per_row * UNIT), 1) + d)
    mask = gl.expand_dims(exists, 1)
    if DIMS < first + WIDTH:
        mask = mask & (d < DIMS)
    gl.store(at, result, mask=mask)


@gluon.jit
def store_rows(sums, tensor, rows, consumer_id):
    """Write the consumer's rows of a gradient, those that exist."""
    WIDTH: gl.constexpr = sums.type.shape[1]
    sums = gl.convert_layout(sums.to(tensor.pointer.dtype.element_ty), by_rows(WIDTH, WARPS))
    store_columns(sums, tensor, rows, consumer_id, 0, WIDTH)


@gluon.jit
def store_result(result, where, rows, whole, consumer_id, state):
    """Write the consumer's rows of a forward from shared memory: by a descriptor if all exist and there is one."""
    if state.cfg.boxed and whole:
        fence_async_shared()
        tma.async_copy_shared_to_global(state.out_box, where, result)
    else:
        store_box_rows(matrix(result), state.Out, rows, consumer_id, state.cfg.dv)


@gluon.jit
def store_box_rows(tile, tensor, rows, consumer_id, DIMS: gl.constexpr):
    """Write those of the consumer's rows that exist, from a tile in shared memory."""
    store_columns(tile.load(by_rows(tile.type.shape[1], WARPS)), tensor, rows, consumer_id, 0, DIMS)
