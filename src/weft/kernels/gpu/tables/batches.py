"""Waves: the nests of a plan, for all heads, in as few launches of a kernel as their order allows.

Nests of one kind that meet no row of a head twice go into one wave. Such are heads of different dilation, and rows that
see all keys beside rows that see a window. Nests that meet the same rows follow each other, and their results are
merged. Rows themselves are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weft.acsr.format import BLOCK
from weft.kernels.gpu.tables.block_lists import list_tables
from weft.kernels.gpu.tables.pack import Kind, NestTables, Place, block_tables, nest_tables
from weft.kernels.gpu.tables.writer import Words
from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool
from weft.planning.families.hopper import LISTS
from weft.planning.heads import Heads, Share
from weft.planning.problem import Problem
from weft.planning.tiles import TilePlan
from weft.planning.tma import Extent
from weft.planning.work import are_few, most_of


@dataclass(frozen=True, eq=False)
class Entry:
    """One nest with its heads, (heads, 4): batch row, key/value head, first query head, count.

    rows: which it visits. owners: of what it writes rows, (batch row, key/value head) and for queries the query head.
    """

    tables: NestTables
    heads: Words
    rows: NDBool
    owners: frozenset[tuple[int, ...]]

    def meets(self, other: Entry) -> bool:
        """Whether the two write some row both."""
        return bool(self.owners & other.owners) and bool((self.rows & other.rows).any())


@dataclass(frozen=True, eq=False)
class Wave:
    """Nests of one kind as one launch of a kernel: members x items.

    words: the tables, with the members from `heads_at` on. place: of the only nest, None where several are packed.
    merges: some row is visited by another wave too. adds_shared: it visits every row once, comes last, and adds the
    sums that the others left for the few rows that these visit. whole: every column of every box exists. terms: the
    most of one nest. lines: every bound is a clipped line. reach, short, work: of the only nest, see
    `NestTables`. blocks_at: where the list of blocks is, see `weft.kernels.gpu.tables.tile_scheduler`. counted: the
    device makes the tables. Runs may begin before token 0. A forward learns from the integer before the list how many
    blocks there are; items x members is the most.
    """

    words: Words
    kind: Kind
    heads_at: int
    members: int
    items: int
    skewed: bool
    several: bool
    terms: int
    more: bool
    place: Place | None
    merges: bool
    span: int
    whole: bool
    lines: bool
    adds_shared: bool = False
    reach: tuple[Extent, ...] | None = None
    short: bool = False
    work: Ints | None = None
    blocks_at: int = 0
    counted: bool = False


@dataclass(frozen=True, eq=False)
class Waves:
    """All waves of one direction. covers: every row of every head is visited. shared_rows: where the last wave joins
    others, the rows that these visit.
    """

    waves: tuple[Wave, ...]
    covers: bool
    shared_rows: NDBool | None = None

    @property
    def merges(self) -> bool:
        return any(wave.merges for wave in self.waves)


def plan_waves(shares: Sequence[Share], problem: Problem, transposed: bool, slots: int | None = None) -> Waves:
    """The waves of shares; transposed: rows are keys.

    slots: tiles that the GPU computes at a time. With it, tiles that visit far more than a fair share are cut into
    several items, whose results are added in no fixed order.
    """
    found: list[list[Entry]] = []
    for pack in dict.fromkeys(share.pack for share in shares):
        found += _side_by_side(_entries([s for s in shares if s.pack == pack], problem, transposed, slots))
    waves = []
    for one in found:
        others = [entry for w in found if w is not one for entry in w]
        waves.append(_wave(one, one[0].tables.split or any(a.meets(b) for a in one for b in others)))
    heads = problem.batch * (problem.kv_heads if transposed else problem.q_heads)
    last = next((i for i, one in enumerate(found) if transposed and _adds_shared(found, one, heads)), None)
    covers = _covers([entry for one in found for entry in one], heads)
    if last is None:
        return Waves(tuple(waves), covers)
    waves.append(replace(waves.pop(last), adds_shared=True))
    shared = np.any([entry.rows for i, one in enumerate(found) if i != last for entry in one], axis=0)
    return Waves(tuple(waves), covers, shared)


def _adds_shared(found: list[list[Entry]], one: list[Entry], heads: int) -> bool:
    """Whether a wave visits every row once, and others few."""
    others = [entry.rows for other in found if other is not one for entry in other]
    return not one[0].tables.split and are_few(others) and _covers(one, heads)


def _entries(shares: Sequence[Share], problem: Problem, transposed: bool, slots: int | None) -> Iterator[Entry]:
    """The nests of one pack."""
    most = most_of([(share.plan, _members(share.heads)) for share in shares], slots) if slots else None
    for share in shares:
        rounds = _rounds(head_rows(share.heads, problem.group, transposed), 2 if transposed else 3)
        for tables, rows in _nests(share.plan, most):
            for listed, owners in rounds:
                yield Entry(tables, listed, rows, owners)


def _side_by_side(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Entries of one kind together that write no row twice."""
    found: list[list[Entry]] = []
    for entry in entries:
        place = next((wave for wave in found if _fits(entry, wave)), None)
        if place is None:
            found.append([entry])
        else:
            place.append(entry)
    return found


def _rounds(heads: Words, width: int) -> list[tuple[Words, frozenset[tuple[int, ...]]]]:
    """(heads, owners): heads apart that write the same rows, as those of a group do that are no neighbours."""
    met: dict[tuple[int, ...], int] = {}
    rounds: list[list[int]] = []
    for i, owner in enumerate(map(tuple, heads[:, :width].tolist())):
        number = met[owner] = met.get(owner, -1) + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(i)
    return [(heads[one], frozenset(map(tuple, heads[one, :width].tolist()))) for one in rounds]


def _members(heads: tuple[Heads, ...]) -> int:
    """Key/value heads over all batch rows."""
    return sum((one.batch[1] - one.batch[0]) * (one.kv[1] - one.kv[0]) for one in heads)


def _nests(plan: TilePlan, most: int | None) -> Iterable[tuple[NestTables, NDBool]]:
    """(tables, rows visited) of every nest; the remainder last."""
    m = plan.acsr.m
    for nest in plan.nests:
        if nest.tiles:
            assert plan.tiling is not None, "a plan for a GPU has a tiling"
            yield from nest_tables(nest, plan.tiling, m, most)
    if plan.blocks is not None:
        rows = np.zeros(-(-m // BLOCK) * BLOCK, np.bool_)
        rows.reshape(-1, BLOCK)[plan.blocks.rows] = True
        yield list_tables(plan) if plan.of_blocks in LISTS else block_tables(plan), rows[:m]


def _fits(entry: Entry, wave: list[Entry]) -> bool:
    return entry.tables.kind == wave[0].tables.kind and not any(entry.meets(other) for other in wave)


def _covers(entries: list[Entry], owners: int) -> bool:
    """Whether every row of every head is visited."""
    seen: dict[tuple[int, ...], NDBool] = {}
    for entry in entries:
        for owner in entry.owners:
            seen[owner] = entry.rows if owner not in seen else seen[owner] | entry.rows
    return len(seen) >= owners and all(rows.all() for rows in seen.values())


def _wave(entries: list[Entry], merges: bool) -> Wave:
    """Entries side by side, those with the longest item first."""
    found = sorted(entries, key=lambda entry: -int(entry.tables.work.max(initial=0)))
    bases = np.cumsum([0, *(entry.tables.words.size for entry in found)])
    members = []
    for entry, base in zip(found, bases, strict=False):
        p = entry.tables.place
        rest = np.array([base, entry.tables.items, p.record, p.parts, p.parts_at, p.items_at], np.int32)
        members.append(np.concatenate([entry.heads, np.broadcast_to(rest, (len(entry.heads), rest.size))], axis=1))
    joined: NDArray[np.int32] = np.concatenate(members)
    only = found[0].tables if len(found) == 1 else None
    tables = [entry.tables for entry in found]
    return Wave(
        np.concatenate([*(entry.tables.words for entry in found), joined.reshape(-1)]),
        found[0].tables.kind, int(bases[-1]), len(joined), max(entry.tables.items for entry in found),
        only is None or only.skewed, several=any(t.several for t in tables),
        terms=max(t.place.parts for t in tables), more=any(t.more for t in tables),
        place=None if only is None else only.place, merges=merges, span=max(t.span for t in tables),
        whole=all(t.whole for t in tables), lines=all(t.lines for t in tables),
        reach=None if only is None else only.reach, short=only is not None and only.short,
        work=None if only is None else only.work,
    )  # fmt: skip


def head_rows(heads: tuple[Heads, ...], group: int, transposed: bool) -> Words:
    """(heads, 4): the query heads that share a plan; or where keys stay, the key/value heads, the last ones first.

    dQ went before these, and what it read last is still in the cache.
    """
    found = []
    for one in heads:
        for batch in range(*one.batch):
            for kv in range(*one.kv):
                first, last = kv * group + one.group[0], kv * group + one.group[1]
                if transposed:
                    found.append((batch, kv, first, last - first))
                else:
                    found += [(batch, kv, head, 1) for head in range(first, last)]
    return np.array(found[::-1] if transposed else found, np.int32).reshape(-1, 4)
