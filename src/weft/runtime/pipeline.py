"""The stages, one line each: pattern -> rows -> tiles -> backend."""

from __future__ import annotations

from weft.caching import cached, grew
from weft.kernels.backend import Backend, choose
from weft.pattern import crossing
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.problem import Problem
from weft.runtime.evidence import winners


@cached(256)
def compiled(
    pattern: Pattern, problem: Problem, backend: str = "auto", options: tuple[str, ...] = ()
) -> tuple[AttentionPlan, Backend]:
    """The plan and the backend of one attention problem. Raises before anything is launched; 256 plans are kept, fewer
    where they are large. options: the names of those that not every backend has.

    For the card at hand if there is one, with the tilings that won if the problem was tuned on it.
    """
    chosen = choose(backend, problem, options)
    card = chosen.card(problem.device)
    if card is None:
        plan = plan_attention(pattern, problem, chosen.target)
    else:
        plan = plan_attention(pattern, problem, card.gpu, winners(pattern, problem, chosen, card))
    grew(sum(share.plan.acsr.nbytes for share in plan.forward))  # of gradients nothing is planned before they are asked
    return plan, chosen


@cached(256)
def arrived(
    structure: str, numbers: bytes, problem: Problem, backend: str, options: tuple[str, ...] = ()
) -> tuple[AttentionPlan, Backend]:
    """`compiled` for a pattern that crossed a graph as a structure and numbers; see `weft.pattern.crossing`."""
    pattern: Pattern = crossing.decode(structure, numbers)
    return compiled(pattern, problem, backend, options)
