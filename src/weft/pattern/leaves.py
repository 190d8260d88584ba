"""The leaves under the library's calls: few, general, and each with its meaning in `holds`.

`Affine` is one relation on flattened token indices. `Product` joins relations over the axes of a grid. `Segments` is a
matrix of patterns. `Labels`, `BlockList` are what need not be affine. `Sized` waits for the lengths. `PerHead` and
`PerBatch` choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from weft.errors import AlignmentError, LengthError
from weft.pattern.algebra import Align, Call, Operator, Pattern, Where
from weft.pattern.bounds import Ints, IntTable, coordinates
from weft.pattern.extent import common_extent
from weft.pattern.listed import Listed
from weft.pattern.relation import NDBool, Relation


def require_alignment(align: Align, m: int, n: int, asked: str) -> None:
    """Raise AlignmentError if M != N and no alignment is declared."""
    if m != n and align is None:
        raise AlignmentError(
            asked, "with M != N it is not said which query stands beside which key",
            'pass align="top-left" (query i beside key i) or align="bottom-right" (last query beside last key), '
            "or call .aligned(...) on the whole pattern",
        )  # fmt: skip


class Leaf(Pattern):
    """A pattern without patterns in it, which tells neither heads nor batch rows apart."""

    __slots__ = ()

    def filled(self, align: Align) -> Pattern:
        return self

    def check(self, m: int, n: int, asked: str) -> None:
        return None

    def extent(self) -> tuple[int | None, int | None]:
        return None, None

    def at(self, batch: int, head: int) -> Pattern:
        return self

    def alignments(self) -> Iterator[Align]:
        return iter(())


@dataclass(frozen=True)
class Affine(Leaf):
    """One relation between token indices. `positional`: it relates queries to keys, so M != N needs an alignment;
    others may declare one, by which nothing but distances is counted.

    `length`: the only M and N it has a meaning for, if any; `key_length`: the only N, where that is another.
    """

    relation: Relation
    positional: bool = False
    align: Align = None
    length: int | None = None
    key_length: int | None = None

    def filled(self, align: Align) -> Pattern:
        return replace(self, align=self.align or align)

    def check(self, m: int, n: int, asked: str) -> None:
        if self.length is not None and (m, n) != self.lengths:
            both = f"{self.length} tokens, on both sides"
            if self.key_length is not None:
                both = f"{self.length} queries and {self.key_length} keys"
            raise LengthError(
                asked, f"the pattern covers exactly {both}",
                "make the lengths add up to the number of tokens, or end with a document of padding",
            )  # fmt: skip
        if self.positional:
            require_alignment(self.align, m, n, asked)

    def alignments(self) -> Iterator[Align]:
        if self.positional or self.align:
            yield self.align

    @property
    def lengths(self) -> tuple[int | None, int | None]:
        """M and N that it has a meaning for."""
        return self.length, self.length if self.key_length is None else self.key_length

    def shift_at(self, m: int, n: int) -> int:
        """What is added to a query index before the relation is asked."""
        return n - m if self.positional and self.align == "bottom-right" else 0

    def relation_at(self, m: int, n: int) -> Relation:
        """The relation on top-left indices."""
        shift = self.shift_at(m, n)
        return self.relation.moved(-shift, 0) if shift else self.relation

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return self.relation.contains(q + self.shift_at(at.m, at.n), k)


@dataclass(frozen=True)
class Chosen(Leaf):
    """Queries (`of_rows`) or keys out of a set, with whatever is on the other side. Queries need an alignment where
    M != N.
    """

    tokens: Listed
    of_rows: bool
    align: Align = None

    def filled(self, align: Align) -> Pattern:
        return replace(self, align=self.align or align) if self.of_rows else self

    def check(self, m: int, n: int, asked: str) -> None:
        if self.of_rows:
            require_alignment(self.align, m, n, asked)

    def alignments(self) -> Iterator[Align]:
        if self.of_rows:
            yield self.align

    def tokens_at(self, m: int, n: int) -> Listed:
        """The set on top-left indices."""
        return self.tokens.moved(m - n) if self.of_rows and self.align == "bottom-right" else self.tokens

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        live = self.tokens_at(at.m, at.n).holds(q if self.of_rows else k)
        return np.broadcast_to(live, np.broadcast_shapes(q.shape, k.shape))


@dataclass(frozen=True)
class Labels(Leaf):
    """Queries see the keys that carry their own label; one label for each token, in any order. key_ids: of keys, where
    they have others than queries.
    """

    ids: IntTable
    key_ids: IntTable | None = None

    @property
    def of_keys(self) -> IntTable:
        """The label of each key."""
        return self.ids if self.key_ids is None else self.key_ids

    def check(self, m: int, n: int, asked: str) -> None:
        if (m, n) != (len(self.ids), len(self.of_keys)):
            both = f"{len(self.ids)} tokens"
            if self.key_ids is not None:
                both = f"{len(self.ids)} queries and {len(self.key_ids)} keys"
            raise LengthError(asked, f"ids were given for {both}", "give one id for each token")

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return np.asarray(self.ids.array[q] == self.of_keys.array[k])


@dataclass(frozen=True)
class BlockList(Leaf):
    """Live where (q // block_q, k // block_k) is in a list; the list is sorted and without repetitions."""

    block_q: int
    block_k: int
    rows: IntTable
    cols: IntTable

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        if q.ndim == k.ndim == 2 and q.shape[1] == k.shape[0] == 1:  # rows by columns: every block is looked up once
            rows, row = np.unique(q // self.block_q, return_inverse=True)
            cols, col = np.unique(k // self.block_k, return_inverse=True)
            return self._listed(rows[:, None], cols[None, :], at)[row.reshape(-1)[:, None], col.reshape(-1)]
        return self._listed(q // self.block_q, k // self.block_k, at)

    def _listed(self, rows: Ints, cols: Ints, at: Where) -> NDBool:
        """Whether blocks are in the list; rows and cols broadcast."""
        width = 1 + max(-(-at.n // self.block_k), int(self.cols.array.max(initial=0)))
        listed = self.rows.array * width + self.cols.array
        asked = rows * width + cols
        place = np.searchsorted(listed, asked)
        found = np.append(listed, -1)[place]
        return np.asarray(found == asked)


@dataclass(frozen=True)
class Sized(Leaf):
    """A pattern that only the lengths make definite: `rule(m, n, shift, *params)` returns it on top-left indices.

    shift is what alignment adds to a query index: query i stands beside key i + shift.
    """

    rule: Callable[..., Pattern]
    params: tuple[int, ...]
    positional: bool = False
    align: Align = None

    def resolve(self, m: int, n: int) -> Pattern:
        """The pattern at these lengths."""
        return _resolved(self, m, n)

    def alignments(self) -> Iterator[Align]:
        if self.positional:
            yield self.align

    def check(self, m: int, n: int, asked: str) -> None:
        if self.positional:
            require_alignment(self.align, m, n, asked)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return self.resolve(at.m, at.n).holds(q, k, at)


@lru_cache(maxsize=64)
def _resolved(leaf: Sized, m: int, n: int) -> Pattern:
    shift = n - m if leaf.positional and leaf.align == "bottom-right" else 0
    return leaf.rule(m, n, shift, *leaf.params)


@dataclass(frozen=True)
class Product(Operator):
    """Tokens are the row-major points of a grid; axis a of a pair must be live in parts[a]."""

    parts: tuple[Pattern, ...]
    shape: tuple[int, ...]
    key_shape: tuple[int, ...]

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return replace(self, parts=parts)

    def check(self, m: int, n: int, asked: str) -> None:
        if (m, n) != (prod(self.shape), prod(self.key_shape)):
            grid = " and ".join("x".join(map(str, s)) for s in dict.fromkeys((self.shape, self.key_shape)))
            raise LengthError(
                asked, f"a grid of {grid} has {prod(self.shape)} queries and {prod(self.key_shape)} keys",
                "give the grid that the tokens are the row-major flattening of",
            )  # fmt: skip
        for part, a, b in zip(self.parts, self.shape, self.key_shape, strict=True):
            part.check(a, b, asked)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        live = np.ones(np.broadcast_shapes(q.shape, k.shape), np.bool_)
        axes = zip(self.parts, coordinates(q, self.shape), coordinates(k, self.key_shape),
                   self.shape, self.key_shape, strict=True)  # fmt: skip
        for part, i, j, m, n in axes:
            live &= part.holds(np.asarray(i), np.asarray(j), replace(at, m=m, n=n))
        return live


@dataclass(frozen=True)
class Segments(Operator):
    """A sequence of unlike parts: cell (i, j) of the matrix relates queries of part i to keys of part j."""

    lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]
    cells: tuple[tuple[Pattern, ...], ...]

    @property
    def parts(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return tuple(cell for row in self.cells for cell in row)

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        size = len(self.key_lengths)
        return replace(self, cells=tuple(parts[i * size : (i + 1) * size] for i in range(len(self.lengths))))

    def check(self, m: int, n: int, asked: str) -> None:
        if (m, n) != (sum(self.lengths), sum(self.key_lengths)):
            raise LengthError(asked, f"the segments have {sum(self.lengths)} tokens", "make M, N and the lengths agree")
        for (_, length_q), (_, length_k), cell in self.placed():
            cell.check(length_q, length_k, asked)

    def placed(self) -> Iterator[tuple[tuple[int, int], tuple[int, int], Pattern]]:
        """((first query, queries), (first key, keys), pattern) of every cell."""
        starts_q, starts_k = (np.concatenate([[0], np.cumsum(x)]).tolist() for x in (self.lengths, self.key_lengths))
        for q0, length_q, row in zip(starts_q, self.lengths, self.cells, strict=False):
            for k0, length_k, cell in zip(starts_k, self.key_lengths, row, strict=False):
                yield (q0, length_q), (k0, length_k), cell

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        live = np.zeros(np.broadcast_shapes(q.shape, k.shape), np.bool_)
        for (q0, length_q), (k0, length_k), cell in self.placed():
            inside = (q >= q0) & (q < q0 + length_q) & (k >= k0) & (k < k0 + length_k)
            if inside.any():
                local_q, local_k = np.clip(q - q0, 0, length_q - 1), np.clip(k - k0, 0, length_k - 1)
                live |= inside & cell.holds(local_q, local_k, replace(at, m=length_q, n=length_k))
        return live


@dataclass(frozen=True)
class PerHead(Operator):
    """Head h sees parts[h]."""

    parts: tuple[Pattern, ...]

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return PerHead(parts)

    def extent(self) -> tuple[int | None, int | None]:
        return common_extent(self.parts, f"per_head of {len(self.parts)} patterns", (None, len(self.parts)))

    def at(self, batch: int, head: int) -> Pattern:
        return self.parts[head].at(batch, head)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return self.parts[at.head].holds(q, k, at)


@dataclass(frozen=True)
class PerBatch(Operator):
    """Batch row b sees parts[b]."""

    parts: tuple[Pattern, ...]

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return PerBatch(parts)

    def extent(self) -> tuple[int | None, int | None]:
        return common_extent(self.parts, f"per_batch of {len(self.parts)} patterns", (len(self.parts), None))

    def at(self, batch: int, head: int) -> Pattern:
        return self.parts[batch].at(batch, head)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return self.parts[at.batch].holds(q, k, at)


def has_grid(pattern: Pattern) -> bool:
    """Whether any part relates coordinates of a grid of several axes."""
    if isinstance(pattern, Call):
        return has_grid(pattern.body)
    if isinstance(pattern, Product) and len(pattern.shape) > 1:
        return True
    return isinstance(pattern, Operator) and any(has_grid(part) for part in pattern.parts)
