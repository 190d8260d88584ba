"""`weft plan`: the tiles of a pattern at a shape, for a CPU or a GPU; neither needs to be here."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from typing import Any

import click

from weft.acsr.format import BLOCK
from weft.cli.numbers import Numbers
from weft.cli.progress import busy
from weft.cli.say import say
from weft.errors import OptionError
from weft.kernels.backend import BACKENDS, Backend
from weft.pattern.parse import parse
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.heads import Share
from weft.planning.problem import DTYPES, Problem
from weft.planning.tiles import TilePlan
from weft.target import GPU, GPUS

DEFAULTS = {"cpu": "float32", "cuda": "bfloat16"}  # devices, as torch calls them, and what is computed there


def problem_options(device: str = "cpu", required: bool = True, only: bool = False) -> Callable[..., Any]:
    """The options that describe a problem, for `problem_of`. device: the default; required: whether the shape is; only:
    there is no other device, and no option for it.
    """
    kinds = DEFAULTS["cuda"] if only else "float32 on a CPU, bfloat16 on a GPU"
    options = [
        click.option("--shape", type=Numbers(4, 4), required=required, metavar="B,H,M,D",
                     help="Batch rows, query heads, queries, head dimension."),
        click.option("--keys", type=click.IntRange(0, 1 << 31), metavar="N", help="Keys.  [default: M]"),
        click.option("--kv-heads", type=click.IntRange(1), metavar="HKV", help="Key and value heads.  [default: H]"),
        click.option("--dv", type=click.IntRange(1), metavar="DV", help="Head dimension of values.  [default: D]"),
        click.option("--dtype", type=click.Choice(list(DTYPES)), help=f"[default: {kinds}]"),
        click.option("--device", type=click.Choice(list(DEFAULTS)), default=device, show_default=True,
                     help="What to plan for."),
    ]  # fmt: skip
    if only:
        options.pop()

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


target_option = click.option(
    "--target", type=click.Choice(list(GPUS)), help=f"The card to plan for, with --device cuda.  [default: {GPU.name}]"
)


def problem_of(options: dict[str, Any]) -> Problem:
    """The problem that the options describe; raises OptionError where it is none."""
    batch, heads, m, d = options["shape"]
    kv_heads = heads if options["kv_heads"] is None else options["kv_heads"]
    if min(batch, heads, d) < 1:
        raise OptionError(f"--shape {batch},{heads},{m},{d}", "one of B, H and D is 0", "make them 1 or more")
    if heads % kv_heads:
        raise OptionError(
            f"--kv-heads {kv_heads}", f"{heads} query heads cannot share {kv_heads} evenly", "make H a multiple of HKV"
        )
    n = m if options["keys"] is None else options["keys"]
    dtype = options["dtype"] or DEFAULTS[options["device"]]
    return Problem(batch, heads, kv_heads, m, n, d, options["dv"] or d, dtype, options["device"])


def backend_of(problem: Problem) -> Backend:
    """The backend that plans for this device are made for."""
    return next(b for b in BACKENDS if b.name == ("cpu" if problem.device == "cpu" else "triton"))


def planned(pattern: str, options: dict[str, Any]) -> AttentionPlan:
    """The plan of the pattern and of the problem that the options describe."""
    problem, name = problem_of(options), options.get("target")
    if name and options["device"] != "cuda":
        raise OptionError(f"--target {name} --device {options['device']}", f"{name} is a GPU", "add --device cuda")
    with busy("planning"):
        return plan_attention(parse(pattern), problem, GPUS[name] if name else backend_of(problem).target)


@click.command("plan")
@click.argument("pattern")
@problem_options()
@target_option
@click.option("--verify", is_flag=True, help="Prove that the plan computes every live pair once and no other.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(pattern: str, verify: bool, as_json: bool, **options: Any) -> None:
    """Plan PATTERN: its nests and tiles, the bytes of their tables, and the share of computed pairs that is live."""
    plan = planned(pattern, options)
    if verify:
        with busy("verifying"):
            plan.verify()  # raises what the command line reports
    facts = facts_of(plan, verify)
    say(json.dumps(facts, indent=2) if as_json else f"{plan}\n\n{_summary(facts)}")


def facts_of(plan: AttentionPlan, verified: bool) -> dict[str, Any]:
    """What is counted of a plan. pairs, computed: over all batch rows and heads; the rest: of distinct heads alone.

    computed: pairs that kernels compute, live or not, which on a GPU are whole tiles.
    """
    problem = plan.problem
    computed = sum(_heads(share) * _computed(share.plan, problem.device) for share in plan.forward)
    return {
        "pattern": str(plan.pattern),
        "problem": str(problem),
        "pairs": plan.nnz,
        "share": plan.nnz / max(1, problem.batch * problem.q_heads * problem.m * problem.n),
        "computed": computed,
        "useful": plan.nnz / max(1, computed),
        "distinct_heads": len(plan.forward),
        "nests": _each(plan, _nests),
        "tiles": _each(plan, lambda share: share.plan.tiles),
        "table_bytes": plan.nbytes,
        "format_bytes": sum(share.plan.acsr.nbytes for share in plan.forward),
        "remainder_bytes": sum(share.plan.acsr.remainder.nbytes for share in plan.forward),
        "verified": verified,
        "reasons_against": [reason.why for reason in backend_of(problem).reasons_against(problem)],
    }


def _computed(plan: TilePlan, device: str) -> int:
    """Pairs that one head computes, live or not; a GPU computes tiles whole."""
    if device == "cpu":
        return plan.visited
    axes = [part.axes for nest in plan.nests for part in nest.parts]
    whole = sum(prod(axis.steps(axis.block_k) * axis.block_q * axis.block_k for axis in part) for part in axes)
    return whole + len(plan.acsr.remainder) * BLOCK * BLOCK


def _heads(share: Share) -> int:
    spans = [(one.batch, one.kv, one.group) for one in share.heads]
    return sum(prod(stop - first for first, stop in three) for three in spans)


def _each(plan: AttentionPlan, count: Callable[[Share], int]) -> dict[str, int]:
    """A count of both directions."""
    return {
        "forward": sum(count(share) for share in plan.forward),
        "transposed": sum(count(share) for share in plan.transposed),
    }


def _nests(share: Share) -> int:
    return len(share.plan.nests) + (share.plan.blocks is not None)


def _summary(facts: dict[str, Any]) -> str:
    remainder = f", {facts['remainder_bytes']:,} of them the remainder's" if facts["remainder_bytes"] else ""
    rows = [
        ("live", f"{facts['pairs']:,} pairs over all heads, {facts['share']:.3%} of all"),
        ("computed", f"{facts['computed']:,} pairs, {facts['useful']:.1%} useful"),
        ("nests", "{forward} forward, {transposed} transposed".format(**facts["nests"])),
        ("tiles", "{forward:,} of queries, {transposed:,} of keys".format(**facts["tiles"])),
        ("tables", f"{facts['table_bytes']:,} bytes, both directions"),
        ("format", f"{facts['format_bytes']:,} bytes{remainder}"),
        ("verified", "every live pair once and no other" if facts["verified"] else "not asked for (--verify)"),
    ]
    rows += [("note", f"attention cannot run it: {why}") for why in facts["reasons_against"]]
    return "\n".join(f"{name:<10}{text}" for name, text in rows)
