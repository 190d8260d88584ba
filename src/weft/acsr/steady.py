"""Steady patterns: those whose rows at any number of keys are rows of one fixed set of pairs.

Decoding asks for the last M rows of a mask whose N grows by one each step. A pattern is *steady* if a fixed set R of
pairs (token, key) describes it. At (M, N), M <= N, it is live at (i, k) exactly where (i + N - M, k) is in R. Then its
row i is a row of the square pattern at any capacity C >= N: row i + N - M, cut at key N. Both are the keys of R in that
row, of 0 <= k < N.
"""

from __future__ import annotations

from functools import reduce

from weft.acsr import terms as algebra
from weft.acsr.format import MAX_TERMS, NotAffineError, Term
from weft.pattern.algebra import And, Call, Not, Or, Pattern, Shift
from weft.pattern.bounds import Stair
from weft.pattern.leaves import Affine, Chosen, PerBatch, PerHead
from weft.pattern.relation import Relation


def why_unsteady(pattern: Pattern) -> str | None:
    """None if the pattern is steady (see above), else what in it depends on the lengths.

    A bottom-right leaf adds N - M to the query before it asks its relation, which is then R. A leaf that does not look
    at the query has every query's keys alike. Unions, intersections and complements of steady patterns have the unions,
    intersections and complements of their R. Moving keys by k >= 0 moves R and leaves keys below k out. Moving them
    down would cut at N - k, and moving queries would cut at a query index. Neither is steady.
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


def steady_terms(pattern: Pattern, capacity: int) -> list[Term]:
    """R, up to `capacity`, as terms of one axis that share no pair; raises NotAffineError where they are too many.

    As `acsr.build`, but what has no affine form is given up at once: at a capacity it would be scanned for minutes.
    """
    kept, spilled = algebra.disjoint(_lowered(pattern, capacity))
    if spilled or len(kept) > MAX_TERMS:
        raise NotAffineError(f"it takes more than {MAX_TERMS} terms that share no pair")
    return kept


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
