"""`weft tune`: measure kernels on the GPU at hand and keep what wins; carry evidence from one machine to others."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import weft
from weft.cli.numbers import Seconds
from weft.cli.plan import backend_of, problem_of, problem_options
from weft.cli.say import say, say_briefly
from weft.errors import OptionError
from weft.kernels.backend import Timing, choose
from weft.pattern.parse import parse
from weft.planning.problem import Problem
from weft.planning.tiling import DIRECTIONS
from weft.runtime import evidence
from weft.runtime.rows import Measured
from weft.runtime.together import Together
from weft.runtime.tuner import Budget, Report, Tuned, card_of, timed, tune

SHOWN = 8  # candidates of a direction, the fastest ones
EACH = Problem(1, 1, 1, 1, 1, 64, 64, "bfloat16", "cuda")  # evidence is shared of every problem of a card
FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("tune")
@click.argument("pattern", required=False)
@problem_options(device="cuda", required=False)
@click.option("--direction", type=click.Choice([*DIRECTIONS, "all"]), default="all", show_default=True)
@click.option("--budget", type=Seconds(0), default=Budget.seconds, show_default=True, metavar="SECONDS",
              help="Of all directions together; what was begun is finished.")  # fmt: skip
@click.option("--share", type=FILE, help="Write this card's evidence to a file instead.")
@click.option("--adopt", type=FILE, help="Take the evidence of such a file instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(pattern: str | None, share: Path | None, adopt: Path | None, as_json: bool, **options: Any) -> None:
    """Measure the kernels that may compute PATTERN on the GPU at hand, and keep the one that wins in each direction.

    Later calls with this pattern, these shapes and this card take the winner, in every process (WEFT_CACHE_DIR). What
    is not faster by more than the noise of measuring changes nothing. Ctrl-C ends it and keeps what was measured.
    """
    if [pattern, share, adopt].count(None) != 2:
        raise OptionError(
            "weft tune", "it takes one of PATTERN, --share FILE and --adopt FILE", "pass exactly one of the three"
        )
    if pattern is None:
        _carry(share, adopt, as_json)
    else:
        _tune(pattern, as_json, **options)


def _carry(share: Path | None, adopt: Path | None, as_json: bool) -> None:
    """Evidence to a file, or from one."""
    backend = choose(backend_of(EACH).name, EACH)
    card = card_of(f"weft tune --{'share' if share else 'adopt'} {share or adopt}", EACH, backend)
    if share:
        verb, path, count = "shared", share, evidence.share(share, backend, card, weft.__version__)
    else:
        assert adopt is not None, "one of both is given"
        verb, path, count = "adopted", adopt, evidence.adopt(adopt, backend, card)
    facts = {"card": card.name, "file": str(path), verb: count, **backend.versions()}
    problems = "1 problem" if count == 1 else f"{count} problems"
    say(json.dumps(facts, indent=2) if as_json else f"{card.name}: {verb} {problems}, {path}")


def _tune(text: str, as_json: bool, direction: str, budget: float, **options: Any) -> None:
    if options["shape"] is None:
        raise OptionError(f'weft tune "{text}"', "the problem's sizes are missing", "add --shape B,H,M,D")
    pattern, problem = parse(text), problem_of(options)
    directions = tuple(one for one in DIRECTIONS if direction in ("all", one))
    backend = choose(backend_of(problem).name, problem)  # raises what the backend has against the problem
    progress = Progress(budget)
    try:
        report = tune(pattern, problem, backend, Budget(budget), directions, progress.show)
    finally:
        progress.wipe()
    facts = {"pattern": str(pattern), "problem": str(problem), **facts_of(report)}
    say(json.dumps(facts, indent=2) if as_json else _report(f"{pattern}  {problem}", report))
    if report.interrupted:
        raise SystemExit(130)  # as a shell says of what Ctrl-C ended


class Progress:
    """One line on standard error of a terminal; elsewhere nothing is said."""

    def __init__(self, budget: float) -> None:
        self.until = time.monotonic() + budget
        self.best: dict[str, tuple[float, int]] = {}
        self._say("compiling the first kernels ...")

    def show(self, direction: str, stage: str, rows: list[Measured]) -> None:
        """What was measured just now."""
        seconds, count = self.best.get(direction, (math.inf, 0))
        fastest = min([seconds, *(row.timing.seconds for row in rows if row.timing)])
        self.best[direction] = fastest, count + len(rows)
        left = max(0.0, self.until - time.monotonic())
        self._say(f"{direction}, {stage}: {count + len(rows)} measured, best {_ms(fastest)}, {left:.0f} s left")

    def wipe(self) -> None:
        """Clear the line."""
        self._say("")

    @staticmethod
    def _say(text: str) -> None:
        if sys.stderr.isatty():
            say_briefly(text)


# ---- facts -----------------------------------------------------------------------------------------------------------
def facts_of(report: Report) -> dict[str, Any]:
    """kept: whether all of it is in the store. Seconds are of one call."""
    return {
        "card": report.card.name,
        "interrupted": report.interrupted,
        "kept": report.kept,
        "by_rows": report.by_rows,
        "directions": {one.direction: _direction(one) for one in report.directions},
        "together": None if report.together is None else asdict(report.together) | {"apart": report.together.apart},
    }


def _direction(one: Tuned) -> dict[str, Any]:
    """gain: None where the untuned choice cannot run. candidates: those that were measured, the fastest first."""
    return {
        "candidates": len(one.predicted),
        "untuned": asdict(one.untuned),
        "chosen": asdict(one.chosen),
        "gain": None if math.isinf(one.gain) else one.gain,
        "measured": [
            {**asdict(row.tiling), "predicted": row.predicted, "why": row.why,
             **(asdict(row.timing) if row.timing else {"seconds": None})}
            for row in _ordered(one)
        ],
    }  # fmt: skip


def _ordered(one: Tuned) -> list[Measured]:
    """What was measured: the fastest first, then what cannot run."""
    return [*timed(one.measured.values()), *(row for row in one.measured.values() if row.timing is None)]


# ---- words -----------------------------------------------------------------------------------------------------------
def _report(title: str, report: Report) -> str:
    lines = [title, f"on {report.card.name}"]
    if report.by_rows:
        lines += ["", "forward", "  goes by rows, which have no tilings: nothing was measured"]
    for one in report.directions:
        lines += ["", *_table(one), _gain(one)]
    if report.together is not None:
        lines += ["", "gradients", *_together(report.together)]
    if report.interrupted:
        used = "the winners so far are used from now on" if report.directions else "nothing is decided yet"
        used += ", but of gradients as said above" * (report.together is not None and bool(report.directions))
        lines += ["", f"interrupted: what was measured is kept, and {used}"]
    if not report.kept:
        lines += ["", "the cache could not keep all of this, so later calls may not find it"]
    return "\n".join(lines)


def _table(one: Tuned) -> list[str]:
    """Candidates, the fastest first; the chosen and the untuned one in any case."""
    rows = _ordered(one)
    failed = sum(row.timing is None for row in rows)
    cannot = f", {failed} of them cannot run" if failed else ""
    lines = [f"{one.direction}: {len(rows)} of {len(one.predicted)} candidates measured{cannot}"]
    named = {one.chosen, one.untuned}
    shown = [row for i, row in enumerate(rows) if i < SHOWN or row.tiling in named]
    cells = [("candidate", "predicted", "measured", "ratio", ""), *(_cells(row, one) for row in shown)]
    width = max(len(row[0]) for row in cells)
    lines += [f"  {a:<{width}}  {b:>10}  {c:>17}  {d:>6}  {e}".rstrip() for a, b, c, d, e in cells]
    return lines + [f"  and {len(rows) - len(shown)} more"] * (len(rows) > len(shown))


def _cells(row: Measured, one: Tuned) -> tuple[str, str, str, str, str]:
    """ratio: measured over predicted."""
    marks = [("chosen", row.tiling == one.chosen), ("untuned", row.tiling == one.untuned)]
    said = ", ".join(word for word, holds in marks if holds)
    if row.timing is None:
        return str(row.tiling), _ms(row.predicted), "cannot run", "", ": ".join(filter(None, (said, row.why[:60])))
    ratio = f"{row.timing.seconds / row.predicted:.2f}"
    return str(row.tiling), _ms(row.predicted), f"{_ms(row.timing.seconds)} ±{_spread(row.timing):.1%}", ratio, said


def _spread(timing: Timing) -> float:
    """Half the width of the middle half of calls, of the median."""
    return (timing.high - timing.low) / 2 / timing.seconds


def _gain(one: Tuned) -> str:
    if one.winner is None:
        return "  the untuned choice stays: no other is faster by more than the noise of measuring"
    if math.isinf(one.gain):
        return "  the untuned choice cannot run"
    return f"  {one.gain:.2f} times as fast as the untuned choice"


def _together(both: Together) -> list[str]:
    """Of gradients that an untuned call makes in one kernel or walk."""
    if both.one is None and both.two is None:
        return ["  by two kernels they were not timed: an untuned call makes them together, and that stays"]
    one, two = (_ms(time.seconds) if time else "cannot run" for time in (both.one, both.two))
    stays = "two kernels make them from now on" if both.apart else "that stays, and no tiling above is used for them"
    return [f"  together, as an untuned call makes them: {one}; by the two chosen kernels: {two}", f"  {stays}"]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4f} ms"
