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
