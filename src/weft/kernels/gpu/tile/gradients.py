"""What kernels of gradients share: sums that are stored, or added to what earlier launches left."""

import triton
import triton.language as tl

from weft.kernels.gpu.ops.loads import columns, pointers, store


@triton.jit
def where_rows(rows, values):
    """A tile, and 0 in rows outside of a mask (rows,)."""
    found = ()
    for n in tl.static_range(len(values)):
        found += (tl.where(rows[:, None], values[n], 0.0),)
    return found


@triton.jit
def keep(C: tl.constexpr, chunks, tensor, block, values, rows):
    """Store a gradient; where launches meet the same rows, it is added to what earlier ones left, in float32."""
    if C.split:
        _add(C, chunks, tensor, block, values, rows)
    else:
        if C.accumulate:
            values = joined(C, chunks, tensor, block, values, rows)
        store(C, chunks, tensor, block, values, rows)


@triton.jit
def joined(C: tl.constexpr, chunks, tensor, block, values, rows):
    """A tile plus what lies at those rows of a tensor; rows: their mask (rows,)."""
    found, column = (), columns(chunks)
    for n in tl.static_range(len(chunks)):
        where, live = pointers(C, tensor, block, column[n][0]), column[n][1]
        inside = rows[:, None] & live if chunks[n][2] < chunks[n][1] else rows[:, None]
        found += (values[n] + tl.load(where, mask=inside, other=0.0),)
    return found


@triton.jit
def _add(C: tl.constexpr, chunks, tensor, block, values, rows):
    column = columns(chunks)
    for n in tl.static_range(len(chunks)):
        where, live = pointers(C, tensor, block, column[n][0]), column[n][1]
        inside = rows[:, None] & live if chunks[n][2] < chunks[n][1] else rows[:, None]
        tl.atomic_add(where, values[n], mask=inside, sem="relaxed")
