"""Pattern -> Acsr, by algebra on bounds. No dense matrix is formed for what is affine.

A pattern lowers to a union of terms (`Union`); `&`, `|` and `~` work on unions. What cannot be expressed so, and what
goes beyond MAX_TERMS, is written down block by block in the remainder, and `Acsr.notes` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import singledispatch

import numpy as np

from weft.acsr import terms as algebra
from weft.acsr.blocks import Blocks
from weft.acsr.cover import covered
from weft.acsr.format import BLOCK, MAX_TERMS, Acsr, Remainder, Term
from weft.acsr.labels import axes_of_labels
from weft.acsr.merge import merged
from weft.acsr.terms import NotAffineError
from weft.caching import cached
from weft.pattern import algebra as ops
from weft.pattern import leaves
from weft.pattern.algebra import Pattern, Where
from weft.pattern.bounds import Bound, Ints, IntTable, Stair, Steps
from weft.pattern.leaves import Affine
from weft.pattern.listed import EVERY
from weft.pattern.relation import NDBool, Relation

BLOCKS_A_TERM = 4  # of a remainder, which cost as much as a term
FEW = 5  # terms that patterns of the library have, which are left as they are


@dataclass
class Union:
    """Terms, which may overlap, and blocks of what is not affine."""

    terms: list[Term] = field(default_factory=list)
    blocks: Blocks | None = None
    notes: list[str] = field(default_factory=list)


@cached(256)
def build(pattern: Pattern, m: int, n: int, batch: int = 0, head: int = 0) -> Acsr:
    """The Acsr of batch row `batch` and head `head` at M=m queries and N=n keys.

    Raises what `pattern.check` raises, and IrregularError where the part that is not affine is too large to scan.
    """
    label = _short(pattern, 200)
    pattern.check(m, n, f"{label} at M={m}, N={n}")
    one = pattern.at(batch, head)
    if m == 0 or n == 0:
        return Acsr(m, n, (), Remainder.none(), label)
    union = lower_or_scan(one, m, n)
    kept, spilled = _fewest(union.terms, m, n)
    if len(kept) > MAX_TERMS:
        kept.sort(key=lambda term: -term.nnz)
        union.notes.append(f"{len(kept) - MAX_TERMS} terms beyond {MAX_TERMS} went to the remainder")
        kept, spilled = kept[:MAX_TERMS], [*spilled, *kept[MAX_TERMS:]]
    elif spilled:
        union.notes.append(f"{len(spilled)} terms overlap others in a way that is not affine and went to the remainder")
    blocks = (union.blocks or Blocks.none(m, n)).join(*Blocks.of_terms(spilled, m, n)).without(kept)
    if len(blocks) and union.notes:  # blocks that a pattern lists are left as they are
        more = covered(blocks, room(len(blocks), len(kept)))
        if more is not None:
            kept, blocks = [*kept, *more], Blocks.none(m, n)
    if not len(blocks):
        return Acsr(m, n, tuple(_of_few_blocks(kept, m, n)), Remainder.none(), label)
    return Acsr(m, n, tuple(kept), blocks.remainder(), label, tuple(dict.fromkeys(union.notes)))


def room(blocks: int, kept: int = 0) -> int:
    """How many terms may take the place of so many blocks of a remainder, beside terms that are kept."""
    return min(MAX_TERMS - kept, max(FEW, blocks // BLOCKS_A_TERM))


def _of_few_blocks(terms: list[Term], m: int, n: int) -> list[Term]:
    """The terms of a mask of a few blocks, looked at pair by pair where that finds fewer terms."""
    if len(terms) < 2 or max(m, n) > 2 * BLOCK:
        return terms
    found = covered(Blocks.none(m, n).join(*Blocks.of_terms(terms, m, n)), len(terms) - 1)
    return terms if found is None else found


def _fewest(terms: list[Term], m: int, n: int) -> tuple[list[Term], list[Term]]:
    """`algebra.disjoint` of the terms as they are, or merged: where they are too many, and where many become fewer
    without more bytes.
    """
    if len(terms) > algebra.MAX_APART:
        terms = merged(terms, m, n)
    found = algebra.disjoint(terms)
    if not found[1] and len(found[0]) <= FEW:
        return found
    fewer = merged(terms, m, n)
    if len(fewer) == len(terms):
        return found
    other = algebra.disjoint(fewer)
    if _too_many(found) or (not other[1] and len(other[0]) < len(found[0]) and _nbytes(other) <= _nbytes(found)):
        return min(found, other, key=lambda x: (_too_many(x), len(x[1]), len(x[0])))
    return found


def _too_many(found: tuple[list[Term], list[Term]]) -> bool:
    return bool(found[1]) or len(found[0]) > MAX_TERMS


def _nbytes(found: tuple[list[Term], list[Term]]) -> int:
    return sum(term.nbytes for term in found[0])


def lower_or_scan(pattern: Pattern, m: int, n: int) -> Union:
    """The pattern as a union; where it has no affine form, every pair is looked at once."""
    try:
        return lower(pattern, m, n)
    except NotAffineError as reason:
        note = f"{_short(pattern)}: {reason}"
        return Union([], Blocks.scan(_predicate(pattern, m, n), m, n, note), [note])


def _short(pattern: Pattern, width: int = 80) -> str:
    text = str(pattern)
    return text if len(text) <= width else text[: width - 4] + " ..."


def _predicate(pattern: Pattern, m: int, n: int) -> Callable[[Ints, Ints], NDBool]:
    return lambda q, k: pattern.holds(q, k, Where(m, n))


@singledispatch
def lower(pattern: Pattern, m: int, n: int) -> Union:
    """A pattern that tells no heads or batch rows apart, as a union at (M, N)."""
    raise TypeError(f"no lowering for {type(pattern).__name__}")


@lower.register
def _(pattern: ops.Call, m: int, n: int) -> Union:
    return lower(pattern.body, m, n)


@lower.register
def _(pattern: leaves.Affine, m: int, n: int) -> Union:
    return Union([Term.flat(pattern.relation_at(m, n), m, n)])


@lower.register
def _(pattern: leaves.Chosen, m: int, n: int) -> Union:
    tokens = pattern.tokens_at(m, n)
    rows, keys = (tokens, EVERY) if pattern.of_rows else (EVERY, tokens)
    return Union([Term.flat(Relation(), m, n, rows, keys)])


@lower.register
def _(pattern: leaves.Sized, m: int, n: int) -> Union:
    return lower(pattern.resolve(m, n), m, n)


@lower.register
def _(pattern: leaves.Labels, m: int, n: int) -> Union:
    axes = axes_of_labels(pattern.ids.array)
    if axes is None:
        raise NotAffineError("documents that are not contiguous have no affine rows")
    ends = [np.cumsum(lengths) for lengths in axes]
    parts = [Affine(Relation(*_contiguous(one)), length=int(one[-1])) for one in ends]
    shape = tuple(int(one[-1]) for one in ends)
    return lower(leaves.Product(tuple(parts), shape, shape), m, n)


def _contiguous(ends: Ints) -> tuple[tuple[Bound, ...], tuple[Bound, ...]]:
    """Bounds on the keys of contiguous labels that end before `ends`; none where there is one."""
    if ends.size == 1:
        return (), ()
    size = int(ends[0])
    if (np.diff(ends)[:-1] == size).all() and ends[-1] - ends[-2] <= size:
        return (Stair(size, size),), (Stair(size, size, base=size),)
    edges = np.append(0, ends)
    breaks, first, after = (IntTable(x) for x in (edges[1:-1], edges[:-1], edges[1:]))
    return (Steps(breaks, first),), (Steps(breaks, after),)


@lower.register
def _(pattern: leaves.BlockList, m: int, n: int) -> Union:
    return Union([], Blocks.of_list(pattern, m, n))


@lower.register
def _(pattern: leaves.Product, m: int, n: int) -> Union:
    grids = [lower(part, a, b) for part, a, b in zip(pattern.parts, pattern.shape, pattern.key_shape, strict=True)]
    if any(g.blocks is not None or any(t.rank > 1 for t in g.terms) for g in grids):
        raise NotAffineError("an axis of the product is not affine")
    return Union(algebra.product([g.terms for g in grids], pattern.shape, pattern.key_shape))


@lower.register
def _(pattern: leaves.Segments, m: int, n: int) -> Union:
    union = Union()
    for (q0, length_q), (k0, length_k), cell in pattern.placed():
        if length_q and length_k:
            part = lower_or_scan(cell, length_q, length_k)
            _place(union, part, (q0, length_q, m), (k0, length_k, n))
    return union


@lower.register
def _(pattern: ops.Shift, m: int, n: int) -> Union:
    union = Union()
    _place(union, lower_or_scan(pattern.part, m, n), (pattern.q, m, m), (pattern.k, n, n))
    return union


def _place(union: Union, part: Union, q: tuple[int, int, int], k: tuple[int, int, int]) -> None:
    """Add `part`, made for (q length, k length), moved to start at (q start, k start) of (M, N)."""
    (q0, length_q, m), (k0, length_k, n) = q, k
    for term in part.terms:
        union.terms += algebra.moved(term, (q0, length_q, m), (k0, length_k, n))
    if part.blocks is not None:
        moved = part.blocks.moved(q0, k0, m, n)
        union.blocks = moved if union.blocks is None else union.blocks.join(moved)
    union.notes += part.notes


@lower.register
def _(pattern: ops.Or, m: int, n: int) -> Union:
    union = Union()
    for part in pattern.parts:
        _place(union, lower_or_scan(part, m, n), (0, m, m), (0, n, n))
    return union


@lower.register
def _(pattern: ops.And, m: int, n: int) -> Union:
    first, *rest = pattern.parts
    union = lower_or_scan(first, m, n)
    seen: list[Pattern] = [first]
    for part in rest:
        union = _meet(union, tuple(seen), lower_or_scan(part, m, n), part, (m, n))
        seen.append(part)
    return union


def _meet(a: Union, a_patterns: tuple[Pattern, ...], b: Union, b_pattern: Pattern, size: tuple[int, int]) -> Union:
    """a & b. Blocks of either side keep the pairs that the other side's pattern has."""
    terms = algebra.meet_unions(a.terms, b.terms)
    blocks = None
    m, n = size
    if a.blocks is not None:
        blocks = a.blocks.where(_predicate(b_pattern, m, n))
    if b.blocks is not None:
        kept = b.blocks.where(_predicate(ops.And(a_patterns), m, n))
        blocks = kept if blocks is None else blocks.join(kept)
    return Union(terms, blocks, a.notes + b.notes)


@lower.register
def _(pattern: ops.Not, m: int, n: int) -> Union:
    inner = lower(pattern.part, m, n)
    if inner.blocks is not None and len(inner.blocks):
        raise NotAffineError("the complement of blocks is not affine")
    terms = [Term.flat(Relation(), m, n)]
    for term in inner.terms:
        terms = [piece for kept in terms for piece in algebra.minus(kept, term)]
        if len(terms) > 4 * MAX_TERMS:
            raise NotAffineError("the complement has too many terms")
    return Union(terms, None, inner.notes)
