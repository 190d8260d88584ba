"""Caches of what becomes of patterns: each keeps so many, and all are emptied together where plans hold many bytes.

A plan of a pattern takes kilobytes, one of a mask without structure a byte for every four pairs of its blocks, and what
is made of it several times that, on the host and on the GPU. So masks that differ at every step must not pile up until
some number of them is reached.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from weft.settings import plans_bytes

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

Made = TypeVar("Made")
SMALL = 1 << 20  # bytes: plans of less are bounded by how many are kept


@dataclass
class _Kept:
    """held: bytes of the plans that are not small, made since all were forgotten."""

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


def clear() -> None:
    """Forget every plan, and all that was made of one; whoever holds one keeps it."""
    with _kept.lock:
        _kept.held = 0
    for forget in _kept.forget:
        forget()


def grew(nbytes: int) -> None:
    """A plan of so many bytes was made: forget all before it where there is no room for it beside them."""
    if nbytes < SMALL:
        return
    limit = plans_bytes()
    with _kept.lock:
        room = _kept.held == 0 or _kept.held + nbytes <= limit
        _kept.held += nbytes
        told, _kept.warned = _kept.warned, _kept.warned or not room
    if room:
        return
    clear()
    with _kept.lock:
        _kept.held += nbytes
    if not told:
        warnings.warn(
            f"weft: plans of masks without structure hold more than {limit >> 20} MiB, so all plans are forgotten, and "
            "made anew where they are asked for again. Set WEFT_PLANS_MIB to keep more.",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
