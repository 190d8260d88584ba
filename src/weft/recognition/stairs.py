"""Monotone staircases between two limits: the simplest T with least(i) <= T(i) <= most(i) for every query i.

Both limits are non-decreasing and lie in 0..n. In order: a formula, a formula clipped at its ends, a table.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from weft.pattern.bounds import INF, Bound, Ints, IntTable, Stair, Steps


def simplest(least: Ints, most: Ints, n: int) -> Bound:
    """A stair if one fits, else the table with the fewest steps."""
    for source in (most, least):
        for stair in _formulas(source):
            fitted = _clipped(stair, least, most, n)
            if fitted:
                return fitted
    return _table(least, most)


def stretched(bound: Bound, by: int) -> Bound:
    """T(i // by) of a T that `simplest` made."""
    if isinstance(bound, Stair):
        return replace(bound, run=bound.run * by, shift=bound.shift * by)
    return Steps(IntTable(bound.breaks.array * by), bound.values)


def _clipped(stair: Stair, least: Ints, most: Ints, n: int) -> Stair | None:
    """The stair between the limits, clipped at its ends if that is what it takes."""
    value = np.clip(stair(np.arange(least.size, dtype=np.int64)), 0, n)
    low, high = least[value < least].max(initial=-INF), most[value > most].min(initial=INF)
    value = np.clip(value, low, high)
    if low > high or (value < least).any() or (value > most).any():
        return None
    return replace(stair, out_lo=int(low), out_hi=int(high))


def _formulas(source: Ints) -> list[Stair]:
    """Stairs through some steps of `source`."""
    breaks = np.flatnonzero(np.diff(source)) + 1
    if not breaks.size:
        return []
    if breaks.size == 1:
        size = int(breaks[0])
        return [Stair(size, size), Stair(size, size, base=size)]
    values = source[breaks]
    run = _usual(np.diff(breaks))
    rise = _usual(np.diff(values))
    found = []
    for at in dict.fromkeys((breaks.size // 2, 0, breaks.size - 1)):
        row, value = int(breaks[at]), int(values[at])
        shift = -row % run
        found.append(Stair(rise, run, shift, value - rise * ((row + shift) // run)))
    return found


def _usual(gaps: Ints) -> int:
    """The most frequent, the smaller of two that are equally so."""
    counted = Counter(gaps.tolist())
    return int(min(counted, key=lambda gap: (-counted[gap], gap)))


def _table(least: Ints, most: Ints) -> Steps:
    """Each step as long as it can be: at the largest value allowed where it begins."""
    breaks, values, at = [], [], 0
    while at < most.size:
        values.append(int(most[at]))
        at = int(np.searchsorted(least, most[at], side="right"))
        breaks.append(at)
    return Steps(IntTable(breaks[:-1]), IntTable(values or [0]))
