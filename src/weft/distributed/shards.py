"""Which rank holds which tokens: boxes of the grid that a sequence is, in the order of its tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from itertools import product as cartesian
from math import prod
from typing import Any

import numpy as np

from weft.acsr.excerpts import cut
from weft.acsr.format import BLOCK, Acsr, Grid, NotAffineError, Term, listed_counts, row_counts
from weft.acsr.needs import needed, of_axis
from weft.acsr.tokens import EMPTY, Tokens, boxes_of_run, union
from weft.errors import OptionError
from weft.pattern.bounds import Ints
from weft.pattern.counting import between
from weft.pattern.excerpt import Box
from weft.pattern.relation import Relation

KINDS = ("contiguous", "work", "zigzag", "boxes")
ALIGNED = 128  # tokens that cuts by work are multiples of


@dataclass(frozen=True)
class Shards:
    """boxes[r]: what rank r holds, in the order of its tokens. shape: the grid, of one axis for a line.

    kind: how they were made; split: of boxes, ranks along each axis.
    """

    shape: tuple[int, ...]
    boxes: tuple[tuple[Box, ...], ...]
    kind: str
    split: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        return len(self.boxes)

    @property
    def size(self) -> int:
        """Tokens of the whole."""
        return prod(self.shape)

    @cached_property
    def tokens(self) -> tuple[Tokens, ...]:
        """The tokens of each rank."""
        return tuple(union(map(Tokens.of_box, boxes)) for boxes in self.boxes)

    @cached_property
    def _runs(self) -> tuple[Ints, Ints, Ints]:
        """All runs of all ranks, ascending: (first tokens, those after the last, ranks)."""
        starts, stops = (np.concatenate([getattr(one, end) for one in self.tokens]) for end in ("starts", "stops"))
        ranks = np.repeat(np.arange(self.ranks), [one.starts.size for one in self.tokens])
        order = np.argsort(starts)
        return starts[order], stops[order], ranks[order]

    def _pieces(self, tokens: Tokens) -> tuple[Ints, Ints, Ints]:
        """Runs of tokens as far as one rank holds them: (first tokens, those after the last, ranks)."""
        starts, stops, ranks = self._runs
        first = np.searchsorted(stops, tokens.starts, side="right")
        many = np.searchsorted(starts, tokens.stops, side="left") - first
        at = np.arange(many.sum()) + np.repeat(first - np.cumsum(many) + many, many)
        low, high = (np.repeat(x, many) for x in (tokens.starts, tokens.stops))
        return np.maximum(starts[at], low), np.minimum(stops[at], high), ranks[at]

    def counts(self, tokens: Tokens) -> Ints:
        """How many of some tokens each rank holds."""
        low, high, ranks = self._pieces(tokens)
        return np.bincount(ranks, high - low, self.ranks).astype(np.int64)

    def parted(self, tokens: Tokens) -> tuple[Tokens, ...]:
        """Which of some tokens each rank holds."""
        low, high, ranks = self._pieces(tokens)
        found = [EMPTY] * self.ranks
        for rank in np.unique(ranks).tolist():
            found[rank] = Tokens.of(low[ranks == rank], high[ranks == rank])
        return tuple(found)

    def __str__(self) -> str:
        sizes = [len(one) for one in self.tokens]
        each = str(sizes[0]) if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)}"
        name = "x".join(map(str, self.split)) + " boxes" if self.split else self.kind
        return f"{name}, {each} tokens a rank"


def shards_of(given: Any, acsr: Acsr, ranks: int) -> Shards:
    """Shards by name, by numbers of ranks along the axes of a grid, or as the ranges that the caller holds."""
    shape = grid_of(acsr)
    if given == "contiguous":
        return _of_cuts(shape, _even(acsr.m, ranks), "contiguous")
    if given == "work":
        return _of_cuts(shape, _by_work(acsr, ranks), "work")
    if given == "zigzag":
        return _zigzag(acsr.m, ranks)
    if given == "boxes":
        return best_boxes(acsr, ranks)
    if isinstance(given, str) and re.fullmatch(r"\d+(x\d+)+", given):
        return _boxes(shape, tuple(map(int, given.split("x"))), ranks)
    return _of_ranges(given, acsr.m, ranks)


def grid_of(acsr: Acsr) -> tuple[int, ...]:
    """The grid that all tokens are, where terms have one; else a line."""
    shapes = {
        term.q.shape for term in acsr.terms if term.rank > 1 and (term.q.shape, term.q.size) == (term.k.shape, acsr.m)
    }
    return shapes.pop() if len(shapes) == 1 else (acsr.m,)


# ---- cuts of a line --------------------------------------------------------------------------------------------------
def _even(tokens: int, ranks: int) -> list[int]:
    return [tokens * r // ranks for r in range(ranks + 1)]


def _of_cuts(shape: tuple[int, ...], cuts: Sequence[int], kind: str) -> Shards:
    boxes = tuple(tuple(boxes_of_run(a, b, shape)) for a, b in pairwise(cuts))
    return Shards(shape, boxes, kind)


def _by_work(acsr: Acsr, ranks: int) -> list[int]:
    """Cuts between which the live pairs are as equal as multiples of ALIGNED allow."""
    sums = np.append(0, np.cumsum(row_work(acsr)))
    wanted = [int(np.searchsorted(sums, sums[-1] * r / ranks)) for r in range(1, ranks)]
    unit = ALIGNED if acsr.m >= 4 * ALIGNED * ranks else 1
    cuts = [0, *(round(at / unit) * unit for at in wanted), acsr.m]
    return [min(max(at, r), acsr.m) for r, at in enumerate(np.maximum.accumulate(cuts).tolist())]


def row_work(acsr: Acsr) -> Ints:
    """Live pairs of each row."""
    found = np.zeros(acsr.m, np.int64)
    for term in acsr.terms:
        for first in range(0, term.q.size, 1 << 18):
            rows = term.q.tokens(np.arange(first, min(first + (1 << 18), term.q.size), dtype=np.int64))
            found[rows] += _counts(term, rows)
    for i, row in enumerate(acsr.remainder.rows.tolist()):
        mask = acsr.remainder.mask(i, acsr.m, acsr.n)
        found[BLOCK * row : BLOCK * row + len(mask)] += mask.sum(axis=1)
    return found


def _counts(term: Term, rows: Ints) -> Ints:
    """Keys of each of the rows by a term."""
    counts = row_counts(term, rows)
    if not term.keys.is_every:
        listed = listed_counts(term, rows)
        counts = listed if term.keys.kept else counts - listed
    return np.where(term.rows.holds(rows), counts, 0)


def _zigzag(tokens: int, ranks: int) -> Shards:
    """Chunk r and the r-th from the end, of twice as many chunks as ranks: causal rows have equal work."""
    cuts = _even(tokens, 2 * ranks)
    box = [Box((tokens,), (a,), (b - a,)) for a, b in pairwise(cuts)]
    pairs = [(box[r], box[2 * ranks - 1 - r]) for r in range(ranks)]
    return Shards((tokens,), tuple(tuple(x for x in pair if x.size) for pair in pairs), "zigzag")


# ---- boxes of a grid -------------------------------------------------------------------------------------------------
def _boxes(shape: tuple[int, ...], split: tuple[int, ...], ranks: int) -> Shards:
    if len(split) != len(shape) or prod(split) != ranks or any(d > n for d, n in zip(split, shape, strict=True)):
        raise OptionError(
            f"shards={'x'.join(map(str, split))!r} for {ranks} ranks",
            f"it is no split of a grid of {'x'.join(map(str, shape))}",
            "give one number of ranks for each axis, at most its length, whose product is the number of ranks: '2x4'",
        )  # fmt: skip
    found = []
    for at in cartesian(*map(range, split)):
        ends = [(n * i // d, n * (i + 1) // d) for n, i, d in zip(shape, at, split, strict=True)]
        found.append((Box(shape, tuple(a for a, _ in ends), tuple(b - a for a, b in ends)),))
    return Shards(shape, tuple(found), "boxes", split)


def best_boxes(acsr: Acsr, ranks: int) -> Shards:
    """Of all splits of the grid the one whose rank that needs most other tokens needs fewest."""
    shape = grid_of(acsr)
    splits = [
        d for d in cartesian(*[[d for d in range(1, ranks + 1) if ranks % d == 0]] * len(shape))
        if prod(d) == ranks and all(a <= n for a, n in zip(d, shape, strict=True))
    ]  # fmt: skip
    if not splits:
        raise OptionError(
            f"shards='boxes' for {ranks} ranks", f"a grid of {'x'.join(map(str, shape))} has no such split",
            "use fewer ranks, or shards='contiguous'",
        )  # fmt: skip
    if _is_product(acsr, shape):
        return _boxes(shape, min(splits, key=lambda split: _most_of_product(acsr.terms[0], split)), ranks)
    found = [_boxes(shape, split, ranks) for split in splits]

    def most(one: Shards) -> int:
        return max(len(needed(acsr, boxes) - mine) for boxes, mine in zip(one.boxes, one.tokens, strict=True))

    return min(found, key=most)


def _is_product(acsr: Acsr, shape: tuple[int, ...]) -> bool:
    """Whether each axis says alone which keys its rows see."""
    if len(acsr.terms) != 1 or len(acsr.remainder):
        return False
    (term,) = acsr.terms
    return term.rows.is_every and term.keys.is_every and term.q == term.k == Grid(0, shape)


def _most_of_product(term: Term, split: tuple[int, ...]) -> int:
    """The most tokens of other ranks that a rank needs."""
    seen = own = np.array(1)
    for axis, n, d in zip(term.axes, term.k.shape, split, strict=True):
        ends = list(pairwise(_even(n, d)))
        sets = [of_axis(axis, rows, n) for rows in ends]
        inside = [keys & Tokens.of(*np.array([rows]).T) for keys, rows in zip(sets, ends, strict=True)]
        seen, own = (np.multiply.outer(x, [*map(len, some)]) for x, some in ((seen, sets), (own, inside)))
    return int((seen - own).max())


# ---- ranges that the caller holds ------------------------------------------------------------------------------------
def _of_ranges(given: Any, tokens: int, ranks: int) -> Shards:
    """given: for each rank its ranges [(first, after), ...], ascending."""
    try:
        held = [[(int(a), int(b)) for a, b in ranges] for ranges in given]
    except (TypeError, ValueError):
        raise OptionError(
            f"shards={given!r}", f"it is none of {', '.join(map(repr, KINDS))} and no list of ranges for each rank",
            "pass a name, a split such as '2x4', or [[(first, after), ...], ...] with one list for each rank",
        ) from None  # fmt: skip
    asked = f"shards of {len(held)} ranks"
    if len(held) != ranks:
        raise OptionError(asked, f"there are {ranks} ranks", "give one list of ranges for each rank")
    for r, ranges in enumerate(held):
        ends = [x for pair in ranges for x in pair]
        if ends != sorted(ends) or (ends and not 0 <= ends[0] <= ends[-1] <= tokens):
            raise OptionError(asked, f"the ranges of rank {r} do not ascend within 0 and {tokens}", "sort them")
    covered = sorted((a, b) for ranges in held for a, b in ranges if a < b)
    at = 0
    for a, b in covered:
        if a != at:
            wrong = f"tokens {a} to {min(at, b)} are held twice" if a < at else f"nobody holds tokens {at} to {a}"
            raise OptionError(asked, wrong, f"let the ranges cover 0 to {tokens} once")
        at = b
    if at != tokens:
        raise OptionError(asked, f"nobody holds tokens {at} to {tokens}", f"let the ranges cover 0 to {tokens} once")
    boxes = tuple(tuple(Box((tokens,), (a,), (b - a,)) for a, b in ranges if a < b) for ranges in held)
    return Shards((tokens,), boxes, "given")


# ---- pairs of rows, and between boxes --------------------------------------------------------------------------------
def pairs_of(acsr: Acsr, q: Sequence[Box]) -> int:
    """Live pairs of terms of queries in some boxes."""
    total = 0
    for term, box in cartesian(acsr.terms, q):
        if term.q == Grid(0, box.shape) and term.rows.is_every and term.keys.is_every:
            ends = ((a, a + n) for a, n in zip(box.first, box.sizes, strict=True))
            total += prod(map(_counted, term.axes, ends, term.k.shape))
        else:
            total += _pairs(term, box, Box(box.shape, (0,) * len(box.shape), box.shape), acsr.n)
    return total


@lru_cache(maxsize=1024)  # ranks of a grid have axes in common
def _counted(axis: Relation, rows: tuple[int, int], n: int) -> int:
    return between(axis, *rows, n)


def pairs_between(acsr: Acsr, q: Sequence[Box], k: Sequence[Box]) -> int:
    """Live pairs of terms between queries in some boxes and keys in others.

    Where boxes cut a term into what is no term, its rows are taken to see as much of these keys as of all.
    """
    return sum(_pairs(term, a, b, acsr.n) for term, a, b in cartesian(acsr.terms, q, k))


def _pairs(term: Term, q: Box, k: Box, n: int) -> int:
    try:
        return sum(piece.nnz for piece in cut(term, q, k))
    except NotAffineError:
        rows = Tokens.of_box(q).array()
        found = int(_counts(term, rows[term.q.coordinates(rows)[0]]).sum())
        return found if k.size == n else found * k.size // n
