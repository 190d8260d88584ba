"""A part of a pattern: what a box of its queries sees of a box of its keys, on indices that begin at 0."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from weft.errors import LengthError, PatternError
from weft.pattern.algebra import Operator, Pattern, Where
from weft.pattern.arguments import axes, integer, library
from weft.pattern.bounds import Ints, IntTable, coordinates
from weft.pattern.relation import NDBool


@dataclass(frozen=True)
class Box:
    """Points of a grid of `shape` from `first` on, `sizes` of them along each axis, numbered in row-major order."""

    shape: tuple[int, ...]
    first: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.sizes)

    @property
    def span(self) -> tuple[int, int] | None:
        """The tokens [first, after) where the box is a run of consecutive tokens, else None."""
        rank = len(self.shape)
        long = [a for a in range(rank) if self.sizes[a] > 1]
        axis = long[0] if long else rank - 1
        if any(self.sizes[a] != self.shape[a] for a in range(axis + 1, rank)):
            return None
        at = int(np.ravel_multi_index(self.first, self.shape)) if prod(self.shape) else 0
        return at, at + self.size

    def places(self, tokens: Ints) -> tuple[NDBool, Ints]:
        """(which tokens of the whole grid are in the box, their points; those outside get some point)."""
        inside, found = np.ones(tokens.shape, np.bool_), np.zeros_like(tokens)
        for at, first, size in zip(coordinates(tokens, self.shape), self.first, self.sizes, strict=True):
            inside &= (at >= first) & (at < first + size)
            found = found * size + np.clip(at - first, 0, max(size - 1, 0))
        return inside, found

    def tokens(self, local: Ints) -> Ints:
        """The tokens of the whole grid that points of the box are."""
        found = np.zeros_like(local)
        for at, first, length in zip(coordinates(local, self.sizes), self.first, self.shape, strict=True):
            found = found * length + (at + first)
        return found


@dataclass(frozen=True)
class Excerpt(Operator):
    """The part at the lengths of both whole grids, seen through a box of queries and a box of keys."""

    part: Pattern
    q: Box
    k: Box

    @property
    def parts(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return (self.part,)

    @property
    def whole(self) -> tuple[int, int]:
        """M and N that the part is asked at."""
        return prod(self.q.shape), prod(self.k.shape)

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return replace(self, part=parts[0])

    def check(self, m: int, n: int, asked: str) -> None:
        if (m, n) != (self.q.size, self.k.size):
            raise LengthError(
                asked, f"the excerpt has {self.q.size} queries and {self.k.size} keys",
                f"ask for M={self.q.size} and N={self.k.size}",
            )  # fmt: skip
        self.part.check(*self.whole, asked)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        m, n = self.whole
        return self.part.holds(self.q.tokens(q), self.k.tokens(k), replace(at, m=m, n=n))


@library
def excerpt(pattern: Pattern, shape: Any, queries: Any, keys: Any, key_shape: Any = None) -> Pattern:
    """What some queries of `pattern` see of some keys, on indices of their own that begin at 0.

    shape: tokens of the whole, an integer or the lengths of a grid's axes; key_shape: those of the keys, where they
    differ. queries, keys: [first, after) as a pair, of a grid one pair for each axis. M and N are the numbers of points
    in the two boxes, in row-major order. Example: the last 1024 of 8192 tokens and the 2048 keys that end with them::

        weft.excerpt(weft.causal() & weft.window(left=1023), 8192, queries=(7168, 8192), keys=(6144, 8192))
    """
    if not isinstance(pattern, Pattern):
        raise PatternError(f"excerpt({pattern!r}, ...)", "the first argument is no pattern", "pass a pattern")
    return Excerpt(
        pattern,
        _box("shape", shape, "queries", queries),
        _box("shape" if key_shape is None else "key_shape", shape if key_shape is None else key_shape, "keys", keys),
    )


def _box(of_shape: str, shape: Any, name: str, bounds: Any) -> Box:
    """The box with these bounds, checked."""
    lengths = (integer("excerpt", of_shape, shape, 0),) if isinstance(shape, int) else _lengths(of_shape, shape)
    rank = len(lengths)
    pairs = (bounds,) if rank == 1 and isinstance(bounds, IntTable) else bounds
    if not isinstance(pairs, tuple) or len(pairs) != rank:
        raise PatternError(
            f"excerpt({name}={bounds!r})", f"it is not one pair (first, after) for each of {rank} axes",
            f"pass {name}=(first, after)" if rank == 1 else f"pass {name}=[(first, after), ...]",
        )  # fmt: skip
    found = [axes("excerpt", name, pair, 2, 0) for pair in pairs]
    for (first, after), length in zip(found, lengths, strict=True):
        if not first <= after <= length:
            raise PatternError(
                f"excerpt({name}={[*map(list, found)]})", f"({first}, {after}) is no range within 0 and {length}",
                f"pass 0 <= first <= after <= {length}",
            )  # fmt: skip
    return Box(lengths, tuple(first for first, _ in found), tuple(after - first for first, after in found))


def _lengths(name: str, shape: Any) -> tuple[int, ...]:
    rank = len(shape) if isinstance(shape, (tuple, IntTable)) else 0
    if not rank:
        raise PatternError(
            f"excerpt({name}={shape!r})", "it is neither a length nor a list of lengths", f"pass e.g. {name}=8192"
        )
    return axes("excerpt", name, shape, rank, 0)
