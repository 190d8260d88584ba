"""`python release/installed.py DIST`: installs a wheel and an sdist into fresh environments and runs the README there.

DIST is a folder with one wheel and one sdist. The sdist is installed without torch: patterns, plans and commands must
work there, and attention must say what to install. The wheel is installed with torch, and runs the README's code.
Variables TORCH and TORCH_INDEX choose torch, as for make.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "site" / "pages.py"
WITHOUT = """
import importlib.util, sys
import weft
assert importlib.util.find_spec("torch") is None
assert (weft.causal() & weft.window(3)).acsr(64).nnz == 250
try:
    weft.attention
except ModuleNotFoundError as error:
    assert "needs torch" in str(error) and "install" in str(error), error
else:
    raise AssertionError("attention without torch")
"""


def sh(*words: str | Path, where: Path, tell: bool = True) -> str:
    """Run a program away from the checkout, so that the installed weft is found; its output."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words], cwd=where, env=clean, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(str(word) for word in words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def fresh(folder: Path, *wanted: str) -> Path:
    """A new environment with what is wanted; its Python."""
    sh(sys.executable, "-m", "venv", folder, where=folder.parent)
    python = folder / "bin" / "python"
    for some in wanted:
        sh(python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile", *some.split("\n"),
           where=folder.parent)  # fmt: skip
    home = sh(python, "-c", "import weft; print(weft.__file__)", where=folder.parent).strip()
    assert Path(home).is_relative_to(folder), f"weft of {home}, and not of {folder}"
    return python


def main(dist: Path) -> None:
    """Both installations."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    torch, index = os.environ.get("TORCH", "torch"), os.environ.get("TORCH_INDEX", "")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        python = fresh(here / "without", str(sdist))
        sh(python, "-c", WITHOUT, where=here)
        drawn = sh(python.parent / "weft", "show", "causal() & window(3)", "--size", "16", where=here)
        assert "█" in drawn, drawn
        print(f"{sdist.name} without torch: patterns, plans and commands work, and attention says what it needs")
        chosen = "\n".join([*(["--index-url", index] if index else []), torch])
        python = fresh(here / "with", chosen, f"{wheel}[torch]\n{torch}")
        sh(python, PAGES, ROOT / "README.md", where=here)
        print(f"{wheel.name} with torch: the README's code runs")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
