"""The kernels for Hopper are written once for every configuration, and reach Triton's private names in one place."""

import ast
from pathlib import Path

import pytest

import weft

HOPPER = Path(weft.__file__).parent / "kernels" / "gpu" / "hopper"
MODULES = [path for path in sorted(HOPPER.rglob("*.py")) if path != HOPPER / "config.py"]
SIZES = (64, 128, 256)  # of head dimensions and of tiles


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(HOPPER).as_posix())
def test_no_head_dimension_or_tile_is_a_literal(path):
    found = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in SIZES
    ]
    assert not found, f"{path.name} has such numbers in lines {found}: they are fields of hopper.config.Config"


def test_one_module_names_the_private_aggregate():
    names = {path.relative_to(HOPPER).as_posix() for path in MODULES if "_aggregate" in path.read_text()}
    assert names == {"ops/aggregate.py"}
