"""Evidence: what kernels of one pattern and problem took on one card, kept in the store and carried in files.

An entry of the store is for a pattern (as it crosses into a graph: structure and numbers), a problem and a card. Its
timings are rows: measurements, and decisions, of which the last one of a direction holds. Every row says which versions
of the kernels and of Triton it was measured with; those of other versions are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from weft.errors import OptionError
from weft.kernels.backend import Backend, Card, Timing
from weft.pattern.algebra import Pattern
from weft.planning.choose import Fixed
from weft.planning.problem import Problem
from weft.planning.tiling import DIRECTIONS, Direction, Tiling
from weft.store import opened

KIND, FILE = "tuning", "tuning.json"
FORMAT = 1  # of rows and files
LONGEST = 60  # characters of a pattern in the name of an entry


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


# ---- the entry of a pattern, a problem and a card --------------------------------------------------------------------
@dataclass(frozen=True)
class Subject:
    """What evidence is about. numbers: the bytes of the pattern's record."""

    structure: str
    numbers: bytes
    problem: Problem
    card: str

    @staticmethod
    def of(pattern: Pattern, problem: Problem, card: Card) -> Subject:
        return Subject(pattern.structure, pattern.numbers.tobytes(), problem, card.name)

    @property
    def key(self) -> str:
        """Of its entry in the store."""
        head = json.dumps([KIND, FORMAT, self.structure, astuple(self.problem), self.card])
        return sha256(head.encode() + b"\0" + self.numbers).hexdigest()

    def said(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "numbers": self.numbers.hex()}

    @staticmethod
    def read(said: Mapping[str, Any]) -> Subject:
        """Back from `said`; raises KeyError, TypeError or ValueError for what is none."""
        problem = Problem(**said["problem"])
        return Subject(str(said["structure"]), bytes.fromhex(said["numbers"]), problem, str(said["card"]))


def record(subject: Subject, name: str, rows: Iterable[Row], versions: Mapping[str, str]) -> bool:
    """Add rows to an entry, which is made if there is none; False if they are not kept. name: for people."""
    return _append(subject, name, [_said(row, versions) for row in rows], versions)


def _append(subject: Subject, name: str, lines: list[dict[str, Any]], versions: Mapping[str, str]) -> bool:
    kept = opened()
    if kept.get(subject.key) is None:
        facts = {"name": name, "kind": KIND, "target": subject.card, "triton": versions.get("triton", "")}
        kept.put(subject.key, facts, {FILE: json.dumps(subject.said()).encode()})
    return kept.record(subject.key, lines)


def name_of(pattern: Pattern, problem: Problem) -> str:
    """As `weft cache list` shows it."""
    text = str(pattern)
    return f"tuning {text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'} {problem}"


def rows_of(subject: Subject, versions: Mapping[str, str]) -> list[Row]:
    """What is known with these versions, the oldest first."""
    return list(_rows(_lines(subject), versions))


def winners(pattern: Pattern, problem: Problem, backend: Backend, card: Card) -> Fixed:
    """The tilings that won on this card, of the directions that were tuned; nothing for a pattern that cannot cross."""
    if getattr(pattern, "structure", None) is None:
        return ()
    lines = [line for line in _lines(Subject.of(pattern, problem, card)) if "winner" in line]
    if not lines:  # versions are asked only where there is something to compare them with
        return ()
    found = (row for row in _rows(lines, backend.versions()) if isinstance(row, Decision))
    last = {row.direction: row.winner for row in found}
    return tuple((direction, tiling) for direction, tiling in last.items() if tiling is not None)


def _lines(subject: Subject) -> list[dict[str, Any]]:
    """The timings of an entry that is whole."""
    kept = opened()
    return [] if kept.get(subject.key) is None else kept.timings(subject.key)


def _rows(lines: Iterable[Mapping[str, Any]], versions: Mapping[str, str]) -> Iterator[Row]:
    return (row for line in lines if (row := _row(line, versions)) is not None)


# ---- rows as JSON ----------------------------------------------------------------------------------------------------
def _said(row: Row, versions: Mapping[str, str]) -> dict[str, Any]:
    said: dict[str, Any] = {**versions, "direction": row.direction}
    if isinstance(row, Decision):
        return said | {"winner": None if row.winner is None else astuple(row.winner)}
    timing = None if row.timing is None else astuple(row.timing)
    return said | {"tiling": astuple(row.tiling), "predicted": row.predicted, "timing": timing, "why": row.why}


def _row(said: Mapping[str, Any], versions: Mapping[str, str]) -> Row | None:
    """None for a row of other versions, or that nobody wrote."""
    if any(said.get(name) != version for name, version in versions.items()):
        return None
    try:
        direction = said["direction"]
        if direction not in DIRECTIONS:
            return None
        if "winner" in said:
            return Decision(direction, None if said["winner"] is None else _tiling(said["winner"]))
        timing = None if said["timing"] is None else Timing(*map(float, said["timing"]))
        return Measured(direction, _tiling(said["tiling"]), float(said["predicted"]), timing, str(said["why"]))
    except (KeyError, TypeError, ValueError):
        return None


def _tiling(numbers: Iterable[Any]) -> Tiling:
    """A tiling that can be planned; raises ValueError or TypeError else."""
    found = Tiling(*numbers)
    powers = (found.rows, found.cols, found.warps)
    whole = all(isinstance(x, int) for x in (*powers, found.stages, found.registers, found.apart, found.groups))
    shaped = whole and all(0 < x <= 256 and not x & (x - 1) for x in powers) and min(found.rows, found.cols) >= 16
    if not shaped or found.stages < 1 or found.registers < 0 or found.groups < 0:
        raise ValueError(f"{found} is no tiling")
    return found


# ---- files -----------------------------------------------------------------------------------------------------------
def share(path: Path, backend: Backend, card: Card, weft: str = "") -> int:
    """Write this card's evidence, of the present versions, to a file; how many problems it has. weft: its version."""
    versions, asked = backend.versions(), f"share the evidence of {card.name}"
    entries = list(_entries(card, versions))
    if not entries:
        wrong = "nothing was tuned on this card with this version of the kernels"
        raise OptionError(asked, wrong, "run weft tune PATTERN --shape B,H,M,D first")
    content = {"format": FORMAT, "weft": weft, "card": card.name, "versions": versions, "entries": entries}
    text = json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n"
    beside = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        beside.write_text(text)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OptionError(f"{asked} as {path}", f"{error.strerror}", "name a file that can be written") from None
    return len(entries)


def _entries(card: Card, versions: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Subject, name and rows of everything that was tuned on a card."""
    kept = opened()
    for one in kept.entries():
        facts = one.facts()
        if one.state or (facts.get("kind"), facts.get("target")) != (KIND, card.name):
            continue
        if kept.get(one.path.name) is None:  # damaged
            continue
        rows = [line for line in kept.timings(one.path.name) if _row(line, versions) is not None]
        if rows:
            subject = json.loads((one.path / FILE).read_bytes())
            yield {"name": facts["name"], "subject": subject, "rows": rows}


def adopt(path: Path, backend: Backend, card: Card) -> int:
    """Take what `share` wrote into the store; how many problems that are. All of a file is checked before."""
    asked, versions = f"adopt {path}", backend.versions()
    content = _read(asked, path)
    again = f"tune here instead, or adopt what was shared on {card.name} with this version"
    if content["card"] != card.name:
        raise OptionError(asked, f"it was measured on {content['card']}, and this is {card.name}", again)
    if content["versions"] != versions:
        differ = [x for x in versions if content["versions"].get(x) != versions[x]]
        wrong = " and ".join(f"{x} {content['versions'].get(x)}, here {versions[x]}" for x in differ)
        raise OptionError(asked, f"it was measured with {wrong}", again)
    if opened().root is None:
        raise OptionError(asked, "nothing is kept between processes (WEFT_CACHE_DIR=off)", "name a directory there")
    found = [(Subject.read(one["subject"]), one["name"], one["rows"]) for one in content["entries"]]
    taken = 0
    for subject, name, rows in found:
        there = opened().timings(subject.key)
        new = [row for row in rows if row not in there]
        taken += not new or _append(subject, name, new, versions)
    if taken < len(found):
        wrong = f"the cache kept {taken} of its {len(found)} problems"
        raise OptionError(asked, wrong, "see that it can be written, and adopt the file again")
    return taken


def _read(asked: str, path: Path) -> dict[str, Any]:
    """What a file says, if it says what `share` wrote."""
    cure = "copy it again from where it was shared"
    try:
        content = json.loads(path.read_bytes())
        if content.pop("sha256") == _digest(content) and content["format"] == FORMAT:
            return content
        wrong = "it was changed since it was written, or another version of weft wrote it"
    except OSError as error:
        wrong, cure = f"{error.strerror}", "name a file that can be read"
    except (ValueError, KeyError, TypeError, AttributeError):
        wrong = "it is no evidence that weft shared, or a part of it is missing"
    raise OptionError(asked, wrong, cure)


def _digest(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
