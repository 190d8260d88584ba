"""Kinds of arguments of commands."""

from __future__ import annotations

from typing import Any

import click


class Numbers(click.ParamType):
    """`least` to `most` natural numbers joined by commas (or x), of 31 bits."""

    name = "numbers"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        words = value.lower().replace("x", ",").split(",")
        if not self.least <= len(words) <= self.most or not all(word.strip().isdecimal() for word in words):
            count = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
            self.fail(f"{value!r} is not {count} numbers joined by commas", param, ctx)
        if max(map(len, words)) > 10 or max(map(int, words)) >= 1 << 31:
            self.fail(f"{value!r} has a number of more than 31 bits", param, ctx)
        return tuple(int(word) for word in words)


class Seconds(click.FloatRange):
    """Seconds from `min` on; not what is no number, which is in every range."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if found != found:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return found
