"""Sets of tokens as sorted runs: what a rank holds, what it needs, what it sends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from weft.pattern.bounds import Ints
from weft.pattern.excerpt import Box

NONE: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of the runs [starts[i], stops[i]), which are sorted, disjoint, apart and not empty."""

    starts: Ints
    stops: Ints

    @staticmethod
    def of(starts: Ints, stops: Ints) -> Tokens:
        """The union of runs in any order, of which some may be empty or overlap."""
        starts, stops = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
        live = starts < stops
        order = np.argsort(starts[live], kind="stable")
        starts, stops = starts[live][order], np.maximum.accumulate(stops[live][order])
        if not starts.size:
            return EMPTY
        first = np.append(True, starts[1:] > stops[:-1])
        last = np.append(first[1:], True)
        return Tokens(starts[first], stops[last])

    @staticmethod
    def listed(tokens: Ints) -> Tokens:
        """The union of single tokens."""
        return Tokens.of(tokens, tokens + 1)

    @staticmethod
    def of_box(box: Box) -> Tokens:
        """The points of a box, as tokens of its grid."""
        if box.span is not None:
            return Tokens.of(*(np.array([x]) for x in box.span))
        leading = Box(box.shape[:-1], box.first[:-1], box.sizes[:-1])
        starts = leading.tokens(np.arange(leading.size, dtype=np.int64)) * box.shape[-1] + box.first[-1]
        return Tokens.of(starts, starts + box.sizes[-1])

    @cached_property
    def before(self) -> Ints:
        """Tokens of the runs before each one."""
        return np.concatenate([[0], np.cumsum(self.stops - self.starts)])[:-1].astype(np.int64)

    def __len__(self) -> int:
        return int((self.stops - self.starts).sum())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Tokens)
            and np.array_equal(self.starts, other.starts)
            and np.array_equal(self.stops, other.stops)
        )

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: Tokens) -> Tokens:
        return union((self, other))

    def __and__(self, other: Tokens) -> Tokens:
        """What is in both: cut at every end, and kept where both are."""
        cuts = np.sort(np.concatenate([self.starts, self.stops, other.starts, other.stops]))
        if cuts.size < 2:
            return EMPTY
        keep = self.holds(cuts[:-1]) & other.holds(cuts[:-1])
        return Tokens.of(cuts[:-1][keep], cuts[1:][keep])

    def __sub__(self, other: Tokens) -> Tokens:
        """What is in self alone."""
        cuts = np.sort(np.concatenate([self.starts, self.stops, other.starts, other.stops]))
        if cuts.size < 2:
            return EMPTY
        keep = self.holds(cuts[:-1]) & ~other.holds(cuts[:-1])
        return Tokens.of(cuts[:-1][keep], cuts[1:][keep])

    def holds(self, tokens: Ints) -> np.ndarray:
        """Which of some tokens are in the set."""
        at = np.searchsorted(self.starts, tokens, side="right") - 1
        return (at >= 0) & (tokens < np.append(self.stops, 0)[at])

    def array(self) -> Ints:
        """All tokens, ascending."""
        sizes = self.stops - self.starts
        return np.arange(sizes.sum(), dtype=np.int64) + np.repeat(self.starts - self.before, sizes)

    def places(self, tokens: Tokens) -> Ints:
        """At which place of the ascending order of self each token of a subset stands."""
        found = tokens.array()
        at = np.searchsorted(self.starts, found, side="right") - 1
        return found - self.starts[at] + self.before[at]

    def closed(self, gap: int, most: int) -> Tokens:
        """With holes of at most `gap` tokens filled, then the smallest ones until no more than `most` runs are left."""
        if not self.starts.size:
            return self
        holes = self.starts[1:] - self.stops[:-1]
        open_ = holes > gap
        if open_.sum() >= most:
            order = np.argsort(-holes, kind="stable")[: most - 1]
            open_ = np.zeros_like(open_)
            open_[order] = True
        return Tokens(self.starts[np.append(True, open_)], self.stops[np.append(open_, True)])


EMPTY = Tokens(NONE, NONE)


def union(sets: Iterable[Tokens]) -> Tokens:
    """The union of some sets."""
    found = list(sets)
    if not found:
        return EMPTY
    if len(found) == 1:
        return found[0]
    return Tokens.of(*(np.concatenate([getattr(one, name) for one in found]) for name in ("starts", "stops")))


def grid_of(shape: tuple[int, ...], axes: tuple[Tokens, ...]) -> Tokens:
    """The points of a grid whose coordinate on every axis is in a set of that axis."""
    *leading, last = axes
    inner = shape[-1]
    rows = reduce(lambda found, one: (found[:, None] * one[1] + one[0].array()).reshape(-1),
                  zip(leading, shape[:-1], strict=True), np.zeros(1, np.int64))  # fmt: skip
    return Tokens.of(
        (rows[:, None] * inner + last.starts).reshape(-1), (rows[:, None] * inner + last.stops).reshape(-1)
    )


def boxes_of_run(first: int, after: int, shape: tuple[int, ...]) -> list[Box]:
    """A run of tokens of a grid as boxes, in the order of its tokens: parts of rows, and whole rows between them."""
    if first >= after:
        return []
    if len(shape) == 1:
        return [Box(shape, (first,), (after - first,))]
    inner = int(np.prod(shape[1:]))
    row, last = first // inner, (after - 1) // inner
    if row == last and after - first < inner:
        return [_in_row(box, row, shape) for box in boxes_of_run(first - row * inner, after - row * inner, shape[1:])]
    head = -(-first // inner)
    tail = after // inner
    found = (
        [_in_row(box, row, shape) for box in boxes_of_run(first - row * inner, inner, shape[1:])] if head > row else []
    )
    if head < tail:
        found.append(Box(shape, (head, *(0 for _ in shape[1:])), (tail - head, *shape[1:])))
    if tail * inner < after:
        found += [_in_row(box, tail, shape) for box in boxes_of_run(0, after - tail * inner, shape[1:])]
    return found


def _in_row(box: Box, row: int, shape: tuple[int, ...]) -> Box:
    return Box(shape, (row, *box.first), (1, *box.sizes))
