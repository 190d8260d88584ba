# ruff: noqa: PLR0913 - what a kernel is told
"""A product with what follows it. Functions of Triton; tiles come and go by tensor descriptors."""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu.gemm.fragments import activation

# Constants of a kernel. rows, cols: of a tile; depth: of a step. by_rows: weights are (k, n) and not (n, k). stored:
# columns of a tile that are finished and stored at once. even: tiles have no column beyond the end. gate: which of two
# weights is the gate's, or None.
Tiling = namedtuple("Tiling", "rows cols depth by_rows stored even activation gate", defaults=("", None))


@triton.jit
def tile_of(number, down, across, GROUP: tl.constexpr):
    """(row, column) of a tile: GROUP rows of tiles pass over all columns before the next ones, so caches hold both."""
    together = GROUP * across
    first = number // together * GROUP
    rows = tl.minimum(down - first, GROUP)
    within = number % together
    return first + within % rows, within // rows


@triton.jit
def factor(T: tl.constexpr, weights, place, col, at):
    """(depth, cols) of the matrix at a place of (places, n, k)."""
    if T.by_rows:
        return tl.reshape(weights.load([place, at, col]), (T.depth, T.cols))
    else:  # Triton would compile what follows an if, too
        return tl.reshape(weights.load([place, col, at]), (T.cols, T.depth)).T


@triton.jit
def multiplied(first, second, onto):
    """onto + first @ second; float32 as it is, and not as TF32."""
    return tl.dot(first, second, onto, input_precision="ieee")


@triton.jit
def sums(T: tl.constexpr, x, weights, place, row, col, k):
    """(rows, cols) of x @ weight.T in float32, from row and col on."""
    found = tl.zeros((T.rows, T.cols), tl.float32)
    for at in range(0, k, T.depth):
        found = multiplied(x.load([row, at]), factor(T, weights, place, col, at), found)
    return found


@triton.jit
def two_sums(T: tl.constexpr, x, weights, row, col, k):
    """The same of two weights, for which x is read once; one product of twice the columns, if these follow each other
    in shared memory.
    """
    if T.by_rows:
        found = tl.zeros((T.rows, T.cols), tl.float32)
        other = tl.zeros((T.rows, T.cols), tl.float32)
        for at in range(0, k, T.depth):
            rows = x.load([row, at])
            found = multiplied(rows, factor(T, weights, 0, col, at), found)
            other = multiplied(rows, factor(T, weights, 1, col, at), other)
        return found, other
    else:
        both = tl.zeros((T.rows, 2 * T.cols), tl.float32)
        for at in range(0, k, T.depth):
            columns = tl.reshape(weights.load([0, col, at]), (2 * T.cols, T.depth))
            both = multiplied(x.load([row, at]), columns.T, both)
        return tl.split(tl.permute(tl.reshape(both, (T.rows, 2, T.cols)), (0, 2, 1)))


@triton.jit
def row_scale(squares, rows, m, tiles, count, epsilon):
    """1 / root mean square of rows, from sums of squares (tiles, m)."""
    total = tl.zeros_like(rows).to(tl.float32)
    for tile in range(tiles):
        total += tl.load(squares + tile * m + rows, mask=rows < m, other=0.0)
    return tl.rsqrt(total / count + epsilon)


@triton.jit
def with_bias(value, bias, col, n, COLS: tl.constexpr, EVEN: tl.constexpr):
    """value + bias[col:], where there is one. EVEN: no column is beyond n."""
    if bias is not None:
        at = bias + col + tl.arange(0, COLS)  # from left to right, so that what threads add is a constant
        if EVEN:
            row = tl.load(at)
        else:
            row = tl.load(at, mask=col + tl.arange(0, COLS) < n, other=0.0)
        value += row.to(tl.float32)[None, :]
    return value


# What a product reads and writes, as `product` has it.
Operands = namedtuple("Operands", "x weights residual out kept bias gate_bias squares new_squares")

# m, n, k; of the rows' sums of squares: how many tiles they come in, over how many numbers they go, and epsilon.
Sizes = namedtuple("Sizes", "m n k tiles count epsilon")


@triton.jit
def halves(x, ROWS: tl.constexpr, COLS: tl.constexpr):
    """x (ROWS, COLS) as its first columns and its last ones."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, COLS // 2)), (0, 2, 1)))


@triton.jit
def keep(T: tl.constexpr, tensors, value, place, row, col):
    """Store what gradients of an activation need, where they are asked for."""
    if tensors.kept is not None:
        tensors.kept.store([place, row, col], tl.reshape(value.to(tensors.kept.dtype), (1, T.rows, T.stored)))


@triton.jit
def finish(T: tl.constexpr, tensors, sizes, value, gating, row, col):
    """What follows a product, for columns that are stored at once."""
    rows, cols = row + tl.arange(0, T.rows), col + tl.arange(0, T.stored)
    value = with_bias(value, tensors.bias, col, sizes.n, T.stored, T.even)
    keep(T, tensors, value, 0, row, col)
    if T.gate is not None:
        gating = with_bias(gating, tensors.gate_bias, col, sizes.n, T.stored, T.even)
        keep(T, tensors, gating, 1, row, col)
        value *= activation(gating, T.activation)
    else:
        value = activation(value, T.activation)
    if tensors.residual is not None:
        value += tensors.residual.load([row, col]).to(tl.float32)
    value = value.to(tensors.out.dtype)
    if tensors.new_squares is not None:
        wide = tl.where(cols[None, :] < sizes.n, value.to(tl.float32), 0.0)
        at = tensors.new_squares + col // T.stored * sizes.m + rows
        tl.store(at, tl.sum(wide * wide, 1), mask=rows < sizes.m)
    tensors.out.store([row, col], value)


@triton.jit
def one_tile(T: tl.constexpr, tensors, sizes, row, col):
    """The tile of out that begins at row and col."""
    if T.gate == 0:
        gating, value = two_sums(T, tensors.x, tensors.weights, row, col, sizes.k)
    elif T.gate == 1:
        value, gating = two_sums(T, tensors.x, tensors.weights, row, col, sizes.k)
    else:
        value = sums(T, tensors.x, tensors.weights, 0, row, col, sizes.k)
        gating = value  # which nobody reads
    if tensors.squares is not None:
        rows = row + tl.arange(0, T.rows)
        scale = row_scale(tensors.squares, rows, sizes.m, sizes.tiles, sizes.count, sizes.epsilon)[:, None]
        value *= scale
        if T.gate is not None:
            gating *= scale
    if T.stored < T.cols:
        first, second = halves(value, T.rows, T.cols)
        gate_1, gate_2 = halves(gating, T.rows, T.cols)
        finish(T, tensors, sizes, first, gate_1, row, col)
        finish(T, tensors, sizes, second, gate_2, row, col + T.stored)
    else:
        finish(T, tensors, sizes, value, gating, row, col)


@triton.jit
def product(
    x, weights, residual, out, kept, bias, gate_bias, squares, new_squares, m, n, k, tiles, count, epsilon,
    ACTIVATION: tl.constexpr, GATE: tl.constexpr, BY_ROWS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    DEPTH: tl.constexpr, STORED: tl.constexpr, EVEN: tl.constexpr, GROUP: tl.constexpr, PERSISTENT: tl.constexpr,
):  # fmt: skip
    """Tiles of out (m, n); see `meaning.product`. x, weights, residual, out, kept: descriptors; None: without it.

    weights (places, n, k), or (places, k, n) BY_ROWS. There are two where GATE says which of them is the gate's. kept
    (1 or 2, m, n): takes `meaning.before`. bias, gate_bias (n,), squares (tiles, m): pointers. new_squares (tiles of n,
    m): takes sums of squares of out. EVEN: COLS divides n. PERSISTENT: a program computes tiles one after the other,
    and asks for the next one's factors before it is done.
    """
    T: tl.constexpr = Tiling(ROWS, COLS, DEPTH, BY_ROWS, STORED, EVEN, ACTIVATION, GATE)
    tensors = Operands(x, weights, residual, out, kept, bias, gate_bias, squares, new_squares)
    sizes = Sizes(m, n, k, tiles, count, epsilon)
    down, across = tl.cdiv(m, ROWS), tl.cdiv(n, COLS)
    if PERSISTENT:
        for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True):
            row, col = tile_of(tile, down, across, GROUP)
            one_tile(T, tensors, sizes, row * ROWS, col * COLS)
    else:
        row, col = tile_of(tl.program_id(0), down, across, GROUP)
        one_tile(T, tensors, sizes, row * ROWS, col * COLS)
