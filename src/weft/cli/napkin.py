"""`weft napkin`: an algorithm as a diagram, relabelled step by step into a tiled one, with its costs on a target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from weft.cli.parse import parse
from weft.errors import InputError, RelabelError
from weft.napkin.builders import AttentionAxes, attention, attention_of_term, matmul, mlp
from weft.napkin.cost import best_sizes, evaluate, memory, optimum, transfers, work
from weft.napkin.diagram import FP8, FP16, FP32, Axis, Diagram
from weft.napkin.draw import svg
from weft.napkin.machine import MACHINES, Machine, machine
from weft.napkin.pseudocode import pseudocode
from weft.napkin.relabel import Derivation, flash_attention
from weft.napkin.sketch import Balance, hopper_attention

LEVEL = "shared"
DTYPES = {dtype.name: dtype for dtype in (FP32, FP16, FP8)}
DIVISOR = 16  # pieces are multiples of what a tensor core takes at once


@dataclass(frozen=True)
class Asked:
    """What the command line asked for. pattern: of the attention, None for all pairs."""

    algorithm: str
    target: str
    length: int
    dim: int
    dtype: str
    pattern: str | None

    @property
    def machine(self) -> Machine:
        return machine(self.target)


@click.command("napkin")
@click.argument("algorithm", type=click.Choice(["attention", "matmul", "mlp"]))
@click.option("--target", type=click.Choice(list(MACHINES)), default="h200", show_default=True, help="The machine.")
@click.option("--length", type=click.IntRange(1), default=8192, show_default=True, help="Of every axis but --dim.")
@click.option("--dim", type=click.IntRange(1), default=128, show_default=True, help="Head dimension (attention).")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="fp16", show_default=True, help="Of all arrays.")
@click.option("--pattern", help="Attention under a pattern of one affine term.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the last diagram as SVG.")
def command(out: Path | None, **options: Any) -> None:
    """Derive the tiling of an algorithm: the diagram, each step, the loops, and the bytes sent and held on a target."""
    asked = Asked(**options)
    derivation = _derived(asked)
    click.echo(_report(asked, derivation))
    if out is not None:
        try:
            out.write_text(svg(derivation, f"{asked.algorithm} on {asked.target}"), encoding="utf-8")
        except OSError as error:
            raise InputError(f"write {out}", str(error.strerror), "name a file that can be written") from None
        click.echo(f"\nwritten: {out}")


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
        d = Axis("d", asked.dim)
        return attention(AttentionAxes((q,), (x,), d, d), dtype)
    acsr = parse(asked.pattern).acsr(size, size)
    if len(acsr.terms) != 1 or len(acsr.remainder):
        rest = " and a remainder" if len(acsr.remainder) else ""
        raise RelabelError(
            f"weft napkin attention --pattern '{asked.pattern}'", f"it has {len(acsr.terms)} affine terms{rest}",
            "pass a pattern of one term; several are several diagrams, merged by lse",
        )  # fmt: skip
    return attention_of_term(acsr.terms[0], asked.dim, asked.dim, dtype)


# ---- the report ------------------------------------------------------------------------------------------------------
def _report(asked: Asked, derivation: Derivation) -> str:
    parts = [str(derivation), pseudocode(derivation), _formulas(derivation), _numbers(asked, derivation)]
    if asked.algorithm == "attention":
        parts.append(_balance(asked, derivation))
    return "\n\n".join(parts)


def _formulas(derivation: Derivation) -> str:
    """H and M as formulas, and the optimum where it has a closed form."""
    lines = [f"bytes to and from {LEVEL}:  H = {transfers(derivation, LEVEL)}"]
    held = {at: memory(derivation, at) for at in (LEVEL, "register")}
    lines += [f"bytes held in {at}:  M = {formula}" for at, formula in held.items() if formula != 0]
    try:
        best = optimum(derivation, LEVEL)
        sizes = ", ".join(f"{symbol} = {size}" for symbol, size in best.sizes.items())
        lines.append(f"least H for M bytes:  {best.transfers}  at {sizes}")
    except RelabelError as error:
        lines.append(f"least H for M bytes:  {error.wrong}")
    return "\n".join(lines)


def _numbers(asked: Asked, derivation: Derivation) -> str:
    """The best sizes on the target, beside one operation after another."""
    limits = {LEVEL: float(asked.machine.shared), "register": float(asked.machine.registers)}
    best = best_sizes(derivation, LEVEL, limits)
    start = Derivation(_attention(asked) if asked.algorithm == "attention" else derivation.diagram)
    for array in start.diagram.arrays:
        start = start.keep(array.name, "global")
    lengths = {name: axis.size for name, axis in start.diagram.axes.items() if axis.size is not None}
    apart = evaluate(transfers(start, LEVEL), lengths)
    sizes = ", ".join(f"{symbol} = {size}" for symbol, size in best.sizes.items())
    held = ", ".join(f"{size / 1024:.1f} KiB in {at}" for at, size in best.memory.items() if size)
    return "\n".join(
        [
            f"on {asked.machine.name}: {sizes}; {held}",
            f"  unfused, were memory unlimited: {apart / 2**20:.1f} MiB, {_time(apart, asked)}",
            f"  derived: {best.transfers / 2**20:.1f} MiB, {_time(best.transfers, asked)}",
            f"  work: {_work(asked, evaluate(work(derivation, LEVEL), lengths | best.sizes))}",
        ]
    )


def _work(asked: Asked, flops: float) -> str:
    rate = dict(asked.machine.flops).get(asked.dtype)
    told = f"{flops / 1e9:.1f} GFLOP"
    return told if rate is None else f"{told}, {flops / rate * 1e6:.1f} us at {rate / 1e12:g} TFLOP/s"


def _time(nbytes: float, asked: Asked) -> str:
    return f"{nbytes / asked.machine.bandwidth * 1e6:.1f} us at {asked.machine.bandwidth / 1e12:g} TB/s"


def _balance(asked: Asked, derivation: Derivation) -> str:
    """Rows of a group from which on tensor cores and not memory bound it; on Hopper also the paper's sketch."""
    target, lines = asked.machine, []
    if asked.dtype in dict(target.flops):
        balance = Balance(target, target.rate(asked.dtype), 2 * DTYPES[asked.dtype].nbytes)
        rows = f"{balance.least_rows:.0f} rows of a group"
        lines.append(f"bound by tensor cores from {rows} on, were there no cache between")
    if target.architecture == "sm_90":
        sketch = hopper_attention(target)
        fitting = ", ".join(f"{count:.2f} by {at}" for at, count in sketch.fitting(target).items())
        count = sketch.warpgroups(target)
        lines.append(f"FP8/FP16 sketch: warpgroups {fitting}, so {count} and {count * sketch.rows} rows of a group")
    return "\n".join(lines)
