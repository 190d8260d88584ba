"""What a recognition has already worked out: batch rows share what does not depend on them, keys what queries did.

Lines, terms and formulas are immutable, and one that is made twice from the same parts is one object. So whatever is
made of it is found again as well. A context of its own for each recognition: nothing is held after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")
_known: ContextVar[dict[Any, Any] | None] = ContextVar("known", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """While it lasts, remembered functions answer a question once."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def remembered(function: Callable[P, T]) -> Callable[P, T]:
    """A pure function of hashable arguments. What lists many values (`long`) is not held in memory until the end."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        known = _known.get()
        if known is None or options:
            return function(*args, **options)
        key = (function, *args)
        found = known.get(key, known)
        if found is known:  # no answer yet; None is one
            found = function(*args, **options)
            if not getattr(found, "long", False):
                known[key] = found
        return found

    return call


def remembered_by_content(function: Callable[P, T]) -> Callable[P, T]:
    """The same for arguments that are vectors, which are told apart by what they hold."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        known = _known.get()
        if known is None or options:
            return function(*args, **options)
        key = (function, *(x.tobytes() if isinstance(x, np.ndarray) else x for x in args))
        if key not in known:
            known[key] = function(*args, **options)
        found: T = known[key]
        return found

    return call


def held(question: tuple[Any, ...], answer: Any) -> None:
    """Enter an answer that came up with another one: the question as (remembered function, arguments)."""
    known = _known.get()
    if known is not None:
        known[(question[0].__wrapped__, *question[1:])] = answer
