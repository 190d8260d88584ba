"""What a command is busy with, on standard error of a terminal; elsewhere nothing is said."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from weft.cli.say import say_briefly


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Says `text` for as long as the block runs, then wipes it."""
    line = Line()
    line.say(f"{text} ...")
    try:
        yield
    finally:
        line.wipe()


class Line:
    """One line that changes, on standard error of a terminal; elsewhere nothing is said."""

    def say(self, text: str) -> None:
        """Say something else."""
        if sys.stderr.isatty():
            say_briefly(text)

    def wipe(self) -> None:
        """Say nothing any more."""
        self.say("")
