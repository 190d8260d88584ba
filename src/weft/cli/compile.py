"""`weft compile`: kernels for a card that need not be here, compiled into the store."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.plan import problem_of, problem_options
from weft.cli.progress import Line, busy
from weft.cli.say import say
from weft.errors import OptionError, WeftError, install_line
from weft.kernels.backend import TritonBackend
from weft.outside import file_bytes
from weft.pattern.algebra import Pattern
from weft.pattern.parse import parse
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.problem import Problem
from weft.settings import interpreted
from weft.store import opened
from weft.target import GPUS, Gpu, gpu_like

if TYPE_CHECKING:
    from weft.kernels.gpu.compile.filling import Filled
    from weft.kernels.gpu.compile.source import Source

ARCHITECTURES = {gpu.architecture: gpu for gpu in reversed(GPUS.values())}  # the first card of each
# What a call is asked beside its sizes, as `kernels_of` has it.
FLAGS = {
    "forward-only": "No gradient will be asked for.",
    "deterministic": "Gradients have the same bits every time.",
    "softcap": "Scores are capped.",
    "alibi": "There are ALiBi slopes.",
    "sinks": "There are attention sinks.",
    "lse-gradient": "Gradients come through lse too.",
    "tf32": "Products of float32 may take TF32.",
    "dropout": "Some weights are dropped.",
    "relative-bias": "There is a relative bias, or T5's buckets, with a table that learns.",
}


@dataclass(frozen=True)
class Call:
    """A call of attention. flags: those of FLAGS that hold."""

    pattern: Pattern
    problem: Problem
    flags: frozenset[str]


def _flag_options(command: Any) -> Any:
    for name, about in reversed(FLAGS.items()):
        command = click.option(f"--{name}", is_flag=True, help=about)(command)
    return command


@click.command("compile")
@click.argument("pattern", required=False)
@problem_options(device="cuda", required=False, only=True)
@_flag_options
@click.option("--workloads", multiple=True, metavar="NAME", help="A workload of `weft bench --list`, or a tag instead.")
@click.option("--calls", type=click.Path(path_type=Path),
              help="A file instead: a call on each line, as PATTERN and options.")  # fmt: skip
@click.option("--target", type=click.Choice([*GPUS, *ARCHITECTURES]), required=True,
              help="The card, or an architecture for its first card here.")  # fmt: skip
@click.option("--processors", type=click.IntRange(1), help="Multiprocessors, of a card that has others.")
@click.option("--triton", metavar="VERSION", help="Refuse to compile with another Triton than this.")
@click.option("--jobs", type=click.IntRange(1), help="Processes.  [default: one for each processor]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(triton: str | None, as_json: bool, **options: Any) -> None:
    """Compile what a call of attention under PATTERN launches, forward and backward, for a card that need not be here.

    Kernels go to the cache (WEFT_CACHE_DIR). A machine with that card and the same version of Triton, to which the
    directory was copied, compiles nothing then. Its Python may be another one. The exit code is 1 where a kernel could
    not be compiled.
    """
    calls, flags = _calls(options), _flags(options)
    _refuse_if_unkept(triton)
    card = _card(options["target"], options["processors"])
    began = time.perf_counter()
    with busy("planning"):
        sources = [one for call in calls for one in _kernels(call, card, flags)]
    filled = _filled(sources, card, options["jobs"])
    facts = _facts(filled, card, len(calls), time.perf_counter() - began)
    say(json.dumps(facts, indent=2) if as_json else _report(facts))
    if filled.refused:
        raise SystemExit(1)


# ---- the calls -------------------------------------------------------------------------------------------------------
def _calls(options: dict[str, Any]) -> list[Call]:
    """What is asked for, in one of three ways."""
    ways = {"PATTERN": options["pattern"], "--workloads NAME": options["workloads"], "--calls FILE": options["calls"]}
    if sum(bool(value) for value in ways.values()) != 1:
        raise OptionError("weft compile", f"it takes one of {', '.join(ways)}", "pass exactly one of the three")
    if options["pattern"]:
        return [_call(options)]
    if options["shape"]:
        way = "--workloads" if options["workloads"] else "--calls"
        raise OptionError(f"weft compile {way} --shape", "what is named has sizes of its own", "leave --shape out")
    return [*_workloads(options["workloads"])] if options["workloads"] else [*_lines(options["calls"])]


def _call(options: dict[str, Any]) -> Call:
    if options["shape"] is None:
        raise OptionError(
            f'weft compile "{options["pattern"]}"', "the problem's sizes are missing", "add --shape B,H,M,D"
        )
    problem = problem_of({**options, "device": "cuda"})
    reasons = [one for one in TritonBackend().reasons_against(problem) if "not installed" not in one.why]
    for reason in reasons:
        raise OptionError(f"kernels for {problem}", reason.why, reason.cure)
    return Call(parse(options["pattern"]), problem, _flags(options))


def _flags(options: dict[str, Any]) -> frozenset[str]:
    return frozenset(name for name in FLAGS if options[name.replace("-", "_")])


def _workloads(names: tuple[str, ...]) -> Iterator[Call]:
    from weft.bench.select import workloads
    from weft.testing.workloads import named

    for one in map(named, workloads(names)):
        yield Call(one.make(), one.problem("cuda"), frozenset({"sinks"} if one.sinks else ()))


@click.command("a line of --calls", add_help_option=False)
@click.argument("pattern")
@problem_options(device="cuda", only=True)
@_flag_options
def _line(**options: Any) -> Call:
    return _call(options)


def _lines(path: Path) -> Iterator[Call]:
    """The calls of a file; lines that are empty or begin with # are none."""
    try:
        lines = file_bytes(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"weft compile --calls {path}", str(error), "name a file of text, a call on each line"
        ) from None
    for number, text in enumerate(lines, 1):
        if text.strip() and not text.lstrip().startswith("#"):
            try:
                call: Call = _line.main(shlex.split(text), standalone_mode=False)
            except click.ClickException as error:
                raise OptionError(f"{path}, line {number}", error.format_message(), f"correct it: {text}") from None
            except (ValueError, WeftError) as error:
                raise OptionError(f"{path}, line {number}", str(error), f"correct it: {text}") from None
            yield call


# ---- compiling -------------------------------------------------------------------------------------------------------
def _refuse_if_unkept(version: str | None) -> None:
    """Raise where kernels would not be kept, or are asked of another Triton."""
    asked = "weft compile" if version is None else f"weft compile --triton {version}"
    try:
        import torch  # noqa: F401 - whose tensors describe a call
        import triton

        from weft.kernels.gpu.compile.compiler import storable
    except ModuleNotFoundError as error:
        raise OptionError(asked, f"{error.name} is not installed", install_line("gpu")) from None
    if version is not None and triton.__version__.split("+")[0] != version:
        raise OptionError(
            asked, f"Triton {triton.__version__} is installed here", f"pip install triton=={version}"
        )  # fmt: skip
    if interpreted() or not storable():
        raise OptionError(asked, "Triton interprets or shows kernels (TRITON_...)", "unset these variables")
    if opened().root is None:
        raise OptionError(asked, "nothing is kept: WEFT_CACHE_DIR=off", "set WEFT_CACHE_DIR to a directory")


def _card(name: str, processors: int | None) -> Gpu:
    gpu = GPUS.get(name) or ARCHITECTURES[name]
    if processors is None or processors == gpu.processors:
        return gpu
    return gpu_like(gpu.name, gpu.architecture, processors)


def _kernels(call: Call, card: Gpu, also: frozenset[str]) -> list[Source]:
    """also: flags that hold for every call."""
    from weft.kernels.gpu.programs.kernels import Asked, kernels_of

    flags = call.flags | also
    said: dict[str, Any] = {name.replace("-", "_"): name in flags for name in FLAGS}
    gradients, biased = not said.pop("forward_only"), said.pop("relative_bias")
    plan = plan_attention(call.pattern, call.problem, card)
    scores = _relative_bias(plan) if biased else {}
    return kernels_of(plan, Asked(gradients=gradients, **said, **scores))


def _relative_bias(plan: AttentionPlan) -> dict[str, Any]:
    """What kernels take of one; its length is a number that a launch gives."""
    import torch

    from weft import bias
    from weft.kernels.options import Modifiers
    from weft.score.evaluate import Rule
    from weft.torch.along import scores_of

    made = bias.relative(torch.zeros(plan.problem.q_heads, 3))
    rules = tuple(Rule(one, made.tables, (True,)) for one in made.expressions)
    scores = scores_of(Modifiers(1.0, rules=rules), plan)
    return {"score": scores.score, "tables": scores.forms, "wanted": scores.wanted}


def _filled(sources: list[Source], card: Gpu, jobs: int | None) -> Filled:
    from weft.kernels.gpu.compile.filling import fill, target_of

    line = Line()
    try:
        show = lambda done, whole: line.say(f"compiling for {card.name}: {done} of {whole} kernels ...")  # noqa: E731
        return fill(sources, target_of(card.architecture), jobs or 0, show)
    finally:
        line.wipe()


# ---- facts -----------------------------------------------------------------------------------------------------------
def _facts(filled: Filled, card: Gpu, calls: int, seconds: float) -> dict[str, Any]:
    """seconds: of all; those of a kernel are its own, beside others that compiled at the same time."""
    import triton

    return {
        "card": card.name,
        "architecture": card.architecture,
        "processors": card.processors,
        "triton": triton.__version__,
        "directory": str(opened().root),
        "calls": calls,
        "compiled": {one.name: round(one.seconds, 3) for one in filled.made if not one.refused},
        "found": filled.found,
        "refused": filled.refused,
        "seconds": round(seconds, 3),
    }


def _report(facts: dict[str, Any]) -> str:
    card = f"{facts['card']} ({facts['architecture']}, {facts['processors']} multiprocessors), Triton {facts['triton']}"
    calls = "1 call" if facts["calls"] == 1 else f"{facts['calls']} calls"
    compiled, found = len(facts["compiled"]), len(facts["found"])
    refused = [f"refused   {name}: {why}" for name, why in facts["refused"].items()]
    counts = f"{calls}: {compiled} kernels compiled, {found} found, {facts['seconds']:.1f} s"
    return "\n".join([f"card      {card}", f"cache     {facts['directory']}", f"kernels   {counts}", *refused])
