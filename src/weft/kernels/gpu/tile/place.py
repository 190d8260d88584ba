"""Where a program works: its launch, the head that it works for, and the rows of its tile."""

from typing import NamedTuple

import triton
import triton.language as tl

from weft.kernels.gpu.tables import pack

HEAD = tl.constexpr(pack.HEAD)


class Launch(NamedTuple):
    """What all programs of a launch are told: integers, and the tables that hold the rest.

    record: words of an item. parts: of the launch. parts_at, items_at, heads_at: where in the tables parts, items and
    heads begin. first_item: of this launch. all_heads: query heads. my_length, their_length: tokens of the side that
    stays and of the side that is walked.
    """

    tables: tl.tensor
    record: tl.tensor
    parts: tl.tensor
    parts_at: tl.tensor
    items_at: tl.tensor
    heads_at: tl.tensor
    first_item: tl.tensor
    all_heads: tl.tensor
    my_length: tl.tensor
    their_length: tl.tensor


class Rows(NamedTuple):
    """The rows of a tile. Where it has fewer than `C.rows`, its last row stands for those beyond its end.

    number: of each row in the tile. at: its coordinate on each axis. token: its token. valid: whether it lies before
    the end. within: whether it may see a key. first: the first row's token. near: how far each token lies from it.
    All but `first` are (rows,).
    """

    number: tl.tensor
    at: tuple[tl.tensor, ...]
    token: tl.tensor
    valid: tl.tensor
    within: tl.tensor
    first: tl.tensor
    near: tl.tensor


@triton.jit
def rows_within(first, number, length):
    """Rows of consecutive tokens of a sequence."""
    token = first + number
    valid = token < length
    token = tl.minimum(token, length - 1)
    return Rows(number, (), token, valid, valid, first, token - first)
