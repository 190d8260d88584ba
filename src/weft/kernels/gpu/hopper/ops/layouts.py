"""Layouts of tiles in registers and in shared memory, and the memory itself."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

WARPS = gl.constexpr(4)  # of a warp group
LANES = gl.constexpr(32)  # of a warp
VECTOR = 8  # elements of 16 bits that a thread copies at once
SWIZZLED = 32  # float32 of a row in the 128 bytes that a descriptor swizzles


@gluon.constexpr_function
def accumulator(columns):  # type: ignore[no-untyped-def]
    """A warp group's sums of a product with so many columns."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, columns, 16])


@gluon.constexpr_function
def first_factor(columns):  # type: ignore[no-untyped-def]
    """The first factor of a product with so many columns, in registers."""
    return gl.DotOperandLayout(operand_index=0, parent=accumulator(columns), k_width=2)


@gluon.constexpr_function
def by_rows(columns, warps):  # type: ignore[no-untyped-def]
    """Rows of 16 bits for copies to and from global memory, VECTOR elements a thread."""
    threads = min(columns // VECTOR, LANES)
    return gl.BlockedLayout([1, VECTOR], [LANES // threads, threads], [warps, 1], [1, 0])


@gluon.constexpr_function
def line(per_thread, warps):  # type: ignore[no-untyped-def]
    """One number a thread, or several that follow each other."""
    return gl.BlockedLayout([per_thread], [LANES], [warps], [0])


@gluon.constexpr_function
def flat(rank):  # type: ignore[no-untyped-def]
    """Numbers in shared memory, in order."""
    return gl.SwizzledSharedLayout(1, 1, 1, list(reversed(range(rank))))


@gluon.constexpr_function
def exchanged(rows, columns):  # type: ignore[no-untyped-def]
    """Where a product's rows of float32 lie in a box as descriptors swizzle it, if odd rows have the halves of each
    SWIZZLED columns exchanged. Then threads store pairs of sums to banks of their own; without, two meet in each bank.
    """
    swizzled = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 4 + 16], [2, 8], [4, 16]]  # 8 rows of 128 bytes
    down = [[8 << n, 0] for n in range((rows // 8).bit_length() - 1)]
    across = [[0, SWIZZLED << n] for n in range((columns // SWIZZLED).bit_length() - 1)]
    return gl.SharedLinearLayout(swizzled + down + across, alignment=1024)


@gluon.jit
def sides(ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr):
    """The numbers of a tile's rows, and those of its columns. layout: the tile's."""
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    return rows, gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))


@gluon.jit
def zeros(ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """What sums of products with so many columns begin with."""
    return gl.zeros([ROWS, COLUMNS], gl.float32, accumulator(COLUMNS))


@gluon.jit
def odd_rows_exchanged(x):
    """x (rows, columns) with the halves of each 32 columns of odd rows exchanged: see `exchanged`."""
    ROWS: gl.constexpr = x.type.shape[0]
    COLUMNS: gl.constexpr = x.type.shape[1]
    parts = gl.permute(gl.reshape(x, [ROWS, COLUMNS // 32, 2, 16]), (0, 1, 3, 2))
    low, high = gl.split(parts)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, gl.SliceLayout(2, low.type.layout)))
    odd = gl.expand_dims(gl.expand_dims(row & 1, 1), 2) != 0
    parts = gl.join(gl.where(odd, high, low), gl.where(odd, low, high))
    return gl.convert_layout(gl.reshape(gl.permute(parts, (0, 1, 3, 2)), [ROWS, COLUMNS]), x.type.layout)


@gluon.jit
def tiles(dtype: gl.constexpr, COUNT: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Shared memory for so many tiles, as products read them."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], dtype)
    return gl.allocate_shared_memory(dtype, [COUNT, ROWS, WIDTH], layout)


@gluon.jit
def boxes(box, COUNT: gl.constexpr):
    """Shared memory for so many boxes of a tensor descriptor."""
    shape: gl.constexpr = box.block_type.shape
    return gl.allocate_shared_memory(box.dtype, [COUNT, shape[0], shape[1], shape[2], shape[3], shape[4]], box.layout)


@gluon.jit
def matrix(box):
    """A box (1, 1, rows, 1, dims) as products read it; or one of a grid, whose rows are the product of its sides."""
    shape: gl.constexpr = box.type.shape
    return box.reshape([shape[0] * shape[1] * shape[2] * shape[3], shape[4]])


@gluon.jit
def marks(memory, COUNT: gl.constexpr, ROWS: gl.constexpr):
    """A number for each row of so many consumers, in memory of integers that has room for them."""
    return memory._reinterpret(gl.int32, [COUNT, ROWS, 1], flat(2))
