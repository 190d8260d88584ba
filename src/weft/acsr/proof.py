"""Proof that an Acsr says what its pattern says: terms share no pair, and the pattern's own predicate agrees."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from weft.acsr import terms as algebra
from weft.acsr.blocks import Blocks
from weft.acsr.format import BLOCK, Acsr, NotAffineError, Term
from weft.acsr.lower import Union, lower
from weft.errors import VerificationError
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import INF, Bound, Ints, Steps

EXHAUSTIVE = 1 << 20  # pairs up to which every one is compared
SAMPLES = 1 << 12  # rows compared beyond that
WHOLE = 1 << 20  # pairs of whole rows, and of whole columns, compared beyond that: at least one of each


def require(held: bool, wrong: str) -> None:
    """Raise VerificationError, with what is wrong, unless it held."""
    if not held:
        raise VerificationError("verify a plan", wrong, "report this as a defect of weft; do not use the plan")


# ---- ownership ---------------------------------------------------------------------------------------------------
def verify_disjoint(acsr: Acsr) -> None:
    """Raise VerificationError unless every pair has one owner at most."""
    for (i, a), (j, b) in combinations(enumerate(acsr.terms), 2):
        require(not _share(a, b, acsr.m, acsr.n), f"terms {i} and {j} own a pair together")
    held = Blocks.of_remainder(acsr.remainder, acsr.m, acsr.n)
    for i, term in enumerate(acsr.terms):
        both = held.reached_by(term)
        require(not len(both), f"the remainder and term {i} own a pair together")


def _share(a: Term, b: Term, m: int, n: int) -> bool:
    """Whether two terms share a pair: by algebra, and of few pairs by looking at all where that has no form."""
    try:
        return any(both.nnz for both in algebra.meet(a, b))
    except NotAffineError as reason:
        if m * n <= EXHAUSTIVE:
            return bool((a.to_dense(m, n) & b.to_dense(m, n)).any())
        require(False, f"whether two terms share pairs cannot be proven: {reason}")
        return True


def verify_remainder(acsr: Acsr) -> None:
    """Raise VerificationError unless each block is listed once, inside the mask, with bits where it is partial."""
    remainder = acsr.remainder
    listed = remainder.rows.astype(np.int64) * (1 + int(remainder.cols.max(initial=0))) + remainder.cols
    require(bool((np.diff(listed) > 0).all()), "the remainder lists a block twice, or out of order")
    inside = (
        (remainder.rows >= 0)
        & (remainder.cols >= 0)
        & (remainder.rows * BLOCK < acsr.m)
        & (remainder.cols * BLOCK < acsr.n)
    )
    require(bool(inside.all()), "a block of the remainder lies outside the mask")
    partial = np.sort(remainder.bit_index[remainder.bit_index >= 0])
    require(np.array_equal(partial, np.arange(len(remainder.bits))), "the remainder's bits and blocks disagree")


# ---- meaning -----------------------------------------------------------------------------------------------------
def verify_pattern(pattern: Pattern, acsr: Acsr, rows: Ints, batch: int = 0, head: int = 0) -> None:
    """Raise VerificationError if the pattern's predicate and an Acsr differ on a pair looked at.

    These are all pairs of a small problem. Of a large one they are keys two either side of every bound in these rows,
    near bounds and in random rows. Whole rows and columns, which no bound chooses, come with them.
    """
    held = Blocks.of_remainder(acsr.remainder, acsr.m, acsr.n)
    union = _lowered(pattern.at(batch, head), acsr)
    if union.blocks is not None:
        lost = union.blocks.elsewhere(held).without(acsr.terms)
        if len(lost):
            query, key = lost.first_pair()
            require(False, f"query {query}, key {key}: live in {pattern}, and in no term and not in the remainder")
    for q, k in _pairs(acsr, rows, [*acsr.terms, *union.terms]):
        said = pattern.contains(q, k, acsr.m, acsr.n, batch, head)
        owned = held.contains(*np.broadcast_arrays(q, k))
        for term in acsr.terms:
            owned = owned | term.contains(q, k)
        inside = (q >= 0) & (q < acsr.m) & (k >= 0) & (k < acsr.n)
        wrong = np.argwhere((said != owned) & inside)
        if wrong.size:
            pair = [int(np.broadcast_to(x, said.shape)[tuple(wrong[0])]) for x in (q, k)]
            state = "live" if said[tuple(wrong[0])] else "dead"
            require(False, f"query {pair[0]}, key {pair[1]}: {state} in {pattern}, and not so in its rows")


def _lowered(pattern: Pattern, acsr: Acsr) -> Union:
    """The pattern's own terms and blocks, before any subtraction; empty where only a scan would give them."""
    try:
        return lower(pattern, acsr.m, acsr.n)
    except NotAffineError:
        return Union()


def _pairs(acsr: Acsr, rows: Ints, probes: list[Term]) -> Iterator[tuple[Ints, Ints]]:
    """Arrays (q, k) to compare, in bounded pieces."""
    m, n = acsr.m, acsr.n
    if m * n <= EXHAUSTIVE:
        yield np.arange(m, dtype=np.int64)[:, None], np.arange(n, dtype=np.int64)[None, :]
        return
    rows = _rows_of_interest(acsr, rows, probes)
    generator = np.random.default_rng(0)
    for at in range(0, rows.size, SAMPLES):
        some = rows[at : at + SAMPLES]
        columns = [_columns_of_interest(term, some) for term in probes]
        columns.append(generator.integers(0, n, size=(some.size, 16)))
        columns += [_listed_columns(term, some.size, generator) for term in probes if len(term.keys.tokens)]
        yield some[:, None], np.concatenate(columns, axis=1)
    held = Blocks.of_remainder(acsr.remainder, m, n)
    yield from held.samples(generator, SAMPLES)
    yield generator.integers(0, m, max(1, WHOLE // n))[:, None], np.arange(n, dtype=np.int64)[None, :]
    yield np.arange(m, dtype=np.int64)[:, None], generator.integers(0, n, max(1, WHOLE // m))[None, :]


def _rows_of_interest(acsr: Acsr, rows: Ints, probes: list[Term]) -> Ints:
    """Token indices of given rows, of those two either side of what bounds say of queries, and of random ones."""
    found = [rows, np.random.default_rng(1).integers(0, max(1, acsr.m), SAMPLES)]
    for term in probes:
        tokens = np.zeros(1, np.int64)
        for axis, size in zip(term.axes, term.q.shape, strict=True):
            jumps = [jump for bound in (*axis.lower, *axis.upper) for jump in _jumps(bound)]
            near = (np.array([0, size // 2, size - 1, *jumps])[:, None] + np.arange(-2, 3)).reshape(-1)
            tokens = thinned(joined(tokens, np.unique(near), size))
        found.append(term.q.tokens(tokens))
        found.append(thinned((term.rows.tokens.array[:, None] + np.arange(-1, 2)).reshape(-1)))
    rows = np.unique(np.concatenate(found))
    return rows[(rows >= 0) & (rows < acsr.m)]


def joined(tokens: Ints, coordinates: Ints, size: int) -> Ints:
    """Row-major indices one axis further, coordinates outside the axis left out."""
    inside = coordinates[(coordinates >= 0) & (coordinates < size)]
    return (tokens[:, None] * size + inside).reshape(-1)


def _listed_columns(term: Term, rows: int, generator: np.random.Generator) -> Ints:
    """For each row eight of the listed keys and of their neighbours: (rows, 8)."""
    return generator.choice(term.keys.tokens.array, (rows, 8)) + generator.integers(-1, 2, (rows, 8))


def _jumps(bound: Bound) -> list[int]:
    """Queries at which a bound begins or ends to say something, or jumps out of turn."""
    if isinstance(bound, Steps):
        return [int(x) for x in bound.breaks.array if abs(x) < INF]
    turn = bound.adjoint()
    keys = [x for x in (bound.out_lo, bound.out_hi) if abs(x) < INF and not bound.is_constant]
    return [x for x in (bound.in_lo, bound.in_hi) if abs(x) < INF] + [int(x) for x in turn(np.array(keys, np.int64))]


def thinned(tokens: Ints) -> Ints:
    limit = 4 * SAMPLES
    return tokens if tokens.size <= limit else np.random.default_rng(2).choice(tokens, limit, replace=False)


def _columns_of_interest(term: Term, rows: Ints) -> Ints:
    """For each row keys two either side of the first and last live key, on each axis in turn: (rows, some)."""
    _, at = term.q.coordinates(rows)
    spans = [axis.affine_rows(i, n) for axis, i, n in zip(term.axes, at, term.k.shape, strict=True)]
    ends = [(first, first + step * np.maximum(count - 1, 0)) for first, step, count in spans]
    found = []
    for axis in range(term.rank):
        for end in (0, 1):
            for by in range(-2, 3):
                tokens = np.zeros(rows.shape, np.int64)
                for other, size in enumerate(term.k.shape):
                    here = ends[other][end] + (by if other == axis else 0)
                    tokens = tokens * size + np.clip(here, 0, size - 1)
                found.append(term.k.tokens(tokens))
    return np.stack(found, axis=1)
