"""`python release/lacking.py`: what a release still lacks, a line each; exit code 1 if there is anything.

It builds the wheel and the sdist and reads them. What it does not do: run the tests, or ask the package index.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from metadata import ROOT, address

import weft
from weft.errors import DISTRIBUTION, RELEASED

CARRIED = ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "release/metadata.py", "src/weft/py.typed")


def lacking() -> Iterator[str]:
    """Everything that stands between these files and a release."""
    yield from _told()
    yield from _recorded()
    with tempfile.TemporaryDirectory() as folder:
        yield from built(Path(folder))


def _told() -> Iterator[str]:
    """What texts must say."""
    version = weft.__version__
    if not address():
        yield 'the project has no address: write it in pyproject.toml, [tool.hatch.metadata.hooks.custom], address = ""'
    elif address() not in (ROOT / "SECURITY.md").read_text(encoding="utf-8"):
        yield f"SECURITY.md does not say where to report a weakness: name {address()} or a contact there"
    if not RELEASED:
        yield f"errors.RELEASED is False: own the name {DISTRIBUTION} on the package index, then set it to True"
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", _read("CHANGELOG.md"), re.MULTILINE):
        yield f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'"
    if f"\nversion: {version}\n" not in _read("CITATION.cff"):
        yield f"CITATION.cff does not say version: {version}"
    if "\ndate-released: " not in _read("CITATION.cff"):
        yield "CITATION.cff has no date-released"


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _recorded() -> Iterator[str]:
    """What git must say."""
    if _git("status", "--porcelain"):
        yield "the working tree has changes that are not committed"
    if f"v{weft.__version__}" not in _git("tag", "--points-at", "HEAD").split():
        yield f"this commit has no tag: git tag v{weft.__version__}"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def built(folder: Path) -> Iterator[str]:
    """What is wrong with the wheel and the sdist, which are made in `folder`."""
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"the package cannot be built: {done.stderr.strip().splitlines()[-1:] or done.stdout}"
        return
    stem = f"{DISTRIBUTION.replace('-', '_')}-{weft.__version__}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
    foreign = sorted({name.split("/")[0] for name in names} - {"weft", f"{stem}.dist-info"})
    yield from (f"the wheel holds {name}" for name in foreign)
    yield from (f"the wheel lacks {name}" for name in ("weft/py.typed", "weft/__init__.py") if name not in names)
    with tarfile.open(folder / f"{stem}.tar.gz") as sdist:
        carried = {name.removeprefix(f"{stem}/") for name in sdist.getnames()}
    yield from (f"the sdist lacks {name}" for name in CARRIED if name not in carried)


if __name__ == "__main__":
    missing = list(lacking())
    print(*(f"- {line}" for line in missing), sep="\n", end="\n" if missing else "")
    print(f"weft {weft.__version__}: {f'{len(missing)} things are missing' if missing else 'ready to be released'}")
    sys.exit(1 if missing else 0)
