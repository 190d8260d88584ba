"""Ends a function that does not return, where the caller said how many seconds it may take.

`weft.recognition.pace` counts pairs between calls of a function; what never comes back it cannot count. So a timer
raises an exception in the thread that waits, at the next step of Python that it takes there.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from weft.recognition.pace import TooSlowError

GRACE = 0.5  # seconds beyond the limit in which `pace` may still say it better


class _Ended(BaseException):
    """Internal: no handler of the function's own takes it for an error of its own."""


@contextmanager
def ended(asked: str, limit: float | None) -> Iterator[None]:
    """Raises TooSlowError in what it holds after `limit` seconds; None: never."""
    if limit is None:
        yield
        return
    me, lock, over = threading.get_ident(), threading.Lock(), threading.Event()

    def end() -> None:
        with lock:
            if not over.is_set():
                _raise_in(me, _Ended)

    timer = threading.Timer(limit + GRACE, end)
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            timer.cancel()
            with lock:
                over.set()
            _raise_in(me, None)  # takes back what was not raised yet
    except _Ended:
        raise TooSlowError(
            asked, f"the function did not return within limit={limit:g} seconds",
            "see that it ends, or pass a larger limit=",
        ) from None  # fmt: skip


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread at its next step of Python; None: take back the one that waits."""
    what = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)
