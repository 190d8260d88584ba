"""`weft demo`: the main job on real text and a photograph, or one page about every pattern of the library."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from weft.cli.say import say, say_briefly
from weft.errors import OptionError, UnsupportedError, install_line
from weft.pattern.parse import parse


@click.command("demo")
@click.argument("what", type=click.Choice(["distributed"]), required=False)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("weft-demo"), show_default=True,
              metavar="DIR", help="Where pictures go.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Smaller inputs, a few seconds.")
@click.option("--no-pictures", is_flag=True, help="Print only.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write one page about every pattern of the library instead.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the rows of that page, one JSON object a line.")
def command(what: str | None, out: Path, quick: bool, no_pictures: bool, html: Path | None, as_json: bool) -> None:
    """Pack, plan, prove, run and draw; exits with 1 if a check fails.

    "distributed": four processes train a small model over one sequence instead, and the exchange is drawn.
    """
    if html:
        _check_writable(html)
    try:
        import torch  # noqa: F401
    except ImportError as missing:
        raise UnsupportedError("weft demo", f"torch: {missing}", install_line("torch")) from None
    if what:
        held = _over_processes()
    elif html or as_json:
        held = _library(html, as_json)
    else:
        from weft.demo.__main__ import main

        held = not main([f"--out={out}", *["--quick"] * quick, *["--no-pictures"] * no_pictures])
    sys.exit(0 if held else 1)


def _over_processes() -> bool:
    import torch.distributed

    if not torch.distributed.is_available():
        raise UnsupportedError(
            "weft demo distributed", "this torch has no torch.distributed", "install a build of torch that has it"
        )
    from weft.demo.distributed import main

    return main(say)


def _check_writable(html: Path) -> None:
    """Refuse before anything runs; what is there stays as it is."""
    with _refusing(html):
        new = not (html.exists() or html.is_symlink())
        html.open("a").close()
        if new:
            html.unlink()


@contextmanager
def _refusing(html: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OptionError(f"--html {html}", f"{error.strerror}", "name a file that can be written") from None


def _library(html: Path | None, as_json: bool) -> bool:
    """The page and its rows; whether every check holds."""
    from weft.demo.page import SHOWN, entries, page

    found = []
    for number, entry in enumerate(entries(parse, pictures=html is not None), 1):
        found.append(entry)
        if as_json:
            say(json.dumps(_facts(entry)))
        elif sys.stderr.isatty():
            say_briefly(f"  [{number}/{len(SHOWN)}] {entry.name:24}")
    if html:
        with _refusing(html):
            html.write_text(page(found), encoding="utf-8")
    wrong = [entry.name for entry in found if not entry.holds]
    if html and not as_json:
        said = f"FAILED: {', '.join(wrong)}" if wrong else "every check holds"
        say(f"{len(found)} patterns in {html}; {said}")
    return not wrong


def _facts(entry: Any) -> dict[str, Any]:
    facts = asdict(entry) | {"holds": entry.holds}
    return {name: value for name, value in facts.items() if name not in ("picture", "meaning")}
