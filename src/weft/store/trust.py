"""Whether a file is read: who owns it, who else may write it, what kind it is, and how large.

Whoever can write a store chooses the code that runs. So files are looked at as ssh looks at its keys: they belong to
the user or to root, and nobody else may write them. A group's store and a base store are choices that somebody states
(WEFT_CACHE_SHARED, WEFT_CACHE_BASE). They widen the rule by exactly that group, or by the base's owner.
"""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from weft.outside import QUIETLY, kind, shown

ME = os.geteuid() if hasattr(os, "geteuid") else None  # None: a system without owners, where nothing is refused
ROOT, WHOLE = 0, 1 << 32  # WHOLE: how many users there are where none is hidden
ITSELF = QUIETLY | getattr(os, "O_NOFOLLOW", 0)


class Untrusted(Exception):
    """Somebody else may have chosen what stands at a path. do: the commands that mend it."""

    def __init__(self, path: Path, why: str, do: str) -> None:
        super().__init__(f"{shown(path)} {why}")
        self.do = do


class OddFile(ValueError):
    """What stands at a path is no regular file of a size that anybody wrote there."""


@dataclass(frozen=True)
class Trust:
    """owners: users whose files are read, beside our own and root's. group: whose members may write; None: nobody."""

    owners: frozenset[int] = frozenset()
    group: int | None = None

    def check(self, path: Path, found: os.stat_result, above: bool = False) -> None:
        """Raises Untrusted. above: a directory that holds what is read, where whoever writes may exchange it."""
        if ME is None:
            return
        ours = found.st_uid in (ME, ROOT) or found.st_uid in self.owners or found.st_gid == self.group
        if ours and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return
        where = shlex.quote(shown(path, 4096))
        if not ours and not (above and _hidden(found.st_uid)):
            do = f"remove it (rm -r {where}), or make it yours (sudo chown -R {ME} {where})"
            raise Untrusted(path, f"belongs to user {found.st_uid}", do)
        kept = above and found.st_mode & stat.S_ISVTX  # who may write there cannot exchange what others own
        others = found.st_mode & stat.S_IWOTH
        group = found.st_mode & stat.S_IWGRP and found.st_gid != self.group
        if kept or not (others or (group and not _private(found.st_gid))):
            return
        who = "anybody" if others else f"group {found.st_gid}"
        do = f"remove it (rm -r {where}), or shut others out (chmod -R go-w {where}) if only you wrote there"
        raise Untrusted(path, f"may be written by {who}", f"shut others out (chmod go-w {where})" if above else do)

    def check_directory(self, path: Path) -> None:
        """Raises Untrusted for a directory, or one above it, that others could fill or exchange."""
        for one in path.parents:
            self.check(one, one.lstat(), above=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(f"{path} is {kind(found)}")
        self.check(path, found)

    def read(self, path: Path, most: int) -> bytes:
        """All of a file. Raises Untrusted, OddFile where it is none of at most so many bytes, or OSError."""
        found = path.lstat()
        _regular(path, found, most)  # before it is opened, which a device may notice
        file = os.open(path, os.O_RDONLY | ITSELF)
        with os.fdopen(file, "rb", buffering=0) as stream:
            found = os.fstat(file)
            _regular(path, found, most)
            self.check(path, found)
            data = stream.readall()
        if len(data) > most:
            raise OddFile(f"{path.name} grows while it is read")
        return data


OWN = Trust()  # ours and root's files, which nobody else may write


def _regular(path: Path, found: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OddFile(f"{shown(path.name)} is {kind(found)}, no file")
    if found.st_size > most:
        raise OddFile(f"{shown(path.name)} has {found.st_size} bytes, more than {most}")


@cache
def _private(group: int) -> bool:
    """Whether a group has one member, the user: many systems give everybody such a group, and let it write."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(ME or 0), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


@cache
def _hidden(user: int) -> bool:
    """Whether a user is the one that a container shows for all whom it does not know."""
    try:
        known = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
        return known < WHOLE - 1 and user == int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError, IndexError):
        return False
