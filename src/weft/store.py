"""The store: what was expensive to make, kept on disk for other processes.

A directory for each key, the hash of all that its content depends on, so an entry never goes out of date. It is written
beside its place and renamed into it whole; afterwards only its timings grow. There are no locks: who finds a place
taken keeps what is there, and a process that dies leaves at most a directory beside, which is removed later.

An entry holds facts.json (its key, and what `weft cache list` says of it), the files that were put, SHA256SUMS over
these as `sha256sum --check` reads it, and timings.jsonl. Since the sums cover the key, an entry that was copied to
another key's place counts as damaged. Its modification time is that of its last use.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from weft.settings import cache_bytes, cache_dir

FACTS, SUMS, TIMINGS = "facts.json", "SHA256SUMS", "timings.jsonl"
# Whatever has another name is not ours. new: being written; old: being removed; damaged: set aside.
OURS = re.compile(r"(?P<key>[0-9a-f]{64})(?:\.(?P<state>new|old|damaged)-[0-9a-f]{32})?")
ABANDONED = 3600  # seconds after which whoever wrote or removed a directory is taken to be dead
# Tells programs that make backups that nothing here is worth one (the Cache Directory Tagging Specification).
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by weft; `weft cache clear` empties it.\n"


@dataclass(frozen=True)
class Entry:
    """One directory of the store. state: "" for an entry, else as in OURS. used: seconds since 1970."""

    path: Path
    state: str
    nbytes: int
    used: float

    def facts(self) -> dict[str, Any]:
        """What was said of the entry when it was put; empty where that cannot be read."""
        try:
            return _facts(self.path)
        except OSError:
            return {}


class Store:
    """Artifacts in one directory, of at most `limit` bytes together; root None: nothing is ever kept.

    A disk that cannot be read or written makes it forgetful, with one warning; it is never an error.
    """

    def __init__(self, root: Path | None, limit: int) -> None:
        self.root, self.limit = root, limit
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    # ---- one entry ---------------------------------------------------------------------------------------------------
    def get(self, key: str) -> Path | None:
        """The directory of an entry, every byte of it checked; None if there is none, or it was damaged and set aside.

        An entry of an older layout, which does not say its key, is removed without a word and counts as none. Another
        process may remove an entry at any time: files that are gone afterwards mean the same as None.
        """
        return self._tolerant(partial(self._get, key), "read")

    def _get(self, key: str) -> Path | None:
        path = self._path(key)
        for _ in range(3):  # what is replaced while it is looked at proves nothing
            seen = _identity(path)
            if seen is None:
                return None
            problem = damage(path)
            if problem is None:
                if "key" not in _facts(path):
                    _discard(path)
                    return None
                with suppress(OSError):  # who may only read leaves no trace
                    os.utime(path)
                return path
            if _identity(path) == seen:
                self._warn(key, f"{path} is damaged: {problem}. It is set aside, and what it held is made anew")
                path.rename(_beside(path, "damaged"))
                return None
        return None

    def put(self, key: str, facts: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Keep files by name; who puts a key first wins. What was not used for longest makes room."""
        self._tolerant(partial(self._put, key, facts, files), "written")

    def _put(self, key: str, facts: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        path = self._path(key)
        _prepare(path.parent)
        said = json.dumps({**facts, "key": key, "made": time.time()}, indent=1) + "\n"
        with suppress(FileNotFoundError):  # the store was cleared meanwhile
            _write_aside(path, {FACTS: said.encode(), **files})
        self._make_room()

    def timings(self, key: str) -> list[dict[str, Any]]:
        """Rows that were recorded for an entry, the oldest first."""
        return self._tolerant(lambda: list(_rows(self._path(key) / TIMINGS)), "read") or []

    def record(self, key: str, rows: Iterable[Mapping[str, Any]]) -> bool:
        """Append rows to the timings of an entry, all of them or none. False if not kept: there is no entry."""
        line = json.dumps([dict(row) for row in rows], allow_nan=False)
        return bool(self._tolerant(lambda: _append(self._path(key) / TIMINGS, line), "written"))

    def _path(self, key: str) -> Path:
        if not re.fullmatch("[0-9a-f]{64}", key):
            raise ValueError(f"{key!r} is no SHA-256 in hexadecimal digits")
        assert self.root is not None
        return self.root / key

    # ---- all of them -------------------------------------------------------------------------------------------------
    def entries(self) -> list[Entry]:
        """Every directory of ours in whatever state, the least recently used first."""
        root = self.root
        if root is None:
            return []
        return self._tolerant(lambda: sorted(_entries(root), key=lambda one: one.used), "read") or []

    def verify(self) -> dict[str, str]:
        """What is wrong with entries, by key; they stay where they are."""
        found = {}
        for one in self.entries():
            problem = self._tolerant(partial(damage, one.path), "read") if one.state == "" else None
            if problem is not None and one.path.is_dir():
                found[one.path.name] = problem
        return found

    def clear(self) -> tuple[int, int]:
        """Remove all that is ours; (directories, bytes) that are gone."""
        gone = [one for one in self.entries() if self._tolerant(partial(_remove, one.path), "emptied")]
        return len(gone), sum(one.nbytes for one in gone)

    def _make_room(self) -> None:
        """Remove what dead processes left, then what was not used for longest, until the rest fits."""
        entries = self.entries()
        total = sum(one.nbytes for one in entries)
        for one in entries:
            dead = one.state in ("new", "old") and time.time() - one.used > ABANDONED
            if dead or (total > self.limit and one.state in ("", "damaged")):
                _remove(one.path)
                total -= one.nbytes

    # ---- a disk that says no -----------------------------------------------------------------------------------------
    def _tolerant(self, step: Callable[[], Any], verb: str) -> Any:
        """What a step finds; None, with one warning, where the disk refuses it."""
        if self.root is None:
            return None
        try:
            if not self.root.is_absolute():
                raise FileNotFoundError("there is no home directory")
            return step()
        except OSError as error:
            if verb == "read" and isinstance(error, FileNotFoundError):  # not there yet, or no longer
                return None
            wrong = f"the cache in {self.root} cannot be {verb} ({error}), so each process may compile kernels anew"
            self._warn("", f"{wrong}. Set WEFT_CACHE_DIR to a directory that can be written, or to 'off'")
        return None

    def _warn(self, about: str, text: str) -> None:
        """Warn once in this process about each thing."""
        with self._lock:
            known = about in self._warned
            self._warned.add(about)
        if not known:
            warnings.warn(f"weft: {text}.", RuntimeWarning, stacklevel=2)


def opened() -> Store:
    """The store that the settings name."""
    return _opened(cache_dir(), cache_bytes())


@lru_cache(maxsize=16)
def _opened(root: Path | None, limit: int) -> Store:
    return Store(root, limit)


# ---- directories -----------------------------------------------------------------------------------------------------
def damage(path: Path) -> str | None:
    """What is wrong with an entry: a file that is not as it was written, or the key of another entry; None: nothing."""
    try:
        pairs = [line.split("  ", 1) for line in (path / SUMS).read_text().splitlines()]
        sums = {name: digest for digest, name in pairs}
        odd = {FACTS, *sums} ^ {file.name for file in path.iterdir()} - {SUMS, TIMINGS}
        if odd or FACTS not in sums:
            return f"{', '.join(sorted(odd)) or FACTS} should or should not be there"
        changed = [name for name, digest in sums.items() if sha256((path / name).read_bytes()).hexdigest() != digest]
        if not changed:
            key = _facts(path).get("key", path.name[:64])
            return None if key == path.name[:64] else f"it is a copy of the entry {key}"
    except (FileNotFoundError, IsADirectoryError) as error:
        return f"{Path(error.filename).name} is missing"
    except ValueError:
        return f"{SUMS} is no list of checksums"
    return f"{', '.join(changed)} changed since it was written"


def _facts(path: Path) -> dict[str, Any]:
    """The facts of an entry; empty where they are no JSON object."""
    data = (path / FACTS).read_bytes()
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _discard(path: Path) -> None:
    """Remove a directory if the disk lets us."""
    with suppress(OSError):
        _remove(path)


def _prepare(root: Path) -> None:
    """Make the directory; one that we did not make is not tagged."""
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        (root / "CACHEDIR.TAG").write_text(TAG)


def _write_aside(path: Path, files: dict[str, bytes]) -> None:
    """Write files beside a place and rename them into it, unless it was taken meanwhile."""
    sums = "".join(f"{sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    new = _beside(path, "new")
    try:
        new.mkdir()
        for name, data in (files | {SUMS: sums.encode()}).items():
            (new / name).write_bytes(data)
        new.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _remove(path: Path) -> bool:
    """Remove a directory, out of sight first. False if another process was quicker."""
    old = _beside(path, "old")
    try:
        path.rename(old)
        shutil.rmtree(old)
    except FileNotFoundError:
        return False
    return True


def _beside(path: Path, state: str) -> Path:
    """A name that nobody else chooses, by the pattern OURS."""
    return path.with_name(f"{path.name[:64]}.{state}-{uuid4().hex}")


def _identity(path: Path) -> tuple[int, int] | None:
    """Differs once a directory is replaced or renamed; None: there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_ctime_ns) if stat.S_ISDIR(found.st_mode) else None


def _entries(root: Path) -> Iterator[Entry]:
    for path in root.iterdir():
        match = OURS.fullmatch(path.name)
        if match is not None and _identity(path) is not None:
            with suppress(FileNotFoundError):  # removed meanwhile
                nbytes = sum(file.lstat().st_size for file in path.iterdir())
                yield Entry(path, match["state"] or "", nbytes, path.stat().st_mtime)


# ---- timings ---------------------------------------------------------------------------------------------------------
def _append(path: Path, line: str) -> bool:
    """Add a line in one write, so that lines of several processes do not mix. False without the directory."""
    # begins the line rather than ending it: what a full disk cut short then spoils no line but its own
    data = b"\n" + line.encode()
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except FileNotFoundError:
        return False
    try:
        if os.write(file, data) < len(data):
            raise OSError(f"no room in {path}")
    finally:
        os.close(file)
    return True


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of all complete lines: a list that lacks its end is no JSON."""
    for line in path.read_bytes().splitlines():
        with suppress(ValueError):
            found = json.loads(line)
            yield from found if isinstance(found, list) else ()
