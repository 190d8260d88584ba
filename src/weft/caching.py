"""Caches of what becomes of patterns: each keeps so many, and all are emptied together where masks hold many bytes.

The Acsr of a pattern takes kilobytes, that of a mask without structure a bit for each pair. What is made of it takes
some eight times that on the host, three times on a GPU. So masks that differ at every step must not pile up until some
number of them is reached.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from weft.settings import plans_bytes

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

Made = TypeVar("Made")
Key = TypeVar("Key", bound=Hashable)
SMALL = 1 << 20  # bytes: what is less is bounded by how many are kept


@dataclass
class _Kept:
    """held: bytes of what is not small and was made since all was forgotten."""

    forget: list[Callable[[], None]] = field(default_factory=list)
    held: int = 0
    warned: bool = False
    lock: Lock = field(default_factory=Lock)


_kept = _Kept()


def cached(maxsize: int) -> Callable[[Callable[..., Made]], _lru_cache_wrapper[Made]]:
    """As functools.lru_cache, and emptied with the others."""

    def of(function: Callable[..., Made]) -> _lru_cache_wrapper[Made]:
        found = lru_cache(maxsize=maxsize)(function)
        emptied_by(found.cache_clear)
        return found

    return of


def emptied_by(forget: Callable[[], None]) -> None:
    """A cache of another kind, which is to be emptied with these."""
    _kept.forget.append(forget)


class Recent(dict[Key, Made]):
    """What was made last, at most so many things by their keys. It is looked up as a dict, and emptied with the others.

    Example::

        calls = Recent(256)
        call = calls.get(key) or calls.keep(key, plan(key))
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.lock = most, Lock()
        emptied_by(self.clear)

    def keep(self, key: Key, made: Made) -> Made:
        """Keep what was made, in place of the oldest one where there are so many."""
        with self.lock:
            while len(self) >= self.most and key not in self:
                del self[next(iter(self))]
            self[key] = made
        return made

    def clear(self) -> None:
        """Forget all."""
        with self.lock:
            super().clear()


def clear() -> None:
    """Forget every plan, and all that was made of one; whoever holds one keeps it."""
    with _kept.lock:
        _kept.held = 0
    for forget in _kept.forget:
        forget()


def grew(nbytes: int) -> None:
    """A plan whose Acsr takes so many bytes was made: forget all before it where there is no room for both."""
    if nbytes < SMALL:
        return
    limit = plans_bytes()
    if _kept.held and _kept.held + nbytes > limit:
        clear()
        _say(limit)
    with _kept.lock:
        _kept.held += nbytes


def _say(limit: int) -> None:
    """Once."""
    if not _kept.warned:
        _kept.warned = True
        warnings.warn(
            f"weft: masks without structure hold more than {limit >> 20} MiB, so all plans are forgotten, and made "
            "anew where they are asked for again. Set WEFT_PLANS_MIB to keep more.",
            RuntimeWarning, stacklevel=3,
        )  # fmt: skip
