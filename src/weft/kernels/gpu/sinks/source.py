"""Entries of the kernels of sinks, with the types of their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from weft.kernels.gpu.compile.source import POINTERS, Source
from weft.kernels.gpu.entry import module
from weft.planning.tiling import chunks

STRIDES = ("Out_batch", "Out_head", "Out_row", "Out_dim")


class Arguments(NamedTuple):
    """Names of a kernel's arguments in order: pointers that are read, sizes, pointers that are written.

    Pointers are to float32, but for those in `others`.
    """

    reads: tuple[str, ...]
    sizes: tuple[str, ...]
    writes: tuple[str, ...]
    others: Mapping[str, str] = {}

    @property
    def types(self) -> dict[str, str]:
        """By name; numbers of all rows and strides have 64 bits."""
        found = dict.fromkeys(self.reads, "*fp32")
        found |= {size: "i64" if size in (*STRIDES, "rows") else "i32" for size in self.sizes}
        return found | dict.fromkeys(self.writes, "*fp32") | dict(self.others)


@lru_cache(maxsize=1)
def gradient_source() -> Source:
    """The kernel that leaves a sum, or several, of -(share of the sink in a row) * delta for each head."""
    named = Arguments(("Sinks", "Lse", "Delta"), ("batch", "heads", "length"), ("Sums",))
    return _source("sink_gradient", named, "sink_gradient(Sinks, Lse, Delta, Sums, batch, heads, length)", 8)


@lru_cache(maxsize=1)
def sum_source() -> Source:
    """The kernel that adds the sums of each head in one order."""
    named = Arguments(("Sums",), ("parts",), ("Total",))
    return _source("sink_gradient_sum", named, "sink_gradient_sum(Sums, Total, parts)", 4)


@lru_cache(maxsize=64)
def join_source(dtype: str, dv: int) -> Source:
    """The kernel that adds sinks to finished rows: lse gains them, out is scaled."""
    sizes = ("rows", "heads", "length", *STRIDES)
    named = Arguments(("Sinks",), sizes, ("Out", "Lse"), {"Out": POINTERS[dtype]})
    out = f"Strided(Out, {', '.join(STRIDES)})"
    call = f"join_sinks(\n    {chunks(dv)}, Sinks, Lse, {out}, rows, heads, length,\n)"
    return _source(f"join_sinks_{dtype}_{dv}", named, call, 4)


def _source(name: str, named: Arguments, call: str, warps: int) -> Source:
    """A source whose only line is the call of its body."""
    function, types = call.partition("(")[0], named.types
    imports = f"from weft.kernels.gpu.sinks.kernel import {function}\n\n"
    if "Strided(" in call:
        imports = f"from weft.kernels.gpu.ops.loads import Strided\n{imports}"
    about = f"{name}\n\nWritten by weft; {warps} warps."
    text = module(f"weft_{name}", about, imports, tuple(types), call.splitlines())
    return Source(name, text, tuple(types.items()), (), warps, 1)
