"""The leaves under the library's calls: few, general, and each with its meaning in `holds`.

`Affine` is one relation on flattened token indices. `Product` joins relations over the axes of a grid. `Segments` is a
matrix of patterns. `Labels`, `BlockList` are what need not be affine. `Sized` waits for the lengths. `PerHead` and
`PerBatch` choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from weft.errors import AlignmentError, LengthError
from weft.pattern.algebra import Align, Operator, Pattern, Where, common_extent
from weft.pattern.bounds import IntTable, Ints
from weft.pattern.relation import NDBool, Relation


class Leaf(Pattern):
    """A pattern without patterns in it, which tells neither heads nor batch rows apart."""

    __slots__ = ()

    def aligned(self, align: Align) -> Pattern:
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
    """One relation between token indices. `positional`: it relates queries to keys, so M != N needs an alignment.

    `length`: the only M and N it has a meaning for, if any.
    """

    relation: Relation
    positional: bool = False
    align: Align = None
    length: int | None = None

    def aligned(self, align: Align) -> Pattern:
        return replace(self, align=self.align or align)

    def check(self, m: int, n: int, asked: str) -> None:
        if self.length is not None and (m, n) != (self.length, self.length):
            raise LengthError(
                asked, f"the pattern covers exactly {self.length} tokens, on both sides",
                "make the lengths add up to the number of tokens, or end with a document of padding",
            )  # fmt: skip
        if self.positional and m != n and self.align is None:
            raise AlignmentError(
                asked, "with M != N it is not said which query stands beside which key",
                'pass align="top-left" (query i beside key i) or align="bottom-right" (last query beside last key), '
                "or call .aligned(...) on the whole pattern",
            )  # fmt: skip

    def alignments(self) -> Iterator[Align]:
        if self.positional:
            yield self.align

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
class Labels(Leaf):
    """Tokens see the tokens that carry their own label; one label for each token, in any order."""

    ids: IntTable

    def check(self, m: int, n: int, asked: str) -> None:
        if m != n or m != len(self.ids):
            raise LengthError(asked, f"ids were given for {len(self.ids)} tokens", "give one id for each token")

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return np.asarray(self.ids.array[q] == self.ids.array[k])


@dataclass(frozen=True)
class BlockList(Leaf):
    """Live where (q // block_q, k // block_k) is in a list; the list is sorted and without repetitions."""

    block_q: int
    block_k: int
    rows: IntTable
    cols: IntTable

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        width = 1 + max(-(-at.n // self.block_k), int(self.cols.array.max(initial=0)))
        listed = self.rows.array * width + self.cols.array
        asked = (q // self.block_q) * width + k // self.block_k
        place = np.searchsorted(listed, asked)
        found = np.append(listed, -1)[place]
        return np.asarray(found == asked)


@dataclass(frozen=True)
class Sized(Leaf):
    """A pattern that only the lengths make definite: `rule(m, n, *params)` returns it.

    Aligned bottom-right, the last query is number n - 1, so the rule is asked for n queries.
    """

    rule: Callable[..., Pattern]
    params: tuple[int, ...]
    positional: bool = False
    align: Align = None

    def resolve(self, m: int, n: int) -> Pattern:
        """The pattern at these lengths."""
        return self.rule(n if self.align == "bottom-right" else m, n, *self.params).aligned(self.align)

    def alignments(self) -> Iterator[Align]:
        if self.positional:
            yield self.align

    def check(self, m: int, n: int, asked: str) -> None:
        self.resolve(m, n).check(m, n, asked)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return self.resolve(at.m, at.n).holds(q, k, at)


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
        axes = zip(self.parts, np.unravel_index(q, self.shape), np.unravel_index(k, self.key_shape),
                   self.shape, self.key_shape, strict=True)  # fmt: skip
        for part, i, j, m, n in axes:
            live &= part.holds(np.asarray(i), np.asarray(j), replace(at, m=m, n=n))
        return live


@dataclass(frozen=True)
class Segments(Operator):
    """A sequence of unlike parts: cell (i, j) of the matrix relates queries of part i to keys of part j."""

    lengths: tuple[int, ...]
    cells: tuple[tuple[Pattern, ...], ...]

    @property
    def parts(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return tuple(cell for row in self.cells for cell in row)

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        size = len(self.lengths)
        return replace(self, cells=tuple(parts[i * size : (i + 1) * size] for i in range(size)))

    def check(self, m: int, n: int, asked: str) -> None:
        if m != n or m != sum(self.lengths):
            raise LengthError(asked, f"the segments have {sum(self.lengths)} tokens", "make M, N and the lengths agree")
        for (_, _, cell), (length_q, length_k) in zip(self.placed(), self.sizes(), strict=True):
            cell.check(length_q, length_k, asked)

    def placed(self) -> Iterator[tuple[int, int, Pattern]]:
        """(first query, first key, pattern) of every cell."""
        starts = np.concatenate([[0], np.cumsum(self.lengths)]).tolist()
        for i, row in enumerate(self.cells):
            for j, cell in enumerate(row):
                yield starts[i], starts[j], cell

    def sizes(self) -> Iterator[tuple[int, int]]:
        """(queries, keys) of every cell, in the order of `placed`."""
        for length_q in self.lengths:
            for length_k in self.lengths:
                yield length_q, length_k

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        live = np.zeros(np.broadcast_shapes(q.shape, k.shape), np.bool_)
        for (q0, k0, cell), (length_q, length_k) in zip(self.placed(), self.sizes(), strict=True):
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
        return common_extent(self.parts, "per_head")[0], len(self.parts)

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
        return len(self.parts), common_extent(self.parts, "per_batch")[1]

    def at(self, batch: int, head: int) -> Pattern:
        return self.parts[batch].at(batch, head)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return self.parts[at.batch].holds(q, k, at)
