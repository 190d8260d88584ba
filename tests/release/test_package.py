"""The package: its names, what it holds, and what `make release-check` says of it."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import weft
from weft.errors import DISTRIBUTION

pytest.importorskip("hatchling", reason="it builds the package: pip install '.[dev]'")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "release"))  # its scripts import each other by name

import lacking  # noqa: E402
import metadata  # noqa: E402

sys.path.remove(str(ROOT / "release"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_name_and_one_version():
    assert PROJECT["name"] == DISTRIBUTION
    assert {"version", "readme", "urls"} <= set(PROJECT["dynamic"])
    assert f"\nversion: {weft.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{weft.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_extras_that_build_on_others_name_this_package():
    wanted = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    assert not [line for line in wanted if re.match(r"weft\b(?!-attention)", line)]
    assert f"{DISTRIBUTION}[torch]" in wanted


def test_the_package_holds_what_it_must(tmp_path):
    assert list(lacking.built(tmp_path)) == []


def test_a_package_that_cannot_be_built_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(lacking, "ROOT", tmp_path)
    assert "cannot be built" in next(lacking.built(tmp_path / "dist"))


def test_what_a_release_lacks_is_told(monkeypatch):
    monkeypatch.setattr(lacking, "address", lambda: "")
    monkeypatch.setattr(lacking, "RELEASED", False)
    said = "\n".join(lacking._told())
    assert "no address" in said and "RELEASED" in said
    monkeypatch.setattr(lacking, "address", lambda: "https://host.example/owner/name")
    monkeypatch.setattr(lacking, "RELEASED", True)
    said = "\n".join(lacking._told())
    assert "no address" not in said and "RELEASED" not in said and "SECURITY.md does not say" in said


def test_without_an_address_links_stay_relative():
    text = "[design](DESIGN.md) ![chart](docs/chart.svg) [top](#top) [other](https://host.example/x)"
    assert metadata.absolute(text, "") == text
    home = "https://host.example/owner/name"
    assert metadata.absolute(text, home) == (
        f"[design]({home}/blob/main/DESIGN.md) ![chart]({home}/raw/main/docs/chart.svg) [top](#top) "
        "[other](https://host.example/x)"
    )


def test_the_address_stands_in_one_place():
    """Links of pages are relative, so that a move changes one line."""
    home = metadata.address()
    texts = [path for folder in ("docs", "src") for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py")]
    assert not home or not [path for path in texts if home in path.read_text()]
