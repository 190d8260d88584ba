"""`weft recognize`: the pattern of a mask file or of a mask function, how it is proven, its bytes, and its picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from weft.cli.loading import function
from weft.cli.progress import busy
from weft.cli.say import say
from weft.recognition import Recognized, load_mask, recognize

DRAWN = 64  # tokens a side of the picture of a pattern that has no size of its own
WIDTH = 32  # cells of the picture


@click.command("recognize")
@click.argument("target", metavar="FILE.npy | MODULE:FUNCTION")
@click.option("--size", type=click.IntRange(0), nargs=2, metavar="M N", help="Queries and keys (functions).")
@click.option("--batch", type=click.IntRange(1), help="Batch rows that a function tells apart.")
@click.option("--heads", type=click.IntRange(1), help="Heads that a function tells apart.")
@click.option("--generalize", is_flag=True, help="The closed form for all lengths, on your word.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--draw/--no-draw", default=True, show_default=True, help="Draw the pattern.")
def command(target: str, size: Any, batch: Any, heads: Any, generalize: bool, as_json: bool, draw: bool) -> None:  # noqa: PLR0913 - one argument an option
    """Find the pattern of a boolean mask in FILE.npy, or of a mask function of (q, k) or (b, h, q, k)."""
    with busy("recognizing"):
        found = recognize(_loaded(target), size=size, batch=batch, heads=heads, generalize=generalize)
    say(json.dumps(_facts(found), indent=2) if as_json else _report(found, draw))


def _loaded(target: str) -> Any:
    """The mask or the function that the command line names."""
    if target.endswith(".npy") or Path(target).exists() or ":" not in target:
        return load_mask(target)
    return function("weft recognize", target, "(q, k)")


def _lengths(found: Recognized) -> tuple[int, int]:
    """Where to count and to draw: the pattern's own lengths, or a small square."""
    return (DRAWN, DRAWN) if found.m is None or found.n is None else (found.m, found.n)


def _nbytes(found: Recognized) -> int:
    """Bytes of metadata over all batch rows and heads that differ."""
    batches, heads = found.pattern.extent()
    m, n = _lengths(found)
    at = {found.pattern.at(b, h): (b, h) for b, h in np.ndindex(batches or 1, heads or 1)}
    return sum(found.pattern.acsr(m, n, b, h).nbytes for b, h in at.values())


def _facts(found: Recognized) -> dict[str, Any]:
    names = ("exact", "proof", "why", "m", "n", "closed", "remainder")
    return {"pattern": str(found.pattern), **{name: getattr(found, name) for name in names}, "nbytes": _nbytes(found)}


def _report(found: Recognized, draw: bool) -> str:
    """What is printed; the picture is of the first head of the first batch row."""
    m, n = _lengths(found)
    where = f"at {m} x {n}" if found.m is not None else f"at any length, counted at {m} x {n}"
    lines = [str(found), f"  bytes: {_nbytes(found)} {where}"]
    if draw and m and n:
        several = found.pattern.extent() != (None, None)
        lines += ["", found.pattern.draw(m, n, WIDTH), *(["(batch row 0, head 0)"] if several else [])]
    return "\n".join(lines)
