"""`weft show`: a pattern in block characters or as a picture: its terms, the tiles of its plan, its density."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from textwrap import wrap
from typing import Any

import click
import numpy as np

from weft import plot
from weft.acsr.format import Acsr
from weft.acsr.picture import owned
from weft.cli.numbers import Numbers
from weft.cli.progress import busy
from weft.cli.say import say, say_picture
from weft.errors import OptionError
from weft.outside import shown
from weft.pattern import leaves
from weft.pattern.algebra import Call, Operator, Pattern
from weft.pattern.draw import (
    OF_HALVES,
    OF_PAIRS,
    OF_SHADES,
    Paint,
    commonest,
    framed,
    glyphs,
    half_blocks,
    plain,
    shaded,
    whole_blocks,
)
from weft.pattern.excerpt import Excerpt
from weft.pattern.parse import parse
from weft.pattern.pieces import Bits, OnlyAt
from weft.pattern.tables import BlockTable
from weft.plot.tiles import MEANING, View, views
from weft.settings import colourless

MOST = 10_000  # characters of a pattern
SIDE = 64  # queries and keys of a pattern that has no size of its own
WIDEST = 100  # columns, unless --width asks for more
LARGE = 32  # queries up to which a pair takes two characters
# Nearest of the 256 colours of terminals to the colours of `weft.plot`; kind 0 is the ground of the terminal.
TERM_COLOURS = (36, 175, 74, 166, 142, 97)
REMAINDER_COLOUR = 245
TILE_COLOURS = (0, 250, 223, 214, 32)
TILE_GLYPHS = " ·░▒█"


class Command(click.Command):
    """Lets --size take one number or two, as in `--size 64 128`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--size") if "--size" in args else len(args)
        if len(args) > at + 2 and args[at + 1].isdecimal() and args[at + 2].isdecimal():
            args = [*args[: at + 1], f"{args[at + 1]},{args[at + 2]}", *args[at + 3 :]]
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class Asked:
    """What is drawn: one head of a pattern, at lengths."""

    pattern: Pattern
    m: int
    n: int
    batch: int
    head: int

    @property
    def one(self) -> Pattern:
        """The pattern that the head sees."""
        return self.pattern.at(self.batch, self.head)

    def __str__(self) -> str:
        drawn = plot.which(self.pattern, (self.batch, self.head))
        return ", ".join(filter(None, [f"{self.pattern}  {self.m:,} x {self.n:,}", drawn]))


@click.command("show", cls=Command)
@click.argument("pattern")
@click.option("--size", type=Numbers(1, 2), metavar="M [N]", help="Queries and keys.  [default: its own, or 64]")
@click.option("--head", type=click.IntRange(0), default=0, help="Which head, where heads differ.")
@click.option("--batch", type=click.IntRange(0), default=0, help="Which batch row, where they differ.")
@click.option("--tiles", is_flag=True, help="Also the tiles of its plan for a CPU, full and partial.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a .png or .svg.")
@click.option("--width", type=click.IntRange(20), metavar="COLUMNS", help="[default: the terminal's, at most 100]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(pattern: str, size: Any, **options: Any) -> None:
    """Draw PATTERN: queries run down, keys to the right."""
    parsed = parse(pattern)
    m, n = _lengths(parsed, size)
    asked = Asked(parsed, m, n, options["batch"], options["head"])
    with busy("counting live pairs"):
        acsr = parsed.acsr(m, n, asked.batch, asked.head)
        acsr.nnz  # noqa: B018 - kept by the Acsr; where rows are many this is what takes time
    if m == 0 or n == 0:
        raise OptionError(f"a picture of {asked}", "there is no pair to draw", "pass --size of 1 or more")
    if options["tiles"] and m * n > plot.LIMIT:
        raise OptionError(
            f"the tiles of {asked}",
            f"it has more than {plot.LIMIT:,} pairs",
            "pass a smaller --size, or leave out --tiles",
        )
    width = options["width"] or min(WIDEST, shutil.get_terminal_size().columns)
    if options["out"]:
        _write(asked, options["out"], options["tiles"])
    if options["as_json"]:
        say(json.dumps(_facts(asked, acsr, width, options)))
    elif options["out"]:
        say(f"{asked}\nwritten to {options['out']}")
    else:
        say_picture("\n".join(_report(asked, acsr, width, options["tiles"])))


# ---- what is drawn ---------------------------------------------------------------------------------------------------
def _lengths(pattern: Pattern, size: tuple[int, ...] | None) -> tuple[int, int]:
    """(m, n) as asked, else the pattern's own, else a small square."""
    if size is None:
        return own_size(pattern) or (SIDE, SIDE)
    return size[0], size[-1]


def own_size(pattern: Pattern) -> tuple[int, int] | None:
    """The only (M, N) that a pattern has a meaning for; None if it has one at others, or nobody can tell."""
    match pattern:
        case Call():
            return own_size(pattern.body)
        case leaves.Affine():
            m, n = pattern.lengths
            return None if m is None or n is None else (m, n)
        case leaves.Labels():
            return len(pattern.ids), len(pattern.of_keys)
        case BlockTable():
            return pattern.size
        case Bits():
            return pattern.m, pattern.n
        case leaves.Product():
            return prod(pattern.shape), prod(pattern.key_shape)
        case leaves.Segments():
            return sum(pattern.lengths), sum(pattern.key_lengths)
        case Excerpt():
            return pattern.q.size, pattern.k.size
        case OnlyAt():
            return pattern.m, pattern.n
        case Operator():
            return next((size for part in pattern.parts if (size := own_size(part)) is not None), None)
    return None


def _write(asked: Asked, path: Path, tiles: bool) -> None:
    at = (asked.batch, asked.head)
    try:
        with busy("drawing"):
            if tiles:
                figure = plot.pattern_figure(asked.pattern, asked.m, asked.n, at=at)
            else:
                figure = plot.term_figure(asked.pattern, asked.m, asked.n, at)
            plot.save(figure, path)
    except OSError as error:
        raise OptionError(f"--out {path}", f"{error.strerror}", "name a file that can be written") from None


def _facts(asked: Asked, acsr: Acsr, width: int, options: dict[str, Any]) -> dict[str, Any]:
    facts = {
        "pattern": str(asked.pattern), "m": asked.m, "n": asked.n, "batch": asked.batch, "head": asked.head,
        "pairs": acsr.nnz, "share": acsr.nnz / (asked.m * asked.n), "nbytes": acsr.nbytes,
        "terms": [{"pairs": term.nnz, "nbytes": term.nbytes, "axes": term.rank} for term in acsr.terms],
        "remainder": {"blocks": len(acsr.remainder), "nbytes": acsr.remainder.nbytes}, "notes": list(acsr.notes),
        "density": owned(acsr, width, width).share.tolist(),
    }  # fmt: skip
    if options["tiles"]:
        facts["tiles"] = [
            {"title": view.title, "boxes": len(view.boxes), "q_steps": view.q_steps, "k_steps": view.k_steps,
             "orders": view.orders,
             "pairs": {MEANING[i]: int((view.classes == i).sum()) for i in range(len(MEANING))}}
            for view in _views(asked)
        ]  # fmt: skip
    if options["out"]:
        facts["out"] = str(options["out"])
    return facts


def _views(asked: Asked) -> list[View]:
    """What the plan walks."""
    with busy("planning"):
        return views(plot.planned(asked.one, asked.m, asked.n))


# ---- in the terminal -------------------------------------------------------------------------------------------------
def _coloured() -> bool:
    """Whether standard output is a terminal whose owner wants colour."""
    return sys.stdout.isatty() and not colourless()


def painter(colours: tuple[int, ...]) -> Paint:
    """Paints kind i in colours[i]; kind 0 has the terminal's own."""

    def paint(text: str, ink: int, ground: int) -> str:
        return click.style(text, fg=colours[ink] if ink else None, bg=colours[ground] if ground else None)

    return paint


def _report(asked: Asked, acsr: Acsr, width: int, tiles: bool) -> list[str]:
    """The lines of the whole answer."""
    colour = _coloured()
    lines = [shown(asked, MOST), "", *_terms(asked, acsr, width, colour), ""]
    if tiles:
        seen = _views(asked)
        for view in seen:
            lines += [*_view(view, width, colour), ""]
        lines += [*_legend(seen, width, colour), ""]
    share = acsr.nnz / (asked.m * asked.n)
    lines.append(f"{_counted(acsr.nnz)} live, {share:.3%} of all; {acsr.nbytes:,} bytes of metadata")
    return lines + [f"note: {shown(note, MOST)}" for note in acsr.notes]


def _counted(pairs: int) -> str:
    return "1 pair" if pairs == 1 else f"{pairs:,} pairs"


def _terms(asked: Asked, acsr: Acsr, width: int, colour: bool) -> list[str]:
    """The pattern, its terms by colour: a pair is a cell where that fits, else a cell shows a share."""
    queries, keys = (0, asked.m - 1), (0, asked.n - 1)
    room = _room(width, queries)
    small = asked.n <= room and asked.m <= room
    rows, cols = (asked.m, asked.n) if small else _cells(asked.m, asked.n, room)
    found = owned(acsr, rows, cols)
    count = len(acsr.terms)
    terms = tuple(TERM_COLOURS[i % len(TERM_COLOURS)] for i in range(count))
    colours = (0, *terms, REMAINDER_COLOUR)
    paint = painter(colours) if colour else plain
    if not small:
        drawn, legend = shaded(found.owners, found.share, paint), OF_SHADES
    elif asked.m <= LARGE and 2 * cols <= room:
        drawn, cols, legend = whole_blocks(found.owners, paint), 2 * cols, OF_PAIRS
    else:
        drawn, legend = half_blocks(found.owners, paint), OF_HALVES
    scale = [] if small else [f"one character: {asked.m / rows:,.0f} queries x {asked.n / cols:,.0f} keys"]
    names = [
        f"{paint('██', kind, 0) + ' ' if colour else ''}{name}: {_counted(pairs)}"
        for kind, (name, pairs) in enumerate(found.pairs.items(), 1)
    ]
    return [*framed(drawn, cols, queries, keys), *wrap(legend, width), *scale, *names]


def _view(view: View, width: int, colour: bool) -> list[str]:
    """The tiles of some loop nests, in their own order of tokens."""
    m, n = view.classes.shape
    queries, keys = ((int(tokens[0]), int(tokens[-1])) for tokens in (view.queries, view.keys))
    room = _room(width, queries)
    lines, cols = (ceil(m / 2), n) if m <= room and n <= room else _cells(m, n, room)
    rows = min(m, 2 * lines) if colour else lines
    kinds = commonest(view.classes, rows, cols)
    drawn = half_blocks(kinds, painter(TILE_COLOURS)) if colour else glyphs(kinds, TILE_GLYPHS)
    orders = [f"{name} {order}" for name, order in zip(("queries", "keys"), view.orders, strict=True) if order]
    return [", ".join([view.title, *orders]), *framed(drawn, cols, queries, keys)]


def _legend(seen: list[View], width: int, colour: bool) -> list[str]:
    """The classes of tiles that are there, as many on a line as fit."""
    there = sorted({int(kind) for view in seen for kind in np.unique(view.classes)} - {0}, reverse=True)
    paint = painter(TILE_COLOURS)
    names = [MEANING[kind] for kind in there]
    across = max(1, width // (max(map(len, names), default=0) + 6))
    marks = [paint("██", kind, 0) if colour else TILE_GLYPHS[kind] for kind in there]
    entries = [f"{mark} {name}" for mark, name in zip(marks, names, strict=True)]
    return ["   ".join(entries[i : i + across]) for i in range(0, len(entries), across)]


def _room(width: int, queries: tuple[int, int]) -> int:
    """Columns inside a frame that names these two queries."""
    return max(8, width - max(len(f"query {queries[0]}"), len(str(queries[1]))) - 3)


def _cells(m: int, n: int, room: int) -> tuple[int, int]:
    """Lines and columns of a picture that cannot show every pair, in the proportions of m and n; characters are twice
    as high as wide.
    """
    cols = min(n, room)
    lines = ceil(m * cols / (2 * n))
    return min(m, max(8, min(lines, room // 2))), cols
