"""The stages, one line each: pattern -> rows -> tiles -> backend."""

from __future__ import annotations

from functools import lru_cache

from weft.kernels.backend import Backend, choose
from weft.pattern.algebra import Pattern
from weft.plan.attention_plan import AttentionPlan, plan_attention
from weft.plan.problem import Problem


@lru_cache(maxsize=256)
def compile_attention(pattern: Pattern, problem: Problem, backend: str = "auto") -> tuple[AttentionPlan, Backend]:
    """The plan and the backend of one attention problem. Raises before anything is launched; plans are kept, 256 of them."""
    chosen = choose(backend, problem)
    plan = plan_attention(pattern, problem)
    return plan, chosen
