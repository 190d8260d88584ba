"""ACSR, the affine-compressed-sparse-row format.

An `Acsr` is a union of pairwise disjoint terms plus a remainder. A `Term` is a product of relations, one per axis,
between two grids of tokens: in each row and axis the live keys are start, start + step, ...  The `Remainder` lists 64
x 64 blocks of what is not affine, one bit per pair where a block is not full. A pair belongs to exactly one of them:
the builder gives it to the first term that has it and subtracts it from the others, so that ownership needs no test at
run time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from weft.pattern.bounds import Ints, IntTable, coordinates
from weft.pattern.relation import NDBool, Relation

BLOCK = 64
MAX_TERMS = 16


@dataclass(frozen=True)
class Grid:
    """`prod(shape)` consecutive tokens from `origin` on, seen as a row-major grid."""

    origin: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    def coordinates(self, tokens: Ints) -> tuple[NDBool, tuple[Ints, ...]]:
        """(which tokens lie in the grid, their coordinates; those outside get some valid coordinate)."""
        local = tokens - self.origin
        inside = (local >= 0) & (local < self.size)
        clipped = np.where(inside, local, 0)
        return inside, coordinates(clipped, self.shape)


@dataclass(frozen=True)
class Term:
    """The pairs between two grids that are live on every axis: axes[a] relates coordinates q.shape[a] x k.shape[a]."""

    q: Grid
    k: Grid
    axes: tuple[Relation, ...]

    @staticmethod
    def flat(relation: Relation, m: int, n: int) -> Term:
        """A relation between token indices as a term of one axis."""
        return Term(Grid(0, (m,)), Grid(0, (n,)), (relation.tidied(m, n),))

    @property
    def rank(self) -> int:
        return len(self.axes)

    @cached_property
    def nnz(self) -> int:
        """Live pairs: a product over axes, so no row of the grid is ever expanded."""
        return prod(a.count(m, n) for a, m, n in zip(self.axes, self.q.shape, self.k.shape, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of metadata: the bounds, an origin on each side and two lengths per axis, as 32-bit integers."""
        return sum(axis.nbytes for axis in self.axes) + 4 * (2 + 2 * self.rank)

    def is_empty(self) -> bool:
        """Exact; see `Relation.is_empty`."""
        return any(a.is_empty(m, n) for a, m, n in zip(self.axes, self.q.shape, self.k.shape, strict=True))

    def contains(self, q: Ints, k: Ints) -> NDBool:
        """True where the term owns the pair of tokens (q, k); q and k broadcast."""
        in_q, at_q = self.q.coordinates(q)
        in_k, at_k = self.k.coordinates(k)
        live = in_q & in_k
        for axis, i, j in zip(self.axes, at_q, at_k, strict=True):
            live = live & axis.contains(i, j)
        return np.asarray(live)

    def to_dense(self, m: int, n: int) -> NDBool:
        """The (M, N) mask of this term, through its affine rows rather than its predicate."""
        dense = np.zeros((m, n), np.bool_)
        for row in range(self.q.origin, self.q.origin + self.q.size):
            dense[row, self.columns(row)] = True
        return dense

    def columns(self, row: int) -> Ints:
        """The keys of query `row`, ascending: the product of one (start, step, count) per axis."""
        inside, at = self.q.coordinates(np.asarray(row))
        if not inside:
            return np.zeros(0, np.int64)
        keys = np.zeros(1, np.int64)
        for axis, i, n in zip(self.axes, at, self.k.shape, strict=True):
            start, step, count = axis.affine_rows(i.reshape(1), n)
            keys = keys[:, None] * n + (start[0] + step * np.arange(count[0]))
            keys = keys.reshape(-1)
        return keys + self.k.origin

    def transpose(self) -> Term:
        """The same pairs with queries and keys exchanged."""
        return Term(self.k, self.q, tuple(axis.transpose() for axis in self.axes))


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

    @cached_property
    def key(self) -> IntTable:
        """The content as one value: what equality and hashing look at."""
        raw = b"".join(x.tobytes() for x in (self.rows, self.cols, self.bit_index, self.bits))
        raw += b"\0" * (-len(raw) % 8)
        return IntTable(np.frombuffer(raw, np.int64))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remainder) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self.rows, self.cols, self.bit_index, self.bits))

    def mask(self, i: int, m: int, n: int) -> NDBool:
        """Live pairs of block i, cut at (M, N): (rows, columns) of at most BLOCK each."""
        height = min(BLOCK, m - BLOCK * int(self.rows[i]))
        width = min(BLOCK, n - BLOCK * int(self.cols[i]))
        if self.bit_index[i] < 0:
            return np.ones((height, width), np.bool_)
        return np.unpackbits(self.bits[self.bit_index[i]], axis=1).view(np.bool_)[:height, :width]

    def count(self, m: int, n: int) -> int:
        """Number of live pairs."""
        full = self.bit_index < 0
        high = np.minimum(BLOCK, m - BLOCK * self.rows[full].astype(np.int64))
        wide = np.minimum(BLOCK, n - BLOCK * self.cols[full].astype(np.int64))
        return int((high * wide).sum()) + int(np.unpackbits(self.bits).sum())

    def transpose(self) -> Remainder:
        """The same pairs with queries and keys exchanged."""
        order = np.lexsort((self.rows, self.cols))
        partial = order[self.bit_index[order] >= 0]
        pairs = np.unpackbits(self.bits, axis=2).reshape(-1, BLOCK, BLOCK)[self.bit_index[partial]]
        index = np.full(len(self), -1, np.int32)
        index[self.bit_index[order] >= 0] = np.arange(partial.size, dtype=np.int32)
        bits = np.packbits(pairs.transpose(0, 2, 1), axis=2)
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
        for row, columns in enumerate(self.rows()):
            dense[row, columns] = True
        return dense

    def transpose(self) -> Acsr:
        """The same pairs with queries and keys exchanged; bounds are exchanged by `adjoint`, no row is looked at."""
        terms = tuple(term.transpose() for term in self.terms)
        return Acsr(self.n, self.m, terms, self.remainder.transpose(), self.label, self.notes)

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


def _describe(term: Term) -> str:
    grid = "" if term.rank == 1 else f" on {'x'.join(map(str, term.q.shape))}"
    steps = [f"{name} mod {r.step}" for axis in term.axes for name, r in
             (("q", axis.rows), ("k", axis.keys), ("k-q", axis.diagonal)) if r.step > 1]  # fmt: skip
    return f"{term.nnz} pairs{grid}, {term.nbytes} bytes" + (f", {', '.join(steps)}" if steps else "")
