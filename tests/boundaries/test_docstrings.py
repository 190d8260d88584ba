"""The docstring of a package is its map: it names every module of it, and no other."""

import ast
import re
from pathlib import Path

import pytest

import weft

ROOT = Path(weft.__file__).parent
MAPPED = ("pattern", "acsr", "planning", "kernels/gpu", "kernels/gpu/ops", "kernels/gpu/tables", "kernels/gpu/compile",
          "kernels/gpu/programs", "kernels/cpu", "runtime", "torch")  # fmt: skip


@pytest.mark.parametrize("package", MAPPED)
def test_a_map_names_every_module(package):
    folder = ROOT / package
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name.rstrip("/") for cell in first for name in re.findall(r"`([\w/]+)`", cell)}
    there = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert named == there - {"__init__"}
