"""Where a program works: its launch, the head that it works for, and the rows of its tile."""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu.tables import pack

HEAD = tl.constexpr(pack.HEAD)


# What all programs of a launch are told: integers, and the tables that hold the rest. record: words of an item. parts:
# of the launch. parts_at, items_at, heads_at: where in the tables parts, items and heads begin. first_item: of this
# launch. all_heads: query heads. my_length, their_length: tokens of the side that stays and of the side that is walked.
LaunchArgs = namedtuple(
    "LaunchArgs", "tables record parts parts_at items_at heads_at first_item all_heads my_length their_length"
)

# The rows of a tile. Where it has fewer than `C.rows`, its last row stands for those beyond its end. number: of each
# row in the tile. at: its coordinate on each axis. token: its token. valid: whether it lies before the end. within:
# whether it may see a key. first: the first row's token. near: how far each token lies from it. All but `first` are
# (rows,).
Rows = namedtuple("Rows", "number at token valid within first near")


@triton.jit
def rows_within(first, number, length):
    """Rows of consecutive tokens of a sequence."""
    token = first + number
    valid = token < length
    token = tl.minimum(token, length - 1)
    return Rows(number, (), token, valid, valid, first, token - first)


# The head that a program works for: batch row and key/value head, 64 bits wide; head: the query head, or the first of
# `group` query heads that share keys and values.
Head = namedtuple("Head", "batch kv_head head group")

# The tile that a program works on. record: its item in the tables.
Place = namedtuple("Place", "launch head item record rows")


# A program of a launch. member: where the tables say which head it works for.
Program = namedtuple("Program", "item member head")


@triton.jit
def program_of(launch):
    """The item and the head of a program."""
    item = launch.first_item + tl.program_id(1)
    member = launch.tables + launch.heads_at + (tl.program_id(0) + tl.program_id(2) * tl.num_programs(0)) * HEAD
    batch = tl.load(member).to(tl.int64)
    kv_head = tl.load(member + 1).to(tl.int64)
    return Program(item, member, Head(batch, kv_head, tl.load(member + 2), tl.load(member + 3)))


@triton.jit
def items_of(program):
    """How many items the launch of a member has, where several launches are packed in one."""
    return tl.load(program.member + 5)


@triton.jit
def place_of(C: tl.constexpr, launch, program):
    """The tile of a program, and its rows."""
    launch = _own_launch(C, launch, program.member)
    record = launch.tables + launch.items_at + program.item * launch.record
    if C.rank == 0:
        rows = _block_rows(C, launch, record)
    else:
        rows = _box_rows(C, launch.tables, record)
    return Place(launch, program.head, program.item, record, rows)


@triton.jit
def _own_launch(C: tl.constexpr, launch, member):
    """The launch of a member, where several are packed in one."""
    if C.packed:
        record, parts = tl.load(member + 6), tl.load(member + 7)
        parts_at, items_at = tl.load(member + 8), tl.load(member + 9)
        launch = LaunchArgs(
            launch.tables + tl.load(member + 4), record, parts, parts_at, items_at, launch.heads_at, launch.first_item,
            launch.all_heads, launch.my_length, launch.their_length,
        )  # fmt: skip
    return launch


@triton.jit
def _block_rows(C: tl.constexpr, launch, record):
    """A block of consecutive tokens."""
    rows = rows_within(tl.load(record) * C.rows, tl.arange(0, C.rows), launch.my_length)
    within = (rows.token >= tl.load(launch.tables + 5)) & (rows.token < tl.load(launch.tables + 6))
    return Rows(rows.number, (), rows.token, rows.valid, within, rows.first, rows.near)


@triton.jit
def _box_rows(C: tl.constexpr, tables, record):
    """A box on a grid whose sizes are powers of 2, or some tokens in steps of a line."""
    number = tl.arange(0, C.rows)
    valid, rest = number >= 0, number
    starts, nears, at = (), (), ()
    for a in tl.static_range(C.rank - 1, -1, -1):
        size = tl.load(tables + 2 + 3 * a)
        near = rest
        if a > 0:
            near = rest & ((1 << size) - 1)
            rest = rest >> size
        count = tl.load(record + 2 * a + 1)
        valid &= near < count
        near = tl.minimum(near, count - 1)
        start = tl.load(record + 2 * a)
        near = near * tl.load(tables + 3 + 3 * a)
        starts, nears, at = (start,) + starts, (near,) + nears, (start + near,) + at  # noqa: RUF005
    origin, inside, near = tl.load(tables), starts[0], nears[0]
    first = origin + inside
    for a in tl.static_range(1, C.rank):
        length = tl.load(tables + 4 + 3 * a)
        first = origin + inside * length + starts[a]
        inside, near = inside * length + starts[a], near * length + nears[a]
    if C.listed and C.rank == 1:
        i = at[0]
        if tl.load(tables + 1) != 0:  # queries of a list
            i = tl.load(tables + tl.load(tables + 1) + i)
        at, first, near = (i,), origin, i
    if C.ordered:
        first, near = origin, tl.load(tables + tl.load(tables + 1) + at[0])
    return Rows(number, at, first + near, valid, valid, first, near)
