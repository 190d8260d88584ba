"""What the index of a read depends on: where sums over pairs are the gradients of a table's entries.

It depends on b and h, and beside them: "rows": on q alone. "columns": on k alone. "diagonals": on k - q. "offsets": on
differences of coordinates on a grid, as k // W - q // W and k % W - q % W. "dense": the read is at (b, h, q, k), but
for axes of 1 or none before q. "pairs": on anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal, TypeAlias

from weft.score.derive import derived
from weft.score.expression import Expression, Ref, Step

Kind: TypeAlias = Literal["rows", "columns", "diagonals", "offsets", "dense", "pairs"]
Chain: TypeAlias = tuple[tuple[str, int], ...]  # of floor divisions and remainders, in order, that make a coordinate


@dataclass(frozen=True)
class Linear:
    """A sum of multiples of coordinates of q and k with what depends on b and h alone. of_q, of_k: (chain, factor)."""

    of_q: frozenset[tuple[Chain, int]] = frozenset()
    of_k: frozenset[tuple[Chain, int]] = frozenset()


@dataclass(frozen=True)
class Offsets:
    """What depends on differences of these coordinates alone."""

    chains: frozenset[Chain]


FREE = Linear()
Form: TypeAlias = "Linear | Offsets | Kind"


@dataclass(frozen=True)
class Read:
    """A read of a real table that the result depends on. step: of the expression; by: the step of the derivative by
    what it gave, among those of `derived`. chains: of the coordinates whose differences it depends on.
    """

    step: Ref
    by: Ref
    table: int
    kind: Kind
    chains: frozenset[Chain] = frozenset()

    def is_on(self, grid: tuple[int, ...]) -> bool:
        """Whether it depends on differences of coordinates of this grid."""
        return self.kind == "offsets" and self.chains <= coordinates(grid)


def coordinates(grid: tuple[int, ...]) -> frozenset[Chain]:
    """How the coordinates of a grid are computed from a token, in the ways that divide first or take the rest first."""
    found: set[Chain] = set()
    for axis, length in enumerate(grid):
        pace = prod(grid[axis + 1 :])
        divided: Chain = (("floordiv", pace),) if pace > 1 else ()
        found.add((*divided, ("mod", length)) if axis else divided)
        if axis and pace > 1:
            found.add((("mod", pace * length), ("floordiv", pace)))
    return frozenset(found)


@lru_cache(256)
def reads_of(expression: Expression) -> tuple[Read, ...]:
    """All reads of real tables that the result depends on."""
    chains = _chains(expression)
    forms: list[Form] = []
    for ref, step in enumerate(expression.steps):
        forms.append(_form(step, [forms[a] for a in step.args], expression, chains.get(ref)))
    found = []
    for ref, by in derived(expression).by_read:
        step = expression.steps[ref]
        form = _of_read(expression, step, forms)
        kind = "offsets" if isinstance(form, Offsets) else form
        found.append(Read(ref, by, step.value, kind, form.chains if isinstance(form, Offsets) else frozenset()))
    return tuple(found)


def _of_read(expression: Expression, step: Step, forms: list[Form]) -> Offsets | Kind:
    if shared_axes(expression, step) is not None:
        return "dense"
    return _together([forms[a] for a in step.args])


def shared_axes(expression: Expression, step: Step) -> tuple[bool, bool] | None:
    """Of a read at (b, h, q, k): whether it is the same for all b, and for all h; None of any other read."""
    names = [_name(expression.steps[a]) for a in step.args]
    if len(names) < 2 or names[-2:] != ["q", "k"] or len(names) > 4:
        return None
    h, b = (*names[-3::-1], "0", "0")[:2]
    return (b != "b", h != "h") if b in ("b", "0") and h in ("h", "0") else None


def _name(step: Step) -> str:
    return "0" if step.op == "const" and step.value == 0 else step.op


@lru_cache(256)
def added_to_score(expression: Expression) -> tuple[tuple[Ref, bool], ...]:
    """(step, whether it is subtracted) of all that an expression adds to the score; () where it does anything else."""
    needs = [False] * len(expression.steps)  # the score
    for ref, step in enumerate(expression.steps):
        needs[ref] = step.op == "score" or any(needs[a] for a in step.args)
    found: list[tuple[Ref, bool]] = []
    ref = expression.result
    while (step := expression.steps[ref]).op in ("add", "sub"):
        first, second = step.args
        if needs[first] and not needs[second]:
            found.append((second, step.op == "sub"))
            ref = first
        elif step.op == "add" and needs[second] and not needs[first]:
            found.append((first, False))
            ref = second
        else:
            return ()
    return tuple(reversed(found)) if step.op == "score" else ()


def _chains(expression: Expression) -> dict[Ref, tuple[str, Chain]]:
    """The steps that are coordinates: q or k, divided and cut by constants."""
    found: dict[Ref, tuple[str, Chain]] = {}
    for ref, step in enumerate(expression.steps):
        if step.op in ("q", "k"):
            found[ref] = step.op, ()
        elif step.op in ("floordiv", "mod") and step.args[0] in found:
            by = expression.steps[step.args[1]]
            if by.op == "const" and by.value > 0:
                side, chain = found[step.args[0]]
                found[ref] = side, (*chain, (step.op, int(by.value)))
    return found


def _form(step: Step, args: list[Form], expression: Expression, coordinate: tuple[str, Chain] | None) -> Form:
    """An integer that is a sum of multiples of coordinates, else what a value depends on."""
    if coordinate is not None:
        side, chain = coordinate
        one = frozenset({(chain, 1)})
        return Linear(one) if side == "q" else Linear(of_k=one)
    if step.op == "score":
        return "pairs"
    linear = [x for x in args if isinstance(x, Linear)]
    if step.kind == "int" and len(linear) == len(args):
        if step.op in ("add", "sub"):
            return _plus(linear[0], linear[1], 1 if step.op == "add" else -1)
        if step.op == "neg":
            return _plus(FREE, linear[0], -1)
        if step.op == "mul":
            return _times(step, linear, expression)
    found = _together(args)
    return FREE if found == "rows" and all(x == FREE for x in args) else found


def _plus(one: Linear, other: Linear, factor: int) -> Linear:
    """one + factor * other"""

    def summed(a: frozenset[tuple[Chain, int]], b: frozenset[tuple[Chain, int]]) -> frozenset[tuple[Chain, int]]:
        total = dict(a)
        for chain, times in b:
            total[chain] = total.get(chain, 0) + factor * times
        return frozenset((chain, times) for chain, times in total.items() if times)

    return Linear(summed(one.of_q, other.of_q), summed(one.of_k, other.of_k))


def _times(step: Step, args: list[Linear], expression: Expression) -> Form:
    for ref, other in ((step.args[0], args[1]), (step.args[1], args[0])):
        if expression.steps[ref].op == "const":
            return _plus(FREE, other, int(expression.steps[ref].value))
    return FREE if all(x == FREE for x in args) else _together([*args])


def _together(args: list[Form]) -> Offsets | Kind:
    """What a value depends on that is made of others."""
    found = {_without_sums(x) for x in args} - {None}
    if not found:
        return "rows"
    offsets = [x for x in found if isinstance(x, Offsets)]
    if len(offsets) == len(found):
        return Offsets(frozenset().union(*(x.chains for x in offsets)))
    return found.pop() if len(found) == 1 else "pairs"  # type: ignore[return-value]


def _without_sums(form: Form) -> Offsets | Kind | None:
    """What a form depends on; None of what is the same for all q and k."""
    if not isinstance(form, Linear):
        return form
    if form == FREE:
        return None
    if not form.of_k:
        return "rows"
    if not form.of_q:
        return "columns"
    if form.of_k != _plus(FREE, Linear(form.of_q), -1).of_q:
        return "pairs"
    chains = frozenset(chain for chain, _ in form.of_k)
    if () not in chains:
        return Offsets(chains)
    return "diagonals" if len(chains) == 1 else "pairs"
