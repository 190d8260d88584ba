"""Sets of integers between two limits: what must be in, what may be in; the simplest description in a fixed order.

An index set of a mask is the keys of a global column, or the diagonals of a window. It is known up to the pairs that
other parts of the pattern decide. So a description is sought that has all of `need` and nothing outside `allow`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool

MAX_STEPS = 6  # candidate steps of a comb


@dataclass(frozen=True)
class Comb:
    """first <= x <= last with (x - first) % step < width; open_left and open_right: nothing bounds it there."""

    first: int
    last: int
    step: int = 1
    width: int = 1
    open_left: bool = False
    open_right: bool = False

    @property
    def solid(self) -> bool:
        return self.step == 1 or self.width >= self.step

    @property
    def cost(self) -> int:
        """Numbers one has to write."""
        return (not self.open_left) + (not self.open_right) + (0 if self.solid else 2)

    def moved(self, by: int) -> Comb:
        return replace(self, first=self.first + by, last=self.last + by)

    def holds(self, x: Ints) -> NDBool:
        inside = (x >= self.first) & (x <= self.last)
        return np.asarray(inside & ((x - self.first) % self.step < self.width)) if not self.solid else inside


def simplest(need: NDBool, allow: NDBool, least: int) -> list[Comb]:
    """Combs whose union holds between the limits; place i of the vectors is the number least + i."""
    if not need.any():
        return []
    single = _interval(need, allow, least) or _comb(need, allow, least)
    if single:
        return [single]
    options = [_greedy(need, allow, source, least) for source in (need, allow)]
    return min(options, key=lambda combs: sum(1 + comb.cost for comb in combs))


def _hull(need: NDBool, allow: NDBool) -> tuple[int, int, bool, bool]:
    """First and last place that is needed, moved to the end of the vector where all up to there is allowed."""
    places = np.flatnonzero(need)
    a, b = int(places[0]), int(places[-1])
    return a, b, bool(allow[:a].all()), bool(allow[b + 1 :].all())


def _interval(need: NDBool, allow: NDBool, least: int) -> Comb | None:
    a, b, left, right = _hull(need, allow)
    if not allow[a : b + 1].all():
        return None
    first, last = 0 if left else a, need.size - 1 if right else b
    return Comb(first + least, last + least, open_left=left, open_right=right)


def _comb(need: NDBool, allow: NDBool, least: int) -> Comb | None:
    """One comb over the whole vector, or over what is needed of it."""
    a, b, *_ = _hull(need, allow)
    for step in _steps(need, allow):
        for lo, hi in ((0, need.size - 1), (a, b), (0, b), (a, need.size - 1)):
            found = _teeth(need, allow, step, lo, hi)
            if found:
                first, width = found
                ends = lo == 0, hi == need.size - 1
                return Comb(first + least, hi + least, step, width, *ends)
    return None


def _steps(need: NDBool, allow: NDBool) -> list[int]:
    """Distances between runs that occur most, in what is needed and in what is allowed."""
    seen: Counter[int] = Counter()
    for source in (need, allow):
        starts = runs(source)[0]
        gaps = np.diff(starts)
        for gap, count in zip(*np.unique(gaps, return_counts=True), strict=True):
            seen[int(gap)] += int(count)
        if gaps.size:
            seen[int(np.gcd.reduce(gaps))] += 1
    return [step for step, _ in seen.most_common(MAX_STEPS) if step > 1]


def _teeth(need: NDBool, allow: NDBool, step: int, lo: int, hi: int) -> tuple[int, int] | None:
    """(first place, width) of a comb of this step from place lo to hi, its teeth as narrow as can be."""
    span = hi + 1 - lo
    rows = -(-span // step)
    if rows < 3:
        return None
    fill = np.zeros(rows * step, np.bool_)
    fill[:span] = need[lo : hi + 1]
    must = fill.reshape(rows, step).any(axis=0)
    fill[:span] = ~allow[lo : hi + 1]
    if (must & fill.reshape(rows, step).any(axis=0)).any():
        return None
    starts, lengths = runs(np.tile(must, 2))
    if starts.size == 0 or must.all():
        return None
    inner = starts > 0
    phase, width = int(starts[inner][0]) % step, int(lengths[inner][0])
    if int(must.sum()) != width:
        return None
    if phase + width > step and lo == 0:  # a tooth cut by the beginning
        phase -= step
    if phase + width > step:
        return None
    return lo + phase, width


def _greedy(need: NDBool, allow: NDBool, source: NDBool, least: int) -> list[Comb]:
    """Runs of `source` gathered into arithmetic sequences of equal runs, those that are not needed left out."""
    starts, lengths = runs(source)
    total = np.concatenate([[0], np.cumsum(need)])
    useful = total[starts + lengths] > total[starts]
    combs = []
    for comb in _gathered(starts[useful], lengths[useful]):
        left, right = bool(allow[: comb.first].all()), bool(allow[comb.last + 1 :].all())
        combs.append(_opened(comb, (left, right), (0, need.size)).moved(least))
    return combs


def _gathered(starts: Ints, lengths: Ints) -> list[Comb]:
    """Runs as arithmetic sequences of equal runs."""
    combs, at = [], 0
    while at < starts.size:
        end = at + 1
        if end < starts.size:
            gap = starts[end] - starts[at]
            while end < starts.size and starts[end] - starts[end - 1] == gap and lengths[end] == lengths[at]:
                end += 1
        if end - at < 3:
            end = at + 1
        first, width = int(starts[at]), int(lengths[at])
        last = int(starts[end - 1]) + width - 1
        combs.append(Comb(first, last) if end - at == 1 else Comb(first, last, int(starts[at + 1]) - first, width))
        at = end
    return combs


def _opened(comb: Comb, free: tuple[bool, bool], ends: tuple[int, int]) -> Comb:
    """A run without gaps, drawn to the ends of all numbers where nothing is in its way (free: left, right)."""
    if comb.step > 1:
        return comb
    first, last = (ends[0] if free[0] else comb.first), (ends[1] - 1 if free[1] else comb.last)
    return Comb(first, last, open_left=free[0], open_right=free[1])


def exactly(starts: Ints, lengths: Ints, ends: tuple[int, int]) -> list[Comb] | None:
    """Combs whose union is a set of some of ends[0] <= x < ends[1], given by its stretches. None where these lie in
    such order that one comb may do.
    """
    gaps = np.diff(starts)
    if gaps.size > 1 and (gaps[1:] == gaps[1]).all() and (gaps[0] == gaps[1] or starts[0] == ends[0]):
        return None
    found = _gathered(starts, lengths)
    return [_opened(comb, (comb.first == ends[0], comb.last == ends[1] - 1), ends) for comb in found]


def runs(bits: NDBool) -> tuple[Ints, Ints]:
    """(starts, lengths) of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], bits.view(np.int8), [0]])))
    return edges[::2].astype(np.int64), (edges[1::2] - edges[::2]).astype(np.int64)
