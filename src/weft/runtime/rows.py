"""Rows of evidence as JSON: one schema, for what the store holds and for files that somebody shared.

Every number has bounds that the hardware has: what lies outside is no measurement, and nobody acts by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from math import isfinite
from typing import Any

from weft.kernels.backend import Timing
from weft.outside import shown
from weft.planning.problem import DTYPES, Problem
from weft.planning.tiling import DIRECTIONS, Direction, Tiling

LONGEST = 200  # characters of why a kernel cannot run
TEXT, STRUCTURE = 500, 1 << 20  # characters of a name; of a pattern's structure and numbers
WIDEST, FEWEST = 256, 16  # pairs of a tile on a side
WARPS, STAGES, REGISTERS, GROUPS = 32, 16, 255, 8  # of a block; in flight; of a thread; of warps
SECONDS = 1e6  # of one call
LENGTH = 1 << 40  # of any size of a problem
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Measured:
    """One tiling. predicted: seconds; timing: None where it cannot be compiled or loaded, and why."""

    direction: Direction
    tiling: Tiling
    predicted: float
    timing: Timing | None
    why: str = ""


@dataclass(frozen=True)
class Decision:
    """What a direction computes with from now on; None: what it would without evidence."""

    direction: Direction
    winner: Tiling | None


Row = Measured | Decision


def said(row: Row, versions: Mapping[str, str]) -> dict[str, Any]:
    """For JSON."""
    begin: dict[str, Any] = {**versions, "direction": row.direction}
    if isinstance(row, Decision):
        return begin | {"winner": None if row.winner is None else astuple(row.winner)}
    timing = None if row.timing is None else astuple(row.timing)
    why = row.why[:LONGEST]
    return begin | {"tiling": astuple(row.tiling), "predicted": row.predicted, "timing": timing, "why": why}


def of_other_versions(line: Mapping[str, Any], versions: Mapping[str, str]) -> bool:
    """Whether a row was measured with other kernels: it says nothing of these."""
    return any(line.get(name) != version for name, version in versions.items())


def read(line: Mapping[str, Any], versions: Mapping[str, str]) -> Row:
    """Back from `said`. Raises ValueError, which says what is wrong, for whatever it never said."""
    direction = _one_of("direction", line.get("direction"), DIRECTIONS)
    if "winner" in line:
        _only(line, {*versions, "direction", "winner"})
        winner = line["winner"]
        return Decision(direction, None if winner is None else tiling(winner))
    _only(line, {*versions, "direction", "tiling", "predicted", "timing", "why"})
    timing = None if line["timing"] is None else _timing(line["timing"])
    why = text("why", line["why"], LONGEST)
    return Measured(direction, tiling(line["tiling"]), _seconds("predicted", line["predicted"]), timing, why)


def tiling(numbers: Any) -> Tiling:
    """A tiling that some card could have. Raises ValueError."""
    if not isinstance(numbers, list | tuple) or len(numbers) != len(fields(Tiling)):
        raise ValueError(f"a tiling has {len(fields(Tiling))} numbers")
    found = Tiling(*numbers)
    for name, low, high in (("rows", FEWEST, WIDEST), ("cols", FEWEST, WIDEST), ("warps", 1, WARPS)):
        value = whole(name, getattr(found, name), low, high)
        if value & (value - 1):
            raise ValueError(f"{name} is {value}, no power of two")
    for name, low, high in (("stages", 1, STAGES), ("registers", 0, REGISTERS), ("groups", 0, GROUPS)):
        whole(name, getattr(found, name), low, high)
    if not isinstance(found.apart, bool):
        raise ValueError("apart is neither true nor false")
    return found


def problem(said: Any) -> Problem:
    """A problem that somebody could have tuned. Raises ValueError."""
    names = [field.name for field in fields(Problem)]
    if not isinstance(said, dict):
        raise ValueError("a problem is an object")
    _only(said, set(names))
    for name in names[:-2]:
        whole(name, said[name], 1, LENGTH)
    found = Problem(**said)
    _one_of("dtype", found.dtype, tuple(DTYPES))
    _one_of("device", found.device, DEVICES)
    if found.q_heads % found.kv_heads:
        raise ValueError(f"{found.q_heads} query heads share {found.kv_heads} key heads unevenly")
    return found


def text(name: str, value: Any, most: int = TEXT) -> str:
    """A string of so many characters. Raises ValueError."""
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"{name} is no text of at most {most} characters")
    return value


def whole(name: str, value: Any, low: int, high: int) -> int:
    """An integer within bounds. Raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} is {shown(value, 40)}, no whole number from {low} to {high}")
    return value


def _timing(numbers: Any) -> Timing:
    if not isinstance(numbers, list | tuple) or len(numbers) != len(fields(Timing)):
        raise ValueError(f"a timing has {len(fields(Timing))} numbers")
    found = Timing(*(_seconds("timing", one) for one in numbers))
    if not found.low <= found.seconds <= found.high:
        raise ValueError("the median of a timing lies outside of its middle half")
    return found


def _seconds(name: str, value: Any) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not known or not 0 <= value <= SECONDS:
        raise ValueError(f"{name} is {shown(value, 40)}, no seconds from 0 to {SECONDS:.0f}")
    return float(value)


def _one_of(name: str, value: Any, known: Iterable[Any]) -> Any:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} is {shown(repr(value), 40)}, none of {', '.join(known)}")
    return value


def _only(line: Mapping[str, Any], names: set[str]) -> None:
    odd = sorted(line.keys() ^ names)
    if odd:
        raise ValueError(f"{', '.join(shown(one, 40) for one in odd[:4])} should or should not be there")
