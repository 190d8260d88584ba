"""`weft napkin`: an algorithm as a diagram, relabelled step by step into a tiled one, with its costs on a target."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from weft.cli.layer import BATCH, Wanted, refuse_without_layer, report
from weft.cli.progress import busy
from weft.cli.say import say
from weft.cli.show import own_size
from weft.errors import InputError, OptionError, RelabelError
from weft.fusion.known import MODELS
from weft.napkin.builders import AttentionAxes, attention, attention_of_term, matmul, mlp
from weft.napkin.cost import best_sizes, evaluate, memory, optimum, transfers, work
from weft.napkin.diagram import FP8, FP16, FP32, Axis, Diagram
from weft.napkin.draw import svg
from weft.napkin.machine import machine, rate
from weft.napkin.pseudocode import pseudocode
from weft.napkin.relabel import Derivation, flash_attention
from weft.napkin.sketch import Balance, hopper_attention
from weft.pattern.parse import parse
from weft.target import GPUS, Gpu

LEVEL = "shared"
DTYPES = {dtype.name: dtype for dtype in (FP32, FP16, FP8)}
DIVISOR = 16  # pieces are multiples of what a tensor core takes at once
LENGTH, DIM = 8192, 128  # where none are given


@dataclass(frozen=True)
class Asked:
    """What the command line asked for. dim, pattern: of attention alone; no pattern: all pairs."""

    algorithm: str
    target: str
    length: int
    dim: int | None
    dtype: str
    pattern: str | None

    def __post_init__(self) -> None:
        for option, value in (("--pattern", self.pattern), ("--dim", self.dim)):
            if value is not None and self.algorithm != "attention":
                raise OptionError(
                    f"weft napkin {self.algorithm} {option} {value!r}",
                    "only attention has a pattern and a head dimension",
                    f"leave {option} out, or derive attention",
                )

    @property
    def head_dim(self) -> int:
        return self.dim or DIM

    @property
    def machine(self) -> Gpu:
        return machine(self.target)


@click.command("napkin")
@click.argument("algorithm", type=click.Choice(["attention", "matmul", "mlp", "layer"]))
@click.option("--target", type=click.Choice(list(GPUS)), default="h200", show_default=True, help="The machine.")
@click.option("--length", type=click.IntRange(1), metavar="N",
              help=f"Of every axis but --dim.  [default: the pattern's own, or {LENGTH}]")  # fmt: skip
@click.option("--dim", type=click.IntRange(1), help=f"Head dimension of attention.  [default: {DIM}]")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="fp16", show_default=True, help="Of all arrays.")
@click.option("--pattern", help="Attention under a pattern of one affine term; of a layer, any pattern.")
@click.option("--model", type=click.Choice(list(MODELS)), help="Whose layer; --length is its tokens.")
@click.option("--batch", type=click.IntRange(1), help=f"Batch rows of a layer.  [default: {BATCH}]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the last diagram as SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(out: Path | None, as_json: bool, **options: Any) -> None:
    """Derive the tiling of an algorithm: the diagram, each step, the loops, and the bytes sent and held on a target.

    Of a layer of a model: what it moves before and after fusion.
    """
    of_layer = {name: options.pop(name) for name in ("model", "batch")}
    if options["algorithm"] == "layer":
        text, told = report(Wanted(**options | of_layer), out)
        say(json.dumps(told, indent=2) if as_json else text)
        return
    refuse_without_layer(options["algorithm"], of_layer)
    asked = Asked(**options | {"length": options["length"] or _own_length(options["pattern"])})
    with busy("deriving"):
        derivation = _derived(asked)
        facts = _costs(asked, derivation)
    if out is not None:
        try:
            out.write_text(svg(derivation, f"{asked.algorithm} on {asked.target}"), encoding="utf-8")
        except OSError as error:
            raise InputError(f"write {out}", str(error.strerror), "name a file that can be written") from None
        facts["out"] = str(out)
    say(json.dumps(facts, indent=2) if as_json else _report(asked, derivation, facts))


def _own_length(pattern: str | None) -> int:
    """The only length that a pattern has a meaning for, or LENGTH."""
    own = own_size(parse(pattern)) if pattern else None
    return own[0] if own else LENGTH


def _derived(asked: Asked) -> Derivation:
    """The algorithm, relabelled."""
    if asked.algorithm == "attention":
        return flash_attention(_attention(asked), LEVEL)
    dtype, size = DTYPES[asked.dtype], asked.length
    a, b, c, h = (Axis(name, size, min(size, DIVISOR)) for name in "abch")
    if asked.algorithm == "matmul":
        return Derivation(matmul(a, b, c, dtype)).group("a", LEVEL).group("c", LEVEL).stream("b", LEVEL)
    done = Derivation(mlp(a, b, h, c, dtype)).keep("H", "register").keep("G", "register")
    return done.group("a", LEVEL).group("c", LEVEL).stream("h", LEVEL).stream("b", LEVEL)


def _attention(asked: Asked) -> Diagram:
    dtype, size = DTYPES[asked.dtype], asked.length
    if asked.pattern is None:
        q, x = (Axis(name, size, min(size, DIVISOR)) for name in "qx")
        d = Axis("d", asked.head_dim)
        return attention(AttentionAxes((q,), (x,), d, d), dtype)
    acsr = parse(asked.pattern).acsr(size, size)
    if len(acsr.terms) != 1 or len(acsr.remainder):
        rest = " and a remainder" if len(acsr.remainder) else ""
        raise RelabelError(
            f"weft napkin attention --pattern '{asked.pattern}'", f"it has {len(acsr.terms)} affine terms{rest}",
            "pass a pattern of one term; several are several diagrams, merged by lse",
        )  # fmt: skip
    return attention_of_term(acsr.terms[0], asked.head_dim, asked.head_dim, dtype)


# ---- what is counted -------------------------------------------------------------------------------------------------
def _costs(asked: Asked, derivation: Derivation) -> dict[str, Any]:
    """`_facts`; what is refused on the way names the pattern, which the diagram does not know."""
    try:
        return _facts(asked, derivation)
    except RelabelError as error:
        if asked.pattern is None:
            raise
        command = f"weft napkin {asked.algorithm} --pattern '{asked.pattern}'"
        raise RelabelError(command, f"{error.asked}: {error.wrong}", error.cure) from None


def _facts(asked: Asked, derivation: Derivation) -> dict[str, Any]:
    """What is derived: formulas as text, bytes, seconds and operations a call. None: it has none."""
    limits = {LEVEL: float(asked.machine.shared), "register": float(asked.machine.registers)}
    best = best_sizes(derivation, LEVEL, limits)
    apart, lengths = _unfused(asked, derivation)
    flops = evaluate(work(derivation, LEVEL), lengths | best.sizes)
    rate = dict(asked.machine.flops).get(asked.dtype)
    return {
        **asdict(asked),
        "dim": asked.head_dim if asked.algorithm == "attention" else None,
        "steps": [str(step) for step in derivation.steps],
        "loops": pseudocode(derivation),
        "formulas": _formulas(derivation),
        "sizes": {str(symbol): size for symbol, size in best.sizes.items()},
        "memory_bytes": {at: size for at, size in best.memory.items() if size},
        "transfer_bytes": {"unfused": apart, "derived": best.transfers},
        "transfer_seconds": {
            "unfused": apart / asked.machine.bandwidth, "derived": best.transfers / asked.machine.bandwidth
        },
        "flops": flops,
        "work_seconds": None if rate is None else flops / rate,
        **(_balance(asked) if asked.algorithm == "attention" else {}),
    }  # fmt: skip


def _formulas(derivation: Derivation) -> dict[str, Any]:
    """H and M, and the optimum: a dictionary where it has a closed form, else why not."""
    held = {at: memory(derivation, at) for at in (LEVEL, "register")}
    found: dict[str, Any] = {
        "transfers": str(transfers(derivation, LEVEL)),
        "memory": {at: str(formula) for at, formula in held.items() if formula != 0},
    }
    try:
        best = optimum(derivation, LEVEL)
        sizes = {str(symbol): str(size) for symbol, size in best.sizes.items()}
        return found | {"optimum": {"transfers": str(best.transfers), "sizes": sizes}}
    except RelabelError as error:
        return found | {"optimum": None, "no_optimum": error.wrong}


def _unfused(asked: Asked, derivation: Derivation) -> tuple[float, dict[str, int]]:
    """(bytes that one operation after another sends, were memory unlimited; the lengths of the axes)."""
    start = Derivation(_attention(asked) if asked.algorithm == "attention" else derivation.diagram)
    for array in start.diagram.arrays:
        start = start.keep(array.name, "global")
    lengths = {name: axis.size for name, axis in start.diagram.axes.items() if axis.size is not None}
    return evaluate(transfers(start, LEVEL), lengths), lengths


def _balance(asked: Asked) -> dict[str, Any]:
    """Rows of a group from which on tensor cores and not memory bound it; on Hopper also the paper's sketch."""
    target = asked.machine
    found: dict[str, Any] = {}
    nbytes = DTYPES[asked.dtype].nbytes
    if asked.dtype in dict(target.flops):
        assert not isinstance(nbytes, str), "of these dtypes it is a number"
        balance = Balance(target, rate(target, asked.dtype), float(2 * nbytes))
        found["least_rows"] = balance.least_rows
    if target.architecture == "sm_90":
        sketch = hopper_attention(target)
        count = sketch.warpgroups(target)
        found["sketch"] = {"fitting": sketch.fitting(target), "warpgroups": count, "rows": count * sketch.rows}
    return found


# ---- the report ------------------------------------------------------------------------------------------------------
def _report(asked: Asked, derivation: Derivation, facts: dict[str, Any]) -> str:
    parts = [str(derivation), facts["loops"], _formula_lines(facts["formulas"]), _numbers(asked, facts)]
    if lines := _balance_lines(facts):
        parts.append(lines)
    if "out" in facts:
        parts.append(f"written: {facts['out']}")
    return "\n\n".join(parts)


def _formula_lines(formulas: dict[str, Any]) -> str:
    lines = [f"bytes to and from {LEVEL}:  H = {formulas['transfers']}"]
    lines += [f"bytes held in {at}:  M = {formula}" for at, formula in formulas["memory"].items()]
    if best := formulas["optimum"]:
        return "\n".join([*lines, f"least H for M bytes:  {best['transfers']}  at {_sizes(best['sizes'])}"])
    return "\n".join([*lines, f"least H for M bytes:  {formulas['no_optimum']}"])


def _sizes(sizes: dict[str, Any]) -> str:
    return ", ".join(f"{symbol} = {size}" for symbol, size in sizes.items())


def _numbers(asked: Asked, facts: dict[str, Any]) -> str:
    """The best sizes on the target, beside one operation after another."""
    held = ", ".join(f"{size / 1024:.1f} KiB in {at}" for at, size in facts["memory_bytes"].items())
    sent = {
        name: f"{size / 2**20:.1f} MiB, {facts['transfer_seconds'][name] * 1e6:.1f} us at"
        f" {asked.machine.bandwidth / 1e12:g} TB/s"
        for name, size in facts["transfer_bytes"].items()
    }
    told, seconds = f"{facts['flops'] / 1e9:.1f} GFLOP", facts["work_seconds"]
    if seconds is not None:
        told += f", {seconds * 1e6:.1f} us at {rate(asked.machine, asked.dtype) / 1e12:g} TFLOP/s"
    return "\n".join(
        [
            f"on {asked.machine.name}: {_sizes(facts['sizes'])}; {held}",
            f"  unfused, were memory unlimited: {sent['unfused']}",
            f"  derived: {sent['derived']}",
            f"  work: {told}",
        ]
    )


def _balance_lines(facts: dict[str, Any]) -> str:
    lines = []
    if "least_rows" in facts:
        rows = f"{facts['least_rows']:.0f} rows of a group"
        lines.append(f"bound by tensor cores from {rows} on, were there no cache between")
    if "sketch" in facts:
        sketch = facts["sketch"]
        fitting = ", ".join(f"{count:.2f} by {at}" for at, count in sketch["fitting"].items())
        lines.append(
            f"FP8/FP16 sketch: warpgroups {fitting}, so {sketch['warpgroups']} and {sketch['rows']} rows of a group"
        )
    return "\n".join(lines)
