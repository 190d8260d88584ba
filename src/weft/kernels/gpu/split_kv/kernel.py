# ruff: noqa: PLR0913 - what a kernel is told
"""One share of the keys of a few rows: what a program of split-KV does. Functions of Triton.

The rows of a program are the query heads of one key/value head, for one token or several whose keys lie in the same
residue classes. They share every key that is read. A program takes an equal share of the tiles of keys of all terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from weft.kernels.gpu.ops.bounds import tanh
from weft.kernels.gpu.ops.loads import columns, products
from weft.kernels.gpu.ops.online_softmax import LOG2E, add_tile, finish, lse_2, no_keys
from weft.kernels.gpu.ops.vectors import exists, load_rows, store_rows
from weft.kernels.gpu.split_kv.bounds import BOUND, CLASSES, run_of, share
from weft.kernels.gpu.split_kv.rows import rows_of


class Config(NamedTuple):
    """What the code of a kernel depends on. rows, cols: of a tile. d, dv: chunks of both head dimensions.

    bounds: of a term on either side. steps: some bound is a step function. several: terms are walked in a loop. split:
    results are left to `combine`. upcast: operands go to float32. precision: of products, as `tl.dot` takes it.
    """

    rows: Any
    cols: Any
    d: Any
    dv: Any
    bounds: Any
    steps: Any
    several: Any
    split: Any
    upcast: Any
    precision: Any


class Scores(NamedTuple):
    """What scores become. softcap: a scalar; slopes, sinks: pointers; each None where there is none."""

    scale: Any
    softcap: Any = None
    slopes: Any = None
    sinks: Any = None


class Results(NamedTuple):
    """Where results go: out and lse; or a workspace with the lses of all shares, and from `sums` on their means."""

    out: Any = None
    lse: Any = None
    work: Any = None
    sums: Any = None


class Operands(NamedTuple):
    """What a program multiplies: queries as chunks (rows, width), and where keys and values of its head begin.

    slope (rows,): of ALiBi, in units of log2; None where there is none. d, dv: columns; c (cols,): places of a tile.
    """

    q: Any
    slope: Any
    k: Any
    v: Any
    d: Any
    dv: Any
    c: Any


class Head(NamedTuple):
    """Where a head begins, and its strides."""

    pointer: Any
    row: Any
    dim: Any


@triton.jit
def split_kv(C: tl.constexpr, q, k, v, deal, keys, scores, results):
    """The rows of a program against its share of their keys. q, k, v: `loads.Strided`. deal, keys: see `rows`."""
    rows = rows_of(deal, keys, C.rows)
    d, dv = columns(C.d), columns(C.dv)
    q_at = q.pointer + rows.batch * q.batch + rows.head.to(tl.int64) * q.head + rows.row.to(tl.int64) * q.row
    queries = load_rows(C, C.d, q_at, q.dim, d, rows.valid)
    slope = None
    if scores.slopes is not None:
        slope = tl.load(scores.slopes + rows.head, mask=rows.valid, other=0.0) * LOG2E
    softmax = no_keys(C, C.dv)
    k_at = k.pointer + rows.batch * k.batch + rows.kv_head * k.head
    v_at = v.pointer + rows.batch * v.batch + rows.kv_head * v.head
    k_head, v_head = Head(k_at, k.row, k.dim), Head(v_at, v.row, v.dim)
    operands = Operands(queries, slope, k_head, v_head, d, dv, tl.arange(0, C.cols))
    if C.several:
        softmax = walk_terms(C, softmax, rows, operands, deal, keys, scores)
    else:
        softmax = walk_term(C, softmax, rows, operands, deal, keys, scores)
    number = (rows.batch * deal.all_heads + rows.head) * deal.m + rows.row  # (rows,) among all rows
    if C.split:
        leave_share(C.dv, softmax, number * deal.splits + rows.split, rows, results, dv)
    else:
        write_rows(C.dv, softmax, number, rows, scores, results, dv)


# ---- walks over keys -------------------------------------------------------------------------------------------------
# Loops count from 0: Triton (3.6, 3.7) does not pipeline the loads of one that does not.
@triton.jit
def walk_term(C: tl.constexpr, softmax, rows, operands, deal, keys, scores):
    """The program's share of the only term."""
    run = run_of(C, rows, rows.terms)
    begin, end = share((run.count + (C.cols - 1)) // C.cols, rows.split, deal.splits)
    for j in range(end - begin):
        softmax = visit(C, softmax, begin + j, run, rows, operands, keys, scores)
    return softmax


@triton.jit
def walk_terms(C: tl.constexpr, softmax, rows, operands, deal, keys, scores):
    """Every term in turn, of which the tiles in [begin, end) of all terms belong to the share.

    One integer goes from term to term. Two that grow alike (begin - tiles, end - tiles) were right in Triton's first
    representation and not in its second, where one of them no longer changed (3.6.0, 3.7.1): terms were counted twice.
    """
    WORDS: tl.constexpr = CLASSES + 2 * BOUND * C.bounds
    all_tiles = 0
    for part in range(rows.count):
        run = run_of(C, rows, rows.terms + part * WORDS)
        all_tiles += (run.count + (C.cols - 1)) // C.cols
    begin, end = share(all_tiles, rows.split, deal.splits)
    before = 0  # tiles of the terms before
    for part in range(rows.count):
        run = run_of(C, rows, rows.terms + part * WORDS)
        tiles = (run.count + (C.cols - 1)) // C.cols
        mine = tl.maximum(begin - before, 0)
        for j in range(tl.minimum(end - before, tiles) - mine):
            softmax = visit(C, softmax, mine + j, run, rows, operands, keys, scores)
        before += tiles
    return softmax


@triton.jit
def visit(C: tl.constexpr, softmax, tile, run, rows, operands, keys, scores):
    """One tile of a run. Places beyond the run are read as its last one, and seen by no row."""
    x = tile * C.cols + operands.c
    token = (run.first + run.step * tl.minimum(x, run.count - 1)).to(tl.int64)
    place = token
    if keys.ring:
        place = token % keys.capacity
    k_head, v_head = operands.k, operands.v
    k = load_rows(C, C.d, k_head.pointer + place * k_head.row, k_head.dim, operands.d, None)
    v = load_rows(C, C.dv, v_head.pointer + place * v_head.row, v_head.dim, operands.dv, None)
    s = products(C, operands.q, k)
    if scores.softcap is not None:
        s = tanh(s * (scores.scale / scores.softcap)) * (scores.softcap * LOG2E)
    else:
        s = s * (scores.scale * LOG2E)
    if operands.slope is not None:
        apart = tl.abs((rows.row + rows.beside)[:, None] - token.to(tl.int32)[None, :])
        s -= operands.slope[:, None] * apart.to(tl.float32)
    s = tl.where((x[None, :] >= run.low[:, None]) & (x[None, :] < run.high[:, None]), s, float("-inf"))
    return add_tile(C, softmax, s, v)


# ---- results ---------------------------------------------------------------------------------------------------------
@triton.jit
def leave_share(DV: tl.constexpr, softmax, at, rows, results, columns):
    """A share's lses and means. at (rows,): which share among all of them. A share of no key has an lse only."""
    WIDTH: tl.constexpr = DV[len(DV) - 1][0] + DV[len(DV) - 1][2]
    lse = lse_2(softmax)
    tl.store(results.work + at, lse, mask=rows.valid)
    some = rows.valid & (softmax.row_sum != 0)  # NaN is something
    inverse = tl.where(some, 1.0 / softmax.row_sum, 0.0)
    for n in tl.static_range(len(DV)):
        means = (results.work + results.sums + at * WIDTH)[:, None] + columns[n][0][None, :]
        tl.store(means, softmax.acc[n] * inverse[:, None], mask=exists(DV[n], some, columns[n][1]))


@triton.jit
def write_rows(DV: tl.constexpr, softmax, number, rows, scores, results, columns):
    """Finished rows. number (rows,): among all rows."""
    sink, out = None, results.out
    if scores.sinks is not None:
        sink = tl.load(scores.sinks + rows.head, mask=rows.valid, other=0.0)
    acc, lse = finish(softmax, sink)
    tl.store(results.lse + number, lse, mask=rows.valid)
    at = out.pointer + rows.batch * out.batch + rows.head.to(tl.int64) * out.head + rows.row.to(tl.int64) * out.row
    store_rows(DV, at, out.dim, columns, acc, rows.valid)
