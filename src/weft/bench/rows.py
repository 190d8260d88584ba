"""The rows of a results file: its columns, reading, appending, and which rows are finished."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Any

from weft.errors import OptionError
from weft.outside import check_file, shown

COLUMNS = (
    "date", "machine", "threads", "driver", "python", "torch", "triton", "commit", "workload", "shape", "dtype",
    "direction", "peer", "version", "status", "message", "calls", "median_ms", "p20_ms", "p80_ms", "tflops", "gbs",
    "share", "error", "error_over_plain", "memory_mb", "plan_ms", "first_ms", "launch_us",
)  # fmt: skip
FIGURES = COLUMNS[COLUMNS.index("median_ms") :]
LONGEST = 10_000  # characters of a cell
# Statuses. Only rows that are OK are compared by speed; the others say what happened.
OK, WRONG, DIFFERENT = "ok", "wrong", "different mask"
REFUSED, FAILED, CRASHED, TIMED_OUT = "refused", "error", "crashed", "timed out"
DISTURBED = "other processes kept"  # in the message of an OK row of a busy CPU, or of a GPU that is shared

Row = dict[str, str]
RESULTS = Path("benchmarks/results")


def path_of(machine: str, device: str) -> Path:
    """The file for a machine: one for each kind of GPU, and one for all CPUs."""
    slug = "-".join("".join(c if c.isalnum() else " " for c in machine.lower()).split())
    return RESULTS / f"{slug if device == 'cuda' else 'bench-cpu'}.csv"


def read(path: Path) -> list[Row]:
    """All rows, none if there is no file. A file with other columns is refused."""
    if not path.exists():
        return []
    try:
        check_file(path)
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns, found = tuple(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as wrong:
        raise _foreign(path, f"it cannot be read: {wrong}") from None
    if columns != COLUMNS:
        raise _foreign(path, f"its columns are {', '.join(map(shown, columns)) or 'none'}")
    return [_checked(path, place, row) for place, row in enumerate(found, 2)]


def _checked(path: Path, line: int, row: dict[Any, Any]) -> Row:
    """A row whose figures are figures, and whose texts may be printed."""
    if row.keys() != set(COLUMNS) or None in row.values():
        raise _foreign(path, f"its row {line} has more or fewer cells than columns")
    for column in FIGURES:
        try:
            wrong = row[column] and not isfinite(float(row[column]))
        except ValueError:
            wrong = True
        if wrong:
            raise _foreign(path, f"{column} of its row {line} is {shown(row[column], 40)}, no number")
    return {column: shown(value, LONGEST) for column, value in row.items()}


def check(path: Path) -> None:
    """Raise OptionError unless rows may be added to a file, which may not be there yet, in a folder that is."""
    read(path)
    there = path.exists()
    try:
        path.open("a").close()
    except OSError as wrong:
        raise _foreign(path, f"it cannot be written: {wrong.strerror}") from None
    if not there:
        path.unlink()


def _foreign(path: Path, wrong: str) -> OptionError:
    cure = "name another file with --out, or move this one away; it is left as it is"
    return OptionError(f"benchmark rows in {path}", wrong, cure)


def is_ours(path: Path) -> bool:
    """Whether a file has this benchmark's columns; the folder holds results of other scripts as well."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(next(csv.reader(file), ())) == COLUMNS


def append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add rows at the end, on the disk when this returns."""
    read(path)  # refuses a foreign file
    path.parent.mkdir(parents=True, exist_ok=True)
    begins = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if begins:
            writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    """A value whose text is one line."""
    return shown(value, LONGEST) if isinstance(value, str) else value


def finished(rows: Iterable[Row], machine: str, commit: str) -> set[tuple[str, str, str]]:
    """(workload, direction, peer) of the rows that this commit has on this machine."""
    mine = (row for row in rows if (row["machine"], row["commit"]) == (machine, commit))
    return {(row["workload"], row["direction"], row["peer"]) for row in mine}


def number(row: Row, column: str) -> float | None:
    """A figure, or None where there is none."""
    return float(row[column]) if row.get(column) else None
