"""ACSR, the affine-compressed-sparse-row format.

An `Acsr` is a union of pairwise disjoint terms plus a remainder. A `Term` is a product of relations, one per axis,
between two grids of tokens. In each row and axis the live keys are start, start + step, and so on. Queries and keys may
be chosen from a list, or left out by one (scattered global tokens). That is all that is not affine in a term. The
`Remainder` lists 64 x 64 blocks of what is not affine, one bit per pair where a block is not full. A pair belongs to
exactly one of them. The builder gives it to the first term that has it, and subtracts it from the others. So ownership
needs no test at run time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from weft.acsr.bits import bit_count, transposed
from weft.pattern.bounds import Ints, IntTable, coordinates
from weft.pattern.listed import EVERY, ByClass, Listed
from weft.pattern.relation import NDBool, Relation

BLOCK = 64
MAX_TERMS = 16


class NotAffineError(Exception):
    """Internal: this part of a pattern has no exact affine form; the text says which and why."""


@dataclass(frozen=True)
class Grid:
    """`prod(shape)` consecutive tokens from `origin` on, seen as a row-major grid. Or, on one axis and with origin 0,
    the tokens of `order`, each once: what is scattered lies side by side then.
    """

    origin: int
    shape: tuple[int, ...]
    order: IntTable | None = None

    @property
    def size(self) -> int:
        return prod(self.shape)

    def tokens(self, places: Ints) -> Ints:
        """The tokens at row-major places."""
        return places + self.origin if self.order is None else self.order.array[places]

    @cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        """The tokens of an order, ascending, and their places."""
        assert self.order is not None
        places = np.argsort(self.order.array, kind="stable")
        return self.order.array[places], places

    def lies_within(self, length: int) -> bool:
        """Whether all of its tokens are among 0 to length - 1, and each of an order is told once."""
        if self.order is None:
            return 0 <= self.origin <= length - self.size
        tokens = self._sorted[0]
        apart = bool((np.diff(tokens) > 0).all()) and (self.origin, self.shape) == (0, (tokens.size,))
        return apart and (tokens.size == 0 or (int(tokens[0]) >= 0 and int(tokens[-1]) < length))

    def coordinates(self, tokens: Ints) -> tuple[NDBool, tuple[Ints, ...]]:
        """(which tokens lie in the grid, their coordinates; those outside get some valid coordinate)."""
        if self.order is not None:
            ascending, places = self._sorted
            at = np.minimum(np.searchsorted(ascending, tokens), ascending.size - 1)
            return ascending[at] == tokens, (places[at],)
        local = tokens - self.origin
        inside = (local >= 0) & (local < self.size)
        clipped = np.where(inside, local, 0)
        return inside, coordinates(clipped, self.shape)


@dataclass(frozen=True)
class Term:
    """The pairs between two grids that are live on every axis: axes[a] relates coordinates q.shape[a] x k.shape[a].

    rows, keys: only queries and keys of these sets of tokens. A term of several axes may leave tokens out, but not be
    restricted to a list.
    """

    q: Grid
    k: Grid
    axes: tuple[Relation, ...]
    rows: Listed = EVERY
    keys: Listed = EVERY

    def __post_init__(self) -> None:
        if self.rank > 1 and (self.rows.kept or self.keys.kept):
            raise ValueError(f"a term of {self.rank} axes cannot be restricted to a list of tokens")
        sized = zip(self.axes, self.q.shape, self.k.shape, strict=True)
        object.__setattr__(self, "axes", tuple(axis.bounded(m, n) for axis, m, n in sized))

    @staticmethod
    def flat(relation: Relation, m: int, n: int, rows: Listed = EVERY, keys: Listed = EVERY) -> Term:
        """A relation between token indices as a term of one axis."""
        return Term(Grid(0, (m,)), Grid(0, (n,)), (relation.tidied(m, n),)).chosen(rows, keys)

    def chosen(self, rows: Listed, keys: Listed) -> Term:
        """The term with these sets instead of its own, cut to the tokens that it has."""
        if rows.is_every and keys.is_every and self.rows.is_every and self.keys.is_every:
            return self
        if self.is_ordered:
            raise NotAffineError("a list of tokens beside tokens in another order")
        rows, keys = (x.within(grid.origin, grid.origin + grid.size) for x, grid in ((rows, self.q), (keys, self.k)))
        return replace(self, rows=rows, keys=keys)

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def is_ordered(self) -> bool:
        """Whether it takes tokens in another order than they come; on both sides, if on one."""
        return self.q.order is not None or self.k.order is not None

    @cached_property
    def nnz(self) -> int:
        """Live pairs: a product over axes, so no row of the grid is ever expanded; less what the sets leave out."""
        return count_pairs(self)

    @property
    def nbytes(self) -> int:
        """Bytes of metadata: the bounds, an origin on each side and two lengths per axis, as 32-bit integers; and the
        lists.
        """
        fixed = sum(axis.nbytes for axis in self.axes) + 4 * (2 + 2 * self.rank)
        orders = {id(grid.order): 4 * grid.size for grid in (self.q, self.k) if grid.order is not None}
        return fixed + self.rows.nbytes + self.keys.nbytes + sum(orders.values())

    def is_empty(self) -> bool:
        """Exact; see `Relation.is_empty`."""
        if self.rows.is_empty or self.keys.is_empty:
            return True
        if any(a.is_empty(m, n) for a, m, n in zip(self.axes, self.q.shape, self.k.shape, strict=True)):
            return True
        return not (self.rows.is_every and self.keys.is_every) and not self._shows_pairs() and self.nnz == 0

    def _shows_pairs(self) -> bool:
        """True if one of a few hundred rows has more keys than could be left out; False says nothing."""
        if self.keys.kept:
            return False
        rows = self.rows.tokens.array if self.rows.kept else np.arange(self.q.size, dtype=np.int64) + self.q.origin
        rows = rows[:: max(1, rows.size // 256)]
        return bool(((row_counts(self, rows) > len(self.keys.tokens)) & self.rows.holds(rows)).any())

    def contains(self, q: Ints, k: Ints) -> NDBool:
        """True where the term owns the pair of tokens (q, k); q and k broadcast."""
        in_q, at_q = self.q.coordinates(q)
        in_k, at_k = self.k.coordinates(k)
        live = in_q & in_k & self.rows.holds(q) & self.keys.holds(k)
        for axis, i, j in zip(self.axes, at_q, at_k, strict=True):
            live = live & axis.contains(i, j)
        return np.asarray(live)

    def to_dense(self, m: int, n: int) -> NDBool:
        """The (M, N) mask of this term, through its affine rows rather than its predicate."""
        live = np.ones((1, 1), np.bool_)
        for axis, rows, keys in zip(self.axes, self.q.shape, self.k.shape, strict=True):
            live = np.kron(live, _dense_axis(axis, rows, keys))
        q, k = (grid.tokens(np.arange(grid.size, dtype=np.int64)) for grid in (self.q, self.k))
        dense = np.zeros((m, n), np.bool_)
        dense[np.ix_(q, k)] = live & self.rows.holds(q)[:, None] & self.keys.holds(k)
        return dense

    def columns(self, row: int) -> Ints:
        """The keys of query `row`, ascending: the product of one (start, step, count) per axis."""
        inside, at = self.q.coordinates(np.asarray(row))
        if not (inside and self.rows.holds(np.asarray(row))):
            return np.zeros(0, np.int64)
        keys = np.zeros(1, np.int64)
        for axis, i, n in zip(self.axes, at, self.k.shape, strict=True):
            start, step, count = axis.affine_rows(i.reshape(1), n)
            keys = keys[:, None] * n + (start[0] + step * np.arange(count[0]))
            keys = keys.reshape(-1)
        keys = self.k.tokens(keys)
        if self.is_ordered:
            keys = np.sort(keys)
        return keys if self.keys.is_every else keys[self.keys.holds(keys)]

    def transpose(self) -> Term:
        """The same pairs with queries and keys exchanged."""
        return Term(self.k, self.q, tuple(axis.transpose() for axis in self.axes), self.keys, self.rows)


def _dense_axis(axis: Relation, m: int, n: int) -> NDBool:
    """The (M, N) mask of one axis."""
    dense = np.zeros((m, n), np.bool_)
    starts, step, counts = axis.affine_rows(np.arange(m, dtype=np.int64), n)
    for row, start, count in zip(dense, starts.tolist(), counts.tolist(), strict=True):
        row[start : start + step * count : step] = True
    return dense


# ---- pairs of a term, counted ----------------------------------------------------------------------------------------
PAIRS = 1 << 22  # pairs of listed tokens looked at together


def count_pairs(term: Term) -> int:
    """Live pairs of a term. Where tokens are left out: all, less those of the rows and of the keys left out, which
    have the pairs of both in common.
    """
    rows, keys, turned = term.rows, term.keys, term.transpose()
    if rows.kept and keys.kept:
        return _between(term)
    if rows.kept:
        return int(row_counts(term, rows.tokens.array).sum()) - _between(term)
    if keys.kept:
        return int(row_counts(turned, keys.tokens.array).sum()) - _between(term)
    total = prod(a.count(m, n) for a, m, n in zip(term.axes, term.q.shape, term.k.shape, strict=True))
    out = int(row_counts(term, rows.tokens.array).sum()) + int(row_counts(turned, keys.tokens.array).sum())
    return total - out + _between(term)


def row_counts(term: Term, rows: Ints) -> Ints:
    """Keys of each of the queries `rows`, all inside the term's grid, by the axes alone."""
    _, at = term.q.coordinates(rows)
    counts = [axis.affine_rows(i, n)[2] for axis, i, n in zip(term.axes, at, term.k.shape, strict=True)]
    return np.asarray(np.prod(counts, axis=0, dtype=np.int64))


def _between(term: Term) -> int:
    """Pairs of a listed query and a listed key that are live by the axes."""
    return int(listed_counts(term, term.rows.tokens.array).sum())


def listed_counts(term: Term, rows: Ints) -> Ints:
    """Listed keys that each of the queries `rows` sees by the axes, whether the list keeps them or leaves them out."""
    keys = term.keys.tokens.array
    if not rows.size or not keys.size:
        return np.zeros(rows.size, np.int64)
    if term.rank == 1:
        (axis,) = term.axes
        lo, hi = axis.interval(rows, term.k.size)
        step, phase, agree = axis.key_classes(rows)
        return np.where(axis.rows.holds(rows) & agree, ByClass.of(keys, step).count(phase, lo, hi), 0)
    plain, some = replace(term, rows=EVERY, keys=EVERY), max(1, PAIRS // keys.size)
    return np.concatenate(
        [plain.contains(rows[at : at + some, None], keys).sum(axis=1) for at in range(0, rows.size, some)]
    )


def without_blind(term: Term) -> Term:
    """The same pairs, without queries in the set that the bounds let see keys and that the set of keys leaves none."""
    if term.keys.is_every:
        return term
    rows, listed = term.rows.tokens.array, term.keys.tokens.array
    if not term.rows.kept:
        rows = np.arange(term.q.origin, term.q.origin + term.q.size, dtype=np.int64)
    if term.keys.kept:  # bounds say nothing of residue classes there
        low, high = term.axes[0].interval(rows, term.k.size)
        rows = rows[low < high]
        left = np.zeros_like(rows)
    else:
        seen = row_counts(term, rows)
        rows, left = (x[(seen > 0) & (seen <= listed.size)] for x in (rows, seen))
    blind = rows[listed_counts(term, rows) == left]
    return replace(term, rows=term.rows.meet(Listed(IntTable(blind), kept=False))) if blind.size else term


@dataclass(frozen=True)
class Remainder:
    """Blocks of BLOCK x BLOCK pairs that are not affine, sorted by (row, column) of blocks.

    bit_index[i] is -1 for a full block, else the place in `bits` of its pairs: (BLOCK, BLOCK / 8) bytes, bit 7 first.
    """

    rows: NDArray[np.int32]
    cols: NDArray[np.int32]
    bit_index: NDArray[np.int32]
    bits: NDArray[np.uint8]

    @staticmethod
    def none() -> Remainder:
        none = np.zeros(0, np.int32)
        return Remainder(none, none, none, np.zeros((0, BLOCK, BLOCK // 8), np.uint8))

    def __len__(self) -> int:
        return int(self.rows.size)

    def _arrays(self) -> tuple[NDArray[np.int32] | NDArray[np.uint8], ...]:
        return self.rows, self.cols, self.bit_index, self.bits

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remainder):
            return False
        return self is other or all(map(np.array_equal, self._arrays(), other._arrays()))

    def __hash__(self) -> int:
        """Of the number of blocks and of the first few, which is enough to tell plans apart in a cache."""
        return hash((len(self), len(self.bits), *(x[:256].tobytes() for x in self._arrays())))

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self._arrays())

    def mask(self, i: int, m: int, n: int) -> NDBool:
        """Live pairs of block i, cut at (M, N): (rows, columns) of at most BLOCK each."""
        height = min(BLOCK, m - BLOCK * int(self.rows[i]))
        width = min(BLOCK, n - BLOCK * int(self.cols[i]))
        if self.bit_index[i] < 0:
            return np.ones((height, width), np.bool_)
        return np.unpackbits(self.bits[self.bit_index[i]], axis=1).view(np.bool_)[:height, :width]

    def spans(self, n: int) -> NDArray[np.int32]:
        """Columns of each block from the first live one to the one after the last, cut at N: (blocks, 2)."""
        live = np.unpackbits(np.bitwise_or.reduce(self.bits, axis=1), axis=1)
        return np.minimum(self._extents(live.view(np.bool_)), n - BLOCK * self.cols[:, None])

    def heights(self, m: int) -> NDArray[np.int32]:
        """Rows of each block from the first live one to the one after the last, cut at M: (blocks, 2)."""
        return np.minimum(self._extents(np.bitwise_or.reduce(self.bits, axis=2) != 0), m - BLOCK * self.rows[:, None])

    def _extents(self, live: NDBool) -> NDArray[np.int32]:
        """The first live place and the one after the last, (0, BLOCK) of full blocks. live: (partial blocks, BLOCK)."""
        partial = self.bit_index >= 0
        found = np.tile(np.array([0, BLOCK], np.int32), (len(self), 1))
        first, after = live.argmax(axis=1), BLOCK - live[:, ::-1].argmax(axis=1)
        found[partial] = np.stack([first, after], axis=1)[self.bit_index[partial]]
        return found

    def count(self, m: int, n: int) -> int:
        """Number of live pairs."""
        full = self.bit_index < 0
        high = np.minimum(BLOCK, m - BLOCK * self.rows[full].astype(np.int64))
        wide = np.minimum(BLOCK, n - BLOCK * self.cols[full].astype(np.int64))
        return int((high * wide).sum()) + int(bit_count(self.bits).sum(dtype=np.int64))

    def transpose(self) -> Remainder:
        """The same pairs with queries and keys exchanged."""
        order = _stable_order(self.cols)  # by column; rows stay in order within one
        if not len(self.bits):
            return Remainder(self.cols[order], self.rows[order], self.bit_index, self.bits)
        partial = order[self.bit_index[order] >= 0]
        index = np.full(len(self), -1, np.int32)
        index[self.bit_index[order] >= 0] = np.arange(partial.size, dtype=np.int32)
        bits = transposed(self.bits[self.bit_index[partial]])
        return Remainder(self.cols[order], self.rows[order], index, bits)


@dataclass(frozen=True)
class Acsr:
    """The live pairs of M queries and N keys: disjoint terms, and a remainder that is disjoint from them.

    `label` is the pattern's text; `notes` say what went to the remainder and why. Neither takes part in equality.
    """

    m: int
    n: int
    terms: tuple[Term, ...]
    remainder: Remainder
    label: str = field(default="", compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def nnz(self) -> int:
        """Number of live pairs."""
        return sum(term.nnz for term in self.terms) + self.remainder.count(self.m, self.n)

    @property
    def nbytes(self) -> int:
        """Bytes of metadata, the remainder's included (`remainder.nbytes` says how many those are)."""
        return sum(term.nbytes for term in self.terms) + self.remainder.nbytes

    def rows(self) -> Iterator[Ints]:
        """The keys of query 0, 1, ..., ascending: the compressed sparse rows, expanded one at a time."""
        for row in range(self.m):
            yield self.columns(row)

    def columns(self, row: int) -> Ints:
        """The keys of one query, ascending."""
        parts = [term.columns(row) for term in self.terms]
        here = np.flatnonzero(self.remainder.rows == row // BLOCK)
        for i in here:
            live = np.flatnonzero(self.remainder.mask(int(i), self.m, self.n)[row % BLOCK])
            parts.append(live + BLOCK * int(self.remainder.cols[i]))
        return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))

    def to_dense(self) -> NDBool:
        """The (M, N) boolean mask."""
        dense = np.zeros((self.m, self.n), np.bool_)
        for term in self.terms:
            dense |= term.to_dense(self.m, self.n)
        for i, (row, column) in enumerate(zip(self.remainder.rows, self.remainder.cols, strict=True)):
            mask = self.remainder.mask(i, self.m, self.n)
            dense[BLOCK * row : BLOCK * row + len(mask), BLOCK * column : BLOCK * column + mask.shape[1]] |= mask
        return dense

    def transpose(self) -> Acsr:
        """The same pairs with queries and keys exchanged; bounds are exchanged by `adjoint`, no row is looked at."""
        terms = tuple(term.transpose() for term in self.terms)
        return Acsr(self.n, self.m, terms, self.remainder.transpose(), self.label, self.notes)

    def without_blind(self) -> Acsr:
        """The same pairs: of each term `without_blind`."""
        return replace(self, terms=tuple(map(without_blind, self.terms)))

    def __str__(self) -> str:
        head = f"Acsr {self.m} x {self.n}  {self.label}".rstrip()
        lines = [f"{head}\n  {self.nnz} live pairs ({self._share:.3%}), {self.nbytes} bytes of metadata"]
        lines += [f"  term {i}: {_describe(term)}" for i, term in enumerate(self.terms)]
        if len(self.remainder):
            lines.append(f"  remainder: {len(self.remainder)} blocks, {self.remainder.nbytes} bytes")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    @property
    def _share(self) -> float:
        return self.nnz / max(1, self.m * self.n)


def _stable_order(numbers: NDArray[np.int32]) -> Ints:
    """argsort(kind="stable"); numpy sorts 16-bit integers in one pass over them."""
    small = numbers.size and int(numbers.max()) < 1 << 16
    return np.argsort(numbers.astype(np.uint16) if small else numbers, kind="stable")


def _describe(term: Term) -> str:
    grid = "" if term.rank == 1 else f" on {'x'.join(map(str, term.q.shape))}"
    steps = [f"{name} mod {r.step}" for axis in term.axes for name, r in
             (("q", axis.rows), ("k", axis.keys), ("k-q", axis.diagonal)) if r.step > 1]  # fmt: skip
    if term.is_ordered:
        steps.append(f"{term.q.size} queries and {term.k.size} keys in another order")
    steps += [f"{'only' if x.kept else 'without'} {len(x.tokens)} listed {name}"
              for name, x in (("queries", term.rows), ("keys", term.keys)) if not x.is_every]  # fmt: skip
    return f"{term.nnz} pairs{grid}, {term.nbytes} bytes" + (f", {', '.join(steps)}" if steps else "")
