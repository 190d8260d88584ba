"""A plan in words: the pattern drawn, the bytes of its format, the launches, and what the cost model said."""

from __future__ import annotations

from weft.acsr.picture import owned
from weft.pattern.draw import OF_SHADES, drawn
from weft.planning.argue import argue
from weft.planning.attention_plan import AttentionPlan, Share
from weft.target import Gpu


def explain_plan(plan: AttentionPlan) -> str:
    """Several lines for people; every number in them is counted, not estimated, but for the predicted times."""
    problem = plan.problem
    share = plan.nnz / max(1, problem.batch * problem.q_heads * problem.m * problem.n)
    lines = [
        f"{plan.pattern}",
        f"problem   {problem}",
        f"live      {plan.nnz} pairs over all heads, {share:.3%} of all; {plan.visited} computed"
        f" ({plan.nnz / max(1, plan.visited):.1%} useful)",
        f"work      {_flops(plan)}",
        f"tables    {plan.nbytes} bytes, forward and transposed",
        f"drawing   {OF_SHADES}",
    ]
    for one in plan.forward:
        lines += _share(one, plan)
    if isinstance(plan.target, Gpu):
        lines += argue(plan, plan.target)
    return "\n".join(lines)


def _flops(plan: AttentionPlan) -> str:
    per_pair = 2 * (plan.problem.d + plan.problem.dv)
    return (f"{plan.nnz * per_pair / 1e9:.2f} useful GFLOP forward, "
            f"{plan.nnz * per_pair * 2.5 / 1e9:.2f} backward")  # fmt: skip


def _share(share: Share, plan: AttentionPlan) -> list[str]:
    acsr = share.plan.acsr
    picture = drawn(owned(acsr, 24, 24).share) if acsr.m and acsr.n else ""
    text = [f"heads     {_heads(share)}", *(f"    |{row}|" for row in picture.splitlines())]
    text += [str(acsr), str(share.plan)]
    text += [f"  predicted {line}" if line.startswith("launch") else f"  chosen: {line}" for line in share.plan.report]
    return text


def _heads(share: Share) -> str:
    return "; ".join(
        f"batch rows {h.batch[0]}-{h.batch[1] - 1}, key heads {h.kv[0]}-{h.kv[1] - 1}, "
        f"{h.group[1] - h.group[0]} query heads each"
        for h in share.heads
    )
