"""Sets of tokens given by a list: the tokens in it, or all others. Closed under intersection, complement and shift.

`Listed` says which tokens; `ByClass` finds them quickly where only one residue class of them counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.pattern.bounds import Ints, IntTable
from weft.pattern.relation import NDBool

SPAN = 1 << 31  # beyond any token index


@dataclass(frozen=True)
class Listed:
    """The tokens of a strictly increasing list (`kept`), or all tokens but those."""

    tokens: IntTable
    kept: bool = True

    @property
    def is_every(self) -> bool:
        return not self.kept and not len(self.tokens)

    @property
    def is_empty(self) -> bool:
        return self.kept and not len(self.tokens)

    @property
    def left_out(self) -> Ints:
        """The tokens of the list, if it says which are left out; else none."""
        return self.tokens.array[: 0 if self.kept else None]

    @property
    def nbytes(self) -> int:
        """One 32-bit integer for each token listed."""
        return 4 * len(self.tokens)

    def holds(self, x: Ints) -> NDBool:
        """Which of the tokens x are in the set."""
        table = self.tokens.array
        if not table.size:
            return np.full(x.shape, not self.kept)
        listed = table[np.minimum(np.searchsorted(table, x), table.size - 1)] == x
        return np.asarray(listed == self.kept)

    def complement(self) -> Listed:
        return Listed(self.tokens, not self.kept)

    def meet(self, other: Listed) -> Listed:
        """The tokens in both."""
        if self.is_every or other.is_every:
            return other if self.is_every else self
        if self.kept or other.kept:
            one, two = (self, other) if self.kept else (other, self)
            return Listed(IntTable(one.tokens.array[two.holds(one.tokens.array)]))
        return Listed(IntTable(np.union1d(self.tokens.array, other.tokens.array)), kept=False)

    def moved(self, by: int) -> Listed:
        return Listed(IntTable(self.tokens.array + by), self.kept) if by and len(self.tokens) else self

    def runs(self, stop: int) -> tuple[Ints, Ints]:
        """First token of each run of consecutive ones below `stop`, and the token after its last."""
        tokens = self.within(0, stop).tokens.array
        apart = np.append(True, tokens[1:] - tokens[:-1] != 1)[: tokens.size]
        first, after = tokens[apart], tokens[np.roll(apart, -1)] + 1
        if self.kept:
            return first, after
        first, after = np.append(0, after), np.append(first, stop)
        return first[first < after], after[first < after]

    def enlarged(self, block: int) -> Listed:
        """The tokens of these blocks of `block` tokens."""
        tokens = self.tokens.array[:, None] * block + np.arange(block)
        return Listed(IntTable(tokens), self.kept)

    def within(self, first: int, last: int) -> Listed:
        """The same tokens of first <= x < last, with no others in the list."""
        a, b = np.searchsorted(self.tokens.array, (first, last))
        return self if b - a == len(self.tokens) else Listed(IntTable(self.tokens.array[a:b]), self.kept)


EVERY = Listed(IntTable([]), kept=False)


@dataclass(frozen=True, eq=False)
class ByClass:
    """Tokens sorted by their residue modulo `step`, then by value."""

    tokens: Ints
    step: int

    @staticmethod
    def of(tokens: Ints, step: int) -> ByClass:
        """tokens: strictly increasing."""
        return ByClass(tokens[np.argsort(tokens % step, kind="stable")] if step > 1 else tokens, step)

    @cached_property
    def order(self) -> Ints:
        """What the tokens are sorted by, as one number."""
        return self.tokens % self.step * SPAN + self.tokens

    def rank(self, phase: Ints, x: Ints) -> Ints:
        """The place of the first token that is not below x in the residue class `phase`; from SPAN on all have none."""
        return np.searchsorted(self.order, np.minimum(phase, SPAN) * SPAN + np.clip(x, 0, SPAN - 1))

    def count(self, phase: Ints, lo: Ints, hi: Ints) -> Ints:
        """How many tokens lo <= x < hi are in the residue class `phase`."""
        return np.maximum(self.rank(phase, hi) - self.rank(phase, lo), 0)

    def first(self, phase: Ints, lo: Ints, hi: Ints) -> Ints:
        """The first token lo <= x < hi of the residue class `phase`, hi if there is none."""
        place = self.rank(phase, lo)
        found = np.append(self.tokens, 0)[place]
        return np.where(place < self.rank(phase, hi), found, hi)

    def last(self, phase: Ints, lo: Ints, hi: Ints) -> Ints:
        """The last token lo <= x < hi of the residue class `phase`, lo - 1 if there is none."""
        place = self.rank(phase, hi)
        found = np.append(self.tokens, 0)[place - 1]
        return np.where(place > self.rank(phase, lo), found, lo - 1)

    def past(self, phase: Ints, x: Ints) -> Ints:
        """The first of x, x + step, ... that is no token; x are of the residue class `phase`."""
        place = self.rank(phase, x)
        return np.where(self._is_at(place, x), np.append(self._runs[1], 0)[place] + self.step, x)

    def ahead(self, phase: Ints, x: Ints) -> Ints:
        """The last of x, x - step, ... that is no token; x are of the residue class `phase`."""
        place = self.rank(phase, x)
        return np.where(self._is_at(place, x), np.append(self._runs[0], 0)[place] - self.step, x)

    def _is_at(self, place: Ints, x: Ints) -> NDBool:
        """Whether x is a token; place: its `rank`."""
        return np.asarray(np.append(self.tokens, np.iinfo(np.int64).min)[place] == x)

    @cached_property
    def _runs(self) -> tuple[Ints, Ints]:
        """For each token the first and the last one of its run, tokens of a class one after the other."""
        apart = np.append(True, np.diff(self.order) != self.step)[: self.tokens.size]
        run = np.cumsum(apart) - 1
        return self.tokens[apart][run], self.tokens[np.roll(apart, -1)][run]
