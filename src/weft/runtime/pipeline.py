"""The stages, one line each: pattern -> rows -> tiles -> backend."""

from __future__ import annotations

from functools import lru_cache

from weft.errors import InputError
from weft.kernels.backend import Backend, choose
from weft.pattern import crossing
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.problem import Problem


@lru_cache(maxsize=256)
def compiled(pattern: Pattern, problem: Problem, backend: str = "auto") -> tuple[AttentionPlan, Backend]:
    """The plan and the backend of one attention problem. Raises before anything is launched; 256 plans are kept."""
    check_extent(pattern, problem)
    pattern.check(problem.m, problem.n, f"attention under {pattern} at M={problem.m}, N={problem.n}")
    chosen = choose(backend, problem)
    return plan_attention(pattern, problem), chosen


@lru_cache(maxsize=256)
def arrived(structure: str, numbers: bytes, problem: Problem, backend: str) -> tuple[AttentionPlan, Backend]:
    """`compiled` for a pattern that crossed a graph as a structure and numbers; see `weft.pattern.crossing`."""
    pattern: Pattern = crossing.decode(structure, numbers)
    return compiled(pattern, problem, backend)


def check_extent(pattern: Pattern, problem: Problem) -> None:
    """Raise InputError if the pattern tells another number of heads or batch rows apart than there are."""
    for told, have, name in zip(
        pattern.extent(), (problem.batch, problem.q_heads), ("batch rows", "heads"), strict=True
    ):
        if told is not None and told != have:
            raise InputError(
                f"attention under {pattern}", f"the pattern is for {told} {name}, q has {have}",
                f"give one pattern for each of the {have} {name}",
            )  # fmt: skip
