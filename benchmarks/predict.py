"""Rates of a GPU's kernels fitted, and predictions judged: `python benchmarks/predict.py --help`.

    measure fitted|judged OUT   time kernels on the GPU at hand (about four minutes each on 16 cores)
    fit [RAW...]                rates from the rows of `measure fitted`, to src/weft/planning/measured/
    judge [RAW]                 predicted beside measured: errors, rank correlations, first choices; a page and plots

Problems that are judged are drawn by a seed: the hash of the commit that last changed the rates.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import click
import numpy as np

ROOT = Path(__file__).parents[1]
# Where fits begin: start, edge over full, full. From one of them alone some end where nothing near is better.
FIRST = ([3000.0, 1.2, 500.0], [3000.0, 1.2, 1500.0], [1000.0, 1.1, 300.0])
sys.path.insert(0, str(ROOT / "src"))

from prediction.measure import Row, measure, read, works_of  # noqa: E402
from prediction.problems import core, drawn, fitted  # noqa: E402

from weft.planning.cost import merging, waiting  # noqa: E402
from weft.planning.rates import TABLES, Rates  # noqa: E402
from weft.planning.resources import resident  # noqa: E402
from weft.planning.tiling import DIRECTIONS, Direction  # noqa: E402
from weft.target import GPUS  # noqa: E402


@click.group()
def main() -> None:
    """Rates of kernels and what they predict."""


@main.command("measure")
@click.argument("which", type=click.Choice(["fitted", "judged"]))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--target", default="h200", type=click.Choice(list(GPUS)))
@click.option("--seed", help="Of the problems that are judged.  [default: the commit of the rates]")
@click.option("--only", multiple=True, help="Problems with this text in their name.")
@click.option("--direction", "directions", multiple=True, type=click.Choice(DIRECTIONS), help="Some kernels only.")
@click.option("--summed", is_flag=True, help="All gradients in one walk by warp groups alone.")
def _measure(  # noqa: PLR0913 - an argument an option
    which: str, out: Path, target: str, seed: str | None, only: tuple[str, ...], directions: tuple[Direction, ...],
    summed: bool,
) -> None:  # fmt: skip
    """Time every candidate of every problem."""
    cases = fitted() if which == "fitted" else core() + drawn(seed or commit_of_rates())
    cases = [case for case in cases if not only or any(text in case.text for text in only)]
    began = time.monotonic()

    def say(what: str) -> None:
        click.echo(f"{time.monotonic() - began:.0f} s  {what}")

    with out.open("w") as file:
        for row in measure(cases, GPUS[target], say, directions or DIRECTIONS, summed):
            file.write(row.text + "\n")


def commit_of_rates() -> str:
    """The commit that froze them."""
    found = subprocess.run(
        ["git", "log", "-1", "--format=%H", "--", "src/weft/planning/measured", "src/weft/planning/cost.py",
         "src/weft/planning/rates.py", "src/weft/target.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return found.stdout.strip()


# ---- fit -------------------------------------------------------------------------------------------------------------
@main.command("fit")
@click.argument("raw", type=click.Path(path_type=Path, exists=True), nargs=-1)
@click.option("--target", default="h200", type=click.Choice(list(GPUS)))
@click.option("--versions", help="Of what RAW was measured with.  [default: as before]")
def _fit(raw: tuple[Path, ...], target: str, versions: str | None) -> None:
    """Three numbers for each head dimension, direction, kind and tiling: start, edge, full.

    RAW, what `measure fitted` wrote, joins the rows that are kept first; of a kernel of a problem the last time counts.
    """
    from prediction import rows as table

    gpu, rates = GPUS[target], TABLES / f"{target}.json"
    kept = ROOT / "benchmarks" / "results" / f"rates-{target}.csv"
    rows = [*(table.read(kept) if kept.exists() else ()), *(row for path in raw for row in read(path))]
    table.write(kept, {(row.case, row.direction, row.tiling): row for row in rows}.values())
    if versions is None:
        versions = json.loads(rates.read_text())["versions"]
    rows = list(table.read(kept))
    lines = ",\n".join(json.dumps(line, separators=(",", ":")) for line in _fitted(rows, gpu))
    rates.parent.mkdir(exist_ok=True)
    rates.write_text(f'{{"target": "{target}", "versions": "{versions}",\n"rates": [\n{lines}\n]}}\n')
    click.echo(f"{lines.count(chr(10)) + 1} kernels, {rates.stat().st_size} bytes")


def _fitted(rows, gpu):
    """Lines of a table of rates."""
    groups = defaultdict(list)
    for row in rows:
        if row.seconds:
            groups[row.case.d, row.direction, row.tiling].append((row, works_of(row, gpu)))
    for (d, direction, tiling), found in sorted(groups.items(), key=str):
        t = tiling
        shape = [t.rows, t.cols, t.warps, t.stages, t.registers, t.apart, *([t.groups] if t.groups else [])]
        for kind, clocks in solve(found, gpu).items():
            yield [d, direction, kind, shape, [round(float(x), 1) for x in (clocks.start, clocks.edge, clocks.full)]]


def solve(found, gpu):
    """For each kind the clocks that come closest, errors relative and large ones weighed less."""
    from scipy.optimize import least_squares

    often = Counter(work.kind for _, works in found for work in works)
    kinds = [kind for kind, times in often.items() if times > 1]
    found = [(row, works) for row, works in found if all(work.kind in kinds for work in works)]

    def errors(logs):
        known = {kind: _rates(logs[3 * i : 3 * i + 3]) for i, kind in enumerate(kinds)}
        return [np.log(predicted(row, works, known, gpu) / row.seconds) for row, works in found]

    bounds = np.log([1.0, 0.9, 1.0] * len(kinds)), np.log([1e6, 10.0, 1e6] * len(kinds))
    ends = [
        least_squares(errors, np.log(first * len(kinds)), loss="soft_l1", f_scale=0.1, bounds=bounds) for first in FIRST
    ]
    best = min(ends, key=lambda end: round(float(end.cost), 9)).x
    return {kind: _rates(best[3 * i : 3 * i + 3]) for i, kind in enumerate(kinds)}


def _rates(logs) -> Rates:
    """From logarithms: start, edge over full (a mask costs something, which few rows tell from a start), full."""
    start, over, full = np.exp(logs)
    return Rates(start, over * full, full)


def predicted(row: Row, works, known, gpu) -> float:
    """Seconds under the rates of each kind."""
    side = resident(row.direction, row.case.problem, row.tiling, gpu)
    clocks = 0.0
    for work in works:
        rate = known[work.kind]
        whole = work.programs * rate.start + work.edge * rate.edge + work.full * rate.full
        clocks += whole / gpu.processors + waiting(work, rate, side, gpu, row.tiling.groups > 0)
    problem = row.case.problem
    added = sum(merging(work, row.direction, problem, row.tiling, gpu) for work in works)
    return clocks / gpu.clock + added + len(works) * gpu.launch_seconds


# ---- judge -----------------------------------------------------------------------------------------------------------
@main.command("judge")
@click.argument("raw", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--target", default="h200", type=click.Choice(list(GPUS)))
@click.option("--device", default="one NVIDIA H200")
@click.option("--versions", default="")
@click.option("--seed", default="")
def _judge(raw: Path | None, target: str, device: str, versions: str, seed: str) -> None:
    """Rewrite docs/prediction.md; with RAW, what `measure judged` wrote, replace the rows of its kernels first."""
    from prediction import page
    from prediction import rows as table

    results = ROOT / "benchmarks" / "results"
    rows, said = results / f"prediction-{target}.csv", results / f"prediction-{target}.json"
    if raw is not None:
        new = read(raw)
        again = {row.direction for row in new}
        kept = [row for row in table.read(rows) if row.direction not in again] if rows.exists() else []
        table.write(rows, [*kept, *new])
        facts = json.loads(said.read_text()) if said.exists() else {"kernels": {}}
        facts |= {"file": rows.name, "device": device}
        facts["kernels"] |= {way: {"seed": seed or commit_of_rates(), "versions": versions} for way in sorted(again)}
        said.write_text(json.dumps(facts, indent=1) + "\n")
    found = table.judged(table.read(rows), GPUS[target])
    text = page.page(found, GPUS[target], json.loads(said.read_text()), ROOT / "docs" / "plots")
    (ROOT / "docs" / "prediction.md").write_text(text)
    click.echo("\n".join(line for line in text.splitlines() if line.startswith("| ")))


if __name__ == "__main__":
    main()
