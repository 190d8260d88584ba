"""What came from outside: text as it may be shown, and JSON as it may be read.

Names in files, on cards, of functions and in docstrings may hold anything. A terminal obeys some characters, and a
reader is deceived by others, so they are shown by their codes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

LONGEST = 200  # characters of one name
DIGITS = 30  # of one integer: 64 bits have 20
DEPTH = 32  # of lists and objects within each other


def shown(text: object, most: int = LONGEST) -> str:
    r"""One line of text in which no character moves the cursor, hides or reorders others; `most` characters of it.

    >>> shown("kernel\x1b]0;title\x07")
    'kernel\\x1b]0;title\\x07'
    """
    said = str(text)
    cut = said if len(said) <= most else said[: most - 3] + "..."
    return cut if cut.isprintable() else "".join(map(_printable, cut))


def lines(text: object) -> str:
    """Text of several lines, each as `shown` shows it, but whole."""
    said = str(text)
    if said.isprintable():
        return said
    return "".join(one if one == "\n" else _printable(one) for one in said)


def _printable(one: str) -> str:
    """A character, or its code in Python's spelling."""
    return one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode()


def parsed(data: bytes | str) -> Any:
    """What JSON says. Raises ValueError for what is none, is nested too deep, or holds a number that no float holds."""
    try:
        found = json.loads(data, parse_constant=_no_number, parse_int=_integer, parse_float=_float)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEPTH}") from None
    level = [found]
    for _ in range(DEPTH):
        level = [part for one in level for part in _parts(one)]
    if level:
        raise ValueError(f"it is nested deeper than {DEPTH}")
    return found


def _parts(one: Any) -> Iterable[Any]:
    return one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    found = float(digits)
    if found in (float("inf"), float("-inf")):
        raise ValueError(f"{shown(digits, 40)} is more than a float holds")
    return found
