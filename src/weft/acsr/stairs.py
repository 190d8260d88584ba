"""Monotone staircases between two limits: the simplest T with least(i) <= T(i) <= most(i) for every query i.

Both limits are non-decreasing and lie in 0..n. In order: a formula, a formula clipped at its ends, a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.pattern.bounds import INF, Bound, Ints, IntTable, Stair, Steps

FEW = 32  # places that a formula is tried on first


def simplest(least: Ints, most: Ints, n: int, rows: tuple[Ints, Ints] | None = None) -> Bound:
    """A stair if one fits, else the table with the fewest steps. rows: the first and the last row that each place of
    the limits stands for; without them each is a row.
    """
    if rows is None:
        rows = (np.arange(least.size, dtype=np.int64),) * 2
    first, last = rows
    few = slice(None, None, max(1, least.size // FEW))  # what fits all places fits these
    for source in (most, least):
        for stair in _formulas(source, first):
            if _clipped(stair, (least[few], most[few]), n, (first[few], last[few])):
                fitted = _clipped(stair, (least, most), n, rows)
                if fitted:
                    return fitted
    return _table(least, most, first)


def _clipped(stair: Stair, limits: tuple[Ints, Ints], n: int, rows: tuple[Ints, Ints]) -> Stair | None:
    """The stair between the limits, clipped at its ends if that is what it takes. It never decreases. So the first row
    of a place is where it may be too low, and the last where it may be too high.
    """
    least, most = limits
    first, last = (np.clip(stair(at), 0, n) for at in rows)
    low, high = least[first < least].max(initial=-INF), most[last > most].min(initial=INF)
    first, last = (np.clip(value, low, high) for value in (first, last))
    if low > high or (first < least).any() or (last > most).any():
        return None
    return replace(stair, out_lo=int(low), out_hi=int(high))


def _formulas(source: Ints, first: Ints) -> list[Stair]:
    """Stairs through some steps of `source`, whose places begin at the rows `first`."""
    places = np.flatnonzero(np.diff(source)) + 1
    breaks = first[places]
    if not breaks.size:
        return []
    if breaks.size == 1:
        size = int(breaks[0])
        return [Stair(size, size), Stair(size, size, base=size)]
    values = source[places]
    run = _usual(np.diff(breaks))
    rise = _usual(np.diff(values))
    shifts = -breaks % run
    bases = values - rise * ((breaks + shifts) // run)
    usual = np.flatnonzero(bases == _usual(bases))
    at = dict.fromkeys((breaks.size // 2, 0, breaks.size - 1, int(usual[usual.size // 2])))
    return [Stair(rise, run, int(shifts[i]), int(bases[i])) for i in at]


def _usual(gaps: Ints) -> int:
    """The most frequent, the smaller of two that are equally so."""
    values, counts = np.unique(gaps, return_counts=True)
    return int(values[counts.argmax()])


def _table(least: Ints, most: Ints, first: Ints) -> Steps:
    """Each step as long as it can be: at the largest value allowed where it begins."""
    beyond = np.searchsorted(least, most, side="right").tolist()
    places, at = [], 0
    while at < most.size:
        places.append(at)
        at = beyond[at]
    return Steps(IntTable(first[places[1:]]), IntTable(most[places] if places else [0]))


# ---- one line -------------------------------------------------------------------------------------------------------
class OneLine(NamedTuple):
    """One line at most, and the rows [begin, end) of which it says what all bounds say."""

    line: tuple[Stair, ...]
    begin: int
    end: int


def one_line(bounds: Sequence[Bound], lower: bool) -> OneLine | None:
    """One line clipped by all constants, thresholds left out; None where there are more lines, or steps."""
    stairs = [bound for bound in bounds if isinstance(bound, Stair)]
    constants = [stair.out_lo for stair in stairs if stair.is_constant]
    lines = [stair for stair in stairs if not (stair.is_constant or stair.is_threshold)]
    thresholds = [stair.in_lo for stair in stairs if stair.is_threshold and not stair.is_constant]
    if len(stairs) < len(bounds) or len(lines) > 1 or any(line.run > 1 for line in lines):
        return None
    # a threshold, -inf before its row and +inf from it on, says nothing before as a lower bound, after as an upper one
    begin = max([-INF, *(line.in_lo for line in lines), *([] if lower else thresholds)])
    end = min([INF, *(line.in_hi for line in lines), *(thresholds if lower else [])])
    if not lines:
        line = (Stair.constant(max(constants) if lower else min(constants)),) if constants else ()
        return OneLine(line, begin, end)
    low, high = lines[0].out_lo, lines[0].out_hi
    if lower:
        low = max([low, *constants])
        high = max(low, high)
    else:
        high = min([high, *constants])
        low = min(low, high)
    return OneLine((replace(lines[0], out_lo=low, out_hi=high, in_lo=-INF, in_hi=INF),), begin, end)
