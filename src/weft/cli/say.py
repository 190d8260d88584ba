"""The one way by which commands write to a terminal: what came from outside cannot move its cursor or hide anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from weft.outside import lines, shown

LINE = 200  # characters of a line that changes


def say(text: object, err: bool = False) -> None:
    """Print text, each character that a terminal would obey by its code."""
    click.echo(lines(text), err=err)


def say_picture(text: str) -> None:
    """Print a picture of weft's own, in its colours. Names in it were made harmless before."""
    click.echo(text)


def say_briefly(text: str) -> None:
    """Write over the line of standard error where the cursor is; "" wipes it."""
    click.echo(f"\r{shown(text, LINE):<70}" + "\r" * (not text), nl=False, err=True)


@contextmanager
def harmless() -> Iterator[None]:
    """Errors of click quote what was typed, which a script may have taken from a file's name."""
    try:
        yield
    except click.ClickException as error:
        error.message = lines(error.message)  # type: ignore[misc] # final there, and the one way to change it
        raise
