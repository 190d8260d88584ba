"""Planned masks: pytrees whose leaves are int32 tables and whose auxiliary data is a Structure."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import reduce
from math import gcd
from typing import Any

import jax
import numpy as np

from weft.caching import cached, grew
from weft.errors import InputError
from weft.jax.structure import Structure
from weft.jax.tables import Mask, Unit, parts_of, programs_of
from weft.pattern.algebra import Pattern
from weft.pattern.leaves import has_grid
from weft.planning.heads import Heads, check_extent, distinct_heads
from weft.planning.problem import Problem

# What the fields of a Structure are to whoever reads an error.
NAMES = {
    "m": "queries",
    "n": "keys",
    "batch": "batch rows told apart",
    "heads": "heads told apart",
    "kv_heads": "key/value heads",
    "unit": "neighbouring rows and heads with one mask",
    "shift": "alignment of queries and keys",
    "grid": "whether tokens have several coordinates",
}


class PlannedMask:
    """A mask that is ready for `weft.jax.attention`; made by `weft.jax.plan`.

    As an argument of a jitted function it is data: another mask with the same `structure` retraces nothing. Closed over
    it is a constant. Stacked masks of one structure may be scanned over; they may not be vmapped.
    """

    __slots__ = ("structure", "tables")

    def __init__(self, structure: Structure, tables: tuple[Any, ...]) -> None:
        self.structure = structure
        self.tables = tables

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(self.tables))

    def __repr__(self) -> str:
        told = [f"{x} {name}" for name in ("batch", "heads") if (x := getattr(self.structure, name)) is not None]
        loops = sum(len(program.loops) for program in self.structure.programs)
        return f"PlannedMask({self.structure.m} x {self.structure.n}{', '.join(['', *told])}, {loops} loops)"


def _flatten(mask: PlannedMask) -> tuple[tuple[Any, ...], Structure]:
    return mask.tables, mask.structure


def _unflatten(structure: Structure, tables: Any) -> PlannedMask:
    return PlannedMask(structure, tuple(tables))


jax.tree_util.register_pytree_node(PlannedMask, _flatten, _unflatten)


def planned(pattern: Pattern, problem: Problem, like: Structure | None = None) -> PlannedMask:
    """The plan of a pattern for the lengths of a problem, and for its heads where the pattern tells any apart."""
    batch, heads = pattern.extent()
    if (batch, heads) == (None, None):  # then plans of other numbers of heads are the same
        problem = Problem(1, 1, 1, problem.m, problem.n, 1, 1)
    else:
        problem = Problem(problem.batch, problem.q_heads, problem.kv_heads, problem.m, problem.n, 1, 1)
    return _planned(pattern, problem, like)


@cached(256)
def _planned(pattern: Pattern, problem: Problem, like: Structure | None) -> PlannedMask:
    check_extent(pattern, problem)
    found = distinct_heads(pattern, problem)
    bare = _bare(pattern, problem, _unit(found.values(), pattern, problem))
    if like is not None:
        _check_like(bare, like)
        bare = like
    masks = []
    for (row, head), heads in found.items():
        masks.append(Mask(parts_of(pattern.acsr(problem.m, problem.n, row, head, orders=False), like), tuple(heads)))
    programs, tables = programs_of(masks, bare.unit, like)
    made = PlannedMask(replace(bare, programs=programs), tables)
    grew(made.nbytes)
    return made


def _bare(pattern: Pattern, problem: Problem, unit: Unit) -> Structure:
    """The structure without programs."""
    batch, heads = pattern.extent()
    kv_heads = None if heads is None else problem.kv_heads
    shift, grid = _shift(pattern, problem), has_grid(pattern)
    return Structure(problem.m, problem.n, batch, heads, kv_heads, unit, (), shift, grid)


def _check_like(bare: Structure, like: Structure) -> None:
    """Raise InputError unless a mask can have the structure of another."""
    for one in fields(Structure):
        mine, theirs = getattr(bare, one.name), getattr(like, one.name)
        if one.name == "unit":
            same = all(
                (a is None) == (b is None) and (a or 0) % (b or 1) == 0 for a, b in zip(mine, theirs, strict=True)
            )
        else:
            same = one.name == "programs" or mine == theirs
        if not same:
            raise InputError(
                "plan(mask, ..., like=planned)",
                f"{NAMES[one.name]}: {mine} of this mask, {theirs} of the planned one",
                "leave like= out, or plan for the same lengths and heads",
            )


def _unit(found: Any, pattern: Pattern, problem: Problem) -> Unit:
    """What one place covers: of heads as many as are always alike, of batch rows one."""
    batch, heads = pattern.extent()
    rows = None if batch is None else 1
    if heads is None:
        return rows, None, None
    runs: list[Heads] = [one for members in found for one in members]
    if all(one.group == (0, problem.group) for one in runs):
        return rows, reduce(gcd, (one.kv[1] - one.kv[0] for one in runs), 0), problem.group
    return rows, 1, reduce(gcd, (one.group[1] - one.group[0] for one in runs), 0)


def _shift(pattern: Pattern, problem: Problem) -> int | None:
    """What alignment adds to query indices in ALiBi's distance; None where no one alignment is declared."""
    if problem.m == problem.n:
        return 0
    declared = set(pattern.alignments())
    if len(declared) != 1 or None in declared:
        return None
    return problem.n - problem.m if declared == {"bottom-right"} else 0
