"""The store: artifacts in a directory for each key, and what is done where a disk says no.

A key is the hash of all that its content depends on, so an entry never goes out of date. It is written beside its place
and renamed into it whole; afterwards only its timings grow. There are no locks. Who finds a place taken keeps what is
there. A process that dies leaves at most a directory beside, which is removed later.

An entry holds facts.json (its key, and what `weft cache list` says of it), the files that were put. Beside them are
SHA256SUMS over these as `sha256sum --check` reads it, and timings.jsonl. Since the sums cover the key, an entry that
was copied to another key's place counts as damaged. Its modification time is that of its last use.

Nothing is read where others may have written: see `weft.store.trust`. A base store lies below another one, and is only
read.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from weft import settings
from weft.outside import lines
from weft.store import entry, timings
from weft.store.entry import FACTS, TIMINGS, Entry, beside, damage, identity
from weft.store.trust import OWN, Trust, Untrusted

ABANDONED = 3600  # seconds after which whoever wrote or removed a directory is taken to be dead
# Tells programs that make backups that nothing here is worth one (the Cache Directory Tagging Specification).
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by weft; `weft cache clear` empties it.\n"


class Store:
    """Artifacts in one directory, of at most `limit` bytes together; root None: nothing is ever kept.

    base: a store whose entries count as this one's, and which is only read. shared: members of the directory's group
    may write. A disk that cannot be read or written, and a directory that others may write, make it forgetful, with one
    warning. They are never an error.
    """

    def __init__(self, root: Path | None, limit: int, base: Base | None = None, shared: bool = False) -> None:
        self.root, self.limit, self.base, self.shared = root, limit, base, shared
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        self._found: Trust | None = None

    @property
    def trust(self) -> Trust:
        """Whose files count here. Raises Untrusted where others may fill the directory; asked once it exists."""
        if self._found is None:
            assert self.root is not None
            try:
                seen = self.root.lstat()
            except FileNotFoundError:
                return OWN
            found = self._trusted(seen)
            found.check_directory(self.root)
            self._found = found
        return self._found

    def _trusted(self, root: os.stat_result) -> Trust:
        return Trust(group=root.st_gid) if self.shared else OWN

    # ---- one entry ---------------------------------------------------------------------------------------------------
    def get(self, key: str) -> Path | None:
        """The directory of an entry, every byte of it checked; None if there is none, or it was damaged and set aside.

        An entry of an older layout, which does not say its key, is removed without a word and counts as none. Another
        process may remove an entry at any time: files that are gone afterwards mean the same as None.
        """
        found = self.own(key)
        return found if found is not None or self.base is None else self.base.get(key)

    def own(self, key: str) -> Path | None:
        """`get` without the base."""
        return self._tolerant(partial(self._get, key), "read")

    def _get(self, key: str) -> Path | None:
        path = self._path(key)
        for _ in range(3):  # what is replaced while it is looked at proves nothing
            seen = identity(path)
            if seen is None:
                return None
            found = entry.examined(path, self.trust)
            if not isinstance(found, str):
                return self._used(path, "key" in found)
            if identity(path) == seen:
                self.set_aside(key, found)
                return None
        return None

    def _used(self, path: Path, says_key: bool) -> Path | None:
        """An entry that is whole, if it is none of an older layout."""
        if not says_key:
            _discard(path)
            return None
        with suppress(OSError):  # who may only read leaves no trace
            os.utime(path)
        return path

    def set_aside(self, key: str, problem: str) -> None:
        """Take an entry away that is not what it should be, with one warning."""
        path = self._path(key)
        self.warn(key, f"{path} is damaged: {problem}. It is set aside, and what it held is made anew")
        path.rename(beside(path, "damaged"))

    def reject(self, key: str, problem: str) -> None:
        """Take away what was found whole and yet says nothing that its reader knows, wherever it was found."""
        owner = self if self.base is None or identity(self._path(key)) is not None else self.base
        owner._tolerant(partial(owner.set_aside, key, problem), "written")

    def put(self, key: str, facts: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Keep files by name; who puts a key first wins. What was not used for longest makes room."""
        self._tolerant(partial(self._put, key, facts, files), "written")

    def _put(self, key: str, facts: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        path = self._path(key)
        _prepare(path.parent, self.shared)
        trust = self.trust
        said = json.dumps({**facts, "key": key, "made": time.time()}, indent=1) + "\n"
        with suppress(FileNotFoundError):  # the store was cleared meanwhile
            entry.write_aside(path, {FACTS: said.encode(), **files}, trust.group)
        self._make_room()

    def timings(self, key: str) -> list[dict[str, Any]]:
        """Rows that were recorded for an entry, the base's first, then the oldest; damaged lines are passed over, with
        one warning.
        """
        below = [] if self.base is None else self.base.timings(key)
        rows, bad = self._tolerant(lambda: timings.rows_of(self._path(key) / TIMINGS, self.trust), "read") or ([], 0)
        if bad:
            path = self._path(key) / TIMINGS
            said = f"{path} has damaged lines: {bad}. They are passed over; remove that file, and tune again"
            self.warn(f"{key} {TIMINGS}", said)
        return [*below, *rows]

    def record(self, key: str, rows: Iterable[Mapping[str, Any]]) -> bool:
        """Append rows to the timings of an entry, all of them or none. False if not kept: there is no entry, or no room
        in its timings.
        """
        line = timings.line_of(key, rows)
        return bool(
            self._tolerant(lambda: timings.append(self._path(key) / TIMINGS, line, self.trust), "written")
        )  # fmt: skip

    def _path(self, key: str) -> Path:
        if not (len(key) == 64 and set(key) <= set("0123456789abcdef")):
            raise ValueError(f"{key!r} is no SHA-256 in hexadecimal digits")
        assert self.root is not None
        return self.root / key

    # ---- all of them -------------------------------------------------------------------------------------------------
    def entries(self) -> list[Entry]:
        """Every directory of ours in whatever state, the least recently used first."""
        root = self.root
        if root is None:
            return []
        step = lambda: sorted(entry.entries(root, self.trust), key=lambda one: one.used)  # noqa: E731
        return self._tolerant(step, "read") or []

    def verify(self) -> dict[str, str]:
        """What is wrong with entries, by key; they stay where they are."""
        found = {}
        for one in self.entries():
            problem = self._tolerant(partial(self._problem, one), "read") if one.state == "" else None
            if problem is not None and one.path.is_dir():
                found[one.path.name] = problem
        return found

    def _problem(self, one: Entry) -> str | None:
        try:
            problem = damage(one.path, one.trust)
            bad = 0 if problem else timings.rows_of(one.path / TIMINGS, one.trust)[1]
        except Untrusted as error:
            return f"{error}, so it is not read: {error.do}"
        return problem or (f"{TIMINGS} has damaged lines: {bad}" if bad else None)

    def clear(self) -> tuple[int, int]:
        """Remove all that is ours; (directories, bytes) that are gone."""
        gone = [one for one in self.entries() if self._tolerant(partial(entry.remove, one.path), "emptied")]
        return len(gone), sum(one.nbytes for one in gone)

    def _make_room(self) -> None:
        """Remove what dead processes left, what was set aside, then what was not used for longest, until it fits."""
        entries = self.entries()
        total = sum(one.nbytes for one in entries)
        for one in sorted(entries, key=lambda one: one.keeps):
            dead = one.state in ("new", "old") and time.time() - one.used > ABANDONED
            if dead or (total > self.limit and one.state in ("", "damaged")):
                entry.remove(one.path)
                total -= one.nbytes

    # ---- a disk that says no -----------------------------------------------------------------------------------------
    def _tolerant(self, step: Callable[[], Any], verb: str) -> Any:
        """What a step finds; None, with one warning, where the disk refuses it, or somebody else may have written."""
        if self.root is None:
            return None
        try:
            if not self.root.is_absolute():
                raise FileNotFoundError("there is no home directory")
            return step()
        except Untrusted as error:
            self.warn(str(error), f"{error}, so nothing is read from there. Do: {error.do}{self._choice()}")
        except OSError as error:
            if verb == "read" and isinstance(error, FileNotFoundError):  # not there yet, or no longer
                return None
            wrong = f"the cache in {self.root} cannot be {verb} ({error}), so each process may compile kernels anew"
            self.warn("", f"{wrong}. Set WEFT_CACHE_DIR to a directory that can be written, or to 'off'")
        return None

    def _choice(self) -> str:
        """What else there is to do where others may write."""
        return "" if self.shared else "; or state a choice (WEFT_CACHE_SHARED=group, WEFT_CACHE_BASE: SECURITY.md)"

    def warn(self, about: str, text: str) -> None:
        """Warn once in this process about each thing."""
        with self._lock:
            known = about in self._warned
            self._warned.add(about)
        if not known:
            warnings.warn(f"weft: {lines(text)}.", RuntimeWarning, stacklevel=2)


class Base(Store):
    """A store that is only read. Who names it trusts its owner; nobody else may write it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, 0)

    def _trusted(self, root: os.stat_result) -> Trust:
        return Trust(frozenset([root.st_uid]))

    def _used(self, path: Path, says_key: bool) -> Path | None:
        return path if says_key else None

    def set_aside(self, key: str, problem: str) -> None:
        self.warn(key, f"{self._path(key)} is damaged: {problem}. It is passed over")

    def put(self, key: str, facts: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        raise NotImplementedError("a base store is only read")

    def record(self, key: str, rows: Iterable[Mapping[str, Any]]) -> bool:
        raise NotImplementedError("a base store is only read")

    def _choice(self) -> str:
        return "; or name another directory by WEFT_CACHE_BASE"


def opened() -> Store:
    """The store that the settings name."""
    return _opened(settings.cache_dir(), settings.cache_bytes(), settings.cache_base(), settings.cache_shared())


@lru_cache(maxsize=16)
def _opened(root: Path | None, limit: int, base: Path | None, shared: bool) -> Store:
    """Links are followed here, once: where they lead is looked at, and used from then on."""
    below = None if base is None else Base(base.resolve())
    there = root if root is None or not root.is_absolute() else root.resolve()
    return Store(there, limit, below, shared)


def _discard(path: Path) -> None:
    """Remove a directory if the disk lets us."""
    with suppress(OSError):
        entry.remove(path)


def _prepare(root: Path, shared: bool) -> None:
    """Make the directory; one that we did not make is not tagged."""
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        if shared:  # entries take its group
            root.chmod(0o770 | stat.S_ISGID)
        (root / "CACHEDIR.TAG").write_text(TAG)
