"""Blocks of single pairs as terms, where few terms say them: the last form that is tried before pairs are listed.

Every query sees runs of consecutive keys. Two forms are looked for, by queries and by keys. Rectangles: one for each
class of queries that see the same. Chains of runs: at most one of each query, whose ends never decrease from one query
to the next. So a chain is two bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from weft.acsr import stairs
from weft.acsr.bits import bit_count
from weft.acsr.blocks import Blocks
from weft.acsr.format import BLOCK, MAX_TERMS, Term
from weft.acsr.merge import MAX_BOXES, Rectangle, fewest, restricted, spelled
from weft.pattern.bounds import Bound, Ints, Stair, Steps
from weft.pattern.listed import EVERY
from weft.pattern.relation import NDBool, Relation

BLOCKS_A_TERM = 4  # of a remainder, which cost as much as a term
FEW = 5  # terms that patterns of the library have, which are left as they are
MAX_GROUPS = 1 << 15  # groups of queries that are alike
TRIED = 2  # ways of as many terms whose bytes are compared
MAX_BITS = 1 << 14  # blocks with bits that are looked at
Run = tuple[int, int]  # first key, key after the last


@dataclass(frozen=True, eq=False)
class Alike:
    """Groups of consecutive queries that see the same. Group g is queries first[g] to first[g + 1] - 1, and sees the
    keys of runs[g]. The last one ends at m.
    """

    m: int
    n: int
    first: Ints
    runs: list[tuple[Run, ...]]

    def after(self, group: int) -> int:
        """The query after the last of a group."""
        return int(self.first[group + 1]) if group + 1 < self.first.size else self.m


def room(blocks: int, kept: int = 0) -> int:
    """How many terms may take the place of so many blocks of a remainder, beside terms that are kept."""
    return min(MAX_TERMS - kept, max(FEW, blocks // BLOCKS_A_TERM))


def covered(blocks: Blocks, room: int) -> list[Term] | None:
    """Disjoint terms whose pairs are those of the blocks, at most `room` of them; None if that is not known to do."""
    ways = _ways(alike_queries(blocks, room), room)
    least = min((way.count for way in ways), default=room + 1)
    if least > 1:
        turned = Blocks.of_remainder(blocks.remainder().transpose(), blocks.n, blocks.m)
        ways += _ways(alike_queries(turned, room), min(room, least), turned=True)
    return _best(ways)


def of_intervals(low: Ints, high: Ints, n: int, room: int) -> list[Term] | None:
    """Disjoint terms, at most `room`, in which query i sees low[i] <= k < high[i] of n keys. None if chains are more,
    or queries differ too often.
    """
    low, high = np.where(low < high, low, -1), np.where(low < high, high, -1)
    first = np.flatnonzero(np.append(True, (low[1:] != low[:-1]) | (high[1:] != high[:-1]))[: low.size])
    if first.size > MAX_GROUPS:
        return None
    ends = zip(low[first].tolist(), high[first].tolist(), strict=True)
    runs: list[tuple[Run, ...]] = [((a, b),) if a >= 0 else () for a, b in ends]
    return _best(_ways(Alike(low.size, n, first, runs), room))


def of_table(rows: Ints, cols: Ints, table: NDBool, room: int) -> list[Term] | None:
    """Disjoint terms of the pairs of blocks that a table says: rows, cols are the token after the last of each block.
    None if they are more than `room`.
    """
    if not table.any():
        return []
    ways: list[Way] = []
    for ends, others, live, turned in ((rows, cols, table, False), (cols, rows, table.T, True)):
        edges = np.diff(live.astype(np.int8), axis=1, prepend=0, append=0)
        starts = np.append(0, others)
        ends_of = [[starts[np.flatnonzero(row == step)].tolist() for step in (1, -1)] for row in edges]
        runs = [tuple(zip(begin, end, strict=True)) for begin, end in ends_of]
        alike = Alike(int(ends[-1]), int(others[-1]), np.append(0, ends[:-1]), runs)
        ways += _ways(alike, min((way.count for way in ways), default=room), turned=turned)
    return _best(ways)


@dataclass(frozen=True, eq=False)
class Way:
    """So many terms, which are made when they are wanted; turned: of keys and queries exchanged."""

    count: int
    made: Callable[[], list[Term]]
    turned: bool

    def terms(self) -> list[Term]:
        return [term.transpose() for term in self.made()] if self.turned else self.made()


def _ways(alike: Alike | None, room: int, *, turned: bool = False) -> list[Way]:
    """Rectangles, and chains from the first query on and from the last one back, where they are at most `room`."""
    if alike is None or not any(alike.runs):
        return [] if alike is None else [Way(0, list, turned)]
    found = []
    boxes = _rectangles(alike)
    if boxes is not None and len(boxes) <= room:
        found.append(Way(len(boxes), lambda: [restricted(Relation(), box.rows, box.keys) for box in boxes], turned))
    both = [_chains(alike, room, by) for by in (1, -1)]
    return found + [Way(len(chains), partial(_terms, chains, alike), turned) for chains in both if chains]


def _best(ways: Sequence[Way]) -> list[Term] | None:
    """The fewest terms, of two such ways those with fewer bytes."""
    least = min((way.count for way in ways), default=0)
    found = [way.terms() for way in [way for way in ways if way.count == least][:TRIED]]
    return min(found, key=lambda terms: sum(term.nbytes for term in terms), default=None)


# ---- queries that are alike ------------------------------------------------------------------------------------------
def alike_queries(blocks: Blocks, room: int) -> Alike | None:
    """The runs of keys of every query; None if they are too many for `room` chains and too unlike for rectangles."""
    if len(blocks.partial) > MAX_BITS:
        return None
    words = blocks.bits.view(">u8")[:, :, 0]
    begins = int(bit_count(words & ~(words >> np.uint64(1))).sum(dtype=np.int64))
    if begins > 2 * MAX_BOXES * max(blocks.m, BLOCK):
        return None
    row, start, stop = _runs_of(blocks)
    if not row.size:
        return Alike(blocks.m, blocks.n, np.zeros(1, np.int64), [()])
    first = np.flatnonzero(np.diff(row, prepend=-1))
    ends = np.append(first[1:], row.size)
    beside = _strips(blocks)
    found_first: list[int] = []
    found: list[tuple[Run, ...]] = []
    expected = 0
    for a, b in zip(first.tolist(), ends.tolist(), strict=True):
        query = int(row[a])
        runs = tuple(zip(start[a:b].tolist(), stop[a:b].tolist(), strict=True))
        for at, seen in ((expected, ()), (query, runs)) if query > expected else ((query, runs),):
            if not found or found[-1] != seen:
                found_first.append(at)
                found.append(seen)
        expected = query + (1 if beside[query // BLOCK] else BLOCK)
        if len(found) > MAX_GROUPS:
            return None
    if expected < blocks.m:
        found_first.append(expected)
        found.append(())
    return Alike(blocks.m, blocks.n, np.array(found_first, np.int64), found)


def _strips(blocks: Blocks) -> np.ndarray:
    """For each strip of BLOCK queries whether a block of it has bits, so that its queries may differ."""
    beside = np.zeros(-(-blocks.m // BLOCK), np.bool_)
    beside[blocks.partial // _width(blocks.n)] = True
    return beside


def _width(n: int) -> int:
    return max(1, -(-n // BLOCK))


def _runs_of(blocks: Blocks) -> tuple[Ints, Ints, Ints]:
    """(query, first key, key after the last) of every run of keys, sorted; of a strip without bits only its first
    query is told.
    """
    width, beside = _width(blocks.n), _strips(blocks)
    live = np.unpackbits(blocks.bits, axis=2).view(np.int8)
    edges = np.diff(live, axis=2, prepend=0, append=0)
    begin, end = np.nonzero(edges == 1), np.nonzero(edges == -1)
    rows, cols = (x[begin[0]] for x in np.divmod(blocks.partial, width))
    parts = [(rows * BLOCK + begin[1], cols * BLOCK + begin[2], cols * BLOCK + end[2])]
    rows, cols = np.divmod(blocks.full, width)
    for some, count in ((beside[rows], BLOCK), (~beside[rows], 1)):
        query = (rows[some, None] * BLOCK + np.arange(count)).reshape(-1)
        key = np.repeat(cols[some] * BLOCK, count)
        inside = query < blocks.m
        parts.append((query[inside], key[inside], np.minimum(key[inside] + BLOCK, blocks.n)))
    row, start, stop = (np.concatenate(x) for x in zip(*parts, strict=True))
    order = np.lexsort((start, row))
    row, start, stop = row[order], start[order], stop[order]
    new = np.ones(row.size, np.bool_)
    new[1:] = (row[1:] != row[:-1]) | (start[1:] != stop[:-1])
    last = np.append(np.flatnonzero(new)[1:] - 1, row.size - 1) if row.size else np.zeros(0, np.int64)
    return row[new], start[new], stop[last]


# ---- rectangles ------------------------------------------------------------------------------------------------------
def _rectangles(alike: Alike) -> list[Rectangle] | None:
    """One rectangle for each class of queries that see the same keys, or of keys that the same queries see."""
    classes: dict[tuple[Run, ...], list[int]] = {}
    for group, runs in enumerate(alike.runs):
        if runs:
            classes.setdefault(runs, []).append(group)
            if len(classes) > MAX_BOXES:
                return None
    boxes = []
    for runs, groups in classes.items():
        box = Rectangle(np.zeros(alike.m, np.bool_), np.zeros(alike.n, np.bool_))
        for group in groups:
            box.rows[int(alike.first[group]) : alike.after(group)] = True
        for first, after in runs:
            box.keys[first:after] = True
        boxes.append(box)
    return fewest(boxes)


# ---- chains ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Link:
    """A run of keys that a group of queries sees."""

    group: int
    first: int
    after: int


def _chains(alike: Alike, room: int, by: int) -> list[list[Link]]:
    """At most `room` chains that have every run, none where they do not do. Each run joins the chain that comes
    nearest to it; by: 1 from the first query on, -1 from the last one back.
    """
    chains: list[list[Link]] = []
    groups = list(enumerate(alike.runs))
    for group, runs in groups[::by]:
        if len(runs) > room:
            return []
        free = list(range(len(chains)))
        for first, after in runs[::-by]:
            last = {c: chains[c][-1] for c in free}
            fits = [c for c in free if by * last[c].first <= by * first and by * last[c].after <= by * after]
            if fits:
                place = max(fits, key=lambda c: by * (last[c].first + last[c].after + last[c].group))
                free.remove(place)
                chains[place].append(Link(group, first, after))
            elif len(chains) < room:
                chains.append([Link(group, first, after)])
            else:
                return []
    return [chain[::by] for chain in chains]


def _terms(chains: list[list[Link]], alike: Alike) -> list[Term]:
    return [_term(chain, alike) for chain in chains]


def _term(chain: list[Link], alike: Alike) -> Term:
    """A chain as bounds on the queries that it has. A list might have to say which these are. Then the bounds leave the
    others nothing, if they can.
    """
    rows = np.zeros(alike.m, np.bool_)
    for link in chain:
        rows[int(alike.first[link.group]) : alike.after(link.group)] = True
    span, listed = spelled(rows, of_rows=True)
    closed = not listed.is_every and all(b.first >= a.after for a, b in _gaps(chain))
    if closed:
        first, after = np.flatnonzero(rows)[[0, -1]]
        within = np.zeros(alike.m, np.bool_)
        within[first : after + 1] = True
        span, listed = spelled(within, of_rows=True)
    lower, upper = (_bound(chain, alike, side, closed=closed) for side in ("first", "after"))
    both = Relation((lower,), (upper,)).meet(span)
    assert both is not None  # neither has two residues
    return Term.flat(both, alike.m, alike.n, listed, EVERY)


def _gaps(chain: list[Link]) -> list[tuple[Link, Link]]:
    """Neighbours in a chain with groups between them that it does not have."""
    return [(a, b) for a, b in pairwise(chain) if b.group > a.group + 1]


def _bound(chain: list[Link], alike: Alike, side: str, *, closed: bool) -> Bound:
    """The simplest bound with the chain's values at its groups. Between them it may be anything in between; with
    `closed`, both bounds are there what leaves no key.
    """
    rows: list[tuple[int, int]] = []
    least: list[int] = []
    most: list[int] = []
    for place, link in enumerate(chain):
        begin, value = int(alike.first[link.group]), int(getattr(link, side))
        if place and begin > rows[-1][1] + 1:
            before = chain[place - 1]
            low, high = (before.after, before.after) if closed and side == "after" else (most[-1], value)
            low = before.after if closed else low
            rows.append((rows[-1][1] + 1, begin - 1))
            least.append(low)
            most.append(high)
        rows.append((begin, alike.after(link.group) - 1))
        least.append(value)
        most.append(value)
    first, last = (np.array(x, np.int64) for x in zip(*rows, strict=True))
    found = stairs.simplest(np.array(least, np.int64), np.array(most, np.int64), alike.n, (first, last))
    constant = isinstance(found, Steps) and len(found.values) == 1
    return Stair.constant(int(found.values.array[0])) if constant and isinstance(found, Steps) else found
