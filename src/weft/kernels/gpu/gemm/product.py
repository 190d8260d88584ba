# ruff: noqa: PLR0913 - what a kernel is told
"""A product with what follows it. Functions of Triton; tiles come and go by tensor descriptors."""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu.gemm.fragments import activation

# Constants of a kernel: rows and cols of a tile, channels of a step, whether weights are (k, n) and not (n, k).
Tiling = namedtuple("Tiling", "rows cols depth by_rows")


@triton.jit
def tile_of(number, down, across, GROUP: tl.constexpr):
    """(row, column) of a tile: GROUP rows of tiles pass over all columns before the next ones, so caches hold both."""
    together = GROUP * across
    first = number // together * GROUP
    rows = tl.minimum(down - first, GROUP)
    within = number % together
    return first + within % rows, within // rows


@triton.jit
def factor(T: tl.constexpr, weight, col, at):
    """(depth, cols) of a weight."""
    if T.by_rows:
        return weight.load([at, col])
    else:  # Triton would compile what follows an if, too
        return weight.load([col, at]).T


@triton.jit
def sums(T: tl.constexpr, x, weight, row, col, k):
    """(rows, cols) of x @ weight.T in float32, from row and col on."""
    found = tl.zeros((T.rows, T.cols), tl.float32)
    for at in range(0, k, T.depth):
        found = tl.dot(x.load([row, at]), factor(T, weight, col, at), found)
    return found


@triton.jit
def two_sums(T: tl.constexpr, x, weight, gate, row, col, k):
    """The same of two weights, for which x is read once."""
    found = tl.zeros((T.rows, T.cols), tl.float32)
    other = tl.zeros((T.rows, T.cols), tl.float32)
    for at in range(0, k, T.depth):
        rows = x.load([row, at])
        found = tl.dot(rows, factor(T, weight, col, at), found)
        other = tl.dot(rows, factor(T, gate, col, at), other)
    return found, other


@triton.jit
def row_scale(squares, rows, m, tiles, count, epsilon):
    """1 / root mean square of rows, from sums of squares (tiles, m)."""
    total = tl.zeros_like(rows).to(tl.float32)
    for tile in range(tiles):
        total += tl.load(squares + tile * m + rows, mask=rows < m, other=0.0)
    return tl.rsqrt(total / count + epsilon)


@triton.jit
def with_bias(value, bias, col, n, COLS: tl.constexpr):
    """value + bias[col:], where there is one."""
    if bias is not None:
        cols = col + tl.arange(0, COLS)
        value += tl.load(bias + cols, mask=cols < n, other=0.0).to(tl.float32)[None, :]
    return value


@triton.jit
def product(
    x, weight, gate, residual, out, bias, gate_bias, squares, new_squares, m, n, k, tiles, count, epsilon,
    ACTIVATION: tl.constexpr, BY_ROWS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of out (m, n); see `meaning.product`. x, weight, gate, residual, out: descriptors; None: without it.

    bias, gate_bias (n,), squares (tiles, m): pointers. new_squares (tiles of n, m): takes sums of squares of out.
    """
    T: tl.constexpr = Tiling(ROWS, COLS, DEPTH, BY_ROWS)
    row_tile, col_tile = tile_of(tl.program_id(0), tl.cdiv(m, ROWS), tl.cdiv(n, COLS), GROUP)
    row, col = row_tile * ROWS, col_tile * COLS
    rows, cols = row + tl.arange(0, ROWS), col + tl.arange(0, COLS)
    if gate is not None:
        value, gating = two_sums(T, x, weight, gate, row, col, k)
    else:
        value = sums(T, x, weight, row, col, k)
    if squares is not None:
        scale = row_scale(squares, rows, m, tiles, count, epsilon)[:, None]
        value *= scale
        if gate is not None:
            gating *= scale
    value = with_bias(value, bias, col, n, COLS)
    if gate is not None:
        value *= activation(with_bias(gating, gate_bias, col, n, COLS), ACTIVATION)
    else:
        value = activation(value, ACTIVATION)
    if residual is not None:
        value += residual.load([row, col]).to(tl.float32)
    value = value.to(out.dtype)
    if new_squares is not None:
        wide = tl.where(cols[None, :] < n, value.to(tl.float32), 0.0)
        tl.store(new_squares + col_tile * m + rows, tl.sum(wide * wide, 1), mask=rows < m)
    out.store([row, col], value)
