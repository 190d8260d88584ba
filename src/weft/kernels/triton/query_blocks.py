# ruff: noqa: PLR0913 - kernels take as many arguments as they need, and Gluon is not all of Python
"""Where a forward by warp groups finds the queries and keys of its blocks, and memory for them. Functions of Gluon,
inlined into an emitted kernel; mine: a block's numbers, as `weft.kernels.gpu.tables.pack` and `shares` leave them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.tables import consumer_ranges
from weft.kernels.gpu.tables import pack as words
from weft.kernels.triton.groups import TILE, bounds

RUN, SHARE = gl.constexpr(4), gl.constexpr(consumer_ranges.SHARE)  # integers of a term's run; of a group's share
FOLDS = gl.constexpr(consumer_ranges.FOLDS)
TERM = gl.constexpr(words.PART + words.axis_words(1))  # words of a term


@gluon.jit
def keys_of(mine, term: gl.constexpr):
    """(first key, keys) of a block's run of a term."""
    run = mine + 2 + RUN * term
    return gl.load(run), gl.load(run + 1)


@gluon.jit
def share_at(mine, C, term: gl.constexpr, WIDE: gl.constexpr, TERMS: gl.constexpr):
    return mine + 2 + RUN * TERMS + 2 * (1 + TERMS) + SHARE * (WIDE * term + C)


@gluon.jit
def share_of(mine, C, term: gl.constexpr, WIDE: gl.constexpr, TERMS: gl.constexpr):
    """Of group C's rows of a block and one of TERMS: (the first tile that any of them sees and the one after the last,
    tiles below and from which bounds cut).
    """
    at = share_at(mine, C, term, WIDE, TERMS)
    return gl.load(at), gl.load(at + 1), gl.load(at + 2), gl.load(at + 3)


@gluon.jit
def bounds_of(axis, start, r, pace, height, first, count):
    """Bounds of a block's rows r, those beyond its last one as that."""
    return bounds(axis, start + gl.minimum(r, height - 1) * pace, first, count)


@gluon.jit
def place_of(mine, side: gl.constexpr, TERMS: gl.constexpr):
    """(place, lane) where a block's boxes begin: of queries, of keys of the first term, of the second."""
    at = mine + 2 + RUN * TERMS + 2 * side
    return gl.load(at), gl.load(at + 1)


@gluon.jit
def run_of(mine, term: gl.constexpr, TERMS: gl.constexpr):
    """(keys, place and lane of the first) of a block's run of a term, as boxes are asked for."""
    place, lane = place_of(mine, 1 + term, TERMS)
    return gl.load(mine + 3 + RUN * term), place, lane


@gluon.jit
def tiles_of(count):
    return (count + TILE - 1) // TILE


@gluon.jit
def room_of_boxes(box, COUNT: gl.constexpr):
    """For so many boxes."""
    shape: gl.constexpr = box.block_type.shape
    return gl.allocate_shared_memory(box.dtype, [COUNT, shape[0], shape[1], shape[2], shape[3], shape[4]], box.layout)


@gluon.jit
def matrix(box):
    """A box (1, 1, 64, 1, 64) as products read it."""
    return box.reshape([64, 64])
