"""What kernels by warp groups that specialise have in common. Functions of Gluon, inlined into emitted kernels.

tensors: (pointer, strides of batch, head and row in 16 bytes). tables: (Tables, record, parts_at, items_at, heads_at,
blocks_at, blocks), see `weft.kernels.gpu.tables.pack`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from weft.kernels.gpu.ops.bounds import positions
from weft.kernels.gpu.tables import pack

UNIT, TILE = gl.constexpr(8), gl.constexpr(64)  # elements in 16 bytes; queries of a tile
MEMBER, PART = gl.constexpr(pack.HEAD), gl.constexpr(pack.PART)
LOG2E = gl.constexpr(1.4426950408889634)
# Of a part's numbers those that `bounds` takes: step, length, the step's reciprocal, and two clipped lines.
LINES = pack.PART + pack.AXIS
OF_BOUNDS = gl.constexpr((*(pack.PART + n for n in (0, 2, 4, 5)), *(LINES + n for n in (0, 3, 4, 5, 16, 19, 20, 21))))


@gluon.jit
def live(x):
    """x, of which nothing is known: Triton 3.6 drops a carried scalar that only bounds a loop, and keeps its first."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def turn(i, STAGES: gl.constexpr):
    """How often the ring was full before tile i, as its barriers count: 0 or 1."""
    return ((i & STAGES) != 0).to(gl.int32)


@gluon.jit
def skip(count, i, full, empty, STAGES: gl.constexpr):
    """Pass over tiles that others see: waited for too, because who arrives early is counted for the tile before."""
    for _ in range(0, count):
        mbarrier.wait(full.index(i & (STAGES - 1)), turn(i, STAGES))
        mbarrier.arrive(empty.index(i & (STAGES - 1)), count=1)
        i += 1
    return i


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """So many, each with so many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for x in gl.static_range(COUNT):
        mbarrier.init(made.index(x), count=ARRIVALS)
    return made


# ---- where things are ------------------------------------------------------------------------------------------------
@gluon.jit
def block_at(number, tables):
    """(item, member) of a program's block, or beyond the last one of that; see `tables.tile_scheduler`."""
    at = tables[0] + tables[5] + 2 * gl.minimum(number, tables[6] - 1)
    return gl.load(at), gl.load(at + 1)


@gluon.jit
def places_of(tables, where):
    """Where the numbers of a block's member and of its item are."""
    Tables, record, _, items_at, heads_at, _, _ = tables
    item, member = where
    return Tables + heads_at + MEMBER * member, Tables + items_at + record * item


@gluon.jit
def numbers(tables, where):
    """Of a block, see `places_of`: (batch row, head of keys, of queries, first row, rows, first query,
    queries).
    """
    member, mine = places_of(tables, where)
    return (
        gl.load(member), gl.load(member + 1), gl.load(member + 2), gl.load(mine), gl.load(mine + 1), gl.load(mine + 2),
        gl.load(mine + 3),
    )  # fmt: skip


@gluon.jit
def head_of(tensor, batch, head, row):
    """Where a row of a head begins."""
    pointer, per_batch, per_head, per_row = tensor
    return pointer + (batch.to(gl.int64) * per_batch + head.to(gl.int64) * per_head + row.to(gl.int64) * per_row) * UNIT


@gluon.jit
def axis_of(here):
    """The numbers of `bounds`, read once."""
    return (
        gl.load(here + OF_BOUNDS[0]), gl.load(here + OF_BOUNDS[1]), gl.load(here + OF_BOUNDS[2]),
        gl.load(here + OF_BOUNDS[3]), gl.load(here + OF_BOUNDS[4]), gl.load(here + OF_BOUNDS[5]),
        gl.load(here + OF_BOUNDS[6]), gl.load(here + OF_BOUNDS[7]), gl.load(here + OF_BOUNDS[8]),
        gl.load(here + OF_BOUNDS[9]), gl.load(here + OF_BOUNDS[10]), gl.load(here + OF_BOUNDS[11]),
    )  # fmt: skip


@gluon.jit
def bounds(axis, i, first, count):
    """Positions among the walked from `first` on that rows i see, the first and the one after the last; as `lines` of
    `weft.kernels.gpu.ops.bounds`, whose numbers were read before.
    """
    step, length, inverse, digits, rise, base, least, most, rise_to, base_to, least_to, most_to = axis
    low = gl.maximum(gl.minimum(gl.maximum(i * rise + base, least), most), 0)
    high = gl.minimum(gl.minimum(gl.maximum(i * rise_to + base_to, least_to), most_to), length)
    low = positions(low, first, step, inverse, digits)
    return low, gl.minimum(positions(high, first, step, inverse, digits), count)


# ---- computing -------------------------------------------------------------------------------------------------------
@gluon.jit
def bits_from(x):
    """Of the columns that a thread has of a row, 8 * (k // 2) + k % 2, the bits k of those from x on."""
    x = gl.minimum(gl.maximum(x, 0), TILE)
    count = 2 * (x >> 3) + gl.minimum(x & 7, 2)
    return gl.inline_asm_elementwise("shl.b32 $0, -1, $1;", "=r,r", [count], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def seen(low, high, columns):
    """(words, bits) to be and-ed: where low <= column < high. Predicates are made of words seven at a time."""
    lane = gl.expand_dims(columns & 6, 0)
    bit = gl.expand_dims(1 << (((columns >> 3) << 1) | (columns & 1)), 0)
    low, high = gl.expand_dims(low, 1) - lane, gl.expand_dims(high, 1) - lane
    return gl.broadcast(bits_from(low) & ~bits_from(high), bit)


@gluon.jit
def masked(x, words, bit, other):
    """x where it is seen, else another number."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; and.b32 t, $2, $3; setp.ne.s32 p, t, 0; selp.f32 $0, $1, $4, p; }",
        "=f,f,r,r,f", [x, words, bit, other], dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def in_parts(p):
    """Sums of a row in parts, one of each thread that has a part of it."""
    return gl.sum(gl.sum(gl.reshape(p, [64, 8, 4, 2]), 3), 1)
