"""Numbers and conditions over pairs (q, k), in the small normal form that traced functions are kept in.

A `Term` is outer(f(q) + g(k)). A `Number` is a few terms under conditions that exclude each other. A `Formula` is a
tree of And and Or over atoms, which say that one index, or f(q) + g(k), lies in a set. Sets are Lines of 0 and 1, so a
complement is one subtraction and there is no Not. Every function here is an identity; NoFormError where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.pattern.bounds import INF, Ints
from weft.pattern.relation import NDBool
from weft.recognition.lines import Line, chosen
from weft.recognition.periodic import NoFormError
from weft.recognition.remember import remembered

MAX_CASES = 24

NEGATIVE = Line.between(-INF, 0)
ZERO = Line.between(0, 1)


# ---- conditions -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Always:
    """True or false for every pair."""

    holds: bool


@dataclass(frozen=True)
class Side:
    """One index, "q" or "k", lies in a set."""

    axis: str
    test: Line


@dataclass(frozen=True)
class Pair:
    """f(q) + g(k) lies in a set; neither f nor g is constant."""

    test: Line
    f: Line
    g: Line


@dataclass(frozen=True, eq=False)
class Cell:
    """table[f(q), g(k)], a table of booleans: a layout of blocks."""

    table: NDBool
    f: Line
    g: Line


@dataclass(frozen=True)
class All:
    """Every part holds."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True)
class Some:
    """At least one part holds."""

    parts: tuple[Formula, ...]


Atom: TypeAlias = Side | Pair | Cell
Formula: TypeAlias = Always | Side | Pair | Cell | All | Some
TRUE, FALSE = Always(True), Always(False)


@remembered
def atom(test: Line, f: Line, g: Line) -> Formula:
    """f(q) + g(k) in a set, as a statement about one index where the other does not matter."""
    if g.is_constant:
        return side("q", test.of(f.scaled(1, g.value)))
    if f.is_constant:
        return side("k", test.of(g.scaled(1, f.value)))
    return Always(bool(test.value)) if test.is_constant else Pair(test, f, g)


@remembered
def side(axis: str, test: Line) -> Formula:
    return Always(bool(test.value)) if test.is_constant else Side(axis, test)


@remembered
def negated(formula: Formula) -> Formula:
    """De Morgan's laws, down to the sets."""
    if isinstance(formula, Always):
        return Always(not formula.holds)
    if isinstance(formula, Side):
        return Side(formula.axis, ~formula.test)
    if isinstance(formula, Pair):
        return Pair(~formula.test, formula.f, formula.g)
    if isinstance(formula, Cell):
        return Cell(~formula.table, formula.f, formula.g)
    parts = tuple(negated(part) for part in formula.parts)
    return Some(parts) if isinstance(formula, All) else All(parts)


@remembered
def both(*parts: Formula) -> Formula:
    """The conjunction; sets of one quantity are met."""
    return _flat(parts, All)


@remembered
def either(*parts: Formula) -> Formula:
    """The disjunction; sets of one quantity are united."""
    return _flat(parts, Some)


def _flat(parts: Iterable[Formula], kind: type[All] | type[Some]) -> Formula:
    neutral = kind is All
    kept: list[Formula] = []
    for part in (x for p in parts for x in (p.parts if isinstance(p, kind) else (p,))):
        if isinstance(part, Always):
            if part.holds != neutral:
                return part
            continue
        for i, old in enumerate(kept):
            joined = _one_set(old, part, kind)
            if joined is not None:
                kept[i] = joined
                break
        else:
            kept.append(part)
    if any(isinstance(part, Always) for part in kept):  # two sets met in nothing, or were united to everything
        return _flat(kept, kind)
    return Always(neutral) if not kept else kept[0] if len(kept) == 1 else kind(tuple(kept))


def _one_set(a: Formula, b: Formula, kind: type[All] | type[Some]) -> Formula | None:
    """Two statements about one quantity as one; None if they are not that."""
    if isinstance(a, Side) and isinstance(b, Side) and a.axis == b.axis:
        return side(a.axis, a.test & b.test if kind is All else a.test | b.test)
    if isinstance(a, Pair) and isinstance(b, Pair):
        test = turned(b.test, (b.f, b.g), (a.f, a.g))
        if test is not None:
            return atom(a.test & test if kind is All else a.test | test, a.f, a.g)
    return None


@remembered
def turned(outer: Line, sums: tuple[Line, Line], wanted: tuple[Line, Line]) -> Line | None:
    """outer of one sum as a function of another: y -> outer(sign y + c), where f = sign f' + a, g = sign g' + b."""
    for sign in (1, -1):
        first = sums[0].gap(wanted[0], sign)
        second = None if first is None else sums[1].gap(wanted[1], sign)
        if first is not None and second is not None:
            base = first + second
            return outer if (sign, base) == (1, 0) else _relabelled(outer, sign, base)
    return None


def _relabelled(outer: Line, sign: int, base: int) -> Line:
    """y -> outer(sign y + base), on the indices for which that exists."""
    ends = [_end(sign * (end - base)) for end in (outer.lo, outer.hi - 1)]
    return outer.of(Line.index(min(ends), _end(max(ends) + 1), sign, base))


def _end(at: int) -> int:
    """An end of a Line; one that no index comes near is no end."""
    return INF if at > INF // 2 else -INF if at < -(INF // 2) else at


def truth(formula: Formula, q: Ints, k: Ints) -> NDBool:
    """The formula on pairs; q and k broadcast."""
    if isinstance(formula, Always):
        return np.full(np.broadcast_shapes(q.shape, k.shape), formula.holds)
    if isinstance(formula, Side):
        x = q if formula.axis == "q" else k
        return np.broadcast_to(formula.test.at(x) != 0, np.broadcast_shapes(q.shape, k.shape))
    if isinstance(formula, Pair):
        return np.asarray(formula.test.at(formula.f.at(q) + formula.g.at(k)) != 0)
    if isinstance(formula, Cell):
        return np.asarray(formula.table[formula.f.at(q), formula.g.at(k)])
    live = truth(formula.parts[0], q, k)
    for part in formula.parts[1:]:
        live = live & truth(part, q, k) if isinstance(formula, All) else live | truth(part, q, k)
    return live


# ---- numbers --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Term:
    """outer(f(q) + g(k)); without outer the sum itself."""

    f: Line
    g: Line
    outer: Line | None = None

    @property
    def axis(self) -> str:
        """ "" for a constant, "q" or "k" for a function of that index alone, else "qk"."""
        return ("" if self.f.is_constant else "q") + ("" if self.g.is_constant else "k")

    @property
    def only(self) -> Line:
        """The function of the one index that matters."""
        return self.f.scaled(1, self.g.value) if self.g.is_constant else self.g.scaled(1, self.f.value)

    @property
    def whole(self) -> Line:
        """outer on the values that the sum may have."""
        if self.outer is not None:
            return self.outer
        (low, high), (more_low, more_high) = self.f.extent, self.g.extent
        return Line.index(_end(low + more_low), _end(high + more_high + 1))

    @property
    def extent(self) -> tuple[int, int]:
        """(least, largest) that it cannot go beyond."""
        return self.whole.extent


@remembered
def term(f: Line, g: Line, outer: Line | None) -> Term:
    """outer(f(q) + g(k)), with outer drawn into f or g where the other one is constant."""
    if outer is None:
        return Term(f, g)
    if g.is_constant:
        return Term(outer.of(f.scaled(1, g.value)), Line.constant(0, g.lo, g.hi))
    if f.is_constant:
        return Term(Line.constant(0, f.lo, f.hi), outer.of(g.scaled(1, f.value)))
    return Term(f, g, outer)


@remembered
def applied(outer: Line, x: Term) -> Term:
    """outer(x)."""
    return term(x.f, x.g, outer) if x.outer is None and x.axis != "qk" else term(x.f, x.g, outer.of(x.whole))


@remembered
def added(x: Term, y: Term) -> Term:
    """x + y: sums add; functions of one and the same sum add as functions of it."""
    if x.outer is None and y.outer is None:
        return Term(x.f + y.f, x.g + y.g)
    for a, b in ((x, y), (y, x)):
        if not b.axis:
            return Term(a.f, a.g, a.whole.scaled(1, b.f.value + b.g.value))
    return _alike(x, y, lambda a, b: a + b, "+")


@remembered
def multiplied(x: Term, y: Term) -> Term:
    """x * y, where one is constant or both are functions of one quantity."""
    for a, b in ((x, y), (y, x)):
        if not b.axis:
            by = b.f.value + b.g.value
            reach = max(map(abs, a.extent)) if abs(by) > 1 else 0
            if reach < INF <= reach * abs(by):  # INF: an index, however far it goes
                raise NoFormError(f"{by} times a number that may be {reach}")
            return Term(a.f, a.g, a.outer.scaled(by)) if a.outer is not None else Term(a.f.scaled(by), a.g.scaled(by))
    return _alike(x, y, lambda a, b: a * b, "*")


@remembered
def picked(condition: Formula, x: Term, y: Term) -> Term | None:
    """x where the condition holds, else y, if all three are functions of one quantity; else None."""
    if isinstance(condition, Always):
        return x if condition.holds else y
    if isinstance(condition, Side):
        if {x.axis, y.axis} <= {"", condition.axis}:
            sides = [t.only if t.axis else _level(t, condition.test) for t in (x, y)]
            return on_axis(condition.axis, chosen(condition.test, *sides), x)
        return None
    if not isinstance(condition, Pair):
        return None
    sums = condition.f, condition.g
    lines = [_on_sum(t, sums) for t in (x, y)]
    if lines[0] is None or lines[1] is None:
        return None
    return term(*sums, chosen(condition.test.of(Term(*sums).whole), lines[0], lines[1]))


def _level(x: Term, like: Line) -> Line:
    """A constant as a function of the index of another Line."""
    return Line.constant(x.f.value + x.g.value, like.lo, like.hi)


def on_axis(axis: str, line: Line, like: Term) -> Term:
    """A function of one index as a term over the same indices as `like`."""
    if axis == "k":
        return Term(Line.constant(0, like.f.lo, like.f.hi), line)
    return Term(line, Line.constant(0, like.g.lo, like.g.hi))


def _on_sum(x: Term, sums: tuple[Line, Line]) -> Line | None:
    if not x.axis:
        return _level(x, Term(*sums).whole)
    return turned(x.whole, (x.f, x.g), sums)


def _alike(x: Term, y: Term, rule: Callable[[Line, Line], Line], sign: str) -> Term:
    """The rule on two terms of one quantity."""
    if x.axis == y.axis and len(x.axis) == 1:
        return on_axis(x.axis, rule(x.only, y.only), x)
    other = _on_sum(y, (x.f, x.g)) if "qk" == x.axis == y.axis else None
    if other is None:
        raise NoFormError(f"`{sign}` joins two numbers that mix q and k in different ways")
    return term(x.f, x.g, rule(x.whole, other))


Number: TypeAlias = tuple[tuple[Formula, Term], ...]  # (condition, value): conditions exclude each other and cover all


def each(x: Number, y: Number, rule: Callable[[Term, Term], Term]) -> Number:
    """The rule in every case of both."""
    found = [(both(a, b), rule(s, t)) for a, s in x for b, t in y]
    return _limited(tuple((guard, value) for guard, value in found if not _never(guard)))


def mapped(outer: Line, x: Number) -> Number:
    """outer(x) in every case."""
    return tuple((guard, applied(outer, value)) for guard, value in x)


def where(condition: Formula, x: Number, y: Number) -> Number:
    """x where the condition holds, else y."""
    if len(x) == len(y) == 1:
        one = picked(condition, x[0][1], y[0][1])
        if one is not None:
            return ((TRUE, one),)
    yes = [(both(condition, guard), value) for guard, value in x]
    no = [(both(negated(condition), guard), value) for guard, value in y]
    return _limited(tuple((guard, value) for guard, value in yes + no if not _never(guard)))


def _never(guard: Formula) -> bool:
    return isinstance(guard, Always) and not guard.holds


def _limited(cases: Number) -> Number:
    if len(cases) > MAX_CASES:
        raise NoFormError(f"it falls into more than {MAX_CASES} cases")
    return cases


def compared(x: Number, y: Number, test: Line) -> Formula:
    """Whether x - y lies in a set: one statement for each pair of cases."""
    parts = []
    for a, s in x:
        for b, t in y:
            gap = added(s, multiplied(t, on_axis("q", Line.constant(-1, s.f.lo, s.f.hi), s)))
            inner = test if gap.outer is None else test.of(gap.outer)
            parts.append(both(a, b, atom(inner, gap.f, gap.g)))
    return either(*parts)
