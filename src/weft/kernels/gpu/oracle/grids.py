"""Kernels of warp groups on a grid: boxes of rows and of what they walk, and lists of tiles (`tables.grid_ranges`).

Each group has GROUP rows of a block. What the tables say of tiles is checked against the bounds of coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.oracle.backward import row_numbers, subtracted
from weft.kernels.gpu.oracle.forward import numbers_of
from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Bools, Call, Ints, Reals
from weft.kernels.gpu.oracle.numbers import SoftMaximum
from weft.kernels.gpu.oracle.tables import Owner
from weft.kernels.gpu.tables.consumer_ranges import GROUP
from weft.kernels.gpu.tables.grid_ranges import BITS, RANGE
from weft.kernels.gpu.tables.pack import AXIS, PART

Sizes = tuple[int, ...]


class GridBox:
    """A tensor descriptor of a grid, whose boxes have these sides.

    Raises BrokenLaw where its strides are not those of the grid's tokens, or it has other heads than its slot.
    """

    def __init__(self, call: Call, name: str, sides: Sizes) -> None:
        found, slot, self.array = call.described(name)
        rank = len(sides)
        self.sides, self.shape = sides, found.shape[-1 - rank : -1]
        if call.spec.batch_by_places:
            self.shape = (self.shape[0] // slot.shape[0], *self.shape[1:])
        batch, heads, tokens, width = slot.shape
        to_batch, to_head, to_token, to_dim = slot.strides
        steps = tuple(to_token * prod(self.shape[a + 1 :]) for a in range(rank))
        what = f"a descriptor of {found.slot}"
        law(found.shape[-1] == width and found.strides[-1] == to_dim == 1, f"{what} has other dims")
        law(found.strides[-1 - rank : -1] == steps, f"{what} has other strides than its grid")
        law(prod(self.shape) <= tokens, f"{what} reaches beyond its tokens")
        self.by_places = call.spec.batch_by_places
        if rank == 2:
            same = found.shape[:2] == (batch, heads) and found.strides[:2] == (to_batch, to_head)
        elif self.by_places:
            same = found.shape[:2] == (heads, batch * self.shape[0]) and found.strides[0] == to_head
            same = same and to_batch == to_token * prod(self.shape)
        else:
            same = found.shape[0] == batch * heads and (batch == 1 or found.strides[0] * heads == to_batch)
            same = same and (heads == 1 or found.strides[0] == to_head)
        law(same, f"{what} has other batch rows or heads")

    def tokens(self, at: Ints) -> Ints:
        """The tokens of a box, -1 where the grid has none."""
        beyond = any(f < 0 or f + side > n for f, side, n in zip(at[:1], self.sides, self.shape, strict=False))
        law(not (self.by_places and beyond), "a box reaches another batch row")
        found, inside = np.zeros(1, np.int64), np.ones(1, np.bool_)
        for first, side, size in zip(at, self.sides, self.shape, strict=True):
            here = first + np.arange(side)
            found = (found[:, None] * size + here).reshape(-1)
            inside = (inside[:, None] & ((here >= 0) & (here < size))).reshape(-1)
        return np.where(inside, found, -1)

    def load(self, heads: tuple[int, int], at: Ints) -> Reals:
        """A box (tokens, dims), zeros where there is no token."""
        tokens = self.tokens(at)
        found = np.zeros((tokens.size, self.array.values.shape[-1]))
        found[tokens >= 0] = self.array.load(*heads, tokens[tokens >= 0])
        return found

    def store(self, values: Reals, heads: tuple[int, int], at: Ints) -> None:
        """Write a box; what lies beyond the grid is dropped."""
        tokens = self.tokens(at)
        self.array.store(values[tokens >= 0], *heads, tokens[tokens >= 0])

    def add(self, values: Reals, heads: tuple[int, int], at: Ints) -> None:
        """Add to a box; what lies beyond the grid is dropped."""
        tokens = self.tokens(at)
        self.array.add(values[tokens >= 0], *heads, tokens[tokens >= 0])


class Rows(NamedTuple):
    """A group's rows: where its box begins, coordinates of each row, and which exist. whole: all of the block do."""

    first: Ints
    at: Ints
    exist: Bools
    whole: bool


def rows_of(mine: Ints, box: Sizes, group: int) -> Rows:
    """mine: the integers of an item."""
    rank = len(box)
    start, height = mine[: 2 * rank].reshape(rank, 2).T
    near = np.array(np.unravel_index(group * GROUP + np.arange(GROUP), box))
    there = start[:, None] + np.minimum(near, height[:, None] - 1)
    exist: Bools = np.logical_and.reduce(near < height[:, None])
    return Rows(start + near[:, 0], there, exist, bool((height == box).all()))


class Range(NamedTuple):
    """Tiles of a list that a group walks, from begin to before end; those from below to before beyond are full."""

    begin: int
    end: int
    below: int
    beyond: int


class Walk(NamedTuple):
    """A block's tiles: where they are, and their sides; the bounds of rows on each axis, (rows, 2); a range."""

    tiles: Ints
    sides: Sizes
    bounds: list[Ints]
    seen: Range

    def mask(self, at: Ints) -> Bools:
        """The live pairs of a tile."""
        live = np.ones((GROUP, 1), np.bool_)
        for first, side, one in zip(at, self.sides, self.bounds, strict=True):
            here = first + np.arange(side)
            some = (here >= one[:, :1]) & (here < one[:, 1:])
            live = (live[:, :, None] & some[:, None, :]).reshape(GROUP, -1)
        return live


class Tables(NamedTuple):
    """words: of a launch. mine: of an item. parts_at: where the integers of its part are."""

    words: Ints
    mine: Ints
    parts_at: int


def _groups(call: Call, tables: Tables) -> Iterator[tuple[Rows, Walk]]:
    """The groups of a block that have rows."""
    (words, mine, parts_at), (box, sides) = tables, call.spec.boxes
    rank, groups = len(box), prod(box) // GROUP
    law(mine.size == 6 * rank + 2 + RANGE * groups, "an item has other integers than its groups read")
    axes = words[parts_at + PART :][: AXIS * rank].reshape(rank, AXIS)
    list_at, count = (int(x) for x in mine[6 * rank :][:2])
    law(0 <= list_at <= words.size - count, "a list of tiles lies beyond the tables")
    places = words[list_at:][:count, None] >> (BITS * np.arange(rank)[::-1]) & ((1 << BITS) - 1)
    tiles = mine[2 * rank : 6 * rank : 4] + places
    for group in range(groups):
        rows = rows_of(mine, box, group)
        if not rows.exist.any():
            continue
        bounds = [words[int(axis[3]) + 2 * at[:, None] + [0, 1]] for axis, at in zip(axes, rows.at, strict=True)]
        seen = mine[6 * rank + 2 + RANGE * group :][:RANGE]
        yield rows, Walk(tiles, sides, bounds, Range(*(int(x) for x in seen)))


# ---- forward ---------------------------------------------------------------------------------------------------------
def attended(call: Call, tables: Tables, owner: Owner) -> None:
    """Out and Lse of a block."""
    for rows, walk in _groups(call, tables):
        _write(call, rows, (owner.batch, owner.head), _attended(call, rows, owner, walk))


def _attended(call: Call, rows: Rows, owner: Owner, walk: Walk) -> tuple[Reals, Reals]:
    """(out, lse) of a group's rows."""
    batch, kv_head, head, _ = owner
    k_box, v_box = (GridBox(call, name, walk.sides) for name in ("K_near", "V_near"))
    q = GridBox(call, "Q_near", _own_sides(call)).load((batch, head), rows.first)
    sums = SoftMaximum(GROUP, call.spec.dv)
    left = prod(np.maximum(one[:, 1] - one[:, 0], 0) for one in walk.bounds)
    begin, end, below, beyond = walk.seen
    for j, at in enumerate(walk.tiles):
        live = walk.mask(at)
        left = left - live.sum(1)
        law(begin <= j < end or not live[rows.exist].any(), "a tile that a group passes over has a live pair")
        law(not (begin < j < end and below <= j < beyond) or live.all(), "a tile that is not masked is not full")
        if begin <= j < end:
            s = q @ k_box.load((batch, kv_head), at).T * call.real("scale")
            sums.add(np.where(live, s, -np.inf), v_box.load((batch, kv_head), at))
    law(not np.any(left), "tiles do not have each key that a row sees once")
    sinks = call.flat("Sinks") if call.spec.sinks else None
    return sums.finish(None if sinks is None else float(sinks.load(head)))


def _own_sides(call: Call) -> Sizes:
    """A group's part of a block of queries: groups share it along its first axes."""
    box = call.spec.boxes[0]
    corners = np.array(np.unravel_index([0, GROUP - 1], box))
    return tuple(int(x) for x in 1 + corners[:, 1] - corners[:, 0])


def _write(call: Call, rows: Rows, heads: tuple[int, int], results: tuple[Reals, Reals]) -> None:
    """Out by a descriptor where the kernel has one and all rows of the block exist, else by rows; Lse by rows."""
    out, lse = results
    box = GridBox(call, "Q_near", _own_sides(call))
    tokens = np.ravel_multi_index(tuple(rows.at), box.shape)
    if call.spec.boxed and rows.whole:
        GridBox(call, "Out_near", _own_sides(call)).store(out, heads, rows.first)
    else:
        call.tensor("Out").store(out[rows.exist], *heads, tokens[rows.exist])
    call.flat("Lse").store(lse[rows.exist], numbers_of(call, *heads, tokens[rows.exist]))


# ---- gradients -------------------------------------------------------------------------------------------------------
def query_gradient(call: Call, tables: Tables, owner: Owner) -> None:
    """DQ of a block, and what its queries' scores subtract."""
    batch, kv_head, head, _ = owner
    scale, own = call.real("scale"), _own_sides(call)
    for rows, walk in _groups(call, tables):
        tokens = np.ravel_multi_index(tuple(rows.at), GridBox(call, "Q_box", own).shape)[rows.exist]
        q, do = (GridBox(call, x, own).load((batch, head), rows.first)[rows.exist] for x in ("Q_box", "DOut_box"))
        lse, delta = (x[:, None] for x in row_numbers(call, owner, tokens))
        dq = np.zeros_like(q)
        for j, at in enumerate(walk.tiles):
            live = _checked(walk, j, walk.mask(at)[rows.exist])
            k, v = (GridBox(call, x, walk.sides).load((batch, kv_head), at) for x in ("K_box", "V_box"))
            p = np.exp(np.where(live, q @ k.T * scale - lse, -np.inf))
            dq += (p * np.where(live, do @ v.T - delta, 0.0)) @ k
        call.tensor("DQ").store(dq * scale, batch, head, tokens)


def _checked(walk: Walk, j: int, live: Bools) -> Bools:
    """The live pairs of tile j of a list, of which its range tells the truth."""
    begin, end, below, beyond = walk.seen
    law(begin <= j < end or not live.any(), "a tile that is passed over is seen")
    law(not (begin <= j < end and below <= j < beyond) or live.all(), "a tile that is not masked is not full")
    return live


def gradients(call: Call, tables: Tables, owner: Owner) -> None:
    """DK and DV of a block's keys, of all heads that share them, and where DQ comes of the same walk what is added."""
    for rows, walk in _groups(call, tables):
        own = _own_sides(call)
        k, v = (GridBox(call, name, own).load((owner.batch, owner.kv_head), rows.first) for name in ("K_box", "V_box"))
        dk, dv = np.zeros_like(k), np.zeros_like(v)
        for head in range(owner.head, owner.head + owner.heads):
            for j, at in enumerate(walk.tiles):
                live = walk.mask(at) & rows.exist[:, None]
                _checked(walk, j, live if call.spec.with_dq else live[rows.exist])
                more = _tile_gradients(call, (owner.batch, head), (at, walk.sides), live, (k, v))
                dk, dv = dk + more[0], dv + more[1]
        tokens = np.ravel_multi_index(tuple(rows.at), GridBox(call, "K_box", own).shape)[rows.exist]
        for name, x in (("DK", dk * call.real("scale")), ("DV", dv)):
            call.tensor(name).store(x[rows.exist], owner.batch, owner.kv_head, tokens)


def _tile_gradients(
    call: Call, heads: tuple[int, int], tile: tuple[Ints, Sizes], live: Bools, own: tuple[Reals, Reals]
) -> tuple[Reals, Reals]:
    """(dK, dV) of some keys with a tile of queries, whose DQ is added to. tile: where it is, and its sides."""
    (at, sides), (k, v) = tile, own
    q, do = (GridBox(call, name, sides).load(heads, at) for name in ("Q_box", "DOut_box"))
    tokens = GridBox(call, "Q_box", sides).tokens(at)
    lse, delta = subtracted(call, numbers_of(call, *heads, np.maximum(tokens, 0), "their_length"))
    law(not live[:, tokens < 0].any(), "a key is seen by a query that does not exist")
    p = np.exp(np.where(live, k @ q.T * call.real("scale") - lse, -np.inf))
    ds = p * np.where(live, v @ do.T - delta, 0.0)
    if call.spec.with_dq:
        GridBox(call, "DQ_box", sides).add(ds.T @ k, heads, at)  # the scale comes last
    return ds @ q, p @ do
