"""The tilings that one direction may be computed in: what a tuner measures, and what evidence may name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from weft.acsr.format import Acsr
from weft.pattern.algebra import Pattern
from weft.planning.choose import TILED, offered
from weft.planning.families.base import Pass
from weft.planning.families.tile import legal
from weft.planning.heads import count_heads, distinct_heads
from weft.planning.problem import Problem
from weft.planning.resources import footprint
from weft.planning.tiling import Direction, Tiling
from weft.target import Gpu

LIMITS = (128, 168)  # registers of a thread that are tried


def listed(asked: Pass, untuned: Tiling) -> tuple[Tiling, ...]:
    """All of them: what a call takes if nothing is known, what it chooses from, then the others."""
    found = dict.fromkeys([untuned, *offered(asked), *legal(asked.direction, asked.problem, asked.rank, asked.gpu)])
    return tuple(dict.fromkeys(_limited(asked, tuple(found))))


def may_win(direction: Direction, tiling: Tiling, pattern: Pattern, problem: Problem, gpu: Gpu) -> bool:
    """Whether a tiling is one of those, without pricing any: evidence may name no other."""
    asked = Pass(direction, _rows(direction, pattern, problem), problem, gpu)
    if tiling in _limited(asked, legal(direction, problem, asked.rank, gpu)):
        return True
    families = [family for family in TILED if not family.reasons_against(asked)]
    found = {one for family in families for ways in family.configs(asked) for one, _ in ways}
    return tiling in _limited(asked, tuple(found))


def _limited(asked: Pass, tilings: tuple[Tiling, ...]) -> Iterator[Tiling]:
    """Tilings as they are; then those that a limit of registers may help."""
    yield from tilings
    if asked.rank > 2 or not asked.gpu.architecture.startswith("sm"):
        return  # elsewhere kernels take no limit: see `configure`, `load`
    for one, limit in product(tilings, LIMITS):
        # others would spill, and are not predicted to
        if not one.groups and footprint(asked.direction, asked.problem, one, asked.gpu).registers <= limit:
            yield replace(one, registers=limit)


def _rows(direction: Direction, pattern: Pattern, problem: Problem) -> list[tuple[Acsr, int]]:
    """Of every distinct head, as a plan for a GPU asks for them."""
    found = distinct_heads(pattern, problem)
    rows = [(pattern.acsr(problem.m, problem.n, *first), count_heads(heads)) for first, heads in found.items()]
    return [(acsr.transpose(), count) for acsr, count in rows] if direction == "dkdv" else rows
