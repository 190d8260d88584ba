"""Room in memory, asked for before something of every pair is made. A system that promises too much ends a process."""

from __future__ import annotations

import os
from math import prod

import numpy as np

from weft.errors import UnsupportedError
from weft.pattern.relation import NDBool


def booleans(shape: tuple[int, ...], asked: str) -> NDBool:
    """An array that is not set. Raises UnsupportedError where memory does not hold it."""
    check(prod(shape), asked, "ask for fewer tokens, or for .acsr(m, n), which has rows and no pairs")
    return np.empty(shape, np.bool_)


def check(nbytes: int, asked: str, cure: str) -> None:
    """Raise UnsupportedError where so many bytes are more than this machine has. asked, cure: see `WeftError`."""
    there = size()
    if there is not None and nbytes > there:
        wrong = f"it takes {nbytes / 2**30:,.0f} GiB, and this machine has {there / 2**30:,.0f}"
        raise UnsupportedError(asked, wrong, cure)


def size() -> int | None:
    """Bytes of memory of this machine; None where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
