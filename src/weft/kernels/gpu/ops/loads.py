"""Loads, stores and products in Triton: tensors by their strides, head dimensions in chunks.

C is a `weft.kernels.gpu.tile.config.Config`. A chunk is (first, width, live): its first column, its width, which is
a power of 2, and how many of its columns exist. A tile of a tensor is a tuple with one block of values for each chunk.
"""

from collections import namedtuple

import triton
import triton.language as tl

# A tensor (batch, head, row, dim): its pointer and its strides. They count in `C.unit` elements.
Strided = namedtuple("Strided", "pointer batch head row dim")

# Rows of a tensor: where they are counted from, and how far each lies from there (rows,), in elements.
Block = namedtuple("Block", "pointer inside")

# One head of a tensor whose rows are walked. pointer: where it begins. inside: how far each row of a tile, (rows, 1) or
# transposed, lies from the tile's first row, unless tiles differ in that. columns: of its head dimension.
Walked = namedtuple("Walked", "tensor pointer inside columns")


# ---- where things lie ------------------------------------------------------------------------------------------------
@triton.jit
def columns(chunks):
    """Of each chunk its columns (width,), and which of them exist (1, width)."""
    found = ()
    for n in tl.static_range(len(chunks)):
        column = chunks[n][0] + tl.arange(0, chunks[n][1])
        found += ((column, (column < chunks[n][0] + chunks[n][2])[None, :]),)
    return found


@triton.jit
def head_of(C: tl.constexpr, tensor, batch, head):
    """Where a head begins; batch and head have 64 bits."""
    return tensor.pointer + (batch * tensor.batch + head * tensor.head) * C.unit


@triton.jit
def token_at(C: tl.constexpr, tensor, token):
    """How far a token lies from where its head begins."""
    return token.to(tl.int64) * tensor.row * C.unit


@triton.jit
def tile_at(C: tl.constexpr, tensor, token):
    """How far the first token of a tile lies from where its head begins."""
    if C.wide_rows:
        at = token.to(tl.int64) * (tensor.row.to(tl.int64) * C.unit)
    else:
        at = token_at(C, tensor, token)
    return at


@triton.jit
def reach(C: tl.constexpr, tensor, tokens, step):
    """How far so many steps of tokens reach inside a tile: 32 bits suffice where rows are aligned."""
    if C.aligned:
        far = tokens * (step * (tensor.row * C.unit))
    else:
        far = (tokens * step).to(tl.int64) * tensor.row
    return far


@triton.jit
def rows_of(C: tl.constexpr, tensor, rows, batch, head):
    """The rows of a tile (`weft.kernels.gpu.tile.places.Rows`) in one head of a tensor."""
    return Block(head_of(C, tensor, batch, head), token_at(C, tensor, rows.token))


@triton.jit
def near_rows_of(C: tl.constexpr, tensor, rows, batch, head):
    """The same, counted in 32 bits from the first row of the tile where the configuration says that they suffice."""
    if C.near_rows:
        first = batch * tensor.batch + head * tensor.head + rows.first.to(tl.int64) * tensor.row
        block = Block(tensor.pointer + first * C.unit, reach(C, tensor, rows.near, 1))
    else:
        block = rows_of(C, tensor, rows, batch, head)
    return block


@triton.jit
def pointers(C: tl.constexpr, tensor, block, column):
    """Of rows (rows,) and of the columns of a chunk: (rows, width)."""
    if C.aligned:
        found = block.pointer + (block.inside[:, None] + column[None, :])
    else:
        found = block.pointer + (block.inside[:, None] + column[None, :] * tensor.dim)
    return found


# ---- loads and stores ------------------------------------------------------------------------------------------------
@triton.jit
def read(C: tl.constexpr, chunk, where, rows, live):
    """What lies at pointers (rows, width). Rows outside of their mask (rows, 1), which may be None, give 0; so do
    columns that do not exist.
    """
    if rows is None:
        value = tl.load(where, mask=live, other=0.0) if chunk[2] < chunk[1] else tl.load(where)
    else:
        value = tl.load(where, mask=rows & live if chunk[2] < chunk[1] else rows, other=0.0)
    return value.to(tl.float32) if C.upcast else value


@triton.jit
def load(C: tl.constexpr, chunks, tensor, block, rows):
    """A tile of those rows of a tensor; rows: their mask (rows,), or None. Others are 0."""
    found, column = (), columns(chunks)
    for n in tl.static_range(len(chunks)):
        mask = None if rows is None else rows[:, None]
        found += (read(C, chunks[n], pointers(C, tensor, block, column[n][0]), mask, column[n][1]),)
    return found


@triton.jit
def store(C: tl.constexpr, chunks, tensor, block, values, rows):
    """Store a tile to those rows of a tensor; rows: their mask (rows,), or None."""
    column = columns(chunks)
    for n in tl.static_range(len(chunks)):
        where, live = pointers(C, tensor, block, column[n][0]), column[n][1]
        value = values[n].to(tensor.pointer.dtype.element_ty)
        if rows is None:
            if chunks[n][2] < chunks[n][1]:
                tl.store(where, value, mask=live)
            else:
                tl.store(where, value)
        else:
            tl.store(where, value, mask=rows[:, None] & live if chunks[n][2] < chunks[n][1] else rows[:, None])


# ---- products --------------------------------------------------------------------------------------------------------
@triton.jit
def dot(C: tl.constexpr, a, b, start=None):
    """start + a (rows, d) @ b (d, cols), float32."""
    if C.precision is None:
        product = tl.dot(a, b, start)
    else:
        product = tl.dot(a, b, start, input_precision=C.precision)
    return product


@triton.jit
def products(C: tl.constexpr, a, b, start=None):
    """start + the sum over chunks of a (rows, d) @ b (cols, d) transposed: (rows, cols)."""
    found = dot(C, a[0], tl.trans(b[0]), start)
    for n in tl.static_range(1, len(a)):
        found = dot(C, a[n], tl.trans(b[n]), found)
    return found


@triton.jit
def accumulate(C: tl.constexpr, sums, weights, values):
    """sums (rows, d) + weights (rows, cols) @ values (cols, d), chunk by chunk."""
    found = ()
    for n in tl.static_range(len(sums)):
        found += (dot(C, weights, values[n], sums[n]),)
    return found


@triton.jit
def zeros(C: tl.constexpr, chunks):
    """A tile of zeros, float32."""
    found = ()
    for n in tl.static_range(len(chunks)):
        found += (tl.zeros((C.rows, chunks[n][1]), tl.float32),)
    return found


@triton.jit
def scaled(values, factor):
    """A tile times a number, or times one for each row (rows, 1)."""
    found = ()
    for n in tl.static_range(len(values)):
        found += (values[n] * factor,)
    return found


@triton.jit
def nothing(C: tl.constexpr, width: tl.constexpr, dtype: tl.constexpr):
    """Zeros (rows, width) of float32 that Triton lays out as it does results of products.

    What is added to them is laid out so once, outside the loop over tiles. A product with it on the left then takes it
    from registers instead of reading it from shared memory in each tile (benchmarks/notes/triton.md, T39).
    """
    return tl.dot(tl.zeros((C.rows, 16), dtype), tl.zeros((16, width), dtype))


@triton.jit
def hold(C: tl.constexpr, values):
    """A tile that stays, laid out as products leave their results."""
    found = ()
    for n in tl.static_range(len(values)):
        one = values[n]
        found += ((nothing(C, one.shape[1], one.dtype) + one).to(one.dtype),)
    return found
