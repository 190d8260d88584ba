# ruff: noqa: PLR0913 - what a kernel is told
"""Query, key and value of attention in one launch, rotated and normed by head. Functions of Triton."""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu.gemm.fragments import by_head, flat
from weft.kernels.gpu.gemm.product import Tiling, sums, tile_of, with_bias

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
def finished(H: tl.constexpr, value, norm, turning, ROWS: tl.constexpr, HEADS: tl.constexpr):
    """value (ROWS, HEADS * d), normed by head where there is a norm, then turned where there are tables."""
    first, second = by_head(value, ROWS, HEADS, H.d // 2, H.interleaved)
    if norm is not None:
        mean = (tl.sum(first * first, 2) + tl.sum(second * second, 2)) / H.d
        scale = tl.rsqrt(mean + turning.epsilon)[:, :, None]
        norm_1, norm_2 = halves_of(H, norm)
        first, second = first * scale * norm_1, second * scale * norm_2
    if turning.cos is not None:
        at = (turning.places // turning.length * turning.stride + turning.places % turning.length * H.d)[:, None, None]
        cos_1, cos_2 = halves_of(H, turning.cos + at)
        sin_1, sin_2 = halves_of(H, turning.sin + at)
        first, second = first * cos_1 - second * sin_1, second * cos_2 + first * sin_2
    return flat(first, second, ROWS, HEADS, H.d // 2, H.interleaved)


@triton.jit
def projections(
    x, weights, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, cos, sin, q_place, k_place, v_place, m, q_n, kv_n,
    depth, length, batch_stride, epsilon, D: tl.constexpr, INTERLEAVED: tl.constexpr, BY_ROWS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of q (m, q_n), or of k or v (m, kv_n): x, weights and results are descriptors, the rest pointers.

    weights: of all memory in which the three lie, each from its place on, so that one loop serves them. Biases (n,),
    norms (D,), cos and sin (batch rows or 1, length, D) or None. batch_stride: of cos and sin, 0 where batch rows share
    them. COLS is a multiple of D, and divides q_n and kv_n.
    """
    T: tl.constexpr = Tiling(ROWS, COLS, DEPTH, BY_ROWS)
    H: tl.constexpr = Heads(D, INTERLEAVED)
    down, q_tiles, kv_tiles = tl.cdiv(m, ROWS), q_n // COLS, kv_n // COLS
    row_tile, tile = tile_of(tl.program_id(0), down, q_tiles + 2 * kv_tiles, GROUP)
    row = row_tile * ROWS
    of_q, of_k = tile < q_tiles, tile < q_tiles + kv_tiles
    col = (tile - tl.where(of_q, 0, tl.where(of_k, q_tiles, q_tiles + kv_tiles))) * COLS
    place = tl.where(of_q, q_place, tl.where(of_k, k_place, v_place))
    value = sums(T, x, weights, place, row, col, depth)
    places = tl.minimum(row + tl.arange(0, ROWS), m - 1)  # rows beyond the last are not stored
    turning = Turning(cos, sin, places, length, batch_stride, epsilon)
    if of_q:
        value = with_bias(value, q_bias, col, q_n, COLS)
        if cos is not None or q_norm is not None:
            value = finished(H, value, q_norm, turning, ROWS, COLS // D)
        q.store([row, col], value.to(q.dtype))
    elif of_k:
        value = with_bias(value, k_bias, col, kv_n, COLS)
        if cos is not None or k_norm is not None:
            value = finished(H, value, k_norm, turning, ROWS, COLS // D)
        k.store([row, col], value.to(k.dtype))
    else:
        value = with_bias(value, v_bias, col, kv_n, COLS)
        v.store([row, col], value.to(v.dtype))
