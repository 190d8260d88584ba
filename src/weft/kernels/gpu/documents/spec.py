"""What the kernel is made for that writes the tables of documents on the device, and which patterns it knows.

Tables have the form of `tables.pack`. Each document is a launch of its own, and each tile of its rows is a member for
each head. So tile kernels read them as they read others. The tokens after the last document are one more document,
which sees nothing.

The rows of a known pattern are one run of consecutive keys, by at most two staircases a side. These shift with the
lengths of a document: full, causal, windows and chunks. For others lengths are planned on the host.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.acsr.format import NotAffineError
from weft.acsr.relayout import live_range
from weft.acsr.steady import why_unsteady
from weft.errors import UnsupportedError
from weft.kernels.gpu.tables.consumer_ranges import RANGE
from weft.kernels.gpu.tables.pack import HEAD, PART, axis_words
from weft.kernels.gpu.tables.writer import Words
from weft.pattern.algebra import Call, Operator, Pattern
from weft.pattern.bounds import INF, Bound, Stair
from weft.pattern.leaves import Affine, Chosen
from weft.pattern.relation import Relation
from weft.planning.rowwise import steady_relations
from weft.planning.tiling import Tiling
from weft.planning.tiling.gpu import FAR

HEADER = 5  # integers of a launch on one axis before its parts
DOCUMENT = HEADER + PART + axis_words(1)  # integers of a document
RANGES = 10  # integers of an item by warp groups before its ranges
ORDERED = 16  # tiles of a program that orders them
ITEM = 6  # integers of a tile of rows: first query, queries, first key, keys, tiles before full ones, full ones
# staircases that say nothing; they may be moved by any length
NO_LOWER, NO_UPPER = (1, 1, 0, 0, -FAR, -FAR, -FAR, FAR), (1, 1, 0, 0, FAR, FAR, -FAR, FAR)


class TablesSpec(NamedTuple):
    """The kernel of tables. rows, cols: of a tile. of_keys: rows are keys. from_end: the last query of a document
    stands beside its last key, else the first beside the first. paged: keys lie in pages, which a block table names.
    groups: warp groups read them, see `blocks`: these are their items, or if `blocks` the order of these. together:
    heads whose blocks are ordered together. chained: the launch of blocks begins early.
    """

    rows: int
    cols: int
    of_keys: bool
    from_end: bool
    paged: bool = False
    groups: int = 0
    blocks: bool = False
    together: int = 1
    chained: bool = False

    @property
    def name(self) -> str:
        """A short readable name."""
        side = "keys" if self.of_keys else "queries"
        what = "blocks" if self.blocks else "items" if self.groups else "tables"
        return f"document_{what}_{side}_{self.rows}x{self.cols}" + "_from_end" * self.from_end + "_pages" * self.paged


class Places(NamedTuple):
    """Where tables keep what: how many tiles and pages they have room for, and where in the tables items, members and
    pages begin; size: integers in all.
    """

    tiles: int
    pages: int
    items_at: int
    heads_at: int
    pages_at: int
    size: int


def places_of(documents: int, length: int, rows: int, members: int, pages: int = 0) -> Places:
    """Places for so many documents that have `length` tokens together; each may end with a tile that is not full.

    members: of a tile. pages: of a document.
    """
    tiles = length // rows + documents + 1
    items_at = DOCUMENT * (documents + 1)
    heads_at = items_at + ITEM * tiles
    pages_at = heads_at + HEAD * members * tiles
    return Places(tiles, pages, items_at, heads_at, pages_at, pages_at + documents * pages)


class GroupPlaces(NamedTuple):
    """Where tables of warp groups keep what: `record` integers of an item, and where items, members, works and blocks
    begin; size: integers in all.
    """

    tiles: int
    record: int
    items_at: int
    heads_at: int
    works_at: int
    blocks_at: int
    size: int


def group_places_of(documents: int, length: int, tiling: Tiling, heads: int) -> GroupPlaces:
    """As `places_of`, of all tokens as one launch, for warp groups that are told the bounds of rows."""
    tiles = length // tiling.rows + documents + 1
    record = RANGES + RANGE * tiling.groups + 2 * tiling.rows
    heads_at = DOCUMENT + record * tiles
    works_at = heads_at + HEAD * heads
    blocks_at = works_at + tiles + 1
    return GroupPlaces(tiles, record, DOCUMENT, heads_at, works_at, blocks_at, blocks_at + 2 * heads * tiles)


# ---- patterns --------------------------------------------------------------------------------------------------------
class Known(NamedTuple):
    """A pattern by one relation between rows and keys of any document. from_end: see `TablesSpec`."""

    relation: Relation
    from_end: bool

    def bounds(self, of_keys: bool) -> Words:
        """Four staircases, two of either side, from rows to columns; of_keys: rows are keys."""
        relation = self.towards(of_keys)
        sides = (relation.lower, NO_LOWER), (relation.upper, NO_UPPER)
        words = [x for side, nothing in sides for x in (*map(_stair, side), *(nothing,) * (2 - len(side)))]
        return np.clip(np.array(words, np.int64).reshape(-1), -FAR, FAR).astype(np.int32)

    def are_lines(self, of_keys: bool) -> bool:
        """Whether each side is one clipped line at most."""
        relation = self.towards(of_keys)
        return all(len(side) < 2 and all(map(_is_line, side)) for side in (relation.lower, relation.upper))

    def sees_itself(self, longest: int) -> bool:
        """Whether every query sees its own key, in documents of up to `longest` tokens whose keys are the queries'."""
        i = np.arange(longest)
        low, high = self.relation.interval(i, longest)
        return bool(((low <= i) & (i < high)).all())

    def towards(self, of_keys: bool) -> Relation:
        """From rows to columns."""
        return self.relation.transpose() if of_keys else self.relation


def known(pattern: Pattern, longest: int) -> Known:
    """A pattern as tables of documents of up to `longest` tokens have it. One without an alignment is for documents
    whose queries and keys are the same tokens.

    Raises UnsupportedError for a pattern whose lengths must be known to the host.
    """
    aligned = set(pattern.alignments()) - {None}
    found: tuple[Relation, ...] = ()
    why: str | None = "its parts are aligned at the first and at the last token"
    if len(aligned) < 2:
        last = _by_last(pattern)
        why = why_unsteady(last)
        if why is None:
            try:
                found = steady_relations(last, max(longest, 1))
            except NotAffineError as reason:
                why = str(reason)
    if why is None and not (len(found) == 1 and _is_known(found[0])):
        why = "its rows are not one run of consecutive keys by at most two staircases a side"
    if why is not None:
        raise UnsupportedError(
            f"documents with lengths on the device under {pattern}", why,
            "pass cu_seqlens.cpu(): lengths on the host are planned for any pattern",
        )  # fmt: skip
    return Known(found[0], aligned != {"top-left"})


def _by_last(pattern: Pattern) -> Pattern:
    """The pattern with every part aligned at the last token; where lengths are equal it says the same."""
    if isinstance(pattern, Call):
        return _by_last(pattern.body)
    if isinstance(pattern, Operator):
        return pattern.rebuilt(tuple(map(_by_last, pattern.parts)))
    return replace(pattern, align="bottom-right") if isinstance(pattern, (Affine, Chosen)) else pattern


def _is_known(relation: Relation) -> bool:
    classes = relation.keys.step == relation.diagonal.step == relation.rows.step == 1
    few = len(relation.lower) <= 2 and len(relation.upper) <= 2
    begin, end = live_range(relation, INF)
    whole = begin <= 0 and end >= INF  # no row sees nothing by its number alone
    return classes and few and whole and all(isinstance(x, Stair) for x in relation.lower + relation.upper)


def _is_line(bound: Bound) -> bool:
    assert isinstance(bound, Stair)
    return bound.is_constant or (bound.run == 1 and bound.in_lo <= -FAR and bound.in_hi >= FAR)


def _stair(bound: Bound) -> tuple[int, ...]:
    assert isinstance(bound, Stair)
    if bound.is_constant:
        return 1, 1, 0, 0, bound.out_lo, bound.out_hi, -FAR, FAR
    return (
        bound.rise, bound.run, bound.shift, bound.base, bound.out_lo, bound.out_hi, bound.in_lo, bound.in_hi,
    )  # fmt: skip
