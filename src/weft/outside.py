"""What came from outside: text as it may be shown, and JSON as it may be read.

Names in files, on cards, of functions and in docstrings may hold anything. A terminal obeys some characters, and a
reader is deceived by others, so they are shown by their codes.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable
from keyword import iskeyword
from pathlib import Path
from typing import Any, NoReturn

LONGEST = 200  # characters of one name
NAME = 64  # characters of a name in generated source
TAKEN = ("max", "min", "sqrt")  # functions that formulas call
DIGITS = 30  # of one integer: 64 bits have 20
DEPTH = 32  # of lists and objects within each other
MOST = 64 << 20  # bytes of one file
QUIETLY = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link", stat.S_IFDIR: "a directory", stat.S_IFREG: "a file",
}  # fmt: skip


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


def is_name(text: object, most: int = NAME) -> bool:
    """Whether a text may stand in generated source as a name: letters of ASCII, digits and underscores, and no word of
    Python's or of formulas.
    """
    known = isinstance(text, str) and text.isascii() and text.isidentifier() and len(text) <= most
    return known and not iskeyword(str(text)) and text not in TAKEN and not str(text).startswith("__")


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


def file_bytes(path: Path, most: int = MOST) -> bytes:
    """All of a file that somebody named. Raises OSError, also for what is no file, or has more than `most` bytes.

    A FIFO or a device would be waited for without end: it is not opened.
    """
    wrong = _not_a_file(path.stat(), most)
    if not wrong:
        file = os.open(path, os.O_RDONLY | QUIETLY)
        with os.fdopen(file, "rb") as stream:
            wrong = _not_a_file(os.fstat(file), most)
            data = b"" if wrong else stream.read(most + 1)
        if not wrong and len(data) <= most:
            return data
    raise OSError(errno.EINVAL, wrong or "it grows while it is read")


def check_file(path: Path) -> None:
    """Raise OSError, which says what it is, for what is no file: opening a FIFO waits for whoever writes."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind(found)}, no file")


def kind(found: os.stat_result) -> str:
    """What stands at a path, in words."""
    return KINDS.get(stat.S_IFMT(found.st_mode), "no file")


def _not_a_file(found: os.stat_result, most: int) -> str:
    """Why something is no file to be read whole; "" where it is."""
    if not stat.S_ISREG(found.st_mode):
        return f"it is {kind(found)}, no file"
    return f"it has {found.st_size} bytes, more than {most}" if found.st_size > most else ""
