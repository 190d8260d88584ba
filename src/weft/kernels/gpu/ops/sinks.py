"""Kernels of sinks beside attention's own: they join finished rows, and their gradient is a sum over rows."""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu import constants

LOG2E, LN2 = tl.constexpr(constants.LOG2E), tl.constexpr(constants.LN2)


# sinks: one number for each head. lse, delta: (batch, heads, length), with the sinks in lse.
Numbers = namedtuple("Numbers", "sinks lse delta")

# Batch rows, or rows of all batches and heads; heads; rows of one.
Sizes = namedtuple("Sizes", "batch heads length")


@triton.jit
def gradient(numbers, sums, sizes, TILE: tl.constexpr):
    """Leave in sums (heads, parts) the sum of -(share of the sink in a row) * delta over a part of a head's rows."""
    head, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sink = tl.load(numbers.sinks + head)
    number = tl.arange(0, TILE)
    tiles = (sizes.length + (TILE - 1)) // TILE  # of a batch row
    total = tl.zeros((TILE,), tl.float32)
    for tile in range(part, sizes.batch * tiles, parts):
        row = tile % tiles * TILE + number
        at = ((tile // tiles).to(tl.int64) * sizes.heads + head) * sizes.length
        lse = tl.load(numbers.lse + at + row, mask=row < sizes.length, other=float("-inf"))
        delta = tl.load(numbers.delta + at + row, mask=row < sizes.length, other=0.0)
        share = tl.exp2(tl.minimum((sink - lse) * LOG2E, 0.0))  # of the sink in its sum; lse is rounded
        total += tl.where(lse == float("-inf"), 0.0, share * delta)  # a row without keys or sink has none
    tl.store(sums + head * parts + part, -tl.sum(total, 0))


@triton.jit
def gradient_sum(sums, total, parts, PROGRAMS: tl.constexpr):
    """Add the sums of each head (heads, parts) in one order."""
    head = tl.program_id(0)
    part = tl.arange(0, PROGRAMS)
    found = tl.load(sums + head * parts + part, mask=part < parts, other=0.0)
    tl.store(total + head, tl.sum(found, 0))


@triton.jit
def join(out, lse, sinks, sizes, ROWS: tl.constexpr, chunks):
    """Add sinks to finished rows: lse gains them, and out (`ops.loads.Strided`) is scaled by what remains of a row.

    sizes.batch counts all rows. chunks: of the head dimension of out.
    """
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = number < sizes.batch
    row, head = number % sizes.length, number // sizes.length % sizes.heads
    batch = number // sizes.length // sizes.heads
    before = tl.load(lse + number, mask=valid, other=float("-inf"))
    sink = tl.load(sinks + head, mask=valid, other=float("-inf"))
    top = tl.maximum(before, sink)
    safe = tl.where(top == float("-inf"), 0.0, top)
    sum2 = tl.exp2((before - safe) * LOG2E) + tl.exp2((sink - safe) * LOG2E)
    total = tl.where(top == float("inf"), top, safe + tl.log2(sum2) * LN2)
    share = tl.where(before == float("-inf"), 0.0, tl.exp2((before - total) * LOG2E))
    at = out.pointer + batch * out.batch + head * out.head + row * out.row
    for n in tl.static_range(len(chunks)):
        column = chunks[n][0] + tl.arange(0, chunks[n][1])
        inside = valid[:, None] & (column < chunks[n][0] + chunks[n][2])[None, :]
        where = at[:, None] + column[None, :] * out.dim
        value = tl.load(where, mask=inside, other=0.0).to(tl.float32) * share[:, None]
        tl.store(where, value.to(out.pointer.dtype.element_ty), mask=inside)
    tl.store(lse + number, total, mask=valid)
