"""A pattern as a union of terms and blocks, by algebra on bounds. `&`, `|` and `~` work on unions.

What cannot be expressed so raises NotAffineError, and the part of the pattern that it is in is looked at pair by pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import singledispatch

import numpy as np

from weft.acsr import ordered
from weft.acsr import terms as algebra
from weft.acsr.blocks import Blocks
from weft.acsr.cover import of_table, room
from weft.acsr.excerpts import cut
from weft.acsr.format import BLOCK, MAX_TERMS, NotAffineError, Term
from weft.acsr.labels import axes_of_labels
from weft.pattern import algebra as ops
from weft.pattern import leaves, pieces
from weft.pattern.algebra import Pattern, Where
from weft.pattern.bounds import INF, Bound, Ints, IntTable, Stair, Steps
from weft.pattern.excerpt import Excerpt
from weft.pattern.leaves import Affine, BlockList, Product
from weft.pattern.listed import EVERY
from weft.pattern.relation import NDBool, Relation
from weft.pattern.tables import BlockTable


@dataclass
class Union:
    """Terms, which may overlap unless they are known to be `apart`, and blocks of what is not affine."""

    terms: list[Term] = field(default_factory=list)
    blocks: Blocks | None = None
    notes: list[str] = field(default_factory=list)
    apart: bool = False


def lower_or_scan(pattern: Pattern, m: int, n: int) -> Union:
    """The pattern as a union; where it has no affine form, every pair is looked at once."""
    try:
        return lower(pattern, m, n)
    except NotAffineError as reason:
        note = f"{shortened(pattern)}: {reason}"
        return Union([], Blocks.scan(_predicate(pattern, m, n), m, n, note), [note])


def shortened(pattern: Pattern, width: int = 80) -> str:
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
    axes = axes_of_labels(pattern.ids.array) if pattern.key_ids is None else None
    if axes is None:
        return _scattered(pattern.ids.array, pattern.of_keys.array)
    ends = [np.cumsum(lengths) for lengths in axes]
    parts = [Affine(Relation(*_contiguous(one)), length=int(one[-1])) for one in ends]
    shape = tuple(int(one[-1]) for one in ends)
    return lower(leaves.Product(tuple(parts), shape, shape), m, n)


def _scattered(ids: Ints, key_ids: Ints) -> Union:
    """Labels in any order: one term of tokens in another order, where runs of a label are more than terms may be."""
    if max(np.count_nonzero(np.diff(x)) for x in (ids, key_ids)) < MAX_TERMS:
        raise NotAffineError("documents that are not contiguous have no affine rows")
    term = ordered.of_labels(ids, key_ids)
    return Union([] if term is None else [term], apart=True)


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
    alone = all(x.apart or len(x.terms) < 2 for x in (a, b))
    return Union(terms, blocks, a.notes + b.notes, alone)


@lower.register
def _(pattern: ops.Not, m: int, n: int) -> Union:
    turned = _turned(pattern.part)
    if turned is not None:
        return lower(turned, m, n)
    inner = lower(pattern.part, m, n)
    if inner.blocks is not None and len(inner.blocks):
        raise NotAffineError("the complement of blocks is not affine")
    terms = [Term.flat(Relation(), m, n)]
    for term in inner.terms:
        terms = [piece for kept in terms for piece in algebra.minus(kept, term)]
        if len(terms) > 4 * MAX_TERMS:
            raise NotAffineError("the complement has too many terms")
    return Union(terms, None, inner.notes, apart=any(term.is_ordered for term in terms))


def _turned(part: Pattern) -> Pattern | None:
    """The complement of a part by De Morgan's laws, where that spares a complement; else None."""
    if isinstance(part, ops.Not):
        return part.part
    if not isinstance(part, (ops.And, ops.Or)) or not any(isinstance(one, ops.Not) for one in part.parts):
        return None
    parts = tuple(one.part if isinstance(one, ops.Not) else ops.Not(one) for one in part.parts)
    return ops.Or(parts) if isinstance(part, ops.And) else ops.And(parts)


@lower.register
def _(pattern: BlockTable, m: int, n: int) -> Union:
    """Keys that every query sees, and of the rest terms, or blocks where these are fewer than terms are worth."""
    rows, cols, table = pattern.rows.array, pattern.cols.array, pattern.table
    common = table.all(axis=0)
    rest = BlockTable(pattern.rows, pattern.cols, IntTable(np.flatnonzero(table & ~common)))
    codes = _touched(rest, n)
    terms = of_table(rows, cols, table, room(codes.size))
    if terms is not None:
        return Union(terms, apart=True)
    some = of_table(rows, cols, np.broadcast_to(common, table.shape), 1)
    assert some is not None  # all queries see the same keys: one rectangle
    return Union(some, Blocks.evaluated(codes, _predicate(rest, m, n), m, n), apart=True)


def _touched(pattern: BlockTable, n: int) -> Ints:
    """Codes of the blocks of the remainder that hold some pair of a table."""
    sides = []
    for ends in (pattern.rows.array, pattern.cols.array):
        starts = np.append(0, ends[:-1])
        sides.append((starts // BLOCK, (ends - 1) // BLOCK + 1))
    (top, bottom), (left, right) = sides
    row, col = np.divmod(pattern.cells.array, len(pattern.cols))
    width = max(1, -(-n // BLOCK))
    found = [np.zeros(0, np.int64)]
    for i, j in zip(row.tolist(), col.tolist(), strict=True):
        some = np.arange(top[i], bottom[i])[:, None] * width + np.arange(left[j], right[j])
        found.append(some.reshape(-1))
    return np.unique(np.concatenate(found))


# ---- parts one by one ------------------------------------------------------------------------------------------------
@lower.register
def _(pattern: pieces.Coarse, m: int, n: int) -> Union:
    sizes = pattern.sizes(m, n)
    inner = lower(pattern.part, *sizes)
    union = Union(notes=inner.notes)
    for term in inner.terms:
        union.terms += _lifted(term, pattern, m, n)
    if inner.blocks is not None:
        union.blocks = _lifted_blocks(inner.blocks, pattern, m, n)
    return union


def _lifted(term: Term, at: pieces.Coarse, m: int, n: int) -> list[Term]:
    """A term between blocks as terms between tokens: bounds are multiplied; congruences need whole blocks."""
    if term.rank > 1 or term.is_ordered:
        raise NotAffineError("a grid of blocks, or blocks in another order")
    axis, sets = term.axes[0], (term.rows.enlarged(at.block_q), term.keys.enlarged(at.block_k))
    if max(axis.rows.step, axis.keys.step, axis.diagonal.step) == 1:
        lows, highs = (tuple(_scaled(b, at) for b in side) for side in (axis.lower, axis.upper))
        return [Term.flat(Relation(lows, highs), m, n, *sets)]
    if m % at.block_q or n % at.block_k:
        raise NotAffineError("every so many blocks, the last one ragged")
    shapes = (m // at.block_q, at.block_q), (n // at.block_k, at.block_k)
    terms = lower(Product((Affine(axis), Affine(Relation())), *shapes), m, n).terms
    return [both for one in terms for both in algebra.meet(one, Term.flat(Relation(), m, n, *sets))]


def _scaled(bound: Bound, at: pieces.Coarse) -> Bound:
    """T of blocks as T of tokens."""
    q, k = at.block_q, at.block_k

    def by(value: int, size: int) -> int:
        return value if abs(value) >= INF // 2 else value * size

    if isinstance(bound, Steps):
        pair = ((bound.breaks, q), (bound.values, k))
        return Steps(*(IntTable([by(int(x), size) for x in table.array]) for table, size in pair))
    out, into = (by(bound.out_lo, k), by(bound.out_hi, k)), (by(bound.in_lo, q), by(bound.in_hi, q))
    return Stair(bound.rise * k, bound.run * q, bound.shift * q, bound.base * k, *out, *into)


def _lifted_blocks(blocks: Blocks, at: pieces.Coarse, m: int, n: int) -> Blocks:
    """Pairs of blocks, one by one, as the blocks of tokens they stand for."""
    rows, cols = [], []
    mb, nb = at.sizes(m, n)
    for a in range(0, mb, 64):
        q, k = np.arange(a, min(a + 64, mb), dtype=np.int64)[:, None], np.arange(nb, dtype=np.int64)[None]
        found = np.argwhere(blocks.contains(*np.broadcast_arrays(q, k)))
        rows.append(found[:, 0] + a)
        cols.append(found[:, 1])
    listed = BlockList(at.block_q, at.block_k, IntTable(np.concatenate(rows)), IntTable(np.concatenate(cols)))
    return Blocks.of_list(listed, m, n)


@lower.register
def _(pattern: pieces.Bits, m: int, n: int) -> Union:
    note = "pairs that follow no affine rows, listed bit by bit"
    return Union([], Blocks.of_words(pattern.rows, m, n), [note])


@lower.register
def _(pattern: pieces.OnlyAt, m: int, n: int) -> Union:
    return lower(pattern.part, m, n)


@lower.register
def _(pattern: pieces.Folded, m: int, n: int) -> Union:
    if m % pattern.width or n % pattern.width:
        raise NotAffineError(f"the last row of a grid of rows of {pattern.width} is ragged")
    rows = pattern.rows(m, n)
    grid = Product((pattern.outer, pattern.inner), (rows[0], pattern.width), (rows[1], pattern.width))
    return lower(grid, m, n)


@lower.register
def _(pattern: Excerpt, m: int, n: int) -> Union:
    whole = lower(pattern.part, *pattern.whole)
    terms = [piece for term in whole.terms for piece in cut(term, pattern.q, pattern.k)]
    blocks = None
    if whole.blocks is not None:
        q, k = pattern.q.span, pattern.k.span
        if q is None or k is None:
            raise NotAffineError("a box is cut out of blocks")
        blocks = whole.blocks.moved(-q[0], -k[0], m, n)
    return Union(terms, blocks, whole.notes, whole.apart)
