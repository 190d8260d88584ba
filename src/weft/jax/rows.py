"""The rows of one term of an Acsr, axis by axis, as positions; and their cut into tiles. numpy only.

Under a relayout (`weft.acsr.relayout`) a query is (position, phase), and its keys are one interval of positions of
one phase of keys. A tile is `box` neighbouring query positions of a lane.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.acsr.format import Term
from weft.acsr.relayout import Lanes, lanes_of, live_range, natural_step, on_axis
from weft.jax.structure import Axis, TileLoop, bucket
from weft.pattern.bounds import Ints, Stair
from weft.pattern.listed import EVERY
from weft.pattern.relation import Relation

Table: TypeAlias = NDArray[np.int32] | NDArray[np.uint8] | NDArray[np.bool_]
Tables: TypeAlias = dict[str, Table]
LISTED_LEAST = 8  # places of the shortest table of listed tokens
ABSENT = 2**31 - 1  # a token beyond every sequence: what tables of listed tokens are padded with


@dataclass(frozen=True, eq=False)
class AxisRows:
    """Every row of every lane of one axis.

    first, phase, count, k_phase: of each lane its first query position, its phases and its rows. lo, hi: key positions
    [lo, hi) that each row sees, lane by lane; 0 and 0 where it sees none.
    """

    axis: Axis
    first: Ints
    phase: Ints
    count: Ints
    k_phase: Ints
    lo: Ints
    hi: Ints

    @property
    def width(self) -> float:
        """Keys of a row that sees any, on average."""
        width = self.hi - self.lo
        return float(width.sum() / max(1, np.count_nonzero(width)))


@dataclass(frozen=True, eq=False)
class TermRows:
    """The loop of one term before its sizes are chosen, its rows on each axis, and its tables of tokens.

    widest: its rows on each axis if tables of bounds, as of documents, cut nothing. Sizes are chosen by them, so that
    they are the same for all documents.
    """

    loop: TileLoop
    axes: tuple[AxisRows, ...]
    widest: tuple[AxisRows, ...]
    tokens: Tables

    @property
    def by_table(self) -> bool:
        """Whether tables of bounds cut any axis."""
        return self.widest != self.axes


def rows_of(term: Term) -> TermRows:
    """The rows of one term of an Acsr."""
    all_lanes = [_lanes(term, index) for index in range(term.rank)]
    found = tuple(_axis_rows(term, index, lanes) for index, lanes in enumerate(all_lanes))
    loose = tuple(map(_without_tables, term.axes))
    widest = found
    if loose != term.axes:
        widest = tuple(_axis_rows(replace(term, axes=loose), index, lanes) for index, lanes in enumerate(all_lanes))
    q_origin, k_origin, tokens = term.q.origin, term.k.origin, Tables()
    if all_lanes[0].queries is not None:
        tokens["queries"] = _padded(q_origin + all_lanes[0].queries)
        q_origin = 0
    if all_lanes[0].keys is not None:
        tokens["keys"] = _padded(k_origin + all_lanes[0].keys.tokens)
        k_origin = 0
    q_cut, k_cut = (bool(x.left_out.size) for x in (term.rows, term.keys))
    q_cut = q_cut and term.rank > 1  # on one axis such a row sees nothing
    if q_cut:
        tokens["queries_live"] = term.rows.holds(term.q.origin + np.arange(term.q.size))
    if k_cut:
        tokens["keys_live"] = term.keys.holds(term.k.origin + np.arange(term.k.size))
    axes = tuple(rows.axis for rows in found)
    loop = TileLoop(q_origin, k_origin, axes, "queries" in tokens, "keys" in tokens, q_cut, k_cut)
    return TermRows(loop, found, widest, tokens)


def _without_tables(relation: Relation) -> Relation:
    lower, upper = (tuple(b for b in side if isinstance(b, Stair)) for side in (relation.lower, relation.upper))
    return replace(relation, lower=lower, upper=upper)


def _lanes(term: Term, index: int) -> Lanes:
    relation, rows, keys = term.axes[index], EVERY, EVERY
    if term.rank == 1:
        rows, keys = (on_axis(x, grid, 0) for x, grid in ((term.rows, term.q), (term.keys, term.k)))
    return lanes_of(relation, live_range(relation, term.q.shape[index]), natural_step(relation), rows, keys)


def _padded(tokens: Ints) -> NDArray[np.int32]:
    """A list of tokens, and behind them some that do not exist."""
    found = np.full(bucket(tokens.size, LISTED_LEAST), ABSENT, np.int32)
    found[: tokens.size] = tokens
    return found


def _axis_rows(term: Term, index: int, lanes: Lanes) -> AxisRows:
    rows, keys = term.q.shape[index], term.k.shape[index]
    if lanes.queries is not None:
        rows = bucket(lanes.queries.size, LISTED_LEAST)
    if lanes.keys is not None:
        keys = bucket(lanes.keys.tokens.size, LISTED_LEAST)
    q_step, k_step = (max(1, min(step, size)) for step, size in ((lanes.q_step, rows), (lanes.k_step, keys)))
    which, row = lanes.every_row()
    lo, hi = lanes.bounds(term.axes[index], term.k.shape[index], which, row)
    if term.rank == 1 and term.rows.left_out.size:
        hi = np.where(term.rows.holds(term.q.origin + lanes.query_at(which, row)), hi, 0)
    k_first = np.minimum(lanes.k_first, keys)  # of a dead lane it may be anything
    before = (k_first // k_step)[which]
    some = lo < hi
    lo, hi = (np.where(some, x + before, 0) for x in (lo, hi))
    axis = Axis(rows, keys, q_step, k_step)
    return AxisRows(axis, lanes.q_first // q_step, lanes.q_first % q_step, lanes.rows, k_first % k_step, lo, hi)


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles of one axis that see any key.

    places: (tiles, 5): query phase, first query position, key phase, first key position, key positions. bounds: (tiles,
    box, 2): key positions [lo, hi) of each row.
    """

    places: Ints
    bounds: Ints

    @property
    def widths(self) -> Ints:
        """Key positions of each tile."""
        return self.places[:, 4]


def tiles_of(rows: AxisRows, box: int) -> Tiles:
    """The rows of one axis in tiles of `box` positions.

    The last tile of a lane begins earlier where it would reach beyond the positions that exist. Rows that an earlier
    tile has see nothing in it.
    """
    counts = -(-rows.count // box)
    lane = np.repeat(np.arange(counts.size), counts)
    begin = box * (np.arange(lane.size) - np.repeat(np.cumsum(counts) - counts, counts))
    first = np.minimum(rows.first[lane] + begin, rows.axis.q_positions - box)
    row = first[:, None] + np.arange(box) - rows.first[lane][:, None]
    own = (row >= begin[:, None]) & (row < np.minimum(begin + box, rows.count[lane])[:, None])
    offset = np.cumsum(rows.count) - rows.count
    at = offset[lane][:, None] + np.where(own, row, begin[:, None])
    lo, hi = (np.where(own, x[at], 0) for x in (rows.lo, rows.hi))
    live = lo < hi
    start = np.where(live, lo, np.iinfo(np.int32).max).min(axis=1, initial=np.iinfo(np.int32).max)
    width = np.where(live, hi, 0).max(axis=1, initial=0) - start
    places = np.stack([rows.phase[lane], first, rows.k_phase[lane], start, width], axis=1)
    some = live.any(axis=1)
    return Tiles(places[some], np.stack([lo, hi], axis=2)[some])
