"""Row-wise plans: the rows of a pattern by formula, for kernels that walk the live keys of a row and no tile of rows.

The rows of a steady pattern (`weft.acsr.steady`) are computed from a plan that does not know N.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np

from weft.acsr.format import NotAffineError, Term
from weft.acsr.steady import steady_terms, why_unsteady
from weft.caching import cached
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Bound, Steps
from weft.pattern.relation import Relation
from weft.planning.heads import Heads, Share, check_extent, distinct_heads
from weft.planning.problem import Problem
from weft.planning.tiling.gpu import FAR, is_narrow

LEAST_CAPACITY = 1 << 16  # so that a sequence that begins short is planned once
MOST_BOUNDS = 4  # on either side of a term
SAMPLED = 4096  # rows looked at to see how long they are


@dataclass(frozen=True)
class RowShare:
    """Disjoint relations between tokens and keys, both from 0 on, and the heads that they serve."""

    relations: tuple[Relation, ...]
    heads: tuple[Heads, ...]


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Rows by formula: of a steady pattern for every N up to `capacity`, its problem's n; or of one problem alone."""

    pattern: Pattern
    problem: Problem
    shares: tuple[RowShare, ...]
    steady: bool

    @property
    def capacity(self) -> int:
        """Keys that there may be."""
        return self.problem.n

    @property
    def relations(self) -> tuple[Relation, ...]:
        """All relations of all heads."""
        return tuple(relation for share in self.shares for relation in share.relations)

    @property
    def lanes(self) -> int:
        """Rows so far apart have their keys in the same residue classes, and are walked together."""
        return min(lcm(*(relation.diagonal.step for relation in self.relations)), self.problem.m)

    def longest(self, cols: int) -> int:
        """Tiles of `cols` keys in the longest row, by a sample: what it is worth to split. Of a steady pattern only
        the later half counts: the first rows may be long where all others are short.
        """
        ends = (self.capacity // 2, self.capacity - 1) if self.steady else (0, self.problem.m - 1)
        rows = np.linspace(*ends, SAMPLED).astype(np.int64)
        found = [sum(-(-r.affine_rows(rows, self.capacity)[2] // cols) for r in s.relations) for s in self.shares]
        return max((int(np.max(tiles)) for tiles in found), default=0)


def row_plan(pattern: Pattern, problem: Problem, planned: Sequence[Share]) -> RowPlan | str:
    """The rows of planned heads as a row-wise kernel computes them, or why it cannot."""
    shares = []
    for share in planned:
        if len(share.plan.acsr.remainder):
            return "some of it is listed block by block"
        try:
            shares.append(RowShare(_computed(share.plan.acsr.terms, problem.m), share.heads))
        except NotAffineError as reason:
            return str(reason)
    return RowPlan(pattern, problem, tuple(shares), steady=False)


def decode_plan(pattern: Pattern, problem: Problem, capacity: int | None = None) -> RowPlan | str:
    """The rows of the pattern, at every N from now on up to a capacity; or why it has to be planned for each N.

    capacity: the most keys there can be; without one, room for the problem's keys and more. Raises what planning at
    this N would raise. A later N raises nothing more, since alignments are declared and no part has its own length.
    """
    check_extent(pattern, problem)
    pattern.check(problem.m, problem.n, f"{pattern} at M={problem.m}, N={problem.n}")
    why = why_unsteady(pattern)
    if why is not None:
        return why
    room = max(LEAST_CAPACITY, 1 << (problem.n - 1).bit_length()) if capacity is None else capacity
    return _up_to(pattern, replace(problem, n=room))


@cached(256)  # a cache that is concatenated has other strides at every N, and another step
def _up_to(pattern: Pattern, problem: Problem) -> RowPlan | str:
    """The rows of a steady pattern at every N up to the problem's; or why it has to be planned for each N."""
    shares = []
    for (batch, head), heads in distinct_heads(pattern, problem).items():
        try:
            relations = steady_relations(pattern.at(batch, head), problem.n)
        except NotAffineError as reason:
            return str(reason)
        shares.append(RowShare(relations, tuple(heads)))
    return RowPlan(pattern, problem, tuple(shares), steady=True)


# ---- rows by formula ------------------------------------------------------------------------------------------------
def steady_relations(pattern: Pattern, capacity: int) -> tuple[Relation, ...]:
    """The rows of a steady pattern up to `capacity`; raises NotAffineError where a kernel cannot compute them."""
    return _computed(steady_terms(pattern, capacity), capacity)


def _computed(terms: Iterable[Term], m: int) -> tuple[Relation, ...]:
    """The relations of terms of m rows; raises NotAffineError where a kernel cannot compute them."""
    found = []
    for term in terms:
        if term.rank > 1 or term.q.origin or term.k.origin or term.is_ordered:
            raise NotAffineError("it has a grid of several axes, or tokens in another order")
        if not (term.rows.is_every and term.keys.is_every):
            raise NotAffineError("it has tokens given by a list")
        if not _is_narrow(term.axes[0], m):
            raise NotAffineError("its integers are too large, or its bounds too many, for a kernel's formula")
        found.append(term.axes[0])
    return tuple(found)


def _is_narrow(relation: Relation, m: int) -> bool:
    """Whether the rows i < m of a relation are computed in 32 bits."""
    room = max(len(relation.lower), len(relation.upper)) <= MOST_BOUNDS
    step = relation.keys.step * relation.diagonal.step
    return room and max(step, relation.rows.step) < FAR // 2 and all(_fits(b, m) for b in _bounds(relation))


def _bounds(relation: Relation) -> Iterator[Bound]:
    yield from relation.lower
    yield from relation.upper


def _fits(bound: Bound, m: int) -> bool:
    return isinstance(bound, Steps) or bound.is_constant or is_narrow(bound, m)
