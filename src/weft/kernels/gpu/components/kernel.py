"""A tile of queries with all keys that they see, and batch rows one after the other. Functions of Triton.

What score functions add depends on no batch row, so it is read once. Products begin with it, divided by the scale. The
forward makes out and lse. Gradients are all made from one read of each tensor. Their sums for tables stay in registers
while batch rows are walked.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu.components import tables
from weft.kernels.gpu.ops import epilogue, loads, scores

SIZE, RECORD = tl.constexpr(tables.SIZE), tl.constexpr(tables.RECORD)
LOG2E = tl.constexpr(scores.LOG2E)


# Tensors as `ops.loads.Strided`, and numbers of rows (batch, heads, length) in float32; None where there are none.
# sums: for each read whose gradient is wanted (parts, heads, tiles, SIZE, SIZE).
Tensors = namedtuple("Tensors", "q k v out dout lse dlse dq dk dv sums")

# tables: see `components.tables`. per: batch rows of a program, of `batch`. heads, length: of queries.
Walk = namedtuple("Walk", "tables batch per heads length")

# Tokens at the places of a tile (SIZE,), and which places have one.
Rows = namedtuple("Rows", "token there")

# What a program has of its tile: a head, queries and keys.
Tile = namedtuple("Tile", "head q k")


@triton.jit
def forward(C: tl.constexpr, tensors, walk, scale, shift, captured):
    """Out and lse of a tile."""
    tile, start, _ = _begin(C, walk, scale, shift, captured)
    log2_scale = scale * LOG2E
    first = tl.program_id(2) * walk.per
    for n in range(tl.minimum(walk.per, walk.batch - first)):
        b = first + n
        member, q, k, v = _inputs(C, tensors, b, tile)
        s = tl.where(start == float("-inf"), float("-inf"), loads.products(C, q, k, start)) * log2_scale
        top = tl.max(s, 1)
        top = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp2(s - top[:, None])
        total = tl.sum(p, 1)
        acc = loads.accumulate(C, loads.zeros(C, C.dv), p.to(v[0].dtype), v)
        rest = epilogue.Rest(acc, top, total, total)
        tl.store(tensors.lse + _row(walk, b, tile), epilogue.lse_of(rest, True, False), mask=tile.q.there)
        _write(C, C.dv, tensors.out, member, tile.q, epilogue.output(rest))


@triton.jit
def gradients(C: tl.constexpr, tensors, walk, scale, shift, captured):
    """DQ, DK and DV of a tile, and sums for tables over the batch rows of a program."""
    tile, start, found = _begin(C, walk, scale, shift, captured)
    log2_scale = scale * LOG2E
    total = tl.zeros((SIZE, SIZE), tl.float32)
    first = tl.program_id(2) * walk.per
    for n in range(tl.minimum(walk.per, walk.batch - first)):
        b = first + n
        member, q, k, v = _inputs(C, tensors, b, tile)
        dout = _read(C, C.dv, tensors.dout, member, tile.q)
        out = _read(C, C.dv, tensors.out, member, tile.q)
        row = _row(walk, b, tile)
        lse = tl.load(tensors.lse + row, mask=tile.q.there, other=0.0)
        dlse = lse
        if C.lse_gradient:
            dlse = tl.load(tensors.dlse + row, mask=tile.q.there, other=0.0)
        seen = lse > float("-inf")
        delta = _row_sums(C, out, dout)
        if C.lse_gradient:
            delta -= tl.where(seen, dlse, 0.0)
        s = loads.products(C, q, k, start) * log2_scale - tl.where(seen, lse * LOG2E, 0.0)[:, None]
        p = tl.where(start == float("-inf"), 0.0, tl.exp2(s))
        ds = p * (loads.products(C, dout, v) - delta[:, None])
        ds = tl.where(p == 0, 0.0, ds)  # whatever lies in a key that a query does not see
        if len(C.entries) > 0:
            total += ds
        p, ds = p.to(q[0].dtype), ds.to(q[0].dtype)
        dv = loads.accumulate(C, loads.zeros(C, C.dv), tl.trans(p), dout)
        dk = loads.accumulate(C, loads.zeros(C, C.d), tl.trans(ds), q)
        dq = loads.accumulate(C, loads.zeros(C, C.d), ds, k)
        _write(C, C.dv, tensors.dv, member, tile.k, dv)
        _write(C, C.d, tensors.dk, member, tile.k, loads.scaled(dk, scale))
        _write(C, C.d, tensors.dq, member, tile.q, loads.scaled(dq, scale))
    if len(C.entries) > 0:
        _leave(C, tensors.sums, total, C.through(total, scores.others(found)))


# ---- what stays ------------------------------------------------------------------------------------------------------
@triton.jit
def _begin(C: tl.constexpr, walk, scale, shift, captured):
    """(the tile, what products begin with: -inf in dead pairs, what score functions gave)"""
    record, place = walk.tables + tl.program_id(0) * RECORD, tl.arange(0, SIZE)
    q, k = tl.load(record + place), tl.load(record + (SIZE + place))
    tile = Tile(tl.program_id(1), Rows(tl.maximum(q, 0), q >= 0), Rows(tl.maximum(k, 0), k >= 0))
    words = record + (2 * SIZE + 2 * place)
    word = tl.where((place < 32)[None, :], tl.load(words)[:, None], tl.load(words + 1)[:, None])
    live = ((word >> (place & 31)[None, :]) & 1) != 0
    found = C.score(SIZE, SIZE, tile.head * 0, tile.head, tile.q.token[:, None], tile.k.token[None, :], shift, captured)
    return tile, tl.where(live, found[0] * (1.0 / scale), float("-inf")), found


# ---- one batch row ---------------------------------------------------------------------------------------------------
@triton.jit
def _rows_of(C: tl.constexpr, tensor, member, rows):
    """Where rows lie in a tensor. member: the batch row and the head."""
    return loads.Block(loads.head_of(C, tensor, member[0], member[1]), rows.token * (tensor.row * C.unit))


@triton.jit
def _read(C: tl.constexpr, chunks, tensor, member, rows):
    """Rows of a tensor, in chunks; 0 where there are none."""
    return loads.load(C, chunks, tensor, _rows_of(C, tensor, member, rows), rows.there)


@triton.jit
def _inputs(C: tl.constexpr, tensors, b, tile):
    """(batch row and head, q, k, v) of a tile."""
    member = b.to(tl.int64), tile.head.to(tl.int64)
    q = _read(C, C.d, tensors.q, member, tile.q)
    k = _read(C, C.d, tensors.k, member, tile.k)
    v = _read(C, C.dv, tensors.v, member, tile.k)
    return member, q, k, v


@triton.jit
def _write(C: tl.constexpr, chunks, tensor, member, rows, values):
    loads.store(C, chunks, tensor, _rows_of(C, tensor, member, rows), values, rows.there)


@triton.jit
def _row(walk, b, tile):
    """Where numbers of queries lie."""
    return (b.to(tl.int64) * walk.heads + tile.head) * walk.length + tile.q.token


@triton.jit
def _row_sums(C: tl.constexpr, out, dout):
    found = tl.sum(out[0].to(tl.float32) * dout[0].to(tl.float32), 1)
    for n in tl.static_range(1, len(out)):
        found += tl.sum(out[n].to(tl.float32) * dout[n].to(tl.float32), 1)
    return found


@triton.jit
def _leave(C: tl.constexpr, sums, total, shares):
    """Store the sums of a program for each read. total: of gradients of scores. shares: what becomes of it before all
    functions, and then for each read.
    """
    number = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    place = tl.arange(0, SIZE)
    at = number.to(tl.int64) * (SIZE * SIZE) + place[:, None] * SIZE + place[None, :]
    for n in tl.static_range(len(sums)):
        tl.store(sums[n] + at, tl.where(total == 0, 0.0, shares[n + 1]))
