"""One axis of a pattern: which keys of an axis a query of it may see, as bounds and residues.

`Relation` is a conjunction: k >= T(i) for every lower bound T, k < T(i) for every upper bound, and three congruences.
These are on the query, on the key and on their difference. In row i the live keys are therefore start, start + step,
...: an affine row, by construction. Conjunctions are closed under intersection, shift and transposition; a difference
of two is a short disjoint list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np

from weft.pattern import counting
from weft.pattern.bounds import INF, Bound, Ints, Stair


@dataclass(frozen=True)
class Residue:
    """The integers x with x mod step == phase."""

    step: int = 1
    phase: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "phase", self.phase % self.step)

    def __contains__(self, x: int) -> bool:
        return x % self.step == self.phase

    def holds(self, x: Ints) -> NDBool:
        return x % self.step == self.phase

    def meet(self, other: Residue) -> Residue | None:
        """The integers in both (Chinese remainder theorem), None if there are none."""
        if self.step == 1:
            return other
        common = gcd(self.step, other.step)
        if (self.phase - other.phase) % common:
            return None
        step = self.step * other.step // common
        stride = other.step // common
        jump = (other.phase - self.phase) // common * pow(self.step // common, -1, stride) if stride > 1 else 0
        return Residue(step, self.phase + self.step * jump)

    def minus(self, other: Residue) -> Iterator[Residue]:
        """The residue classes of the integers that are in self and not in other."""
        both = self.meet(other)
        if both is None:
            yield self
            return
        for phase in range(self.phase, both.step, self.step):
            if phase != both.phase:
                yield Residue(both.step, phase)

    def moved(self, by: int) -> Residue:
        return Residue(self.step, self.phase + by)


NDBool = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
ANY = Residue()
LONG = 1 << 16  # tokens of a step, of which two multiply to 32 bits


@dataclass(frozen=True)
class Relation:
    """A conjunction of monotone bounds and congruences between queries i and keys k of one axis.

    lower: k >= T(i); upper: k < T(i). rows: i, keys: k, diagonal: k - i lie in a residue class.
    """

    lower: tuple[Bound, ...] = ()
    upper: tuple[Bound, ...] = ()
    rows: Residue = ANY
    keys: Residue = ANY
    diagonal: Residue = ANY

    @staticmethod
    def span(first: int, after: int, of_rows: bool, residue: Residue = ANY) -> Relation:
        """Queries (`of_rows`) or keys from `first` on and before `after`, those of a residue class."""
        if of_rows:  # a threshold above all keys, or below them, leaves a query out
            return Relation((Stair.threshold(after),), (Stair.threshold(first),), rows=residue)
        return Relation((Stair.constant(first),), (Stair.constant(after),), keys=residue)

    # ---- meaning -------------------------------------------------------------------------------------------------
    def contains(self, i: Ints, k: Ints) -> NDBool:
        """True where query i may see key k; i and k broadcast."""
        live = np.ones(np.broadcast_shapes(i.shape, k.shape), np.bool_)
        for bound in self.lower:
            live &= k >= bound(i)
        for bound in self.upper:
            live &= k < bound(i)
        for residue, x in ((self.rows, i), (self.keys, k), (self.diagonal, k - i)):
            if residue.step > 1:
                live &= residue.holds(x)
        return live

    def interval(self, i: Ints, n: int) -> tuple[Ints, Ints]:
        """Bounds of the keys of the rows i, congruences apart: 0 <= lo <= n, 0 <= hi <= n, both monotone in i."""
        lo, hi = np.zeros(i.shape, np.int64), np.full(i.shape, n, np.int64)
        for bound in self.lower:
            lo = np.maximum(lo, bound(i))
        for bound in self.upper:
            hi = np.minimum(hi, bound(i))
        return np.minimum(lo, n), np.maximum(hi, 0)

    def affine_rows(self, i: Ints, n: int) -> tuple[Ints, int, Ints]:
        """(start, step, count) of the rows i: row r sees keys start[r] + step * s for 0 <= s < count[r]."""
        lo, hi = self.interval(i, n)
        if max(self.rows.step, self.keys.step, self.diagonal.step) == 1:  # divisions would take most of the time
            return lo, 1, np.maximum(0, hi - lo)
        step, phase, agree = self.key_classes(i)
        start = lo + (phase - lo) % step
        count = np.where(self.rows.holds(i) & agree, np.maximum(0, -((start - hi) // step)), 0)
        return start, step, count

    def key_classes(self, i: Ints) -> tuple[int, Ints, NDBool]:
        """(step, phase, some): the keys that obey both congruences in row i are phase[i] modulo step, if some[i]."""
        keys, diagonal = self.keys, self.diagonal
        common = gcd(keys.step, diagonal.step)
        stride = diagonal.step // common
        gap = (i + diagonal.phase) % diagonal.step - keys.phase
        inverse = pow(keys.step // common, -1, stride) if stride > 1 else 0
        inverse -= stride * (2 * inverse > stride)  # the nearer to zero, so that products stay inside 64 bits
        phase = keys.phase + keys.step * ((gap // common * inverse) % stride)
        return keys.step * stride, phase, gap % common == 0

    def count(self, m: int, n: int) -> int:
        """Number of live pairs with 0 <= i < m and 0 <= k < n, in time that mostly does not grow with m."""
        return counting.count(self, m, n)

    def is_empty(self, m: int, n: int) -> bool:
        """True iff no pair with 0 <= i < m, 0 <= k < n is live. Exact; rows are looked at only where spans leave a
        doubt.
        """
        if m <= 0 or n <= 0 or any(low_meets(lo, hi) for lo in self.lower for hi in self.upper):
            return True
        if (self.affine_rows(np.arange(0, m, -(-m // 64), dtype=np.int64), n)[2] > 0).any():
            return False
        if counting.is_closed(self, m):
            return self.count(m, n) == 0
        width = 64
        first = np.arange(0, m, width, dtype=np.int64)
        last = np.minimum(first + width, m) - 1
        doubt = np.flatnonzero(self.interval(first, n)[0] < self.interval(last, n)[1])
        for tiles in (doubt[:16], doubt[-16:]):  # almost always settles it
            rows = (first[tiles, None] + np.arange(width)).reshape(-1)
            rows = rows[rows < m]
            if rows.size and (self.affine_rows(rows, n)[2] > 0).any():
                return False
        return doubt.size == 0 or self.count(m, n) == 0

    # ---- algebra -------------------------------------------------------------------------------------------------
    def meet(self, other: Relation) -> Relation | None:
        """The pairs in both, None if the congruences exclude each other."""
        residues = [
            a.meet(b) for a, b in ((self.rows, other.rows), (self.keys, other.keys), (self.diagonal, other.diagonal))
        ]
        if any(r is None for r in residues):
            return None
        rows, keys, diagonal = (r for r in residues if r is not None)
        both = self._within_bounds(other)
        return Relation(both.lower, both.upper, rows, keys, diagonal)

    def _within_bounds(self, other: Relation) -> Relation:
        """The pairs of self that obey the bounds of `other`."""
        lower = _tightest(self.lower + other.lower, largest=True)
        upper = _tightest(self.upper + other.upper, largest=False)
        return Relation(lower, upper, self.rows, self.keys, self.diagonal)

    def minus(self, other: Relation) -> Iterator[Relation]:
        """Disjoint relations whose union is the pairs in self and not in other (some may be empty). The j-th keeps the
        conditions of `other` before the j-th and breaks that.
        """
        kept = self
        for bound in other.lower:
            yield replace(kept, upper=_tightest((*kept.upper, bound), largest=False))
            kept = replace(kept, lower=_tightest((*kept.lower, bound), largest=True))
        for bound in other.upper:
            yield replace(kept, lower=_tightest((*kept.lower, bound), largest=True))
            kept = replace(kept, upper=_tightest((*kept.upper, bound), largest=False))
        for name in ("rows", "keys", "diagonal"):
            mine, theirs = getattr(kept, name), getattr(other, name)
            for piece in mine.minus(theirs):
                yield replace(kept, **{name: piece})
            both = mine.meet(theirs)
            if both is None:
                return
            kept = replace(kept, **{name: both})

    def transpose(self) -> Relation:
        """The same pairs with queries and keys exchanged."""
        return Relation(
            lower=tuple(bound.adjoint() for bound in self.upper),
            upper=tuple(bound.adjoint() for bound in self.lower),
            rows=self.keys,
            keys=self.rows,
            diagonal=Residue(self.diagonal.step, -self.diagonal.phase),
        )

    def moved(self, dq: int, dk: int) -> Relation:
        """(i, k) is in the result iff (i - dq, k - dk) is in self."""
        return Relation(
            lower=tuple(bound.moved(dq, dk) for bound in self.lower),
            upper=tuple(bound.moved(dq, dk) for bound in self.upper),
            rows=self.rows.moved(dq),
            keys=self.keys.moved(dk),
            diagonal=self.diagonal.moved(dk - dq),
        )

    def within(self, rows: tuple[int, int], keys: tuple[int, int]) -> Relation:
        """Restricted to queries rows[0] <= i < rows[1] and keys keys[0] <= k < keys[1]."""
        box = Relation(
            lower=(Stair.constant(keys[0]), Stair.threshold(rows[1])),
            upper=(Stair.constant(keys[1]), Stair.threshold(rows[0])),
        )
        return self._within_bounds(box)

    def tidied(self, m: int, n: int) -> Relation:
        """The same pairs of 0 <= i < m, 0 <= k < n without the bounds that all of them satisfy."""
        lower = tuple(b for b in self.lower if not (isinstance(b, Stair) and b.is_threshold and b.in_lo >= m))
        upper = tuple(b for b in self.upper if not (isinstance(b, Stair) and b.is_constant and b.out_lo >= n))
        return replace(self, lower=_tightest(lower, largest=True), upper=_tightest(upper, largest=False))

    def bounded(self, m: int, n: int) -> Relation:
        """The same pairs of 0 <= i < m, 0 <= k < n; bounds say what a long step leaves one token or one distance of.

        So steps stay below the lengths, however many congruences have met; those below LONG stay as they are written.
        """
        found = self
        for name, first, after in (("rows", 0, m), ("keys", 0, n), ("diagonal", -m, n)):
            residue = getattr(self, name)
            if residue.step >= max(LONG, after - first):
                at = min(first + (residue.phase - first) % residue.step, after)
                band = Relation((Stair(base=at),), (Stair(base=at + 1),))
                only = band if name == "diagonal" else Relation.span(at, at + 1, of_rows=name == "rows")
                free: dict[str, Any] = {name: ANY}
                found = replace(found._within_bounds(only), **free)
        return found

    @property
    def conditions(self) -> int:
        """How many conditions the conjunction has."""
        return len(self.lower) + len(self.upper) + sum(r.step > 1 for r in (self.rows, self.keys, self.diagonal))

    @property
    def nbytes(self) -> int:
        """Bytes of metadata: bounds, and two 32-bit integers for each congruence."""
        residues = sum(r.step > 1 for r in (self.rows, self.keys, self.diagonal))
        return sum(bound.nbytes for bound in self.lower + self.upper) + 8 * residues


def low_meets(lower: Bound, upper: Bound) -> bool:
    """True if k >= lower(i) and k < upper(i) exclude each other in every row, read off the integers alone."""
    return upper.never_above(lower)


def _tightest(bounds: tuple[Bound, ...], *, largest: bool) -> tuple[Bound, ...]:
    """Without repetitions and without bounds that another one implies; first seen, first kept."""
    kept: list[Bound] = []
    for new in bounds:
        if any((new.never_above(old) if largest else old.never_above(new)) for old in kept):
            continue
        kept = [old for old in kept if not (old.never_above(new) if largest else new.never_above(old))]
        kept.append(new)
    return tuple(b for b in kept if not _vacuous(b, largest))


def _vacuous(bound: Bound, is_lower: bool) -> bool:
    """A lower bound at or below key 0 (an upper one at infinity) says nothing about token indices."""
    if not isinstance(bound, Stair):
        return False
    if bound.is_constant:
        return bound.out_hi <= 0 if is_lower else bound.out_lo >= INF
    if bound.is_threshold:
        return bound.in_lo >= INF if is_lower else bound.in_lo <= 0
    return False
