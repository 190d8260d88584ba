"""How an item of a forward is laid out: its runs of keys, where boxes begin, and what each consumer sees.

`weft.kernels.gpu.tables.pack` and `weft.kernels.gpu.tables.consumer_ranges` write it. item: a pointer to its integers.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.tables import consumer_ranges
from weft.kernels.gpu.tables import pack as words

RUN, RANGE = gl.constexpr(4), gl.constexpr(consumer_ranges.RANGE)  # integers of a term's run; of a consumer's range
FOLDS = gl.constexpr(consumer_ranges.FOLDS)
TERM = gl.constexpr(words.PART + words.axis_words(1))  # integers of a term


@aggregate
class Run:
    """Keys of a term that a block walks: how many, and place and lane of the first, as boxes are asked for."""

    count: gl.tensor
    place: gl.tensor
    lane: gl.tensor


@aggregate
class Range:
    """Tiles of a run that a consumer sees, from begin to before end; bounds cut those below and those beyond two."""

    begin: gl.tensor
    end: gl.tensor
    below: gl.tensor
    beyond: gl.tensor


@gluon.jit
def tiles_of(count, TILE: gl.constexpr):
    """How many tiles so many keys are."""
    return (count + TILE - 1) // TILE


@gluon.jit
def begin_of(start, first, count, TILE: gl.constexpr):
    """The tile of a run of so many columns from `first` on at which a walk of a block from row `start` on begins.

    Blocks that run side by side then add to different places. Full attention takes 0.99 of the time (W116).
    """
    return gl.maximum(start - first, 0) // TILE % gl.maximum(tiles_of(count, TILE), 1)


@gluon.jit
def turned(j, count):
    """Tile j of a walk over so many tiles that goes on at the first one after the last."""
    return gl.where(j >= count, j - count, j)


@gluon.jit
def keys_of(item, term):
    """(first key, keys) of a block's run of a term."""
    run = item + 2 + RUN * term
    return gl.load(run), gl.load(run + 1)


@gluon.jit
def range_of(item, consumer_id, term, CONSUMERS: gl.constexpr, TERMS: gl.constexpr):
    """The range of the consumer in a block's run of a term."""
    at = item + 2 + RUN * TERMS + 2 * (1 + TERMS) + RANGE * (CONSUMERS * term + consumer_id)
    return Range(gl.load(at), gl.load(at + 1), gl.load(at + 2), gl.load(at + 3))


@gluon.jit
def row_bounds(item, r, term, cfg: gl.constexpr):
    """Positions of a term's run that a block's rows r see, as the tables hold them: the first, and the one after the
    last.
    """
    rows: gl.constexpr = cfg.consumers * cfg.rows
    places: gl.constexpr = 2 + RUN * cfg.terms + 2 * (1 + cfg.terms) + RANGE * cfg.consumers * cfg.terms
    at = item + places + 2 * rows * term + r
    return gl.load(at), gl.load(at + rows)


@gluon.jit
def place_of(item, side: gl.constexpr, TERMS: gl.constexpr):
    """(place, lane) where a block's boxes begin: of queries, of keys of the first term, of the second."""
    at = item + 2 + RUN * TERMS + 2 * side
    return gl.load(at), gl.load(at + 1)


@gluon.jit
def run_of(item, term: gl.constexpr, TERMS: gl.constexpr):
    """A block's run of a term."""
    place, lane = place_of(item, 1 + term, TERMS)
    return Run(gl.load(item + 3 + RUN * term), place, lane)


@gluon.jit
def tile_at(table, j, run, cfg: gl.constexpr):
    """(place of the box of tile j of a run, its first position in the run). A list of tiles is where the run says that
    its first place is; positions in it are tokens.
    """
    if cfg.listed:
        place = gl.load(table + run.place + j) * cfg.columns
        first = place
    else:
        first = j * cfg.columns
        place = run.place + first
    return place, first


@gluon.jit
def rows_seen(axis, start, r, rows, run):
    """Bounds of a block's rows r in a run; rows beyond the last one have that one's. rows: (their step, how many)."""
    pace, height = rows
    return axis.positions(start + gl.minimum(r, height - 1) * pace, run[0], run[1])
