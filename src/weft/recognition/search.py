"""The search for the smallest description, in a fixed order; what it returns is true of every decided pair.

Simple sets alone, then intersections and unions of them. Coarse masks by their blocks. Products over the axes of a
grid. Intersections of unions and unions of intersections, peeled from the outside. Parts of the sequence one by one.
For what is left, the pairs themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.acsr.format import MAX_TERMS
from weft.pattern import algebra as ops
from weft.pattern import composites, pieces
from weft.pattern import library as lib
from weft.pattern.algebra import Align, Pattern
from weft.pattern.bounds import Ints, IntTable
from weft.recognition import grids, parts
from weft.recognition.bitrows import BitRows
from weft.recognition.breadth import breadth
from weft.recognition.names import cost, intersection, union
from weft.recognition.parts import Known
from weft.recognition.raster import enlarged, kronecker, raster

PLAIN = 8  # a description of at most so many numbers is taken at once
GOOD = 24  # and of so many, before the sequence is cut
MAX_DEPTH = 5
MAX_CUTS = 1
MAX_AXES = 3
FEW = 3
SHARE = 16  # queries that a number of it must be worth
SMALL = 1 << 18  # pairs up to which cuts, and blocks of every size, are tried
CUTS = 3
PAIRS_A_BLOCK_ROW = 8
MAX_SEARCHES = 48
WORK = 1 << 28


@dataclass(frozen=True, eq=False)
class Found:
    """A pattern and its pairs; `loose`: how many of them are listed one by one, `coarse`: blocks among these."""

    pattern: Pattern
    rows: BitRows
    loose: BitRows | None = None

    @property
    def cost(self) -> int:
        return cost(self.pattern)


class Budget:
    """How many searches one mask may still take, and how many pairs they may look at all together."""

    def __init__(self, pairs: int, searches: int = MAX_SEARCHES) -> None:
        self.searches, self.pairs = searches, max(WORK, 4 * pairs)

    def spend(self, pairs: int) -> None:
        self.searches -= 1
        self.pairs -= pairs

    @property
    def spent(self) -> bool:
        return min(self.searches, self.pairs) <= 0


@dataclass(frozen=True)
class Level:
    """Where the search is: how deep in peeled parts (and which was peeled last), and how often cut. Also whether a pair
    is a block of pairs, and whether pairs that are left may be listed otherwise than bit by bit.
    """

    budget: Budget
    depth: int = 0
    peeled: str = ""
    cuts: int = 0
    axes: int = 1
    blocks: bool = False
    listing: bool = True

    def inside(self, peeled: str) -> Level:
        return replace(self, depth=self.depth + 1, peeled=peeled)

    def cut(self) -> Level:
        return replace(self, depth=0, peeled="", cuts=self.cuts + 1)


def search(known: Known, level: Level | None = None) -> Found:
    """The cheapest description found; stops at the first that is plain."""
    m, n = known.size
    level = level or Level(Budget(m * n))
    if not known.live.some:
        return Found(lib.nothing(), BitRows.of_queries(np.zeros(m, np.bool_), n))
    if not known.dead.some:
        return Found(lib.full(), BitRows.of_queries(np.ones(m, np.bool_), n))
    level.budget.spend(m * n)
    hull = parts.hull(known)
    best = _found(parts.intersected(known, hull))
    around = BitRows.meet(list(hull.values())) if hull else None
    del hull  # a matrix for each kind; the search inside needs the room
    if best and (best.cost <= parts.PLAIN or _plain_enough(best, m * n, 1)):
        return best
    blocky = _coarse(known, level)
    if blocky:  # blocks were searched as pairs are: there is no more to find
        return _least([best, blocky])
    core = parts.core(known)
    best = _cheaper(best, _found(parts.united(known, core)))
    within = BitRows.join(list(core.values())) if core else None
    del core
    if best and (best.cost <= PLAIN or _plain_enough(best, m * n, FEW)):
        return best
    for attempt in (_neighborhood, _product):
        best = _cheaper(best, attempt(known, level))
        if best and best.loose is None and best.cost <= GOOD:
            return best
    components = None if level.budget.spent else _components(known)
    scattered = _recur(known.live.first)
    labelled = _labelled(known, level) or _crossed(known, level, scattered)
    if scattered and labelled is not None and labelled.loose is None and components is None:
        return _least([best, labelled])  # one term, however scattered its tokens are
    candidates = [best, labelled, components, _blocks(known, level)]
    candidates += _peeled(known, level, around, within)
    best = _least([*candidates, listed(known, level)])
    if best.loose is not None or best.cost > GOOD:
        best = _least([best, *_cut(known, level, best)])
    return best


def _plain_enough(found: Found, pairs: int, terms: int) -> bool:
    """Whether a large mask is searched no further: a form of so few terms, short for its size."""
    return pairs >= parts.LARGE and breadth(found.pattern) <= terms and found.cost * SHARE <= found.rows.m


def _found(pair: tuple[Pattern, BitRows] | None) -> Found | None:
    return None if pair is None else Found(*pair)


def _cheaper(a: Found | None, b: Found | None) -> Found | None:
    return a if b is None or (a is not None and a.cost <= b.cost) else b


def _least(found: list[Found | None]) -> Found:
    some = [f for f in found if f is not None]
    return min(some, key=lambda f: f.cost)


# ---- one part around the others -------------------------------------------------------------------------------------
def _peeled(known: Known, level: Level, around: BitRows | None, within: BitRows | None) -> list[Found]:
    """outer & rest and outer | rest: the rest is searched where the outer part leaves it open."""
    if level.depth == MAX_DEPTH or level.budget.spent:
        return []
    found = []
    if around is not None and level.peeled != "hull":
        rest = search(known.within(around), level.inside("hull"))
        left = known.within(rest.rows)
        if not left.dead.some:
            found.append(rest)
        else:
            outer = parts.intersected(left, parts.hull(left))
            if outer is not None:
                found.append(Found(intersection([outer[0], rest.pattern]), outer[1] & rest.rows, rest.loose))
    if within is not None and level.peeled != "core":
        rest = search(known.beyond(within), level.inside("core"))
        left = known.beyond(rest.rows)
        if not left.live.some:
            found.append(rest)
        else:
            outer = parts.united(left, parts.core(left))
            if outer is not None:
                found.append(Found(union([outer[0], rest.pattern]), outer[1] | rest.rows, rest.loose))
    return found


# ---- grids and blocks -----------------------------------------------------------------------------------------------
def _neighborhood(known: Known, level: Level) -> Found | None:
    """Only asked of whole masks: a neighbourhood inside another pattern is found as a product."""
    if not known.decided or known.live.m != known.live.n:
        return None
    axes = grids.axes_of(known.live, 2 if level.blocks else 3)
    return Found(grids.neighborhood(axes), known.live) if axes else None


def _labelled(known: Known, level: Level) -> Found | None:
    """Tokens with labels that see their like, cut down or added to by what the rest of the search finds."""
    m, n = known.size
    if level.depth or level.cuts or m != n:
        return None
    found = []
    for rows, inverted in ((known.live, False), (known.dead, True)):
        _, ids = np.unique(np.where(rows.queries, rows.first, n + np.arange(n)), return_inverse=True)
        alike = lib.documents(ids=ids.reshape(-1))
        like = raster(alike, m, n)
        if ids.max() == n - 1 or rows.exceeds(like):
            continue
        rest = search(known.beyond(like.inverted()) if inverted else known.within(like), level.inside("labels"))
        if inverted:
            found.append(Found(union(_without_empty(~alike, rest)), like.inverted() | rest.rows, rest.loose))
        else:
            said = alike if rest.pattern == lib.full() else alike & rest.pattern
            found.append(Found(said, like & rest.rows, rest.loose))
    return min(found, key=lambda f: f.cost, default=None)


def _recur(labels: np.ndarray) -> bool:
    """Whether labels come again after others, in more runs than terms may be."""
    runs = 1 + np.count_nonzero(np.diff(labels))
    return bool(runs > MAX_TERMS and np.unique(labels).size < runs)


def _crossed(known: Known, level: Level, scattered: bool) -> Found | None:
    """The same of queries and keys with labels of their own: queries with one first key, and the keys that they see.
    Or the complement of that, where it is all.
    """
    if level.depth or level.cuts or not known.decided:
        return None
    found = _alike(known.live) if scattered else None
    if found is None:
        unlike = _alike(known.dead) if _recur(known.dead.first) else None
        return Found(~unlike[0], known.live) if unlike is not None and unlike[1].same(known.dead) else None
    alike, like = found
    rest = search(known.within(like), level.inside("labels"))
    said = alike if rest.pattern == lib.full() else alike & rest.pattern
    return Found(said, like & rest.rows, rest.loose)


def _alike(rows: BitRows) -> tuple[Pattern, BitRows] | None:
    """Labels by which queries and keys see their like, as rows do at most; None if there are none."""
    m, n = rows.m, rows.n
    ids = np.where(rows.queries, rows.first, n)
    key_ids = np.where(rows.keys, ids[np.minimum(rows.transposed().first, m - 1)], n + 1)
    alike = lib.documents(ids=ids, key_ids=key_ids)
    like = raster(alike, m, n)
    return None if np.unique(ids).size == m or rows.exceeds(like) else (alike, like)


def _components(known: Known) -> Found | None:
    """Tokens joined by live pairs, directly or through others, see each other; or the complement of that."""
    m, n = known.size
    if m != n or m * n > SMALL:
        return None
    for rows, against, inverted in ((known.live, known.dead, False), (known.dead, known.live, True)):
        joined = rows.dense() | rows.dense().T
        ids = np.arange(n)
        for _ in range(n):
            least = np.minimum(ids, np.where(joined, ids, n).min(axis=1))
            if (least == ids).all():
                break
            ids = least
        like = raster(said := lib.documents(ids=np.unique(ids, return_inverse=True)[1].reshape(-1)), m, n)
        if not like.meets(against):
            return Found(~said, like.inverted()) if inverted else Found(said, like)
    return None


def _without_empty(pattern: Pattern, rest: Found) -> list[Pattern]:
    return [pattern] if rest.pattern == lib.nothing() else [pattern, rest.pattern]


def _product(known: Known, level: Level) -> Found | None:
    if level.budget.spent or level.axes == MAX_AXES:
        return None
    found = []
    for split in grids.splits(known):
        axes = [
            search(Known(axis, axis.inverted()), replace(level.inside(""), cuts=MAX_CUTS, axes=level.axes + 1))
            for axis in (split.outer, split.inner)
        ]
        if any(axis.loose is not None for axis in axes):
            continue
        rows = kronecker([split.outer, split.inner])
        said = _grid(split, axes)
        found.append(Found(said, rows))
        if len(found) == grids.MAX_GRIDS:
            break
    return min(found, key=lambda f: f.cost, default=None)


def _grid(split: grids.Split, axes: list[Found]) -> Pattern:
    """The product, as a neighbourhood where each axis is one."""
    if split.shape == split.key_shape:
        inner, outer = grids.axis_of(split.inner), grids.axes_of(split.outer, 2)
        if inner and outer:
            return grids.neighborhood([*outer, inner])
    keys = None if split.shape == split.key_shape else split.key_shape
    return composites.product([axis.pattern for axis in axes], split.shape, keys)


def _coarse(known: Known, level: Level) -> Found | None:
    """A mask made of blocks is searched with one pair for each of them."""
    if not known.decided or level.blocks:
        return None
    said = in_blocks(known.live, level.axes)
    return None if said is None else Found(said, known.live)


def in_blocks(rows: BitRows, axes: int = 1) -> Pattern | None:
    """The pattern of a mask made of blocks; None if it is of single pairs."""
    block = grids.block_of(rows)
    if min(block) == 1:
        return None
    small = grids.shrunk(rows, block)
    found = search(Known(small, small.inverted()), Level(Budget(small.m * small.n, 12), axes=axes, blocks=True))
    return lifted(found.pattern, block, (rows.m, rows.n))


def lifted(pattern: Pattern, block: tuple[int, int], size: tuple[int, int]) -> Pattern:
    """A pattern of blocks as one of tokens, under its own name where it has one."""
    if isinstance(pattern, (ops.And, ops.Or, ops.Not)):
        return pattern.rebuilt(tuple(lifted(part, block, size) for part in pattern.parts))
    name, args = (pattern.name, dict(pattern.args)) if isinstance(pattern, ops.Call) else ("", {})
    square = block[0] == block[1] and size[0] == size[1]
    whole = size[0] % block[0] == size[1] % block[1] == 0
    if name in ("full", "nothing"):
        return pattern
    if name == "prefix":
        return lib.prefix(args["length"] * block[1])
    if name == "blocks":
        return lib.blocks(block, args["pairs"])
    if name == "global_tokens" and isinstance(args["tokens"], int) and (square or not args.get("rows", True)):
        return lib.global_tokens(**{**args, "tokens": args["tokens"] * block[1]})
    if name == "documents" and square and whole and "lengths" in args:
        return lib.documents(args["lengths"].array * block[0])
    if name == "chunks" and square:
        return lib.chunks(args["size"] * block[0])
    if name == "window" and square and args.get("left") == args.get("right") == 0:
        return lib.chunks(block[0])
    if name == "neighborhood" and square and whole:
        return _with_full_axis(args, block[0])
    if name == "product" and whole:
        shape, keys = (
            tuple(x) for x in (args["shape"].array.tolist(), args.get("key_shape", args["shape"]).array.tolist())
        )
        return composites.product([*args["patterns"], lib.full()], (*shape, block[0]), (*keys, block[1]))
    return pieces.coarse(pattern, block if block[0] != block[1] else block[0])


def _with_full_axis(args: dict[str, Any], length: int) -> Pattern:
    """The neighbourhood of grid points that are blocks of `length` tokens."""
    axes = grids.axes_in(args)
    return grids.neighborhood([*axes, grids.Axis(length, length, 1, 1, False)])


# ---- what is left ---------------------------------------------------------------------------------------------------
def listed(known: Known, level: Level | None = None) -> Found:
    """The pairs themselves: by blocks if they come so, as a list where they are few, else bit by bit."""
    m, n = known.size
    few = known.live if known.live.count <= known.dead.count else known.dead
    level = level or Level(Budget(m * n))
    most = PAIRS_A_BLOCK_ROW * (m + n) if level.blocks else m * few.words.shape[1]
    if level.listing and few.count < most:
        said = _pairs(few, 1)
    else:
        said = as_bits(few).pattern
    if few is known.dead:
        return Found(~said, few.inverted(), few)
    return Found(said, few, few)


def as_bits(rows: BitRows) -> Found:
    """Every live pair as a bit."""
    return Found(pieces.bits(IntTable(rows.words.view(np.int64)), rows.m, rows.n), rows, rows)


def _pairs(rows: BitRows, block: int) -> Pattern:
    found = [
        (int(q), int(k)) for q in np.flatnonzero(rows.queries) for k in np.flatnonzero(rows.dense(slice(q, q + 1)))
    ]
    return lib.blocks(block, found)


def _blocks(known: Known, level: Level) -> Found | None:
    """What is left as a list of blocks, each of them live or dead as far as it is decided."""
    m, n = known.size
    if level.blocks or known.live.count == 0:
        return None
    sizes = range(min(64, max(m, n) // 2), 1, -1) if m * n <= SMALL else (256, 128, 64, 32, 16)
    side = grids.sides_of_blocks(known)
    for block in (size for size in sizes if side % size == 0):
        live = grids.block_any(known.live, block)
        if not live.meets(grids.block_any(known.dead, block)):
            if live.count > PAIRS_A_BLOCK_ROW * (live.m + live.n):
                return None
            return Found(_pairs(live, block), enlarged(live, (block, block), m, n))
    return None


def _cut(known: Known, level: Level, best: Found) -> list[Found]:
    """The mask cut in two where its rows or keys stop being like those before them."""
    m, n = known.size
    if level.cuts >= MAX_CUTS or level.depth or level.budget.spent or m * n > SMALL:
        return []
    found = []
    for on_keys in (False, True):
        for at in _borders(known.live.transposed() if on_keys else known.live)[:CUTS]:
            first = np.arange(n if on_keys else m) < at
            side = BitRows.of_keys(first, m) if on_keys else BitRows.of_queries(first, n)
            halves = [
                search(Known(known.live & part, known.dead & part), level.cut()) for part in (side, side.inverted())
            ]
            align: Align = None if m == n else "top-left"
            box = lib.prefix(at) if on_keys else lib.global_tokens(at, columns=False, align=align)
            said = [_within(box, halves[0].pattern), _within(~box, halves[1].pattern)]
            loose = [
                half.loose & part for half, part in zip(halves, (side, side.inverted()), strict=True) if half.loose
            ]
            rows = (halves[0].rows & side) | halves[1].rows.without(side)
            found.append(Found(union([p for p in said if p is not None]), rows, _joined(loose)))
    return found


def _within(box: Pattern, pattern: Pattern) -> Pattern | None:
    if pattern == lib.nothing():
        return None
    return box if pattern == lib.full() else box & pattern


def _joined(loose: list[BitRows]) -> BitRows | None:
    return (loose[0] | loose[1] if len(loose) == 2 else loose[0]) if loose else None


def unlikeness(rows: BitRows) -> Ints:
    """(m - 1): in how many keys each row differs from the one before it, in place or moved by one key."""
    words = rows.words
    moved = words << np.uint64(1)
    moved[:, 1:] |= words[:, :-1] >> np.uint64(63)
    same = BitRows(words[1:] ^ words[:-1], rows.n).row_counts()
    along = BitRows(words[1:] ^ moved[:-1], rows.n).row_counts()
    return np.minimum(same, np.maximum(along - 1, 0))


def _borders(rows: BitRows) -> list[int]:
    """Rows least like the one before them, in place and moved by one key; most unlike first."""
    unlike = unlikeness(rows)
    order = np.argsort(-unlike, kind="stable")[:8]
    limit = 2 * np.median(unlike) if unlike.size else 0
    return [int(at) + 1 for at in order if unlike[at] > limit]


__all__ = ["Found", "Level", "as_bits", "listed", "search", "unlikeness"]
