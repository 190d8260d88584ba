"""Masks that are tensors or functions: what became of them, by their fingerprint and the sizes of a call."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import ReferenceType, ref

from torch import Tensor

from weft.caching import emptied_by
from weft.torch.fingerprint import Fingerprint

KEPT = 256  # fingerprints
SIZES = 64  # sizes of calls of one mask
Sizes = tuple[Any, ...]
Made = TypeVar("Made")


@dataclass(frozen=True, eq=False, slots=True)
class _Entry(Generic[Made]):
    """references: tensors of the fingerprint. held: what else it names by identity."""

    references: tuple[ReferenceType[Tensor], ...]
    held: tuple[Any, ...]
    by_size: dict[Sizes, Made] = field(default_factory=dict)


class MaskCache(Generic[Made]):
    """A cache that forgets an entry when a tensor of its fingerprint goes, and all of them with the caches of plans."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Any, ...], _Entry[Made]] = {}
        self.lock = Lock()
        emptied_by(self.clear)

    def __len__(self) -> int:
        return len(self._entries)

    def sizes(self) -> list[int]:
        """How many sizes each entry was called at."""
        return [len(entry.by_size) for entry in self._entries.values()]

    def clear(self) -> None:
        """Forget all."""
        with self.lock:
            self._entries.clear()

    def find(self, found: Fingerprint, *sizes: Sizes) -> Made | None:
        """What was made at the first of these sizes that is known; None where none is."""
        entry = self._entry(found)
        if entry is None:
            return None
        return next((entry.by_size[one] for one in sizes if one in entry.by_size), None)

    def keep(self, found: Fingerprint, sizes: Sizes, made: Made) -> None:
        """Keep what was made at these sizes; the caller holds `lock`."""
        entry = self._entry(found) or self._begin(found)
        if len(entry.by_size) >= SIZES:
            entry.by_size.clear()
        entry.by_size[sizes] = made

    def _entry(self, found: Fingerprint) -> _Entry[Made] | None:
        entry = self._entries.get(found.key)
        return entry if entry is not None and found.is_of(entry.references) else None

    def _begin(self, found: Fingerprint) -> _Entry[Made]:
        def drop(_: Any) -> None:
            if self._entries.get(key) is made:
                self._entries.pop(key, None)

        key = found.key
        made: _Entry[Made] = _Entry(tuple(ref(x, drop) for x in found.tensors), found.held)
        while len(self._entries) >= KEPT:
            self._entries.pop(next(iter(self._entries)), None)
        self._entries[key] = made
        return made
