# ruff: noqa: PLR0913 - what a kernel is told
"""What programs of sinks do. Functions of Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.gpu.ops.loads import columns
from weft.kernels.gpu.ops.online_softmax import LN2, LOG2E
from weft.kernels.gpu.ops.vectors import exists
from weft.kernels.gpu.sinks import sizes

TILE, PROGRAMS, JOINED = (tl.constexpr(x) for x in (sizes.TILE, sizes.PROGRAMS, sizes.JOINED))


@triton.jit
def sink_gradient(Sinks, Lse, Delta, Sums, batch, heads, length):
    """A part of a head: the sum of -(share of the sink in a row) * delta over its tiles of rows."""
    head, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sink = tl.load(Sinks + head)
    r = tl.arange(0, TILE)
    tiles = (length + (TILE - 1)) // TILE  # of a batch row
    total = tl.zeros((TILE,), tl.float32)
    for tile in range(part, batch * tiles, parts):
        row = tile % tiles * TILE + r
        rows_at = ((tile // tiles).to(tl.int64) * heads + head) * length
        lse = tl.load(Lse + rows_at + row, mask=row < length, other=float("-inf"))
        delta = tl.load(Delta + rows_at + row, mask=row < length, other=0.0)
        share = tl.exp2(tl.minimum((sink - lse) * LOG2E, 0.0))  # of the sink in its sum; lse is rounded
        total += tl.where(lse == float("-inf"), 0.0, share * delta)  # a row without keys or sink has none
    tl.store(Sums + head * parts + part, -tl.sum(total, 0))


@triton.jit
def sink_gradient_sum(Sums, Total, parts):
    """The sums of a head's parts, added in one order."""
    head = tl.program_id(0)
    part = tl.arange(0, PROGRAMS)
    sums = tl.load(Sums + head * parts + part, mask=part < parts, other=0.0)
    tl.store(Total + head, tl.sum(sums, 0))


@triton.jit
def join_sinks(DV: tl.constexpr, Sinks, Lse, out, rows, heads, length):
    """Finished rows with their sinks: lse gains them, out is scaled. rows: of all heads; out: a `loads.Strided`."""
    number = tl.program_id(0).to(tl.int64) * JOINED + tl.arange(0, JOINED)
    valid = number < rows
    row, head = number % length, number // length % heads
    batch = number // length // heads
    lse = tl.load(Lse + number, mask=valid, other=float("-inf"))
    sink = tl.load(Sinks + head, mask=valid, other=float("-inf"))
    top = tl.maximum(lse, sink)
    safe = tl.where(top == float("-inf"), 0.0, top)
    sum2 = tl.exp2((lse - safe) * LOG2E) + tl.exp2((sink - safe) * LOG2E)
    total = tl.where(top == float("inf"), top, safe + tl.log2(sum2) * LN2)
    share = tl.where(lse == float("-inf"), 0.0, tl.exp2((lse - total) * LOG2E))
    at = out.pointer + batch * out.batch + head * out.head + row * out.row
    dv = columns(DV)
    for n in tl.static_range(len(DV)):
        here, mask = at[:, None] + dv[n][0][None, :] * out.dim, exists(DV[n], valid, dv[n][1])
        found = tl.load(here, mask=mask, other=0.0).to(tl.float32) * share[:, None]
        tl.store(here, found.to(at.dtype.element_ty), mask=mask)
    tl.store(Lse + number, total, mask=valid)
