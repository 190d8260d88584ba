"""Levels together: weighted sums of optima, quantised arrays, cached outputs, and levels whose children talk.

An optimum is a sum of powers of the memory: H*(M) = sum of alpha M^-beta, beta >= 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import sympy as sp  # type: ignore[import-untyped,unused-ignore]

from weft.errors import RelabelError
from weft.napkin.cost import Expr, symbol

Powers: TypeAlias = list[tuple[Expr, Expr]]


def powers(optimum: Expr, memory: Expr = None) -> Powers:
    """The terms (alpha, beta) of an optimum, in its symbol of memory (M unless given)."""
    memory = symbol("M") if memory is None else memory
    found = []
    for term in sp.Add.make_args(sp.expand(optimum)):
        alpha, power = term.as_independent(memory)
        base, exponent = power.as_base_exp()
        if power != 1 and base != memory:
            raise RelabelError("split an optimum into powers", f"{term} is no power of {memory}", "expand it first")
        found.append((alpha, -exponent if power != 1 else sp.Integer(0)))
    return found


def at(terms: Powers, memory: Expr) -> Expr:
    """H*(M) of some terms."""
    return sum((alpha * memory**-beta for alpha, beta in terms), sp.Integer(0))


def quantised(terms: Powers, nbytes: Expr) -> Powers:
    """Terms in bytes, for arrays of `nbytes` each element: bytes M hold M / nbytes elements, so alpha gains
    nbytes^(1 + beta).
    """
    return [(alpha * nbytes ** (1 + beta), beta) for alpha, beta in terms]


@dataclass(frozen=True)
class Link:
    """A level below another: the memory of one child, and what a byte from above costs (seconds, or any unit)."""

    name: str
    memory: Expr
    weight: Expr


def weighted(terms: Powers, links: Iterable[Link]) -> Expr:
    """The cost over several levels: each one's optimum, times what a byte costs there."""
    return sum((link.weight * at(terms, link.memory) for link in links), sp.Integer(0))


def output_cached(link: Link, child_memory: Expr, children: int) -> Link:
    """A level whose children hold the outputs: it acts with the memory of all its children together."""
    return Link(link.name, child_memory * children, link.weight)


def cross_transfer(child: Link, children: int, between: Expr) -> tuple[Link, Link]:
    """The two levels that stand for children that read from each other (clusters, NVLink) at weight `between`.

    What all need comes from above once, at the memory of all of them, for what it costs more than from a sibling.
    Everything crosses from sibling to sibling.
    """
    if sp.sympify(between - child.weight).is_positive:
        raise RelabelError(
            f"cross-transfers among {children} of {child.name}", "a byte from a sibling costs more than from above",
            "leave this link out",
        )  # fmt: skip
    together = Link(f"{children} of {child.name}", children * child.memory, child.weight - between)
    return together, Link(child.name, child.memory, between)


def cross_benefit(terms: Powers, child: Link, children: int, between: Expr) -> Expr:
    """What cross-transfers save: the difference of weights times sum of alpha M^-beta (1 - children^-beta)."""
    kept = sum((a * child.memory**-b * (1 - sp.Integer(children) ** -b) for a, b in terms), sp.Integer(0))
    return (child.weight - between) * kept
