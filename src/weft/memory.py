"""What memory there is, so that what cannot fit is refused before anything is allocated."""

from __future__ import annotations

import os
from functools import cache

from weft.errors import WeftError

UNKNOWN = 1 << 62  # where a system does not say


def available() -> int:
    """Bytes that this process may ever hold: of the machine, or less by a limit of the process."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
    except ImportError:  # as on Windows
        return _of_machine()
    limit = getrlimit(RLIMIT_AS)[0]
    return _of_machine() if limit == RLIM_INFINITY else min(limit, _of_machine())


@cache
def _of_machine() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN


def check(asked: str, nbytes: int, cure: str, error: type[WeftError]) -> None:
    """Raise an error of that kind where so many bytes are more than there are."""
    if nbytes > available():
        raise error(asked, f"it takes {said(nbytes)}, and here are {said(available())}", cure)


def said(nbytes: int) -> str:
    """Bytes as one says them.

    >>> said(125_000_000_000)
    '125.0 GB'
    """
    unit, name = next((x for x in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if nbytes >= x[0]), (1, "bytes"))
    return f"{nbytes / unit:,.1f} {name}" if unit > 1 else f"{nbytes} bytes"
