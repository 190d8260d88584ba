"""The kernel of delta: what a backward kernel that walks keys alone needs of each query, and zeros for its dQ."""

from collections import namedtuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from weft.kernels.gpu.ops import loads
from weft.kernels.gpu.tile import row_numbers
from weft.kernels.gpu.tile.places import rows_within

# What the kernel of delta reads, and dQ, which it fills with zeros. claimed: the counter of blocks, or None.
Tensors = namedtuple("Tensors", "out dout dq numbers claimed")


@triton.jit
def delta(C: tl.constexpr, tensors, all_heads, length, scale):
    """Blocks of queries of one head, then of the next."""
    if C.chained:
        gdc_launch_dependents()  # the kernel of dK and dV may begin where this one leaves room
    if tensors.claimed is not None:
        tl.store(tensors.claimed, 0, mask=tl.program_id(0) == 0)
    blocks = (length + C.rows - 1) // C.rows
    pair = tl.program_id(0) // blocks
    batch, head = (pair // all_heads).to(tl.int64), pair % all_heads
    rows = rows_within(tl.program_id(0) % blocks * C.rows, tl.arange(0, C.rows), length)
    dout_rows = loads.rows_of(C, tensors.dout, rows, batch, head.to(tl.int64))
    loaded = row_numbers.load_numbers(C, tensors.numbers, (batch * all_heads + head) * length + rows.token)
    dout = loads.load(C, C.dv, tensors.dout, dout_rows, None)
    out = loads.load(C, C.dv, tensors.out, loads.rows_of(C, tensors.out, rows, batch, head.to(tl.int64)), None)
    sums = row_numbers.delta_of(C, loaded, out, dout)
    row_numbers.leave_delta(C, tensors.numbers, loaded.row, sums, rows.valid)
    found = row_numbers.RowNumbers(loaded.row, row_numbers.lse_without_keys(C, loaded.lse, scale), sums)
    row_numbers.leave_stats(C, tensors.numbers, found, rows.valid, scale)
    loads.store(
        C,
        C.d,
        tensors.dq,
        loads.rows_of(C, tensors.dq, rows, batch, head.to(tl.int64)),
        loads.zeros(C, C.d),
        rows.valid,
    )
