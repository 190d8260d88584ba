"""Epilogues: how a consumer's results leave."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.layouts import WARPS as GROUP_WARPS
from weft.kernels.gpu.hopper.ops.layouts import by_rows, matrix
from weft.kernels.gpu.hopper.ops.values import UNIT, opaque

WARPS = gl.constexpr(GROUP_WARPS)


@aggregate
class Rows:
    """Where a block's rows are: batch row, head, the first row, how many exist, and the step between them."""

    batch: gl.tensor
    head: gl.tensor
    first: gl.tensor
    height: gl.tensor
    pace: gl.tensor


@gluon.jit
def store_rows(sums, tensor, rows, consumer_id):
    """Write the consumer's rows of a gradient, those that exist."""
    ROWS: gl.constexpr = sums.type.shape[0]
    WIDTH: gl.constexpr = sums.type.shape[1]
    layout: gl.constexpr = by_rows(WIDTH, WARPS)
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout)) + consumer_id * ROWS
    d = gl.expand_dims(gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout)), 0)
    at = tensor.row(rows.batch, rows.head, rows.first)
    at = at + (gl.expand_dims(r * rows.pace * (tensor.per_row * UNIT), 1) + d)
    sums = gl.convert_layout(sums.to(tensor.pointer.dtype.element_ty), layout)
    gl.store(at, sums, mask=gl.expand_dims(r < rows.height, 1))


@gluon.jit
def store_box_rows(result, tensor, rows, consumer_id, DIMS: gl.constexpr):
    """Write those of the consumer's rows that exist, from a box in shared memory."""
    tile = matrix(result)
    ROWS: gl.constexpr = tile.type.shape[0]
    WIDTH: gl.constexpr = tile.type.shape[1]
    layout: gl.constexpr = by_rows(WIDTH, WARPS)
    pace = opaque(rows.pace)  # so that no address is made before all blocks, and held
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout)) + consumer_id * ROWS
    d = gl.expand_dims(gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout)), 0)
    at = tensor.row(rows.batch, rows.head, rows.first)
    at = at + (gl.expand_dims(r * pace * (tensor.per_row * UNIT), 1) + d)
    mask = gl.expand_dims(r < rows.height, 1)
    if DIMS < WIDTH:
        mask = mask & (d < DIMS)
    gl.store(at, tile.load(layout), mask=mask)


@gluon.jit
def store_tokens(result, tensor, heads, token, exists, DIMS: gl.constexpr):
    """Write rows of a box in shared memory to tokens of any order, those that exist. heads: (batch row, head)."""
    tile = matrix(result)
    WIDTH: gl.constexpr = tile.type.shape[1]
    layout: gl.constexpr = by_rows(WIDTH, WARPS)
    d = gl.expand_dims(gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout)), 0)
    at = tensor.row(heads[0], heads[1], gl.to_tensor(0))
    at = at + (gl.expand_dims(token.to(gl.int64) * (tensor.per_row * UNIT), 1) + d)
    mask = gl.expand_dims(exists, 1)
    if DIMS < WIDTH:
        mask = mask & (d < DIMS)
    gl.store(at, tile.load(layout), mask=mask)
