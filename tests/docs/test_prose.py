"""Prose of the README and of docs: sentences of at most 25 words, so that one reading is enough.

Code, tables' separators and comments are no prose; a piece of code in a sentence is one word. Left out: pages that are
written from rows.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST = 25
GENERATED = ("performance.md", "prediction.md")
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "DESIGN", "CONTRIBUTING", "SECURITY", "CHANGELOG")),
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.name not in GENERATED),
    *(ROOT / f"benchmarks/notes/{name}.md" for name in ("triton", "warp-groups")),
]
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=[|#])|\\\n")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
# A stop, and what a sentence begins with: a capital, code, a link, a number, or a name that is written small.
END = re.compile(r"(?<=[.!?])[)\"'*]*\s+(?=[A-Z\[(*\"0-9]|(?:weft|d[QKV]|[qkv])\b)")


def sentences(text):
    """Every sentence of a page, code as the word Code."""
    prose = COMMENT.sub("", BLOCK.sub("\n\n", text))
    for paragraph in PARAGRAPH.split(prose):
        plain = re.sub(r"`[^`]*`", "Code", LINK.sub(r"\1", paragraph))
        for cell in plain.split("|") if plain.lstrip().startswith("|") else [plain]:
            yield from END.split(" ".join(cell.split()).lstrip("-*# "))


def words(sentence):
    return sum(any(character.isalnum() for character in word) for word in sentence.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page):
    long = [f"{words(one)} words: {one}" for one in sentences(page.read_text()) if words(one) > MOST]
    assert long == []


def test_sentences_are_told_apart():
    text = """# A heading

The first one, with `some code of five words`. weft begins the second! [A link](where/it/leads.md) the third.
- an item
- another; it goes on

| cell one | cell `a | b` two. And three |

```text
no prose. None at all.
```
"""
    assert [one for one in sentences(text) if one] == [
        "A heading", "The first one, with Code.", "weft begins the second!", "A link the third.", "an item",
        "another; it goes on", "cell one", "cell Code two.", "And three",
    ]  # fmt: skip
    assert words("one, two - three") == 3


MAPS = [ROOT / "CONTRIBUTING.md", ROOT / "DESIGN.md", *sorted((ROOT / "docs").glob("kernels*.md"))]
# Where paths of these pages begin: a page about kernels leaves out their folder.
ROOTS = ("", "src/weft", "src/weft/kernels/gpu", "src/weft/kernels/gpu/hopper", "src/weft/kernels/cpu")


@pytest.mark.parametrize("page", MAPS, ids=lambda page: page.name)
def test_files_that_maps_name_are_there(page):
    """Their walks lead through files that people move. A name after the file is one of its text."""
    named = set(re.findall(r"`((?:[a-z_]+/)+[\w./]*)`", page.read_text()))
    assert [one for one in sorted(named) if not _exists(one)] == []


def _exists(named):
    if any((ROOT / at / named).exists() for at in ROOTS):
        return True
    path, _, name = named.partition(".")
    files = [file for at in ROOTS if (file := ROOT / at / f"{path}.py").exists()]
    return any(name.partition(".")[0] in file.read_text() for file in files)
