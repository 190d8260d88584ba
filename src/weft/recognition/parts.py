"""Five kinds of simple sets of pairs, and what a mask says about each: the smallest that holds it, the largest in it.

diagonals: a set of k - q. keys, queries: a set of indices of one side. from, before: k >= T(q), k < T(q) with T
non-decreasing. A mask is known as two matrices, `live` (must be in) and `dead` (must be out). Pairs in neither are
decided by other parts of the pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from weft.acsr import stairs
from weft.pattern import library as lib
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Bound, Ints
from weft.recognition import names, sets
from weft.recognition.bitrows import BitRows
from weft.recognition.raster import raster
from weft.recognition.remember import remembered, remembered_by_content

KINDS = ("diagonals", "keys", "queries", "from", "before")
PLAIN = 4  # a description of at most so many numbers is taken at once
SHORT = 12  # and one of so many, if any other would need more parts
LARGE = 1 << 25  # pairs from which on a short description is taken at once
MAX_CHOICES = 16  # descriptions that are worked out to the end


@dataclass(frozen=True, eq=False)
class Known:
    """What must be live and what must be dead."""

    live: BitRows
    dead: BitRows

    @property
    def size(self) -> tuple[int, int]:
        return self.live.m, self.live.n

    def within(self, rows: BitRows) -> Known:
        """Only the dead pairs in `rows` are still to be excluded."""
        return Known(self.live, self.dead & rows)

    def beyond(self, rows: BitRows) -> Known:
        """Only the live pairs outside `rows` are still to be covered."""
        return Known(self.live.without(rows), self.dead)

    def fits(self, rows: BitRows) -> bool:
        return not rows.meets(self.dead) and not self.live.exceeds(rows)

    @cached_property
    def decided(self) -> bool:
        """No pair is left to others."""
        return self.live.count + self.dead.count == self.live.m * self.live.n


Left: TypeAlias = Callable[[list[str], dict[str, BitRows]], Known]


@dataclass(frozen=True, eq=False)
class Part:
    """A simple set with the pattern that says it."""

    pattern: Pattern
    rows: BitRows


def smallest(kind: str, rows: BitRows) -> Any:
    """The smallest set of a kind that holds all pairs of `rows`: booleans, or T(q) for each q."""
    if kind == "from":
        return np.minimum.accumulate(rows.first[::-1])[::-1]
    if kind == "before":
        return np.maximum.accumulate(rows.last + 1)
    return getattr(rows, kind)


def largest(kind: str, rows: BitRows) -> Any:
    """The largest set of a kind that has no pair of `rows`."""
    if kind == "from":
        return np.maximum.accumulate(rows.last + 1)
    if kind == "before":
        return np.minimum.accumulate(rows.first[::-1])[::-1]
    return ~getattr(rows, kind)


def render(kind: str, data: Any, m: int, n: int) -> BitRows:
    if kind == "diagonals":
        return BitRows.of_diagonals(data, m, n)
    if kind == "keys":
        return BitRows.of_keys(data, m)
    if kind == "queries":
        return BitRows.of_queries(data, n)
    none: Ints = np.zeros(m, np.int64)
    lo, hi = (data, none + n) if kind == "from" else (none, data)
    return BitRows.of_intervals(lo, hi, n)


def simplest(kind: str, known: Known) -> Part:
    """The simplest set of a kind that has all live pairs and no dead one; there must be one."""
    need, allow = smallest(kind, known.live), largest(kind, known.dead)
    if kind not in ("from", "before"):
        return _set(kind, need, allow, *known.size)
    bound = _bound(allow, need, known.size[1]) if kind == "from" else _bound(need, allow, known.size[1])
    whole = _whole(kind, bound, *known.size)
    return whole if whole is not None and known.fits(whole.rows) else _half(kind, bound, *known.size)


@remembered_by_content
def _bound(least: Ints, most: Ints, n: int) -> Bound:
    return stairs.simplest(least, most, n)


@remembered
def _whole(kind: str, bound: Bound, m: int, n: int) -> Part | None:
    """The chunks or documents of which a bound is the beginning or the end."""
    whole = names.same_part(kind, bound, m, n)
    return None if whole is None else Part(whole, raster(whole, m, n))


@remembered
def _half(kind: str, bound: Bound, m: int, n: int) -> Part:
    """All keys from a bound on, or before it."""
    value = np.clip(bound(np.arange(m, dtype=np.int64)), 0, n)
    return Part(names.of_bound(kind, bound, n, None if m == n else "top-left"), render(kind, value, m, n))


@remembered_by_content
def _set(kind: str, need: Any, allow: Any, m: int, n: int) -> Part:
    """A set of diagonals, keys or queries between two limits."""
    if kind == "diagonals":
        return _diagonals(need, allow, m, n)
    combs = sets.simplest(need, allow, 0)
    place = np.arange(need.size, dtype=np.int64)
    held = np.logical_or.reduce([comb.holds(place) for comb in combs] or [np.zeros(need.size, np.bool_)])
    said = names.of_keys(combs, n) if kind == "keys" else names.of_queries(combs, m, None if m == n else "top-left")
    return Part(said, render(kind, held, m, n))


def _diagonals(need: Any, allow: Any, m: int, n: int) -> Part:
    combs = sets.simplest(need, allow, 1 - m)
    place = np.arange(1 - m, n, dtype=np.int64)
    step = names.strided_step(need, allow, m) if len(combs) > 1 and m == n else None
    if step:
        held = (place <= 0) & ((place > -step) | (place % step == 0))
        return Part(lib.strided(step), render("diagonals", held, m, n))
    held = np.logical_or.reduce([comb.holds(place) for comb in combs] or [np.zeros(need.size, np.bool_)])
    return Part(names.of_diagonals(combs, m, n), render("diagonals", held, m, n))


# ---- several parts together -----------------------------------------------------------------------------------------
def hull(known: Known) -> dict[str, BitRows]:
    """For each kind the smallest set around what is live, where it excludes something that is dead."""
    m, n = known.size
    found = {kind: render(kind, smallest(kind, known.live), m, n) for kind in KINDS}
    return {kind: rows for kind, rows in found.items() if known.dead.exceeds(rows)}


def core(known: Known) -> dict[str, BitRows]:
    """For each kind the largest set without anything dead, where it covers something that is live."""
    m, n = known.size
    found = {kind: render(kind, largest(kind, known.dead), m, n) for kind in KINDS}
    return {kind: rows for kind, rows in found.items() if known.live.meets(rows)}


def intersected(known: Known, parts: dict[str, BitRows]) -> tuple[Pattern, BitRows] | None:
    """What is live as an intersection of few kinds, or None."""

    def around(kinds: list[str], held: dict[str, BitRows]) -> Known:
        return known.within(BitRows.meet([held[kind] for kind in kinds])) if kinds else known

    found = _chosen(parts, around)
    return found and (names.intersection(found[0]), BitRows.meet(found[1]))


def united(known: Known, parts: dict[str, BitRows]) -> tuple[Pattern, BitRows] | None:
    """What is live as a union of few kinds, or None."""

    def beside(kinds: list[str], held: dict[str, BitRows]) -> Known:
        return known.beyond(BitRows.join([held[kind] for kind in kinds])) if kinds else known

    found = _chosen(parts, beside)
    return found and (_globals(found[0]), BitRows.join(found[1]))


Chosen: TypeAlias = tuple[list[Pattern], list[BitRows]]


def _chosen(parts: dict[str, BitRows], left: Left) -> Chosen | None:
    """Kinds that together leave nothing to do, each made as simple as the others allow: the cheapest of some choices.

    left(kinds, rows of each): what is still to be decided beside these parts.
    """
    if not parts or not _done(left(list(parts), parts)):
        return None
    best: Chosen | None = None
    fewest, tried = len(parts), 0
    rows = next(iter(parts.values()))
    enough = SHORT if rows.m * rows.n >= LARGE else PLAIN
    for kinds in _combinations(parts):
        if tried >= MAX_CHOICES or (best and len(kinds) > max(2, fewest) and _cost(best[0]) <= SHORT):
            break
        if not _done(left(list(kinds), parts)):
            continue
        fewest = min(fewest, len(kinds))
        for order in (kinds, kinds[::-1])[: len(kinds)]:
            new, tried = _simplified(kinds, order, parts, left), tried + 1
            best = new if best is None or _cost(new[0]) < _cost(best[0]) else best
        if best and _cost(best[0]) <= enough:
            break
    return best


def _simplified(kinds: Any, order: Any, parts: dict[str, BitRows], left: Left) -> Chosen:
    """Each kind in turn made as simple as the others allow; those that then have nothing left to do are dropped."""
    held = {kind: parts[kind] for kind in kinds}
    said: dict[str, Pattern] = {}
    for kind in order:
        part = simplest(kind, left([other for other in kinds if other != kind], held))
        held[kind], said[kind] = part.rows, part.pattern
    for kind in reversed(kinds):
        if len(held) > 1 and _done(left([other for other in held if other != kind], held)):
            del held[kind]
    return list(dict.fromkeys(said[kind] for kind in held)), list(held.values())


def _cost(said: list[Pattern]) -> int:
    return sum(map(names.cost, said))


def _done(known: Known) -> bool:
    return not (known.live.some and known.dead.some)


def _globals(said: list[Pattern]) -> Pattern:
    """A union; the same first tokens as keys and as queries are global tokens."""
    for a in said:
        for b in said:
            if getattr(a, "name", "") == "prefix" and getattr(b, "name", "") == "global_tokens":
                options = dict(b.args)  # type: ignore[attr-defined]
                if options["tokens"] == dict(a.args)["length"]:  # type: ignore[attr-defined]
                    both = lib.global_tokens(options["tokens"], align=options.get("align"))
                    said = [part for part in said if part not in (a, b)] + [both]
    return names.union(said)


def _combinations(parts: dict[str, BitRows]) -> Any:
    return [kinds for size in range(1, len(parts) + 1) for kinds in combinations(parts, size)]
