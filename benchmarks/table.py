"""Tables of measurements: CSV files to which a row is appended as soon as it is measured, so that no end loses it."""

from __future__ import annotations

import csv
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def append(path: Path | None, columns: Sequence[str], row: Mapping[str, Any]) -> None:
    """Add a row; a new file begins with the names of its columns. path: None for no file."""
    if path is None:
        return
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def failure(error: Exception) -> str:
    """A message of one line for the row of what failed; the traceback is printed."""
    traceback.print_exception(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
