"""Index sets and staircases as library calls: the names under which a reader knows them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from operator import and_, or_
from typing import Any

import numpy as np

from weft.pattern import algebra as ops
from weft.pattern import library as lib
from weft.pattern import pieces
from weft.pattern.algebra import Align, Pattern
from weft.pattern.bounds import INF, Bound, IntTable, Stair
from weft.pattern.relation import NDBool
from weft.recognition.sets import Comb

MAX_TOKENS = 64  # a list of lone tokens is written out up to this length


def cost(pattern: Pattern) -> int:
    """Numbers one has to write for a pattern, and one for each call."""
    if isinstance(pattern, ops.Call):
        if pattern.name == "bits":  # words of two 32-bit numbers
            return 1 + 2 * len(dict(pattern.args)["words"])
        return 1 + sum(_numbers(value) for _, value in pattern.args)
    if isinstance(pattern, ops.Operator):
        return sum(cost(part) for part in pattern.parts)
    return 1


def _numbers(value: Any) -> int:
    if isinstance(value, IntTable):
        return len(value)
    if isinstance(value, Pattern):
        return cost(value)
    return sum(map(_numbers, value)) if isinstance(value, tuple) else int(not isinstance(value, str))


def terms(pattern: Pattern) -> int:
    """How many conjunctions a pattern falls into at most when it is multiplied out."""
    if isinstance(pattern, ops.Or):
        return sum(map(terms, pattern.parts))
    if isinstance(pattern, ops.And):
        return prod(map(terms, pattern.parts))
    return 2 * terms(pattern.part) if isinstance(pattern, ops.Not) else 1


def union(parts: Sequence[Pattern]) -> Pattern:
    """a | b | c, in one step where there are many: each `|` looks through all parts before it."""
    if len(parts) > 2:
        return ops.Or(tuple(leaf for part in parts for leaf in (part.parts if isinstance(part, ops.Or) else (part,))))
    return reduce(or_, parts) if parts else lib.nothing()


def intersection(parts: Sequence[Pattern]) -> Pattern:
    return reduce(and_, parts) if parts else lib.full()


def of_keys(combs: list[Comb], size: int) -> Pattern:
    tokens = _tokens(combs)
    return lib.global_tokens(tokens, rows=False) if tokens else union([_keys(comb, size) for comb in combs])


def _keys(comb: Comb, size: int) -> Pattern:
    if comb.solid:
        if comb.open_left and comb.open_right:
            return lib.full()
        if comb.open_left or comb.first == 0:
            return lib.prefix(comb.last + 1)
        return ~lib.prefix(comb.first) if comb.open_right else pieces.keys(comb.first, comb.last + 1)
    if comb.open_left and comb.open_right and comb.width == 1:
        return lib.periodic_keys(comb.step, phase=comb.first % comb.step)
    return pieces.keys(comb.first, comb.last + 1, comb.step, comb.width)


def of_queries(combs: list[Comb], size: int, align: Align) -> Pattern:
    tokens = _tokens(combs)
    if tokens:
        return lib.global_tokens(tokens, columns=False, align=align)
    return union([_queries(comb, size, align) for comb in combs])


def _queries(comb: Comb, size: int, align: Align) -> Pattern:
    if comb.solid:
        if comb.open_left and comb.open_right:
            return lib.full()
        if comb.open_left or comb.first == 0:
            return lib.global_tokens(comb.last + 1, columns=False, align=align)
        if comb.open_right:
            return ~lib.global_tokens(comb.first, columns=False, align=align)
        return pieces.queries(comb.first, comb.last + 1, align=align)
    return pieces.queries(comb.first, comb.last + 1, comb.step, comb.width, align=align)


def _tokens(combs: list[Comb]) -> list[int]:
    """The indices one by one, where that is shorter than the combs are."""
    count = sum(comb.last - comb.first + 1 if comb.solid else MAX_TOKENS for comb in combs)
    if len(combs) < 2 or count >= MAX_TOKENS or count >= sum(1 + comb.cost for comb in combs):
        return []
    return [x for comb in combs for x in range(comb.first, comb.last + 1)]


def strided_step(need: NDBool, allow: NDBool, m: int) -> int | None:
    """The stride of Sparse Transformer's strided pattern, if that is what the diagonals are."""
    past = allow[:m][::-1]  # distance 0, 1, ...
    if need[m:].any() or not past[0]:
        return None
    stop = int(past.argmin()) if not past.all() else 0
    distance = np.arange(m)
    for step in (stop - 1, stop):
        if step > 1:
            live = (distance < step) | (distance % step == 0)
            if not (need[:m][::-1] & ~live).any() and not (live & ~past).any():
                return step
    return None


def of_diagonals(combs: list[Comb], m: int, n: int) -> Pattern:
    return union([_diagonals(comb, m, n) for comb in combs])


def _diagonals(comb: Comb, m: int, n: int) -> Pattern:
    gap, align = 0, None
    if m != n:
        bottom = not comb.open_right and comb.last == n - m
        gap, align = (n - m, "bottom-right") if bottom else (0, "top-left")
    first, last = comb.first - gap, comb.last - gap
    options: Any = {"align": align}
    if comb.solid:
        if comb.open_left:
            return lib.full() if comb.open_right else lib.causal(last, **options)
        if comb.open_right:
            return lib.window(left=-first, **options) if first <= 0 else ~lib.causal(first - 1, **options)
        if first <= 0 <= last:
            return lib.window(-first, last, **options)
        return pieces.diagonals(first, last, **options)
    if comb.width == 1 and first <= 0 <= last and first % comb.step == 0:
        return lib.dilated(-first // comb.step, last // comb.step, comb.step, **options)
    return pieces.diagonals(first, last, comb.step, comb.width, **options)


def of_bound(side: str, bound: Bound, n: int, align: Align) -> Pattern:
    if not isinstance(bound, Stair):
        return pieces.steps(side, bound.breaks, IntTable(np.clip(bound.values.array, 0, n)), align=align)
    clip = None if (bound.out_lo, bound.out_hi) == (-INF, INF) else (max(bound.out_lo, 0), min(bound.out_hi, n))
    found: Pattern = pieces.staircase(side, (bound.rise, bound.run), (bound.shift, bound.base), clip, align=align)
    if bound.in_lo > 0:  # rows before see all from -inf on, and nothing before it
        first = lib.global_tokens(bound.in_lo, columns=False, align=align)
        found = found | first if side == "from" else found & ~first
    if bound.in_hi < INF:
        first = lib.global_tokens(max(bound.in_hi, 0), columns=False, align=align)
        found = found & first if side == "from" else found | ~first
    return found


def same_part(side: str, bound: Bound, m: int, n: int) -> Pattern | None:
    """The chunks or documents of which the bound is the beginning or the end, if it is."""
    align: Align = None if m == n else "top-left"
    if isinstance(bound, Stair):
        base = 0 if side == "from" else bound.run
        plain = bound == Stair(bound.run, bound.run, base=base)
        return lib.chunks(bound.run, align=align) if plain else None
    breaks, values = bound.breaks.array, bound.values.array
    expected = np.concatenate([[0], breaks]) if side == "from" else np.concatenate([breaks, [n]])
    if m != n or not np.array_equal(values, expected) or not breaks.size:
        return None
    return lib.documents(np.diff(np.concatenate([[0], breaks, [n]])))
