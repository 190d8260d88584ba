"""Rows of a plan as split-KV kernels read them: one vector of 32-bit integers.

lists: the step functions of terms, whose places their records name.
terms: for each share of the plan the records of its terms (`term_record`).
members: MEMBER integers for each group of query heads. They are batch row, key/value head, first query head, query
heads, terms, and where their records are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from weft.kernels.gpu.split_kv.spec import bounds_of
from weft.kernels.gpu.tables.pack import NO_LOWER, NO_UPPER
from weft.kernels.gpu.tables.writer import Words, Writer
from weft.pattern.bounds import Bound, Stair
from weft.pattern.relation import Relation
from weft.planning.heads import Heads
from weft.planning.rowwise import RowPlan
from weft.planning.tiling.gpu import FAR

MEMBER = 6
CLASSES, BOUND = 10, 9  # integers of a record: about residue classes, and of each bound


def term_words(bounds: int) -> int:
    """Integers of a term's record."""
    return CLASSES + 2 * BOUND * bounds


def row_tables(plan: RowPlan, heads_together: int) -> tuple[Words, int, int]:
    """(integers, where the members are, how many): the records of all terms, then a member for `heads_together` query
    heads of one key/value head or fewer.
    """
    words, bounds = Writer(), bounds_of(plan)
    members = []
    for share in plan.shares:
        lists = [_lists(words, relation) for relation in share.relations]
        at = words.size
        for relation, places in zip(share.relations, lists, strict=True):
            words.put(term_record(relation, bounds, places))
        heads = _members(share.heads, plan.problem.group, heads_together)
        members += [(*head, len(share.relations), at) for head in heads]
    at = words.put(members)
    return words.all(), at, len(members)


def _members(found: Sequence[Heads], group: int, together: int) -> Iterator[tuple[int, int, int, int]]:
    """(batch row, key/value head, first query head, query heads)"""
    for one in found:
        for batch in range(*one.batch):
            for kv in range(*one.kv):
                for first in range(*one.group, together):
                    yield batch, kv, kv * group + first, min(together, one.group[1] - first)


def term_record(relation: Relation, bounds: int, places: dict[Bound, int]) -> list[int]:
    """The integers of one relation; places: where its step functions lie."""
    keys, diagonal, rows = relation.keys, relation.diagonal, relation.rows
    common = int(np.gcd(keys.step, diagonal.step))
    stride = diagonal.step // common
    inverse = pow(keys.step // common, -1, stride) if stride > 1 else 0
    record = [keys.step * stride, stride, common, inverse, keys.step, keys.phase, diagonal.step, diagonal.phase]
    record += [rows.step, rows.phase]
    for side, nothing in ((relation.lower, NO_LOWER), (relation.upper, NO_UPPER)):
        for bound in side:
            record += _stair(bound) if isinstance(bound, Stair) else _step_function(bound, places)
        record += [0, *nothing] * (bounds - len(side))
    return record


def _stair(b: Stair) -> list[int]:
    if b.is_constant:
        return [0, 1, 1, 0, 0, b.out_lo, b.out_hi, -FAR, FAR]
    return [0, b.rise, b.run, b.shift, b.base, b.out_lo, b.out_hi, b.in_lo, b.in_hi]


def _step_function(bound: Bound, places: dict[Bound, int]) -> list[int]:
    assert not isinstance(bound, Stair)
    at, count = places[bound], len(bound.breaks)
    return [1, at, at + count, count, count.bit_length(), 0, 0, 0, 0]


def _lists(words: Writer, relation: Relation) -> dict[Bound, int]:
    """Writes down the breaks and values of every step function, one after the other; returns where."""
    tables = [b for b in relation.lower + relation.upper if not isinstance(b, Stair)]
    return {b: words.put(np.concatenate([b.breaks.array, b.values.array])) for b in tables}
