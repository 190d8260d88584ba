"""Whether two functions of one index are the same but for a sign and a constant: told early where they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.pattern.bounds import Ints
from weft.recognition import runs
from weft.recognition.periodic import LONGEST, Piece

if TYPE_CHECKING:
    from weft.recognition.lines import Line

SAMPLES = 16  # indices at which two functions are compared before they are on all


def gap(a: Line, b: Line, sign: int) -> int | None:
    """The c for which a = sign * b + c everywhere; None if there is none."""
    if a is b and sign == 1:
        return 0
    if [(p.start, p.stop) for p in a.pieces] == [(p.start, p.stop) for p in b.pieces]:
        found = a.pieces[0].lead - sign * b.pieces[0].lead
        if all(_apart(x, y, sign, found) for x, y in zip(a.pieces, b.pieces, strict=True)):
            return found
    if (a.lo, a.hi) == (b.lo, b.hi):
        some = a.sampled - sign * b.sampled
        if (some[1:] != some[:-1]).any():
            return None
    difference = a - b.scaled(sign)
    return difference.value if difference.is_constant else None


def samples(lo: int, hi: int) -> Ints:
    """Some indices in lo <= x < hi that fall into no step; none where that lies far from 0."""
    lo, hi = max(lo, -LONGEST), min(hi, LONGEST)
    return lo + np.arange(SAMPLES if lo < hi else 0, dtype=np.int64) ** 5 * 7919 % max(1, hi - lo)


def _apart(a: Piece, b: Piece, sign: int, gap: int) -> bool:
    """Whether a = sign * b + gap as they are spelled."""
    if isinstance(a, runs.Ragged) or isinstance(b, runs.Ragged):
        return isinstance(a, runs.Ragged) and isinstance(b, runs.Ragged) and runs.apart(a.runs, b.runs, sign, gap)
    alike = (a.values.size, a.run, a.slope) == (b.values.size, b.run, sign * b.slope)
    return alike and bool((a.values == sign * b.values + gap).all())
