# ruff: noqa: PLR0913 - what a kernel is told
"""Query, key and value of attention in one launch, rotated and normed by head. Functions of Triton."""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu.gemm.fragments import by_head, flat
from weft.kernels.gpu.gemm.product import Tiling, halves, sums, tile_of, with_bias

# What rows are turned by. cos, sin: pointers to (batch rows or 1, length, d), or None. places (rows,): of all batch
# rows. stride: between batch rows of the tables, or 0. epsilon: of norms.
Turning = namedtuple("Turning", "cos sin places length stride epsilon")

# A head's dimensions: how many, and whether those that turn together are neighbours.
Heads = namedtuple("Heads", "d interleaved")


@triton.jit
def halves_of(H: tl.constexpr, pointer):
    """Numbers of the first and of the second dimension of pairs; pointer: to d of them, of any shape (..., 1)."""
    half = tl.arange(0, H.d // 2)[None, None, :]
    if H.interleaved:
        first, second = tl.load(pointer + 2 * half), tl.load(pointer + 2 * half + 1)
    else:
        first, second = tl.load(pointer + half), tl.load(pointer + half + H.d // 2)
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def finished(H: tl.constexpr, value, norm, turning, of_v, ROWS: tl.constexpr, HEADS: tl.constexpr):
    """value (ROWS, HEADS * d), normed by head where there is a norm, then turned where there are tables; of v as it is.

    There is no branch, since Triton joins the loops of tiles and of steps only where none follows.
    """
    first, second = by_head(value, ROWS, HEADS, H.d // 2, H.interleaved)
    if norm is not None:
        mean = (tl.sum(first * first, 2) + tl.sum(second * second, 2)) / H.d
        scale = tl.rsqrt(mean + turning.epsilon)[:, :, None]
        norm_1, norm_2 = halves_of(H, norm)
        first = tl.where(of_v, first, first * scale * norm_1)
        second = tl.where(of_v, second, second * scale * norm_2)
    if turning.cos is not None:
        at = (turning.places // turning.length * turning.stride + turning.places % turning.length * H.d)[:, None, None]
        cos_1, cos_2 = halves_of(H, turning.cos + at)
        sin_1, sin_2 = halves_of(H, turning.sin + at)
        turned = first * cos_1 - second * sin_1
        second = tl.where(of_v, second, second * cos_2 + first * sin_2)
        first = tl.where(of_v, first, turned)
    return flat(first, second, ROWS, HEADS, H.d // 2, H.interleaved)


# What the three products read and write; see `projections`.
Three = namedtuple("Three", "x weights out q_bias k_bias v_bias q_norm k_norm q_place k_place v_place m q_n kv_n depth")


@triton.jit
def store(T: tl.constexpr, H: tl.constexpr, three, turning, value, row, col):
    """Finish columns of q, k or v that are stored at once. col: of all columns."""
    of_q, of_v = col < three.q_n, col >= three.q_n + three.kv_n
    if three.q_bias is not None:
        at = col - tl.where(of_q, 0, tl.where(of_v, three.q_n + three.kv_n, three.q_n))
        bias = tl.where(of_q, three.q_bias, tl.where(of_v, three.v_bias, three.k_bias))
        value = with_bias(value, bias, at, three.q_n, T.stored, True)
    if turning.cos is not None or three.q_norm is not None:
        norm = three.q_norm
        if norm is not None:
            norm = tl.where(of_q, three.q_norm, three.k_norm)
        value = finished(H, value, norm, turning, of_v, T.rows, T.stored // H.d)
    three.out.store([row, col], value.to(three.out.dtype))


@triton.jit
def tile_of_three(T: tl.constexpr, H: tl.constexpr, three, tables, row, col):
    """The tile that begins at row and col, of all columns of q, then k, then v."""
    of_q, of_v = col < three.q_n, col >= three.q_n + three.kv_n
    place = tl.where(of_q, three.q_place, tl.where(of_v, three.v_place, three.k_place))
    at = col - tl.where(of_q, 0, tl.where(of_v, three.q_n + three.kv_n, three.q_n))
    value = sums(T, three.x, three.weights, place, row, at, three.depth)
    rows = tl.minimum(row + tl.arange(0, T.rows), three.m - 1)  # rows beyond the last are not stored
    turning = Turning(tables.cos, tables.sin, rows, tables.length, tables.stride, tables.epsilon)
    if T.stored < T.cols:
        first, second = halves(value, T.rows, T.cols)
        store(T, H, three, turning, first, row, col)
        store(T, H, three, turning, second, row, col + T.stored)
    else:
        store(T, H, three, turning, value, row, col)


@triton.jit
def projections(
    x, weights, out, q_bias, k_bias, v_bias, q_norm, k_norm, cos, sin, q_place, k_place, v_place, m, q_n, kv_n, depth,
    length, batch_stride, epsilon, D: tl.constexpr, INTERLEAVED: tl.constexpr, BY_ROWS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, STORED: tl.constexpr, GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr,
):  # fmt: skip
    """Tiles of out (m, q_n + 2 * kv_n), q beside k beside v: x, weights and out are descriptors, the rest pointers.

    weights: of all memory in which the three lie, each from its place on, so that one loop serves them. Biases (n,),
    norms (D,), cos and sin (batch rows or 1, length, D) or None, those of q, k and v together. batch_stride: of cos and
    sin, 0 where batch rows share them. STORED is a multiple of D, and COLS divides q_n and kv_n. PERSISTENT: as
    `product` has it.
    """
    T: tl.constexpr = Tiling(ROWS, COLS, DEPTH, BY_ROWS, STORED, True)
    H: tl.constexpr = Heads(D, INTERLEAVED)
    three = Three(
        x, weights, out, q_bias, k_bias, v_bias, q_norm, k_norm, q_place, k_place, v_place, m, q_n, kv_n, depth
    )
    tables = Turning(cos, sin, None, length, batch_stride, epsilon)
    down, across = tl.cdiv(m, ROWS), (q_n + 2 * kv_n) // COLS
    if PERSISTENT:
        for number in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True):
            row, tile = tile_of(number, down, across, GROUP)
            tile_of_three(T, H, three, tables, row * ROWS, tile * COLS)
    else:
        row, tile = tile_of(tl.program_id(0), down, across, GROUP)
        tile_of_three(T, H, three, tables, row * ROWS, tile * COLS)
