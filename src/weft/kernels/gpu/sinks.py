"""Entries of the kernels of sinks (`weft.kernels.gpu.ops.sinks`), and in what portions they take rows."""

from __future__ import annotations

from collections.abc import Mapping
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
    body = f"gradient(Numbers(Sinks, Lse, Delta), Sums, Sizes(batch, heads, length), {TILE})"
    memory = ("Sinks", "Lse", "Delta"), ("Sums",)
    return _source("sink_gradient", memory, ("batch", "heads", "length"), (body, WARPS))


@lru_cache(maxsize=1)
def sum_source() -> Source:
    """The kernel that adds the sums of each head in one order."""
    body = f"gradient_sum(Sums, Total, parts, {PROGRAMS})"
    return _source("sink_gradient_sum", (("Sums",), ("Total",)), ("parts",), (body, 4))


@lru_cache(maxsize=64)
def join_source(dtype: str, dv: int) -> Source:
    """The kernel that adds sinks to finished rows: lse gains them, out is scaled."""
    strides = ("Out_batch", "Out_head", "Out_row", "Out_dim")
    memory, sizes = (("Sinks",), ("Out", "Lse")), ("rows", "heads", "length", *strides)
    out = f"Strided(Out, {', '.join(strides)})"
    body = f"join({out}, Lse, Sinks, Sizes(rows, heads, length), {JOINED}, {chunks(dv)})"
    return _source(f"join_sinks_{dtype}_{dv}", memory, sizes, (body, 4), {"Out": POINTERS[dtype]})


def _source(
    name: str, memory: tuple[tuple[str, ...], tuple[str, ...]], sizes: tuple[str, ...], code: tuple[str, int],
    other: Mapping[str, str] | None = None,
) -> Source:  # fmt: skip
    """memory: pointers that are read and that are written, float32 unless `other` says more. code: body, warps."""
    (reads, writes), (body, warps) = memory, code
    kinds = dict.fromkeys(reads, "*fp32")
    kinds |= {size: "i64" if "_" in size or size == "rows" else "i32" for size in sizes}
    kinds |= dict.fromkeys(writes, "*fp32") | dict(other or {})
    about = f"{name}\n\nWritten by weft; {warps} warps."
    named = [x for x in ("Numbers", "Sizes") if f"{x}(" in body]
    helpers = f"from weft.kernels.gpu.ops.sinks import {', '.join([*named, body.partition('(')[0]])}\n\n"
    if "Strided(" in body:
        helpers = f"from weft.kernels.gpu.ops.loads import Strided\n{helpers}"
    text = module(f"weft_{name}", about, helpers, tuple(kinds), [body])
    return Source(name, text, tuple(kinds.items()), (), warps, 1)
