"""Rows of tensors wherever they lie, in Triton: pointers (rows,) instead of tiles counted from their first row.

Chunks, columns and C are those of `loads`. Columns are made once by who calls, and given to each load and store.
"""

import triton
import triton.language as tl

from weft.kernels.gpu.ops.loads import read


@triton.jit
def load_rows(C: tl.constexpr, chunks, at, dim, columns, rows):
    """Rows that begin at pointers `at`, as a tile; rows: which of them are read, (rows,), or None for all."""
    found = ()
    for n in tl.static_range(len(chunks)):
        mask = None if rows is None else rows[:, None]
        found += (read(C, chunks[n], at[:, None] + columns[n][0][None, :] * dim, mask, columns[n][1]),)
    return found


@triton.jit
def exists(chunk, rows, live):
    """Which numbers of a chunk there are, (rows, width). rows: a mask (rows,)."""
    return rows[:, None] & live if chunk[2] < chunk[1] else rows[:, None]


@triton.jit
def store_rows(chunks, at, dim, columns, values, rows):
    """Store a tile to those rows that begin at pointers `at`; rows: their mask (rows,)."""
    for n in tl.static_range(len(chunks)):
        mask = exists(chunks[n], rows, columns[n][1])
        tl.store(at[:, None] + columns[n][0][None, :] * dim, values[n].to(at.dtype.element_ty), mask=mask)
