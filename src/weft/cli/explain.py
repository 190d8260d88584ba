"""`weft explain`: all that a plan says of itself, and the source of its kernels."""

from __future__ import annotations

import json
from typing import Any

import click

from weft.cli.plan import facts_of, planned, problem_options
from weft.errors import OptionError, UnsupportedKernel
from weft.kernels.backend import MAX_DIM, WIDTHS
from weft.planning.attention_plan import AttentionPlan

DIRECTIONS = ("forward", "dq", "dkdv")


@click.command("explain")
@click.argument("pattern")
@problem_options
@click.option("--source", type=click.Choice(DIRECTIONS), help="Print the Triton source instead (with --device gpu).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(pattern: str, source: str | None, as_json: bool, **options: Any) -> None:
    """Explain the plan of PATTERN: the format's terms, the launches, and what each is predicted to take."""
    if source and options["device"] != "gpu":
        raise OptionError(f"--source {source} --device cpu", "kernels are generated for GPUs only", "add --device gpu")
    plan = planned(pattern, options)
    sources = sources_of(plan, source) if source else {}
    if as_json:
        click.echo(json.dumps({**facts_of(plan, False), "explanation": plan.explain(), "sources": sources}, indent=2))
    else:
        click.echo("\n\n".join(sources.values()) if source else plan.explain())


def sources_of(plan: AttentionPlan, direction: Any) -> dict[str, str]:
    """The source of each kernel that a plan launches in one direction, by name; without softcap, ALiBi and sinks.

    q, k and v are taken to be contiguous, and so aligned wherever head dimensions allow it.
    """
    from weft.kernels.triton.configure import wave_spec
    from weft.kernels.triton.emit import emit
    from weft.kernels.triton.spec import KernelSpec
    from weft.kernels.triton.waves import plan_waves

    problem, transposed = plan.problem, direction == "dkdv"
    if problem.dtype not in WIDTHS or max(problem.d, problem.dv) > MAX_DIM:
        raise UnsupportedKernel(
            f"the source of a kernel for {problem}",
            f"kernels are generated for {', '.join(WIDTHS)} and head dimensions up to {MAX_DIM}",
            "pass --dtype bfloat16, or a smaller head dimension",
        )
    shares = plan.transposed if transposed else plan.forward
    found = plan_waves([(share.plan, share.heads) for share in shares], problem, transposed)
    width = 4 if problem.dtype == "float32" else 2
    aligned = all(size * width % 16 == 0 for size in (problem.d, problem.dv))
    spec = KernelSpec(direction, problem.dtype, problem.d, problem.dv, 1, 0, 0, aligned)
    sources = {}
    for wave in found.waves:
        one = wave_spec(spec, wave, found, max(problem.d, problem.dv))
        sources[one.name] = emit(one)
    return sources
