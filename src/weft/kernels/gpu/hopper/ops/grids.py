"""Items, boxes and masks on a grid of two or three axes, as `weft.kernels.gpu.tables.grid_ranges` describes them.

A tile of keys is a box; its columns are the keys of the box in order. A row sees a range of coordinates on each axis.
So its word of a tile (`ops.mask`) is made of one word for each axis.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.hopper.ops.blocks import RUN, Range
from weft.kernels.gpu.tables import grid_ranges, pack

PART, AXIS = gl.constexpr(pack.PART), gl.constexpr(pack.AXIS)
RANGE, BITS = gl.constexpr(grid_ranges.RANGE), gl.constexpr(grid_ranges.BITS)
FAR = gl.constexpr((1 << grid_ranges.BITS) - 1)
HALF, LOW = gl.constexpr(16), gl.constexpr((1 << 16) - 1)  # of a word of two bounds


@gluon.constexpr_function
def span(box, axis):  # type: ignore[no-untyped-def]
    """Tokens of a box from one coordinate of an axis to the next."""
    found = 1
    for size in box[axis + 1 :]:
        found *= size
    return found


@gluon.constexpr_function
def side(box, axis):  # type: ignore[no-untyped-def]
    """The coordinates of a box along an axis."""
    return box[axis]


@gluon.constexpr_function
def log_span(box, axis):  # type: ignore[no-untyped-def]
    """log2 of `span`."""
    return span(box, axis).bit_length() - 1


@gluon.jit
def coordinate(r, BOX: gl.constexpr, a: gl.constexpr):
    """The coordinate along an axis of places r of a box."""
    return (r >> log_span(BOX, a)) & (side(BOX, a) - 1)


@aggregate
class GridRows:
    """Rows of a block: coordinates on each axis, tokens, and which exist. Others stand for the last along an axis."""

    at: gl.tuple
    token: gl.tensor
    valid: gl.tensor


@gluon.jit
def grid_rows(table, item, r, cfg: gl.constexpr):
    """Rows r of a block. item: a pointer to its integers."""
    at, token, valid = (), r * 0, r >= 0
    for a in gl.static_range(cfg.axes):
        near, height = coordinate(r, cfg.box, a), gl.load(item + 2 * a + 1)
        here = gl.load(item + 2 * a) + gl.minimum(near, height - 1)
        token, valid = token * gl.load(table + 4 + 3 * a) + here, valid & (near < height)
        at = at + (here,)  # noqa: RUF005
    return GridRows(at, token, valid)


@gluon.jit
def rows_at(c, item, cfg: gl.constexpr):
    """The coordinates at which consumer c's box of rows begins."""
    at = ()
    for a in gl.static_range(cfg.axes):
        at = at + (gl.load(item + 2 * a) + coordinate(c * cfg.rows, cfg.box, a),)  # noqa: RUF005
    return at


@gluon.jit
def is_whole(item, cfg: gl.constexpr):
    """Whether all rows of a block exist."""
    whole = gl.load(item + 1) == side(cfg.box, 0)
    for a in gl.static_range(1, cfg.axes):
        whole = whole & (gl.load(item + 2 * a + 1) == side(cfg.box, a))
    return whole


@aggregate
class GridTiles:
    """A block's tiles of keys: the list of them, how many, and the first key along each axis."""

    words: gl.tensor
    count: gl.tensor
    first: gl.tuple

    @gluon.jit
    def place(self, j, cfg: gl.constexpr):
        """The coordinates of tile j."""
        word, found = gl.load(self.words + j), ()
        for a in gl.static_range(cfg.axes):
            found = found + (self.first[a] + ((word >> (BITS * (cfg.axes - 1 - a))) & FAR),)  # noqa: RUF005
        return found


@gluon.jit
def box_tokens(part, at, r, cfg: gl.constexpr):
    """The tokens of keys r of a tile, beyond the grid those of its last along an axis. part: a pointer to the term's
    integers; at: the tile's coordinates.
    """
    token = r * 0
    for a in gl.static_range(cfg.axes):
        length = gl.load(part + PART + AXIS * a + 2)
        token = token * length + gl.minimum(at[a] + coordinate(r, cfg.tile_box, a), length - 1)
    return token


@gluon.jit
def grid_tiles(table, item, cfg: gl.constexpr):
    """Those of a block."""
    RANK: gl.constexpr = cfg.axes
    first = ()
    for a in gl.static_range(RANK):
        first = first + (gl.load(item + 2 * RANK + RUN * a),)  # noqa: RUF005
    at = item + (2 + RUN) * RANK
    return GridTiles(table + gl.load(at), gl.load(at + 1), first)


@gluon.jit
def place_in(heads, at, dim, state):
    """Where a descriptor has a box. at: its coordinates; dim: its first. Beside three axes batch rows are one axis with
    heads, or with the first one.
    """
    if state.cfg.axes == 2:
        where = [heads[0], heads[1], at[0], at[1], dim]
    elif state.cfg.batch_by_places:
        places = gl.load(state.scheduler.table + 4)  # of the first axis
        where = [heads[1], heads[0] * places + at[0], at[1], at[2], dim]
    else:
        where = [heads[0] * state.heads + heads[1], at[0], at[1], at[2], dim]
    return where


@gluon.jit
def tiles_from(tiles, begin, count):
    """So many of a block's tiles, from one on."""
    return GridTiles(tiles.words + begin, count, tiles.first)


@gluon.jit
def grid_range(item, consumer_id, cfg: gl.constexpr):
    """The range of a consumer in a block's list."""
    at = item + (2 + RUN) * cfg.axes + 2 + RANGE * consumer_id
    return Range(gl.load(at), gl.load(at + 1), gl.load(at + 2), gl.load(at + 3))


@gluon.constexpr_function
def repeated(box, axis):  # type: ignore[no-untyped-def]
    """What repeats the word of an axis, multiplied by it, for all columns of a box. A word has a quarter of them."""
    return sum(1 << at for at in range(0, span(box, -1) // 4, span(box, axis - 1) // 4))


@gluon.jit
def _bits_from(x, lane, BOX: gl.constexpr, a: gl.constexpr):
    """The bits of coordinates from x on, along an axis. lane: columns of the last axis before those of the thread."""
    SPAN: gl.constexpr = span(BOX, a)
    if SPAN == 1:
        x = gl.minimum(gl.maximum(x - lane, 0), side(BOX, a))
        count = 2 * (x >> 3) + gl.minimum(x & 7, 2)
    else:
        count = gl.minimum(gl.maximum(x, 0), side(BOX, a)) * (SPAN // 4)
    return gl.inline_asm_elementwise("shl.b32 $0, -1, $1;", "=r,r", [count], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _axis_words(seen, first, lane, BOX: gl.constexpr, a: gl.constexpr):
    """The words of one axis. seen: a word of two bounds of each row; first: the tile's first coordinate."""
    seen = gl.expand_dims(seen, 1)
    low, high = (seen & LOW) - first, (seen >> HALF) - first
    some = _bits_from(low, lane, BOX, a) & ~_bits_from(high, lane, BOX, a)
    return some * repeated(BOX, a)


@aggregate
class GridCut:
    """What rows see along each axis, counted from the first key that their block walks: a word of two bounds.

    words: the block's list of tiles. A word takes a register where two bounds take two. last: where a block has one
    tile along the last axis, the words of that axis, as `grid_words`, which all tiles share.
    """

    words: gl.tensor
    seen: gl.tuple
    last: Any

    @gluon.jit
    def keys(self, cfg: gl.constexpr):
        """A number for each row, 0 where it sees no key."""
        found = gl.maximum((self.seen[0] >> HALF) - (self.seen[0] & LOW), 0)
        for a in gl.static_range(1, cfg.axes - cfg.one_across):
            found *= gl.maximum((self.seen[a] >> HALF) - (self.seen[a] & LOW), 0)
        return found


@gluon.jit
def _bounds(table, part, tiles, rows, a: gl.constexpr):
    """(low, high) of what rows see along an axis, counted from the first key that their block walks."""
    at = table + gl.load(part + PART + AXIS * a + 3) + 2 * rows.at[a]
    return gl.maximum(gl.load(at) - tiles.first[a], 0), gl.maximum(gl.load(at + 1) - tiles.first[a], 0)


@gluon.jit
def grid_cut(table, part, tiles, rows, cfg: gl.constexpr):
    """That of rows; those that do not exist see nothing. part: a pointer to the term's integers."""
    seen, last, some = (), (), rows.valid
    if cfg.one_across:
        LAYOUT: gl.constexpr = rows.valid.type.layout.parent
        lane = gl.arange(0, cfg.columns, layout=gl.SliceLayout(0, LAYOUT)) & 6
        low, high = _bounds(table, part, tiles, rows, cfg.axes - 1)
        some = some & (low < high)  # so that the other axes say who sees no key, and nobody holds these bounds
        last = _axis_words(low | (high << HALF), 0, gl.expand_dims(lane, 0), cfg.tile_box, cfg.axes - 1)
    for a in gl.static_range(cfg.axes - cfg.one_across):
        low, high = _bounds(table, part, tiles, rows, a)
        seen = seen + (gl.where(some, low | (high << HALF), 0),)  # noqa: RUF005
    return GridCut(tiles.words, seen, last)


@gluon.jit
def grid_words(word, cut, columns, cfg: gl.constexpr):
    """(words, bits) as `ops.mask.mask_words`, of a tile of which the list says `word`."""
    BOX: gl.constexpr = cfg.tile_box
    lane = gl.expand_dims(columns & 6, 0)
    bit = gl.expand_dims(1 << (((columns >> 3) << 1) | (columns & 1)), 0)
    if cfg.one_across:
        words = cut.last
    else:
        words = lane | -1
    for a in gl.static_range(cfg.axes - cfg.one_across):
        first = (word >> (BITS * (cfg.axes - 1 - a))) & FAR
        words = words & _axis_words(cut.seen[a], first, lane, BOX, a)
    return gl.broadcast(words, bit)
