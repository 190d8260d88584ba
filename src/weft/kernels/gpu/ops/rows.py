"""Kernels that move rows of tensors (batch, heads, rows, dim), by lists of places, and merge results over keys."""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu import constants

LOG2E, LN2 = tl.constexpr(constants.LOG2E), tl.constexpr(constants.LN2)

# A tensor: its pointer, and strides in units. UNIT is how many elements these count.
Rows = namedtuple("Rows", "pointer batch head row")

# Rows that are written, heads of a batch row, and rows of the first source, behind which the second one's come.
Sizes = namedtuple("Sizes", "rows heads border")


@triton.jit
def head_of(tensor, batch, head, UNIT: tl.constexpr):
    """Where a head begins."""
    return tensor.pointer + (batch * tensor.batch + head * tensor.head) * UNIT


@triton.jit
def rows_at(tensor, at, column, mask, base, UNIT: tl.constexpr):
    """Values (rows, width) of a head that begins at base; 0 where the mask is not."""
    where = base + (at.to(tl.int64) * tensor.row)[:, None] * UNIT + column[None, :]
    return tl.load(where, mask=mask, other=0.0)


@triton.jit
def place(sizes, C: tl.constexpr):
    """The numbers of a program's rows (block,), its batch row and its head."""
    blocks = (sizes.rows + (C.block - 1)) // C.block
    program = tl.program_id(0).to(tl.int64)
    number = program % blocks * C.block + tl.arange(0, C.block)
    return number, program // blocks // sizes.heads, program // blocks % sizes.heads


@triton.jit
def take(out, sources, lists, sizes, C: tl.constexpr, D: tl.constexpr):
    """Each row of out becomes the sum of rows of two sources, which a list names; a negative place is a row of zeros.

    lists: (places (rows, C.several), the rows of out that are written). C: a `weft.kernels.gpu.rows.Way`.
    """
    number, batch, head = place(sizes, C)
    column, valid = tl.arange(0, C.width), number < sizes.rows
    inside = valid[:, None] & (column < D)[None, :]
    first, second = sources
    bases = head_of(first, batch, head, C.unit), head_of(second, batch, head, C.unit)
    into = tl.load(lists[1] + number, mask=valid, other=0)
    to = head_of(out, batch, head, C.unit) + (into.to(tl.int64) * out.row)[:, None] * C.unit + column[None, :]
    if C.adds:
        total = tl.load(to, mask=inside, other=0.0).to(tl.float32)
    else:
        total = tl.zeros((C.block, C.width), tl.float32)
    for n in tl.static_range(C.several):
        at = tl.load(lists[0] + number * C.several + n, mask=valid, other=-1)
        near = inside & ((at >= 0) & (at < sizes.border))[:, None]
        far = inside & (at >= sizes.border)[:, None]
        value = rows_at(first, at, column, near, bases[0], C.unit).to(tl.float32)
        other = rows_at(second, at - sizes.border, column, far, bases[1], C.unit).to(tl.float32)
        total += tl.where(far, other, value)
    tl.store(to, total.to(out.pointer.dtype.element_ty), mask=inside)


@triton.jit
def merge(whole, others, lists, sizes, C: tl.constexpr, D: tl.constexpr):
    """Merge results of the same queries over other keys into rows of out and lse; rows without keys have lse -inf.

    whole: out and lse; others: those of rows one after the other. lists: the rows of out that each is.
    """
    out, lse = whole
    more, low = others
    number, batch, head = place(sizes, C)
    column, valid = tl.arange(0, C.width), number < sizes.rows
    inside = valid[:, None] & (column < D)[None, :]
    into = tl.load(lists + number, mask=valid, other=0).to(tl.int64)
    of_lse = head_of(lse, batch, head, 1) + into * lse.row
    mine = tl.load(of_lse, mask=valid, other=float("-inf"))
    theirs = tl.load(head_of(low, batch, head, 1) + number * low.row, mask=valid, other=float("-inf"))
    top = tl.maximum(mine, theirs)
    safe = tl.where(top == float("-inf"), 0.0, top)
    sum2 = tl.exp2((mine - safe) * LOG2E) + tl.exp2((theirs - safe) * LOG2E)
    total = tl.where(top == float("inf"), top, safe + tl.log2(sum2) * LN2)
    ours = tl.where(mine == float("-inf"), 0.0, tl.exp2((mine - total) * LOG2E))
    share = tl.where(theirs == float("-inf"), 0.0, tl.exp2((theirs - total) * LOG2E))
    to = head_of(out, batch, head, C.unit) + (into * out.row)[:, None] * C.unit + column[None, :]
    seen, known = theirs > float("-inf"), mine > float("-inf")
    other = rows_at(more, number, column, inside & seen[:, None], head_of(more, batch, head, C.unit), C.unit)
    value = tl.load(to, mask=inside & known[:, None], other=0.0).to(tl.float32)
    found = value * ours[:, None] + other.to(tl.float32) * share[:, None]
    tl.store(to, found.to(out.pointer.dtype.element_ty), mask=inside)
    tl.store(of_lse, total, mask=valid)
