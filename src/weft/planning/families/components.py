"""Components of a pattern: queries that see the same keys or share some, and keys that no others see.

Windows of a grid and short documents have many small ones. A tile has SIZE queries and SIZE keys. Where each component
fits into one, a program makes all of a tile, forward or backward. It walks batch rows, so that what score functions add
is read once. On a grid several components lie side by side in a tile. On a line each has its own, so that what a
document holds reaches no other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from weft.acsr.format import Acsr, Term
from weft.acsr.proof import require
from weft.caching import cached
from weft.pattern.bounds import Ints
from weft.pattern.relation import ANY, NDBool, Relation
from weft.planning.heads import Share
from weft.planning.problem import Problem

NAME = "components"
SIZE = 64  # queries, and keys, of a tile
MOST = 4096  # tiles: their tables are 4 MiB
WIDEST = 128  # head dimensions
ROUNDS = 8  # programs of a processor, about


@dataclass(frozen=True, eq=False)
class Components:
    """Tiles (tiles, SIZE) of queries and of keys, -1 where a place is empty. live: pairs (tiles, SIZE, SIZE)."""

    queries: Ints
    keys: Ints
    live: NDBool

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return len(self.queries)

    def share(self, problem: Problem, processors: int) -> int:
        """Batch rows of one program: few enough that processors have ROUNDS of them."""
        parts = -(-ROUNDS * processors // max(1, self.count * problem.q_heads))
        return -(-problem.batch // min(max(1, problem.batch), parts))


class _Component(NamedTuple):
    """Tokens of a component."""

    queries: Ints
    keys: Ints


@cached(64)
def components_of(shares: tuple[Share, ...], problem: Problem) -> Components | str:
    """The tiles of a call's components, or why it has none."""
    if problem.dtype == "float32" or problem.group != 1 or max(problem.d, problem.dv) > WIDEST:
        return f"its kernels are for 16-bit types, keys of one head and head dimensions up to {WIDEST}"
    if len(shares) != 1:
        return "heads differ in their patterns"
    return tiles_of(shares[0].plan.acsr)


def tiles_of(acsr: Acsr) -> Components | str:
    """The same of one pattern."""
    if len(acsr.terms) != 1 or len(acsr.remainder):
        return "the pattern is not one affine term"
    term = acsr.terms[0]
    if not (term.rows.is_every and term.keys.is_every) or any(not _is_plain(axis) for axis in term.axes):
        return "tokens are listed, or in residue classes"
    on_axes = [_on_axis(*one) for one in zip(term.axes, term.q.shape, term.k.shape, strict=True)]
    sizes = [[max((part.stop - part.start for part in side), default=0) for side in zip(*axis, strict=True)]
             for axis in on_axes]  # fmt: skip
    queries, keys = np.prod(sizes, axis=0).tolist()
    if max(queries, keys) > SIZE:
        return f"components have up to {queries} queries and {keys} keys, tiles {SIZE}"
    if np.prod([len(axis) for axis in on_axes]) > MOST * SIZE:
        return f"there are more than {MOST} tiles"
    bins = _binned(_components(acsr, term, on_axes), together=term.rank > 1)
    return _packed(term, bins) if len(bins) <= MOST else f"there are more than {MOST} tiles"


def _is_plain(axis: Relation) -> bool:
    return axis.rows == axis.keys == axis.diagonal == ANY


# ---- components ------------------------------------------------------------------------------------------------------
Span = tuple[slice, slice]  # coordinates of queries and of keys


def _on_axis(axis: Relation, m: int, n: int) -> list[Span]:
    """The components of one axis: bounds never fall, so each is a run of rows and a run of keys. Rows that see nothing
    are components without keys.
    """
    rows = np.arange(m, dtype=np.int64)
    low, high = axis.interval(rows, n)
    empty = low >= high
    cut = np.flatnonzero((high[:-1] <= low[1:]) | empty[:-1] | empty[1:]) + 1
    found = []
    for begin, end in zip([0, *cut.tolist()], [*cut.tolist(), m], strict=True):
        if begin < end:
            keys = slice(0, 0) if empty[begin] else slice(int(low[begin]), int(high[end - 1]))
            found.append((slice(begin, end), keys))
    return found


def _components(acsr: Acsr, term: Term, on_axes: Sequence[list[Span]]) -> Iterator[_Component]:
    """Those of a term, and tokens beside it that see nothing or that nothing sees."""
    seen_q, seen_k = np.zeros(acsr.m, np.bool_), np.zeros(acsr.n, np.bool_)
    for spans in product(*on_axes):
        q = term.q.tokens(_places([rows for rows, _ in spans], term.q.shape))
        k = term.k.tokens(_places([keys for _, keys in spans], term.k.shape))
        if k.size:
            seen_q[q], seen_k[k] = True, True
            yield _Component(q, k)
    none = np.zeros(0, np.int64)
    for alone in np.split(np.flatnonzero(~seen_q), range(SIZE, int((~seen_q).sum()), SIZE)):
        if alone.size:
            yield _Component(alone, none)
    for alone in np.split(np.flatnonzero(~seen_k), range(SIZE, int((~seen_k).sum()), SIZE)):
        if alone.size:
            yield _Component(none, alone)


def _places(spans: Sequence[slice], shape: Sequence[int]) -> Ints:
    """Row-major places of a box."""
    found = np.zeros(1, np.int64)
    for span, length in zip(spans, shape, strict=True):
        found = (found[:, None] * length + np.arange(span.start, span.stop)).reshape(-1)
    return found


# ---- tiles -----------------------------------------------------------------------------------------------------------
def _binned(every: Iterator[_Component], together: bool) -> list[list[_Component]]:
    """Components by tiles; together: the largest first, each into the fullest tile that has room for it."""
    if not together:
        return [[one] for one in every]
    bins: list[list[_Component]] = []
    room: dict[tuple[int, int], list[int]] = {}  # of tiles, by the queries and keys that they have room for
    for one in sorted(every, key=lambda c: (-max(c.queries.size, c.keys.size), c.queries.tolist())):
        q, k = one.queries.size, one.keys.size
        left = min((free for free, some in room.items() if some and free[0] >= q and free[1] >= k), default=None)
        if left is None:
            number, left = len(bins), (SIZE, SIZE)
            bins.append([])
        else:
            number = room[left].pop(0)
        bins[number].append(one)
        room.setdefault((left[0] - q, left[1] - k), []).append(number)
    return bins


def _packed(term: Term, bins: list[list[_Component]]) -> Components:
    shape = len(bins), SIZE
    queries, keys, live = np.full(shape, -1), np.full(shape, -1), np.zeros((*shape, SIZE), np.bool_)
    for number, some in enumerate(bins):
        row = column = 0
        for q, k in some:
            queries[number, row : row + q.size], keys[number, column : column + k.size] = q, k
            pairs = term.contains(q[:, None], k[None, :])
            live[number, row : row + q.size, column : column + k.size] = pairs
            row, column = row + q.size, column + k.size
    return Components(queries, keys, live)


def verify_components(tiles: Components, acsr: Acsr) -> None:
    """Raise VerificationError unless each query and each key is in one place, and live pairs are the pattern's."""
    for side, length in ((tiles.queries, acsr.m), (tiles.keys, acsr.n)):
        tokens = np.sort(side[side >= 0])
        require(np.array_equal(tokens, np.arange(length)), "components do not have each token once")
    (term,) = acsr.terms
    pairs = term.contains(np.maximum(tiles.queries, 0)[:, :, None], np.maximum(tiles.keys, 0)[:, None, :])
    pairs &= (tiles.queries >= 0)[:, :, None] & (tiles.keys >= 0)[:, None, :]
    require(np.array_equal(pairs, tiles.live), "components have other pairs than the pattern")
    require(int(tiles.live.sum()) == term.nnz, "components leave pairs of the pattern out")
