"""`weft explain`: all that a plan says of itself, and the source of its kernels."""

from __future__ import annotations

import json
from typing import Any

import click

from weft.cli.plan import facts_of, planned, problem_options, target_option
from weft.cli.say import say
from weft.errors import OptionError, UnsupportedKernel
from weft.kernels.backend import MAX_DIM, WIDTHS
from weft.planning.attention_plan import AttentionPlan

DIRECTIONS = ("forward", "dq", "dkdv", "fused")


@click.command("explain")
@click.argument("pattern")
@problem_options()
@target_option
@click.option("--source", type=click.Choice(DIRECTIONS), help="Print the Triton source instead (with --device cuda).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(pattern: str, source: str | None, as_json: bool, **options: Any) -> None:
    """Explain the plan of PATTERN: the format's terms, the launches, and what each is predicted to take."""
    if source and options["device"] != "cuda":
        raise OptionError(f"--source {source} --device cpu", "kernels are generated for GPUs only", "add --device cuda")
    plan = planned(pattern, options)
    facts = facts_of(plan, False)
    notes = [f"note      attention cannot run it: {why}" for why in facts["reasons_against"]]
    sources = sources_of(plan, source) if source else {}
    if source in ("dq", "dkdv") and plan.fused_backward is not None:
        say("note: calls make these in one pass over queries (--source fused), unless options forbid it", err=True)
    if as_json:
        say(json.dumps({**facts, "explanation": plan.explain(), "sources": sources}, indent=2))
    else:
        say("\n\n".join(sources.values()) if source else "\n".join([plan.explain(), *notes]))


def sources_of(plan: AttentionPlan, direction: Any) -> dict[str, str]:
    """The source of each kernel that a plan launches in one direction, by name. It is the entry, and the fragments that
    it reaches, without branches that are not compiled. "fused" prints the kernel of all gradients of a short window.
    """
    from weft.kernels.gpu.compile import emit
    from weft.kernels.gpu.compile.listing import listing
    from weft.kernels.gpu.configure import fused_specs, specs_of
    from weft.kernels.gpu.split_kv.source import constants_of, entry
    from weft.kernels.gpu.split_kv.spec import specs_of as specs_of_rows
    from weft.kernels.gpu.tile.config import config_of

    problem = plan.problem
    if problem.dtype not in WIDTHS or max(problem.d, problem.dv) > MAX_DIM:
        raise UnsupportedKernel(
            f"the source of a kernel for {problem}",
            f"kernels are generated for {', '.join(WIDTHS)} and head dimensions up to {MAX_DIM}",
            "pass --dtype bfloat16, or a smaller head dimension",
        )
    if direction == "forward" and plan.by_rows is not None:
        specs_of_step = specs_of_rows(plan.by_rows)
        return {spec.name: listing(entry(spec), constants_of(spec)) for spec in specs_of_step}
    if direction == "fused" and plan.fused_backward is None:
        raise OptionError(
            f"--source fused for {plan.pattern}", "its gradients come of two kernels, not of one pass over queries",
            "ask for --source dq and --source dkdv",
        )  # fmt: skip
    specs = fused_specs(plan) if direction == "fused" else specs_of(plan, direction)
    return {spec.name: listing(emit.emit(spec), {} if spec.groups else {"C": config_of(spec)}) for spec in specs}
