"""One entry: a directory of a few files, what is wrong with it, how it is written, and how it goes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from weft.outside import parsed, shown
from weft.store.trust import OWN, OddFile, Trust, Untrusted

FACTS, SUMS, TIMINGS = "facts.json", "SHA256SUMS", "timings.jsonl"
# Whatever has another name is not ours. new: being written; old: being removed; damaged: set aside.
OURS = re.compile(r"(?P<key>[0-9a-f]{64})(?:\.(?P<state>new|old|damaged)-[0-9a-f]{32})?")
FILES = 32  # of an entry; a kernel's has five
MOST = 64 << 20  # bytes of one file; the largest kernel has some 2 MB
NUMBERS, SECONDS, TEXT = ("made", "compile_seconds"), 1e11, 1000  # facts; seconds since 1970; characters
TOLD = 1 << 20  # bytes of facts and of sums


@dataclass(frozen=True)
class Entry:
    """One directory of the store. state: "" for an entry, else as in OURS. used: seconds since 1970. largest: bytes of
    its largest file.
    """

    path: Path
    state: str
    nbytes: int
    used: float
    trust: Trust = OWN
    largest: int = 0

    @property
    def keeps(self) -> bool:
        """Whether it may be worth more than its room: it is not set aside, and none of its files is beyond all use."""
        return self.state == "" and self.largest <= MOST

    def facts(self) -> dict[str, Any]:
        """What was said of the entry when it was put, without what nobody would have said. It is empty where that
        cannot be read, or is not to be trusted.
        """
        try:
            found = facts_of(self.path, self.trust)
        except (OSError, OddFile, Untrusted):
            return {}
        return {name: value for name, value in found.items() if _sayable(name, value)}


def damage(path: Path, trust: Trust = OWN) -> str | None:
    """What is wrong with an entry: a file that is not as it was written, or the key of another entry; None: nothing.

    Raises Untrusted where others may have written it.
    """
    found = examined(path, trust)
    return found if isinstance(found, str) else None


def examined(path: Path, trust: Trust) -> str | dict[str, Any]:
    """The facts of an entry that is whole, or what is wrong with it."""
    try:
        trust.check(path, path.lstat())
        said = trust.read(path / SUMS, TOLD).decode()
        pairs = [line.split("  ", 1) for line in said.splitlines()]
        sums = {name: digest for digest, name in pairs}
        with os.scandir(path) as found:
            there = {file.name for file in islice(found, FILES + 1)}
        odd = {FACTS, *sums} ^ there - {SUMS, TIMINGS}
        if odd or FACTS not in sums or len(there) > FILES:
            named = ", ".join(map(shown, sorted(odd)[:FILES])) or f"more than {FILES} files, or no {FACTS},"
            return f"{named} should or should not be there"
        changed = [name for name, digest in sums.items() if sha256(trust.read(path / name, MOST)).hexdigest() != digest]
        if not changed:
            facts = facts_of(path, trust)
            key = facts.get("key", path.name[:64])
            return facts if key == path.name[:64] else f"it is a copy of the entry {shown(key)}"
    except (FileNotFoundError, IsADirectoryError) as error:
        return f"{shown(Path(error.filename).name)} is missing"
    except OddFile as error:
        return str(error)
    except ValueError:
        return f"{SUMS} is no list of checksums"
    return f"{', '.join(map(shown, changed))} changed since it was written"


def _sayable(name: str, value: Any) -> bool:
    """Whether a fact is a short text, or where it is known as a number one of seconds."""
    if name in NUMBERS:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= SECONDS
    return isinstance(value, str) and len(value) <= TEXT


def facts_of(path: Path, trust: Trust) -> dict[str, Any]:
    """The facts of an entry; empty where they are no JSON object."""
    data = trust.read(path / FACTS, TOLD)
    try:
        found = parsed(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def write_aside(path: Path, files: dict[str, bytes], group: int | None) -> None:
    """Write files beside a place and rename them into it, unless it was taken meanwhile.

    Nobody else may write them, whatever the process's umask is, but members of a group that shares the store.
    """
    sums = "".join(f"{sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    new = beside(path, "new")
    try:
        new.mkdir(mode=0o755)
        for name, data in (files | {SUMS: sums.encode()}).items():
            (new / name).write_bytes(data)
            permit(new / name, group)
        permit(new, group)
        new.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def permit(path: Path, group: int | None) -> None:
    """Take the right to write from others, or give it to a group."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH)
    if group is not None:
        if found.st_gid != group:
            os.chown(path, -1, group)
        mode |= stat.S_IWGRP | (mode & stat.S_IRWXU) >> 3
    path.chmod(mode)


def remove(path: Path) -> bool:
    """Remove a directory, out of sight first. False if another process was quicker."""
    old = beside(path, "old")
    try:
        path.rename(old)
        shutil.rmtree(old)
    except FileNotFoundError:
        return False
    return True


def beside(path: Path, state: str) -> Path:
    """A name that nobody else chooses, by the pattern OURS."""
    return path.with_name(f"{path.name[:64]}.{state}-{uuid4().hex}")


def identity(path: Path) -> tuple[int, int] | None:
    """Differs once a directory is replaced or renamed; None: there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_ctime_ns) if stat.S_ISDIR(found.st_mode) else None


def entries(root: Path, trust: Trust) -> Iterator[Entry]:
    """Every directory of ours, in no order."""
    for path in root.iterdir():
        match = OURS.fullmatch(path.name)
        if match is not None and identity(path) is not None:
            with suppress(FileNotFoundError):  # removed meanwhile
                sizes = [file.lstat().st_size for file in path.iterdir()]
                used = path.stat().st_mtime
                yield Entry(path, match["state"] or "", sum(sizes), used, trust, max(sizes, default=0))
