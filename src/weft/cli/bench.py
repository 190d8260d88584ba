"""`weft bench`: measure weft beside its peers, or write the pages from the rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from weft.bench import rows, select
from weft.bench.run import DIRECTIONS, Bench, Machine, probe
from weft.cli.numbers import Seconds
from weft.cli.say import say, say_briefly
from weft.testing.workloads import WORKLOADS


@click.command()
@click.argument("names", nargs=-1)
@click.option("--peers", default="", help="Comma-separated; `all` for every one.  [default: all but the slowest]")
@click.option("--direction", type=click.Choice(list(DIRECTIONS)), default="both", show_default=True)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="[default: cuda if there is a GPU]")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Each of 2 ms of calls or one.")
@click.option("--limit", type=Seconds(1), default=180.0, show_default=True,
              help="Seconds without word before a peer is given up.")  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path),
              help="[default: benchmarks/results/DEVICE.csv]")  # fmt: skip
@click.option("--resume/--fresh", default=True, help="Leave out rows that this commit has here.  [default: resume]")
@click.option("--json", "as_json", is_flag=True, help="Print the new rows as JSON, one a line.")
@click.option("--list", "listed", is_flag=True, help="List workloads, tags and peers.")
@click.option("--report", is_flag=True, help="Write docs/performance.md, the plots and the figures of docs/honesty.md.")
def command(names: tuple[str, ...], listed: bool, report: bool, **options: Any) -> None:
    """Measure weft beside its peers. NAMES are workloads or tags: by default `core` on a GPU, `cpu` on a CPU."""
    if report:
        _report()
    elif listed:
        _list(options["device"] or "")
    else:
        _measure(names, **options)


def _measure(names: tuple[str, ...], **options: Any) -> None:
    chosen = select.workloads(names)
    if options["out"]:
        rows.check(options["out"])  # refused before anything runs
    machine = probe(options["device"] or "")
    chosen = chosen or select.workloads(["core" if machine.device == "cuda" else "cpu"])
    wanted = [name for name in options["peers"].split(",") if name]
    peers = select.peers(wanted, machine.ways, machine.default)
    for name in peers:
        if name in machine.absent and name in wanted:
            say(f"{name} is left out: {machine.absent[name]}", err=True)
    out = options["out"] or rows.path_of(machine.origin["machine"], machine.device)
    say(f"{machine.origin['machine']}, torch {machine.origin['torch']}, rows go to {out}", err=True)
    progress = Progress(chosen, options["rounds"])
    bench = Bench(
        machine, out, rounds=options["rounds"], limit=options["limit"], fresh=not options["resume"], show=progress.show
    )  # fmt: skip
    made = bench.run(chosen, peers, options["direction"])
    for row in made if options["as_json"] else []:
        say(json.dumps(row))
    if not options["as_json"]:
        say(table(made))


class Progress:
    """Tells on standard error what the worker does."""

    def __init__(self, names: list[str], rounds: int) -> None:
        self.names, self.rounds = names, rounds

    def show(self, name: str, event: dict[str, Any]) -> None:
        """One event."""
        kind = event["event"]
        if kind == "workload":
            finished = f", {event['finished']} finished before" if event["finished"] else ""
            self._say(f"[{self.names.index(name) + 1}/{len(self.names)}] {name}{finished}")
        elif kind == "ready":
            self._say(f"  {event['direction']} {event['peer']:12} ready after {event['first_ms'] / 1e3:.1f} s")
        elif kind == "row":
            self._say(f"  {event['row']['direction']} {event['row']['peer']:12} {_figures(event['row'])}")
        elif sys.stderr.isatty():
            text = f"round {event['round']} of {self.rounds}" if kind == "round" else "..."
            say_briefly(f"  {event['direction']} {event['peer']:12} {text:20}")

    @staticmethod
    def _say(text: str) -> None:
        say(f"{text:50}", err=True)


def _figures(row: dict[str, Any]) -> str:
    if row.get("median_ms") is None:
        return f"{row['status']}: {row['message']}"
    rate = row.get("tflops")
    rates = f" {rate:9.4g} TFLOP/s" if rate else f" {row['gbs']:9.4g} GB/s" if row.get("gbs") else ""
    said = "" if row["status"] == rows.OK else f"  {row['status']}: {row['message']}"
    return f"{row['median_ms']:10.4g} ms{rates}{said}"


def table(made: list[dict[str, Any]]) -> str:
    """The new rows that have a time, and how many have none."""
    timed = [row for row in made if row.get("median_ms") is not None]
    lines = [f"{row['workload']:28} {row['direction']} {row['peer']:12}{_figures(row)}" for row in timed]
    others = len(made) - len(timed)
    return "\n".join([*lines, f"{len(timed)} rows with times, {others} without (refused, wrong or failed)"])


def _list(device: str) -> None:
    for w in WORKLOADS.values():
        say(f"{w.name:28} {w.shape:24} {w.dtype:9} {w.share:8.3%}  {' '.join(w.tags)}")
    machine: Machine = probe(device)
    say(f"\npeers on this machine ({machine.device}):")
    for name in machine.ways:
        default = "" if name in machine.default else "  (only where named)"
        say(f"  {name:12} {machine.absent.get(name) or 'ready' + default}")


def _report() -> None:
    from weft.bench.report import write

    for path in write(rows.RESULTS, Path("docs")):
        say(str(path))
