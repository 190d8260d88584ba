"""Spans of tokens, and documents: spans of queries each of which sees one span of keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.pattern import library as lib
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints, IntTable, Steps
from weft.recognition import names, runs
from weft.recognition.lines import Line
from weft.recognition.runs import Runs


@dataclass(frozen=True)
class Size:
    """How many queries and keys there are; None: any number."""

    m: int | None = None
    n: int | None = None

    @property
    def square(self) -> bool:
        return self.m is not None and self.m == self.n


@dataclass(frozen=True, eq=False)
class Spans:
    """Contiguous spans of tokens 0 to stop - 1: the first token of each."""

    first: Ints
    stop: int

    @property
    def ends(self) -> Ints:
        """The token after the last of each."""
        return np.append(self.first[1:], self.stop)

    @property
    def number(self) -> Line:
        """0, 1, ... for each token."""
        return Line(tuple(runs.pieces_of(Runs.steps(self.first, np.arange(self.first.size), self.stop))))

    def of(self, tokens: Ints) -> Ints:
        """The span of each of some sorted tokens."""
        begin = np.append(np.searchsorted(tokens, self.first), tokens.size)
        return np.repeat(np.arange(self.first.size), begin[1:] - begin[:-1])

    def cut(self, found: Runs) -> Runs:
        """Runs that lie in one span each."""
        return found.cut_also(self.first)


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents in one order on both sides: span d of the queries sees no keys but those of span d."""

    queries: Spans
    keys: Spans

    @property
    def square(self) -> bool:
        """Whether queries and keys are the same tokens."""
        return self.queries is self.keys

    @property
    def pattern(self) -> Pattern:
        """Queries see the keys of their own document."""
        if self.square:
            return lib.documents(IntTable.taking(self.queries.ends - self.queries.first))
        breaks = IntTable(self.queries.first[1:])
        sides = (("from", self.keys.first), ("before", self.keys.ends))
        return names.intersection(
            [names.of_bound(side, Steps(breaks, IntTable(at)), self.keys.stop, None) for side, at in sides]
        )
