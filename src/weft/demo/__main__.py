"""`python -m weft.demo`: the whole run; exits with 1 if a check fails."""

from __future__ import annotations

import argparse
import importlib.util
import platform
from pathlib import Path
from time import perf_counter

import torch

from weft.demo.cases import Case, cases, has_transformers
from weft.demo.guests import GUESTS
from weft.demo.inputs import HEADS, D, Pack, Qkv, drawn_map, embed_map, embed_text, pack_sources, photograph
from weft.demo.measure import measure, yield_cores
from weft.demo.table import GUESTS as COLUMNS_OF_GUESTS
from weft.demo.table import WIDTHS_OF_GUESTS, Table
from weft.errors import WeftError, install_line

SIZES = {False: (16384, 64, 224), True: (2048, 32, 96)}  # quick or not: bytes of text, side of the map, of the picture


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 if every check holds, 1 if not."""
    options = _options(arguments)
    table, start = Table(), perf_counter()
    busy = yield_cores()
    tokens, side, picture = SIZES[options.quick]
    pack = pack_sources(tokens)
    inputs = _inputs(table, pack, side)
    if busy:
        table.say("note  other work keeps the cores busy: one thread is used, and times are longer than they need be")
    todo = cases(pack.lengths, side)
    for case in todo:
        table.say(f"  {case.name:<18}{case.pattern}")
    if not has_transformers():
        table.say(
            f"note  no mask function of transformers is recognised: not installed ({install_line('transformers')})"
        )
    table.say()
    failed, timed = _run(table, todo, inputs)
    _explain(table)
    failed += _invite(table, pack, options.quick, timed)
    if not options.no_pictures:
        failed += _draw(table, todo, options.out, picture, timed)
    table.say(f"{'FAILED: ' + ', '.join(failed) if failed else 'every check holds'}; {perf_counter() - start:.0f} s")
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m weft.demo", description="weft on real input: text and a photograph"
    )
    parser.add_argument("--out", type=Path, default=Path("weft-demo"), metavar="DIR", help="where pictures go")
    parser.add_argument("--quick", action="store_true", help="smaller inputs, a few seconds")
    parser.add_argument("--no-pictures", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    try:
        if not options.no_pictures:
            options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {options.out}: {error.strerror}; name a folder that can be written, or use --no-pictures")
    return options


def _inputs(table: Table, pack: Pack, side: int) -> dict[str, Qkv]:
    """q, k, v of the text and of the map; says what they are."""
    shown = ", ".join(f"{name} {length}" for name, length in zip(pack.names[:3], pack.lengths, strict=False))
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    threads = torch.get_num_threads()
    table.say(f"weft on {threads} thread{'s' * (threads > 1)}, {versions}; {HEADS} heads, D = {D}, float32")
    table.say(f"text  {pack.tokens.size} bytes of {len(pack.names)} modules of the standard library ({shown}, ...)")
    colours = photograph(side)
    kind = "a photograph (Grace Hopper, from matplotlib's sample data)"
    if colours is None:
        colours, kind = (
            drawn_map(side),
            f"drawn rings, since matplotlib's photograph is not here ({install_line('plot')})",
        )
    table.say(f"map   {side} x {side} pixels of {kind}")
    return {"text": embed_text(pack.tokens), "map": embed_map(colours)}


Timed = list[tuple[str, float, float]]  # of each row its name, and seconds by weft and without it


def _run(table: Table, todo: list[Case], inputs: dict[str, Qkv]) -> tuple[list[str], Timed]:
    """Every case, one line each; the names of those that fail, and what took how long."""
    failed: list[str] = []
    timed: Timed = []
    table.header()
    for number, case in enumerate(todo, 1):

        def progress(text: str, where: str = f"[{number}/{len(todo)}] {case.name}") -> None:
            table.progress(f"{where}: {text} ...")

        try:
            row = measure(case.pattern, inputs[case.on], progress)
        except WeftError as error:
            table.say(f"{case.name:<18}FAILED: {error}")
            failed.append(case.name)
            continue
        table.row(case.name, row)
        timed.append((case.name, row.sparse, row.dense))
        if row.wrong:
            failed.append(case.name)
    return failed, timed


def _invite(table: Table, pack: Pack, quick: bool, timed: Timed) -> list[str]:
    """Models of other libraries, one line each, where their library is installed; the names of those that fail."""
    failed, here = [], [guest for guest in GUESTS if guest.here]
    if here:
        table.header(COLUMNS_OF_GUESTS, WIDTHS_OF_GUESTS)
    for guest in here:
        table.progress(f"{guest.name}: {guest.what} ...")
        try:
            found = guest.run(pack, quick)
        except (WeftError, ImportError) as error:  # a library of another version may lack what the guest needs
            table.say(f"{guest.name:<18}FAILED: {error}")
            failed.append(guest.name)
            continue
        table.guest(guest.name, found)
        timed.append((guest.name, found.weft, found.own))
        failed += [guest.name] * bool(found.wrong)
    if here:
        table.say()
    for guest in here:
        table.say(f"{guest.name}: {guest.what}; random weights, forward")
    for guest in GUESTS:
        if not guest.here:
            table.say(f"note  {guest.name}: {guest.module} is not installed ({install_line(guest.module)})")
    table.say()
    return failed


def _explain(table: Table) -> None:
    table.say()
    table.say("live: pairs that may attend; tables: bytes of the plan, forward and transposed; weft: best of 3 calls;")
    table.say(
        "dense: scaled_dot_product_attention with the boolean mask, once; max error: against float64 on sampled rows."
    )
    table.say()


def _draw(table: Table, todo: list[Case], folder: Path, side: int, timed: Timed) -> list[str]:
    """Writes the pictures; the names of checks that fail."""
    if importlib.util.find_spec("matplotlib") is None:
        table.say(f"no pictures: matplotlib is not installed ({install_line('plot')})")
        return []
    from weft.demo.pictures import draw_case, draw_chart, draw_photograph

    for number, case in enumerate(todo, 1):
        table.progress(f"[{number}/{len(todo)}] drawing {case.name} ...")
        draw_case(case, folder)
    chart = draw_chart(timed, folder)
    table.progress("smoothing the photograph ...")
    found = draw_photograph(folder, side)
    table.say(f"pictures: {len(todo)} patterns with their tiles in {folder}/")
    table.say(f"          {chart}: weft beside dense attention on this machine")
    if found is None:
        return []
    path, before, after = found
    table.say(f"          {path}: noise removed by attention, {before:.1f} dB -> {after:.1f} dB")
    return [] if after > before else ["photograph"]


if __name__ == "__main__":
    raise SystemExit(main())
