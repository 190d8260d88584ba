"""Row-wise plans: the rows of a pattern by formula, for kernels that walk the live keys of a row and no tile of rows.

Decoding asks for the last M rows of a mask whose N grows by one each step. Where the pattern is *steady*, these rows
are computed from a plan that does not know N. Let R be a fixed set of pairs (token, key) such that the pattern at
(M, N), M <= N, is live at (i, k) exactly where (i + N - M, k) is in R. Then its row i is row i + N - M of the square
pattern at any capacity C >= N, cut at key N: both are the keys of R in that row, of 0 <= k < N. `why_unsteady` decides
from the expression whether there is such an R.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from math import lcm

import numpy as np

from weft.acsr import terms as algebra
from weft.acsr.format import MAX_TERMS, NotAffineError, Term
from weft.caching import cached
from weft.pattern.algebra import And, Call, Not, Or, Pattern, Shift
from weft.pattern.bounds import Bound, Stair, Steps
from weft.pattern.leaves import Affine, Chosen, PerBatch, PerHead
from weft.pattern.relation import Relation
from weft.planning.attention_plan import AttentionPlan, Heads, check_extent, distinct_heads
from weft.planning.device import FAR, is_narrow
from weft.planning.problem import Problem

LEAST_CAPACITY = 1 << 16  # so that a sequence that begins short is planned once
MOST_BOUNDS = 4  # on either side of a term
SAMPLED = 4096  # rows looked at to see how long they are


# ---- which patterns are steady ---------------------------------------------------------------------------------------
def why_unsteady(pattern: Pattern) -> str | None:
    """None if the pattern is steady (see above), else what in it depends on the lengths.

    A bottom-right leaf adds N - M to the query before it asks its relation, which is then R; a leaf that does not look
    at the query has every query's keys alike. Unions, intersections and complements of steady patterns have the
    unions, intersections and complements of their R. Moving keys by k >= 0 moves R and leaves keys below k out;
    moving them down would cut at N - k, and moving queries would cut at a query index: neither is steady.
    """
    if isinstance(pattern, Call):
        return why_unsteady(pattern.body)
    if isinstance(pattern, Affine):
        return _why_affine(pattern)
    if isinstance(pattern, Chosen):
        return None if not pattern.of_rows or pattern.align == "bottom-right" else _not_aligned(pattern.align)
    if isinstance(pattern, Shift) and (pattern.q or pattern.k < 0):
        return "it is shifted by queries, or by keys downwards, and cut where the sequence ends"
    if isinstance(pattern, (And, Or, Not, Shift, PerHead, PerBatch)):
        return next((why for part in pattern.parts if (why := why_unsteady(part)) is not None), None)
    return f"{type(pattern).__name__} is made for given lengths"


def _why_affine(leaf: Affine) -> str | None:
    if leaf.length is not None:
        return f"it covers exactly {leaf.length} tokens"
    if leaf.positional:
        return None if leaf.align == "bottom-right" else _not_aligned(leaf.align)
    relation = leaf.relation
    fixed = all(isinstance(bound, Stair) and bound.is_constant for bound in relation.lower + relation.upper)
    return None if fixed and relation.rows.step == relation.diagonal.step == 1 else "it counts queries from the first"


def _not_aligned(align: str | None) -> str:
    return f"its alignment is {'not declared' if align is None else align}, not bottom-right"


# ---- plans -----------------------------------------------------------------------------------------------------------
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


def row_plan(plan: AttentionPlan) -> RowPlan | str:
    """The rows of a plan as a row-wise kernel computes them, or why it cannot."""
    shares = []
    for share in plan.forward:
        if len(share.plan.acsr.remainder):
            return "some of it is listed block by block"
        try:
            shares.append(RowShare(_computed(share.plan.acsr.terms, plan.problem.m), share.heads))
        except NotAffineError as reason:
            return str(reason)
    return RowPlan(plan.pattern, plan.problem, tuple(shares), steady=False)


def decode_plan(pattern: Pattern, problem: Problem, capacity: int | None = None) -> RowPlan | str:
    """The rows of the pattern, at every N from now on up to a capacity; or why it has to be planned for each N.

    capacity: the most keys there can be; without one, room for the problem's keys and more. Raises what planning at
    this N would raise; no later N can raise more, since alignments are declared and no part has a length of its own.
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


# ---- rows of a steady pattern ----------------------------------------------------------------------------------------
def steady_relations(pattern: Pattern, capacity: int) -> tuple[Relation, ...]:
    """R, up to `capacity`, as disjoint relations; raises NotAffineError where a kernel cannot compute them.

    As `acsr.build`, but what has no affine form is given up at once: at a capacity it would be scanned for minutes.
    """
    kept, spilled = algebra.disjoint(_lowered(pattern, capacity))
    if spilled or len(kept) > MAX_TERMS:
        raise NotAffineError(f"it takes more than {MAX_TERMS} terms that share no pair")
    return _computed(kept, capacity)


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


def _lowered(pattern: Pattern, size: int) -> list[Term]:
    """A steady pattern as terms of one axis, which may overlap, of the square of `size` tokens."""
    if isinstance(pattern, Call):
        return _lowered(pattern.body, size)
    if isinstance(pattern, Affine):
        return [Term.flat(pattern.relation, size, size)]
    if isinstance(pattern, Chosen):
        return _listed(pattern, size)
    assert isinstance(pattern, (And, Or, Not, Shift))  # no other is steady, and heads were told apart
    parts = [_lowered(part, size) for part in pattern.parts]
    if isinstance(pattern, And):
        return reduce(algebra.meet_unions, parts)
    if isinstance(pattern, Not):
        return _complement(parts[0], size)
    terms = [term for part in parts for term in part]
    by = pattern.k if isinstance(pattern, Shift) else 0
    return [piece for term in terms for piece in algebra.moved(term, (0, size, size), (by, size, size))]


def _listed(pattern: Chosen, size: int) -> list[Term]:
    """A few listed tokens as a term for each run of consecutive ones."""
    first, after = pattern.tokens.runs(size)
    if first.size > MAX_TERMS:
        raise NotAffineError(f"it has tokens given by a list, in {first.size} runs where {MAX_TERMS} are the most")
    spans = (Relation.span(a, b, pattern.of_rows) for a, b in zip(first.tolist(), after.tolist(), strict=True))
    return [Term.flat(span, size, size) for span in spans]


def _complement(terms: list[Term], size: int) -> list[Term]:
    found = [Term.flat(Relation(), size, size)]
    for term in terms:
        found = [piece for kept in found for piece in algebra.minus(kept, term)]
        if len(found) > 4 * MAX_TERMS:
            raise NotAffineError("the complement has too many terms")
    return found


def _is_narrow(relation: Relation, m: int) -> bool:
    """Whether the rows i < m of a relation are computed in 32 bits."""
    few = max(len(relation.lower), len(relation.upper)) <= MOST_BOUNDS
    step = relation.keys.step * relation.diagonal.step
    return few and max(step, relation.rows.step) < FAR // 2 and all(_fits(b, m) for b in _bounds(relation))


def _bounds(relation: Relation) -> Iterator[Bound]:
    yield from relation.lower
    yield from relation.upper


def _fits(bound: Bound, m: int) -> bool:
    return isinstance(bound, Steps) or bound.is_constant or is_narrow(bound, m)
