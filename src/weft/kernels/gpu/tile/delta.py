"""The kernel of delta: what a backward kernel that walks keys alone needs of each query, and zeros for its dQ."""

from typing import NamedTuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from weft.kernels.gpu.ops.loads import Strided, load, rows_of, store, zeros
from weft.kernels.gpu.tile.place import rows_within
from weft.kernels.gpu.tile.row_numbers import (
    Numbers,
    RowNumbers,
    delta_of,
    leave_delta,
    leave_stats,
    load_numbers,
    lse_without_keys,
)


class Tensors(NamedTuple):
    """What the kernel of delta reads, and dQ, which it fills with zeros."""

    out: Strided
    dout: Strided
    dq: Strided
    numbers: Numbers


@triton.jit
def delta(C: tl.constexpr, tensors, all_heads, length, scale):
    """Blocks of queries of one head, then of the next."""
    if C.chained:
        gdc_launch_dependents()  # the kernel of dK and dV may begin where this one leaves room
    blocks = (length + C.rows - 1) // C.rows
    pair = tl.program_id(0) // blocks
    batch, head = (pair // all_heads).to(tl.int64), pair % all_heads
    rows = rows_within(tl.program_id(0) % blocks * C.rows, tl.arange(0, C.rows), length)
    dout_rows = rows_of(C, tensors.dout, rows, batch, head.to(tl.int64))
    loaded = load_numbers(C, tensors.numbers, (batch * all_heads + head) * length + rows.token)
    dout = load(C, C.dv, tensors.dout, dout_rows, None)
    out = load(C, C.dv, tensors.out, rows_of(C, tensors.out, rows, batch, head.to(tl.int64)), None)
    sums = delta_of(C, loaded, out, dout)
    leave_delta(C, tensors.numbers, loaded.row, sums, rows.valid)
    found = RowNumbers(loaded.row, lse_without_keys(C, loaded.lse, scale), sums)
    leave_stats(C, tensors.numbers, found, rows.valid, scale)
    store(C, C.d, tensors.dq, rows_of(C, tensors.dq, rows, batch, head.to(tl.int64)), zeros(C, C.d), rows.valid)
