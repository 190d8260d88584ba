"""What the demo prints: one line per case as soon as it is done, and on a terminal what it is busy with."""

from __future__ import annotations

import sys
from typing import TextIO

from weft.demo.guests import Outcome
from weft.demo.measure import Row

HEADER = ("case", "live", "tables", "plan", "verify", "weft", "dense", "speed-up", "max error", "check")
WIDTHS = (18, 8, 9, 9, 9, 9, 10, 9, 10, 0)
GUESTS = ("model", "tokens", "weft", "own", "speed-up", "apart", "check")
WIDTHS_OF_GUESTS = (18, 8, 9, 10, 9, 10, 0)


class Table:
    """Prints rows; `progress` overwrites one line on a terminal and is silent elsewhere."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = sys.stdout if out is None else out
        self.busy = ""

    def say(self, text: str = "") -> None:
        """One line that stays."""
        self.progress("")
        print(text, file=self.out, flush=True)

    def progress(self, text: str) -> None:
        """What is being done now; an empty text wipes it."""
        if self.out.isatty() and (text or self.busy):
            print("\r" + " " * len(self.busy) + "\r" + text, end="", file=self.out, flush=True)
            self.busy = text

    def header(self, names: tuple[str, ...] = HEADER, widths: tuple[int, ...] = WIDTHS) -> None:
        """The names of the columns."""
        line = columns(names, widths)
        self.say(line)
        self.say("-" * len(line))

    def row(self, name: str, row: Row) -> None:
        """One case."""
        self.say(
            columns((
                name, f"{row.live:.2%}", kilobytes(row.nbytes), milliseconds(row.plan), milliseconds(row.verify),
                milliseconds(row.sparse), milliseconds(row.dense), f"{row.dense / row.sparse:.1f}x",
                f"{row.error:.1e}", f"FAILED: {row.wrong}" if row.wrong else "ok",
            ))
        )  # fmt: skip

    def guest(self, name: str, found: Outcome) -> None:
        """One model of another library."""
        cells = (
            name, f"{found.tokens}", milliseconds(found.weft), milliseconds(found.own),
            f"{found.own / found.weft:.1f}x", f"{found.apart:.1e}", f"FAILED: {found.wrong}" if found.wrong else "ok",
        )  # fmt: skip
        self.say(columns(cells, WIDTHS_OF_GUESTS))


def columns(cells: tuple[str, ...], widths: tuple[int, ...] = WIDTHS) -> str:
    """The first cell to the left, the last one after two spaces, the others to the right."""
    first, *middle, last = zip(cells, widths, strict=True)
    return f"{first[0]:<{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in middle) + f"  {last[0]}"


def milliseconds(seconds: float) -> str:
    """Three digits or so."""
    value = seconds * 1e3
    return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def kilobytes(count: int) -> str:
    """Bytes in kB."""
    return f"{count / 1e3:.1f} kB"
