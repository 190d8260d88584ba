"""KernelSpec -> Config: what the fragments of a tile kernel branch on while they are compiled.

An entry builds its Config from literals, so the text of the entry says all of it. Fragments read its fields, and a
branch that a field decides is not compiled. A choice that was measured is a property here, beside its reason.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.kernels.gpu.spec import KernelSpec
from weft.planning.tiling import chunks

Chunks = tuple[tuple[int, int, int], ...]  # (first column, width, columns that exist) of a head dimension's chunks


class Config(NamedTuple):
    """What one kernel is compiled for; see `KernelSpec` for fields of the same name.

    d, dv: chunks of the head dimensions. rows, cols: of a tile. unit: elements that strides count in. precision: of
    products of float32, None for other types. single: the dtype is float32.
    """

    direction: str
    d: Chunks
    dv: Chunks
    rows: int
    cols: int = 0
    rank: int = 1
    aligned: bool = False
    unit: int = 1
    precision: str | None = None
    single: bool = False
    upcast: bool = False
    linear: bool = False
    folded: bool = False
    wide_rows: bool = False
    near_rows: bool = False
    leaves_delta: bool = False
    lse_gradient: bool = False
    chained: bool = False


def config_of(spec: KernelSpec) -> Config:
    """The configuration of a kernel of this family."""
    own = {name: getattr(spec, name) for name in Config._fields if hasattr(spec, name)}
    own |= {
        "d": chunks(spec.d), "dv": chunks(spec.dv), "single": spec.dtype == "float32",
        "precision": _precision(spec), "wide_rows": _wide_rows(spec), "near_rows": _near_rows(spec),
    }  # fmt: skip
    return Config(**own)


def literal(config: Config) -> list[str]:
    """The lines of an expression that makes a configuration; fields at their defaults are left out."""
    said = [
        f"{name}={value!r}," for name, value in config._asdict().items() if value != Config._field_defaults.get(name)
    ]
    lines, line = [], ""
    for one in said:
        if len(line) + len(one) > 100:
            lines.append(line.rstrip())
            line = ""
        line += one + " "
    return ["Config(", *(f"    {x}" for x in (*lines, line.rstrip())), "),"]


def _precision(spec: KernelSpec) -> str | None:
    if spec.dtype != "float32":
        return None
    return "tf32" if spec.tf32 else "ieee"


def _wide_rows(spec: KernelSpec) -> bool:
    """Whether the stride of rows is made 64 bits wide before a tile's first token is multiplied by it.

    Forwards, dK and dV on lines then take fewer instructions a tile; dQ and grids take more, or spill
    (benchmarks/notes/triton.md).
    """
    return spec.aligned and spec.rank < 2 and spec.direction != "dq" and not spec.with_dq


def _near_rows(spec: KernelSpec) -> bool:
    """Whether a tile's rows are counted in 32 bits from its first one: on lines, where it was not slower."""
    return spec.aligned and spec.rank == 1 and not spec.listed and spec.direction != "delta"
