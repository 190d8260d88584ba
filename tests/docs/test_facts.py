"""Numbered facts of the notes: each number stands once, in order, and what cites one cites a fact that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTES = {"T": "triton.md", "W": "warp-groups.md"}
FACT = re.compile(r"\*\*([TW])(\d+)\.?\*\*")
CITED = re.compile(r"\b([TW])(\d+)\b")
CITING = [
    *(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "benchmarks/notes").glob("*.md"),
]  # fmt: skip


def facts(letter):
    """The numbers of a page, in its order."""
    text = (ROOT / "benchmarks/notes" / NOTES[letter]).read_text()
    return [int(number) for of, number in FACT.findall(text) if of == letter]


@pytest.mark.parametrize("letter", NOTES)
def test_each_number_stands_once(letter):
    found = facts(letter)
    assert sorted(found) == list(range(1, len(found) + 1))


def test_what_is_cited_is_there():
    known, cited = {letter: set(facts(letter)) for letter in NOTES}, 0
    for path in CITING:
        for line in path.read_text().splitlines():
            if "notes/" in line or "triton.md" in line:
                for letter, number in CITED.findall(line):
                    assert int(number) in known[letter], f"{path}: {letter}{number}"
                    cited += 1
    assert cited > 20


def test_code_cites_the_notes_on_triton_by_number():
    pages = {path: path.read_text() for path in CITING if path.suffix == ".py" and path != Path(__file__)}
    bare = [str(path) for path, text in pages.items() if re.search(r"notes/triton\.md(?!,\s+(?:# )?T\d)", text)]
    assert bare == []
