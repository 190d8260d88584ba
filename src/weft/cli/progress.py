"""What a command is busy with, on standard error of a terminal; elsewhere nothing is said."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Says `text` for as long as the block runs, then wipes it."""
    if not sys.stderr.isatty():
        yield
        return
    click.echo(f"\r{text} ...", nl=False, err=True)
    try:
        yield
    finally:
        click.echo(f"\r{'':{len(text) + 4}}\r", nl=False, err=True)


class Line:
    """One line that changes, on standard error of a terminal; elsewhere nothing is said."""

    WIDTH = 70

    def say(self, text: str) -> None:
        """Say something else."""
        if sys.stderr.isatty():
            click.echo(f"\r{text:<{self.WIDTH}}", nl=False, err=True)

    def wipe(self) -> None:
        """Say nothing any more."""
        if sys.stderr.isatty():
            click.echo(f"\r{'':{self.WIDTH}}\r", nl=False, err=True)
