"""What the kernel is made for that plans the tiles of documents on the device, and which patterns it knows.

A pattern is known if its rows are one run of consecutive keys, by at most two staircases a side, that shift with the
lengths of a document: full, causal, windows and chunks. For others lengths are planned on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.acsr.format import NotAffineError
from weft.acsr.relayout import live_range
from weft.acsr.steady import why_unsteady
from weft.errors import UnsupportedError
from weft.kernels.gpu.tables.pack import NO_LOWER, NO_UPPER, Words
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import INF, Bound, Stair
from weft.pattern.relation import Relation
from weft.planning.rowwise import steady_relations
from weft.planning.tiling.gpu import FAR

ITEM = 6  # integers of a tile of rows, as `tables.pack` has them: first query, queries, first key, keys, left, full


@dataclass(frozen=True)
class ItemsSpec:
    """The kernel of items. rows, cols: of a tile."""

    rows: int
    cols: int

    @property
    def name(self) -> str:
        """A short readable name."""
        return f"document_items_{self.rows}x{self.cols}"


class Sizes(NamedTuple):
    """What the host knows of documents: how many, and how many queries and keys the longest may have."""

    documents: int
    queries: int
    keys: int


def bounds_of(pattern: Pattern, sizes: Sizes) -> Words:
    """Four staircases, two of either side, from the rows of a square pattern to their keys: a document of m queries and
    n keys has the rows n - m to n. Raises UnsupportedError for a pattern whose lengths must be known to the host.
    """
    why = why_unsteady(pattern)
    relations: tuple[Relation, ...] = ()
    if why is None:
        try:
            relations = steady_relations(pattern, max(sizes.queries, sizes.keys, 1))
        except NotAffineError as reason:
            why = str(reason)
    if why is None and not (len(relations) == 1 and _is_known(relations[0])):
        why = "its rows are not one run of consecutive keys by at most two staircases a side"
    if why is not None:
        raise UnsupportedError(
            f"documents with lengths on the device under {pattern}", why,
            "pass cu_seqlens.cpu(): lengths on the host are planned for any pattern",
        )  # fmt: skip
    (relation,) = relations
    sides = (relation.lower, NO_LOWER), (relation.upper, NO_UPPER)
    words = [x for side, nothing in sides for x in (*map(_stair, side), *(nothing,) * (2 - len(side)))]
    return np.clip(np.array(words, np.int64).reshape(-1), -FAR, FAR).astype(np.int32)


def _is_known(relation: Relation) -> bool:
    classes = relation.keys.step == relation.diagonal.step == relation.rows.step == 1
    few = len(relation.lower) <= 2 and len(relation.upper) <= 2
    begin, end = live_range(relation, INF)
    whole = begin <= 0 and end >= INF  # no row sees nothing by its number alone
    return classes and few and whole and all(isinstance(x, Stair) for x in relation.lower + relation.upper)


def _stair(bound: Bound) -> tuple[int, ...]:
    assert isinstance(bound, Stair)
    if bound.is_constant:
        return 1, 1, 0, 0, bound.out_lo, bound.out_hi, -FAR, FAR
    return (
        bound.rise, bound.run, bound.shift, bound.base, bound.out_lo, bound.out_hi, bound.in_lo, bound.in_hi,
    )  # fmt: skip
