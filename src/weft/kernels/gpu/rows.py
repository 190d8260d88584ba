"""Entries of the kernels that move and merge rows (`weft.kernels.gpu.ops.rows`)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from weft.kernels.gpu.compile.source import POINTERS, Source
from weft.kernels.gpu.entry import module

ELEMENTS = 4096  # of a program: as many rows as fit
TENSOR = ("batch", "head", "row")
LISTED = "*i32"


class Way(NamedTuple):
    """How rows are moved. block: rows of a program; width: columns, a power of two; unit: elements that strides count;
    several: rows that are added up for each; adds: whether to what is there.
    """

    block: int
    width: int
    unit: int
    several: int = 1
    adds: bool = False

    @staticmethod
    def of(d: int, unit: int, several: int = 1, adds: bool = False) -> Way:
        width = 1 << (d - 1).bit_length()
        return Way(max(1, ELEMENTS // width), width, unit, several, adds)


@lru_cache(maxsize=256)
def take_source(dtype: str, d: int, way: Way) -> Source:
    """The kernel that takes rows from two tensors, or adds them up."""
    types = {"Out": POINTERS[dtype]} | _strides("Out") | {"First": POINTERS[dtype]} | _strides("First")
    types |= {"Second": POINTERS[dtype]} | _strides("Second") | {"Places": LISTED, "Into": LISTED}
    body = f"take({_rows('Out')}, ({_rows('First')}, {_rows('Second')}), (Places, Into), {{}}, Way(*{tuple(way)}), {d})"
    return _source(f"take_rows_{dtype}_{d}", types, body, way)


@lru_cache(maxsize=64)
def merge_source(dtype: str, d: int, way: Way) -> Source:
    """The kernel that merges results over other keys into rows."""
    types = {"Out": POINTERS[dtype]} | _strides("Out") | {"Lse": "*fp32"} | _strides("Lse")
    types |= {"More": POINTERS[dtype]} | _strides("More") | {"Low": "*fp32"} | _strides("Low") | {"Into": LISTED}
    whole, others = (f"({_rows(a)}, {_rows(b)})" for a, b in (("Out", "Lse"), ("More", "Low")))
    body = f"merge({whole}, {others}, Into, {{}}, Way(*{tuple(way)}), {d})"
    return _source(f"merge_rows_{dtype}_{d}", types, body, way)


def _strides(name: str) -> dict[str, str]:
    return {f"{name}_{part}": "i64" for part in TENSOR}


def _rows(name: str) -> str:
    return f"Rows({name}, {', '.join(f'{name}_{part}' for part in TENSOR)})"


def _source(name: str, types: dict[str, str], body: str, way: Way) -> Source:
    sizes = ("rows", "heads", "border")
    types |= dict.fromkeys(sizes, "i64")
    name = f"{name}_{way.unit}_{way.several}" + "_adds" * way.adds
    helpers = (
        "from weft.kernels.gpu.ops.rows import Rows, Sizes, " + body.partition("(")[0]
        + "\nfrom weft.kernels.gpu.rows import Way\n\n"
    )  # fmt: skip
    text = module(f"weft_{name}", f"{name}\n\nWritten by weft; 4 warps.", helpers, tuple(types),
                  [body.format(f"Sizes({', '.join(sizes)})")])  # fmt: skip
    aligned = tuple(i for i, kind in enumerate(types.values()) if kind[0] == "*") if way.unit > 1 else ()
    return Source(name, text, tuple(types.items()), aligned, 4, 1)
