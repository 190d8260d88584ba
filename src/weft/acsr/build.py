"""Pattern -> Acsr. No dense matrix is formed for what is affine.

A pattern lowers to a union of terms (`weft.acsr.lower`), which are made disjoint. They stay as they are, or are merged
where they are too many. Where they overlap in a way that has no form, other terms cover them. What goes beyond
MAX_TERMS even so is written down block by block in the remainder, and `Acsr.notes` says so.
"""

from __future__ import annotations

import numpy as np

from weft.acsr import terms as algebra
from weft.acsr.bands import merged_bands
from weft.acsr.blocks import Blocks
from weft.acsr.cover import FEW, covered, room
from weft.acsr.format import BLOCK, MAX_TERMS, Acsr, Remainder, Term
from weft.acsr.lower import Union, lower_or_scan, shortened
from weft.acsr.merge import absorbed, merged
from weft.acsr.sides import joined_sides
from weft.caching import cached
from weft.pattern.algebra import Pattern


@cached(256)
def build(pattern: Pattern, m: int, n: int, batch: int = 0, head: int = 0, orders: bool = True) -> Acsr:
    """The Acsr of batch row `batch` and head `head` at M=m queries and N=n keys. orders: terms may take tokens in
    another order than they come; else such pairs are blocks, as for kernels that gather no rows.

    Raises what `pattern.check` raises, and IrregularError where the part that is not affine is too large to scan.
    """
    label = shortened(pattern, 200)
    pattern.check(m, n, f"{label} at M={m}, N={n}")
    one = pattern.at(batch, head)
    if m == 0 or n == 0:
        return Acsr(m, n, (), Remainder.none(), label)
    union = lower_or_scan(one, m, n)
    if not orders:
        _listed(union, m, n, label)
    alone = union.apart and len(union.terms) <= MAX_TERMS
    kept, spilled = (union.terms, []) if alone else _fewest(union.terms, m, n)
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


def _listed(union: Union, m: int, n: int, label: str) -> None:
    """Write terms in an order of their own down as blocks."""
    some = [term for term in union.terms if term.is_ordered]
    if some:
        note = f"{label}: documents that are not contiguous have no affine rows"
        blocks = Blocks.scan(lambda q, k: np.logical_or.reduce([term.contains(q, k) for term in some]), m, n, note)
        union.terms = [term for term in union.terms if not term.is_ordered]
        union.blocks = blocks if union.blocks is None else union.blocks.join(blocks)
        union.notes.append(note)


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
    terms = joined_sides(terms)
    if len(terms) > MAX_TERMS:
        terms = merged_bands(terms)
    if len(terms) > algebra.MAX_APART:
        terms = merged(absorbed(terms), m, n)
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
