"""Entries of the kernels of sinks (`weft.kernels.gpu.ops.sinks`), and in what portions they take rows."""

from __future__ import annotations

from functools import lru_cache

from weft.kernels.gpu.compile.source import POINTERS, Source
from weft.kernels.gpu.entry import module
from weft.planning.tiling import chunks

TILE, WARPS = 4096, 8  # rows of a program of the gradient, 16 of each thread
ALONE = 4  # tiles of a head that one program takes, so that nothing is left to add
PROGRAMS = 512  # of longer heads, which fill any card
JOINED = 8  # rows that one program joins with their sinks; with more, addresses of wide rows spill


@lru_cache(maxsize=1)
def gradient_source() -> Source:
    """The kernel that leaves a sum, or several, of -(share of the sink in a row) * delta for each head."""
    types = _numbers("Sinks", "Lse", "Delta") | _integers("batch", "heads", "length") | _numbers("Sums")
    body = f"gradient(Numbers(Sinks, Lse, Delta), Sums, Sizes(batch, heads, length), {TILE})"
    return _source("sink_gradient", types, body, WARPS)


@lru_cache(maxsize=1)
def sum_source() -> Source:
    """The kernel that adds the sums of each head in one order."""
    types = _numbers("Sums") | _integers("parts") | _numbers("Total")
    return _source("sink_gradient_sum", types, f"gradient_sum(Sums, Total, parts, {PROGRAMS})")


@lru_cache(maxsize=64)
def join_source(dtype: str, dv: int) -> Source:
    """The kernel that adds sinks to finished rows: lse gains them, out is scaled."""
    strides = ("Out_batch", "Out_head", "Out_row", "Out_dim")
    types = _numbers("Sinks") | _integers("rows", "heads", "length", *strides)
    types |= {"Out": POINTERS[dtype]} | _numbers("Lse")
    out = f"Strided(Out, {', '.join(strides)})"
    body = f"join({out}, Lse, Sinks, Sizes(rows, heads, length), {JOINED}, {chunks(dv)})"
    return _source(f"join_sinks_{dtype}_{dv}", types, body)


def _numbers(*names: str) -> dict[str, str]:
    """Types of pointers to float32."""
    return dict.fromkeys(names, "*fp32")


def _integers(*names: str) -> dict[str, str]:
    """Types of sizes; strides and the number of all rows have 64 bits."""
    return {name: "i64" if "_" in name or name == "rows" else "i32" for name in names}


def _source(name: str, types: dict[str, str], body: str, warps: int = 4) -> Source:
    """types: of the entry's arguments, in order. body: the call that it makes."""
    about = f"{name}\n\nWritten by weft; {warps} warps."
    named = [x for x in ("Numbers", "Sizes") if f"{x}(" in body]
    helpers = f"from weft.kernels.gpu.ops.sinks import {', '.join([*named, body.partition('(')[0]])}\n\n"
    if "Strided(" in body:
        helpers = f"from weft.kernels.gpu.ops.loads import Strided\n{helpers}"
    text = module(f"weft_{name}", about, helpers, tuple(types), [body])
    return Source(name, text, tuple(types.items()), (), warps, 1)
