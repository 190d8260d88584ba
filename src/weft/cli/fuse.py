"""`weft fuse`: what the backend "weft" of torch.compile finds in a model, replaces, and leaves with the reason."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from weft.cli.loading import function
from weft.cli.progress import busy
from weft.cli.say import say
from weft.errors import InputError
from weft.target import GPUS

RETURNS = "nothing, which returns (model, *inputs), or (model, dictionary of inputs)"

TRACED = {"inner": "eager", "templates": "off"}
TUNED = {"inner": "inductor", "templates": "again"}


@click.command("fuse")
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--explain", is_flag=True, help="List each attention and each segment.")
@click.option("--target", "gpu", type=click.Choice(list(GPUS)), default="h200", show_default=True,
              help="The GPU that segments are predicted for.")  # fmt: skip
@click.option("--share", type=click.FloatRange(0, 1), help="Of all pairs, what weft may compute.  [default: 0.6]")
@click.option("--least", type=click.IntRange(0), help="Pairs that must be saved.  [default: by device]")
@click.option("--tune", is_flag=True, help="Compile the model, and measure its segments again.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Draw the first kind of layer as SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    target: str, explain: bool, gpu: str, tune: bool, out: Path | None, as_json: bool, **settings: Any
) -> None:  # fmt: skip
    """Trace a model once, and say which of its attention weft computes. FUNCTION takes nothing and returns (model,
    *inputs), or (model, dictionary of inputs); the rest of the model runs uncompiled, unless --tune compiles it.
    """
    settings |= TUNED if tune else TRACED
    with busy("measuring" if tune else "tracing"):
        explanation = _explained(target, {f"weft.{name}": x for name, x in settings.items() if x is not None})
    if out is not None:
        _write(out, explanation.svg(0, gpu))
    if as_json:
        say(json.dumps(_facts(explanation, gpu, out), indent=2))
        return
    seen, replaced = len(explanation.seen), len(explanation.replaced)
    lines = [
        explanation.text(gpu) if explain else f"{seen} attentions found, {replaced} replaced; --explain lists them"
    ]
    lines += [f"written: {out}"] if out is not None else []
    say("\n".join(lines))


def _explained(target: str, options: dict[str, Any]) -> Any:
    import torch

    import weft

    given = function("weft fuse", target, RETURNS)()
    if not isinstance(given, tuple) or not given:
        raise InputError(
            f"weft fuse {target}", f"it returned a {type(given).__name__}", "return (model, *inputs) as a tuple"
        )
    model, *inputs = given
    fused = weft.fuse(model, options=options)
    with torch.no_grad():
        if len(inputs) == 1 and isinstance(inputs[0], dict):
            fused(**inputs[0])
        else:
            fused(*inputs)
    return fused.explanation


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"write {out}", str(error.strerror), "name a file that can be written") from None


def _facts(explanation: Any, gpu: str, out: Path | None) -> dict[str, Any]:
    names = ("where", "form", "reason", "share", "mask")
    segments = [
        {"layers": names, "scheme": found.scheme, "after": asdict(found.cost), "evaluations": found.evaluations}
        for found, names in explanation.segments(gpu)
    ]
    return {
        "attention": [{name: getattr(one, name) for name in names} for one in explanation.seen],
        "broken": [graph.broken for graph in explanation.graphs if graph.broken],
        "target": gpu,
        "segments": segments,
        **({"out": str(out)} if out is not None else {}),
    }
