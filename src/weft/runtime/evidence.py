"""Evidence: what kernels of one pattern and problem took on one card, kept in the store and carried in files.

An entry of the store is for a pattern (as it crosses into a graph: structure and numbers), a problem and a card. Its
timings are rows: measurements, and decisions, of which the last one of a direction holds. Every row says which versions
of the kernels and of Triton it was measured with; those of other versions are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from weft.errors import OptionError
from weft.kernels.backend import Backend, Card
from weft.outside import file_bytes, parsed, shown
from weft.pattern.algebra import Pattern
from weft.planning.candidates import may_win
from weft.planning.choose import Fixed
from weft.planning.problem import Problem
from weft.planning.tiling import Direction, Tiling
from weft.runtime import rows
from weft.runtime.rows import Decision, Row
from weft.store import opened

KIND, FILE = "tuning", "tuning.json"
FORMAT = 2  # of rows and files
FIELDS = {"format": int, "weft": str, "card": str, "versions": dict, "entries": list}  # of a file, but its sum
LONGEST = 60  # characters of a pattern in the name of an entry


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
        """Back from `said`; raises ValueError, which says what is wrong, for what is none."""
        if not isinstance(said, dict) or said.keys() != {"structure", "numbers", "problem", "card"}:
            raise ValueError("a subject has a structure, numbers, a problem and a card")
        numbers = bytes.fromhex(rows.text("numbers", said["numbers"], rows.STRUCTURE))
        structure = rows.text("structure", said["structure"], rows.STRUCTURE)
        return Subject(structure, numbers, rows.problem(said["problem"]), rows.text("card", said["card"]))


def record(subject: Subject, name: str, found: Iterable[Row], versions: Mapping[str, str]) -> bool:
    """Add rows to an entry, which is made if there is none; False if they are not kept. name: for people."""
    return _append(subject, name, [rows.said(row, versions) for row in found], versions)


def _append(subject: Subject, name: str, lines: list[dict[str, Any]], versions: Mapping[str, str]) -> bool:
    kept = opened()
    if kept.own(subject.key) is None:
        facts = {"name": name, "kind": KIND, "target": subject.card, "triton": versions.get("triton", "")}
        kept.put(subject.key, facts, {FILE: json.dumps(subject.said()).encode()})
    return kept.record(subject.key, lines)


def name_of(pattern: Pattern, problem: Problem) -> str:
    """As `weft cache list` shows it."""
    text = str(pattern)
    return f"tuning {text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'} {problem}"


def rows_of(subject: Subject, versions: Mapping[str, str]) -> list[Row]:
    """What is known with these versions, the oldest first."""
    return list(_rows(subject.key, _lines(subject), versions))


def winners(pattern: Pattern, problem: Problem, backend: Backend, card: Card) -> Fixed:
    """The tilings that won on this card, of the directions that were tuned; nothing for a pattern that cannot cross."""
    if getattr(pattern, "structure", None) is None:
        return ()
    subject = Subject.of(pattern, problem, card)
    lines = [line for line in _lines(subject) if "winner" in line]
    if not lines:  # versions are asked only where there is something to compare them with
        return ()
    found = (row for row in _rows(subject.key, lines, backend.versions()) if isinstance(row, Decision))
    last = {row.direction: row.winner for row in found}
    named = [(direction, tiling) for direction, tiling in last.items() if tiling is not None]
    return tuple(one for one in named if _believed(one, pattern, problem, card))


def _believed(won: tuple[Direction, Tiling], pattern: Pattern, problem: Problem, card: Card) -> bool:
    """Whether the planner lists a winner; what it does not list is passed over, with one warning."""
    if may_win(*won, pattern, problem, card.gpu):
        return True
    direction, tiling = won
    said = f"the tuner's evidence names {tiling} for {direction} of {shown(pattern)}"
    opened().warn(said, f"{said}, which is no candidate on {shown(card.name)}. It is passed over; tune again")
    return False


def _lines(subject: Subject) -> list[dict[str, Any]]:
    """The timings of an entry that is whole."""
    kept = opened()
    return [] if kept.get(subject.key) is None else kept.timings(subject.key)


def _rows(key: str, lines: Iterable[Mapping[str, Any]], versions: Mapping[str, str]) -> Iterator[Row]:
    """Rows of these versions; those that nobody wrote are passed over, with one warning."""
    for line in lines:
        if rows.of_other_versions(line, versions):
            continue
        try:
            yield rows.read(line, versions)
        except ValueError as error:
            said = f"the timings of {key} hold a row that the tuner never wrote ({error})"
            opened().warn(f"{key} rows", f"{said}. It is passed over; tune again")


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
        if kept.own(one.path.name) is None:  # damaged
            continue
        lines = kept.timings(one.path.name)
        found = [rows.said(row, versions) for row in _rows(one.path.name, lines, versions)]
        with suppress(ValueError, OSError):  # nobody's subject is shared
            subject = Subject.read(parsed(file_bytes(one.path / FILE)))
            if found:
                yield {"name": str(facts.get("name", "")), "subject": subject.said(), "rows": found}


def adopt(path: Path, backend: Backend, card: Card) -> int:
    """Take what `share` wrote into the store; how many problems that are. All of a file is checked before."""
    asked, versions = f"adopt {shown(path)}", backend.versions()
    content = _read(asked, path)
    again = f"tune here instead, or adopt what was shared on {card.name} with this version"
    if content["card"] != card.name:
        raise OptionError(asked, f"it was measured on {shown(content['card'])}, and this is {card.name}", again)
    if content["versions"] != versions:
        differ = [x for x in versions if content["versions"].get(x) != versions[x]] or [*versions]
        wrong = " and ".join(f"{x} {shown(content['versions'].get(x), 40)}, here {versions[x]}" for x in differ)
        raise OptionError(asked, f"it was measured with {wrong}", again)
    if opened().root is None:
        raise OptionError(asked, "nothing is kept between processes (WEFT_CACHE_DIR=off)", "name a directory there")
    found = [_entry(asked, one, content["card"], versions) for one in content["entries"]]
    taken = 0
    for subject, name, lines in found:
        there = opened().timings(subject.key)
        new = [line for line in lines if line not in there]
        taken += not new or _append(subject, name, new, versions)
    if taken < len(found):
        wrong = f"the cache kept {taken} of its {len(found)} problems"
        raise OptionError(asked, wrong, "see that it can be written, and adopt the file again")
    return taken


def _entry(asked: str, one: Any, card: str, versions: Mapping[str, str]) -> tuple[Subject, str, list[dict[str, Any]]]:
    """One problem of a file: its subject, its name, and its rows as they are kept."""
    try:
        if not isinstance(one, dict) or one.keys() != {"name", "subject", "rows"} or not isinstance(one["rows"], list):
            raise ValueError("a problem has a name, a subject and rows")
        subject, name = Subject.read(one["subject"]), rows.text("name", one["name"])
        if subject.card != card:
            raise ValueError(f"its card is {shown(subject.card)}")
        if not all(isinstance(line, dict) and not rows.of_other_versions(line, versions) for line in one["rows"]):
            raise ValueError("a row is of other versions")
        # as they come from JSON, so that they compare with rows that are there
        lines = [rows.said(rows.read(line, versions), versions) for line in one["rows"]]
        return subject, name, [parsed(json.dumps(line)) for line in lines]
    except ValueError as error:
        wrong, cure = f"one of its problems is none that weft shared: {error}", "share it again from where it was tuned"
        raise OptionError(asked, wrong, cure) from None


def _read(asked: str, path: Path) -> dict[str, Any]:
    """What a file says, if it says what `share` wrote."""
    cure = "copy it again from where it was shared"
    try:
        content = parsed(file_bytes(path))
        if not isinstance(content, dict) or content.keys() != FIELDS.keys() | {"sha256"}:
            raise ValueError("other fields")
        if content.pop("sha256") == _digest(content) and content["format"] == FORMAT:
            if all(isinstance(content[name], kind) for name, kind in FIELDS.items()):
                return content
            raise ValueError("fields of another kind")
        wrong = "it was changed since it was written, or another version of weft wrote it"
    except OSError as error:
        wrong, cure = f"{error.strerror}", "name a file that can be read"
    except ValueError:
        wrong = "it is no evidence that weft shared, or a part of it is missing"
    raise OptionError(asked, wrong, cure)


def _digest(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
