"""Timings of an entry: lines of JSON, which grow. Each begins with its own check sum, which covers the entry's key.

So a bit that flips, a line that was cut short, and a line of another entry are passed over and counted. No row of
theirs is believed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from weft.outside import parsed
from weft.store.trust import ITSELF, OddFile, Trust

MOST = 16 << 20  # bytes; a run of the tuner adds some 50 kB


def line_of(key: str, rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows as one line."""
    text = json.dumps([dict(row) for row in rows], allow_nan=False)
    return f"{_sum(key, text)} {text}".encode()


def append(path: Path, line: bytes, trust: Trust) -> bool:
    """Add a line in one write, so that lines of several processes do not mix. False where there is no directory, or no
    more is kept.
    """
    # begins the line rather than ending it: what a full disk cut short then spoils no line but its own
    data = b"\n" + line
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | ITSELF, 0o644)
    except FileNotFoundError:
        return False
    try:
        found = os.fstat(file)
        trust.check(path, found)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no file")
        if found.st_size + len(data) > MOST:
            return False
        if trust.group is not None and not found.st_size:
            os.fchmod(file, 0o664)
        if os.write(file, data) < len(data):
            raise OSError(f"no room in {path}")
    finally:
        os.close(file)
    return True


def rows_of(path: Path, trust: Trust) -> tuple[list[dict[str, Any]], int]:
    """(rows of all whole lines, how many lines are not whole); a file that is no file counts as one line."""
    try:
        data = trust.read(path, MOST)
    except FileNotFoundError:
        return [], 0
    except OddFile:
        return [], 1
    key, rows, bad = path.parent.name[:64], [], 0
    for line in data.split(b"\n"):
        if not line:
            continue
        digest, _, text = line.decode(errors="replace").partition(" ")
        try:
            found = parsed(text) if digest == _sum(key, text) else None
        except ValueError:
            found = None
        if isinstance(found, list) and all(isinstance(row, dict) for row in found):
            rows += found
        else:
            bad += 1
    return rows, bad


def _sum(key: str, text: str) -> str:
    return sha256(f"{key} {text}".encode(errors="replace")).hexdigest()[:16]
