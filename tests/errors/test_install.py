"""What texts tell users to install: never a distribution that somebody else may have registered."""

import re
from pathlib import Path

import pytest

from weft import errors
from weft.errors import DISTRIBUTION, install_line

ROOT = Path(__file__).parents[2]
TEXTS = [
    path for folder in ("src", "docs", "release") for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".html", ".js", ".txt") and "plots" not in path.parts
]  # fmt: skip
TEXTS += [
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md", "SECURITY.md", "Makefile")
]
NAMES = f"(?:weft|{DISTRIBUTION})"
# `install`, options, then weft by a name that an index would be asked for, in quotes or not
STRANGERS = re.compile(
    rf"\binstall\s+(?:-\S+\s+)*(?:(['\"]){NAMES}[^\s'\"]*\1|{NAMES}(?=[\[=<>~!`]|\s*$))", re.MULTILINE
)


@pytest.mark.skipif(errors.RELEASED, reason="the name on the index is weft's own")
@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_installs_a_stranger(path):
    assert [found[0] for found in STRANGERS.finditer(path.read_text())] == []


@pytest.mark.parametrize(
    "text", ["pip install 'weft[gpu]'", 'pip install "weft"', "pip install -U weft==1.0", "install weft[torch] and",
             "pip install weft-attention", "run `pip install weft`"],
)  # fmt: skip
def test_strangers_are_recognised(text):
    assert STRANGERS.search(text)


@pytest.mark.parametrize("text", ["pip install '.[gpu]'", "install weft's demo", "installs weft from a checkout"])
def test_others_are_not(text):
    assert not STRANGERS.search(text)


def test_the_line_is_of_a_checkout_until_weft_is_released(monkeypatch):
    monkeypatch.setattr(errors, "RELEASED", False)
    assert install_line("gpu") == "pip install '.[gpu]' in a checkout of weft"
    monkeypatch.setattr(errors, "RELEASED", True)
    assert install_line("gpu") == "pip install 'weft-attention[gpu]'"


def test_texts_are_found():
    assert len(TEXTS) > 250 and ROOT / "docs/start.md" in TEXTS
