"""Kernels of sinks beside attention's own: they join finished rows, and their gradient is summed over rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from weft.kernels.gpu.compile.source import POINTERS, Source
from weft.kernels.gpu.constants import LN2, LOG2E
from weft.kernels.gpu.entry import module
from weft.planning.tiling import chunks

TILE, WARPS = 4096, 8  # rows of a program of the gradient, 16 of each thread
ALONE = 4  # tiles of a head that one program takes, so that nothing is left to add
PROGRAMS = 512  # of longer heads, which fill any card
JOINED = 8  # rows that one program joins with their sinks; with more, addresses of wide rows spill


@lru_cache(maxsize=1)
def gradient_source() -> Source:
    """The kernel that leaves a sum, or several, of -(share of the sink in a row) * delta for each head."""
    memory = ("Sinks", "Lse", "Delta"), ("Sums",)
    return _source("sink_gradient", memory, ("batch", "heads", "length"), (_gradient(), WARPS))


@lru_cache(maxsize=1)
def sum_source() -> Source:
    """The kernel that adds the sums of each head in one order."""
    return _source("sink_gradient_sum", (("Sums",), ("Total",)), ("parts",), (_sum(), 4))


@lru_cache(maxsize=64)
def join_source(dtype: str, dv: int) -> Source:
    """The kernel that adds sinks to finished rows: lse gains them, out is scaled."""
    strides = ("Out_batch", "Out_head", "Out_row", "Out_dim")
    memory, sizes = (("Sinks",), ("Out", "Lse")), ("rows", "heads", "length", *strides)
    return _source(f"join_sinks_{dtype}_{dv}", memory, sizes, (_join(dv), 4), {"Out": POINTERS[dtype]})


def _source(
    name: str, memory: tuple[tuple[str, ...], tuple[str, ...]], sizes: tuple[str, ...],
    code: tuple[Iterator[str], int], other: Mapping[str, str] | None = None,
) -> Source:  # fmt: skip
    """memory: pointers that are read and that are written, float32 unless `other` says more. code: lines, warps."""
    (reads, writes), (body, warps) = memory, code
    kinds = dict.fromkeys(reads, "*fp32")
    kinds |= {size: "i64" if "_" in size or size == "rows" else "i32" for size in sizes}
    kinds |= dict.fromkeys(writes, "*fp32") | dict(other or {})
    about = f"{name}\n\nEmitted by weft; {warps} warps."
    return Source(name, module(f"weft_{name}", about, "", tuple(kinds), body), tuple(kinds.items()), (), warps, 1)


def _gradient() -> Iterator[str]:
    yield "head, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)"
    yield "sink = tl.load(Sinks + head)"
    yield f"r = tl.arange(0, {TILE})"
    yield f"tiles = (length + {TILE - 1}) // {TILE}  # of a batch row"
    yield f"total = tl.zeros(({TILE},), tl.float32)"
    yield "for tile in range(part, batch * tiles, parts):"
    yield f"    row = tile % tiles * {TILE} + r"
    yield "    rows_at = ((tile // tiles).to(tl.int64) * heads + head) * length"
    yield '    lse = tl.load(Lse + rows_at + row, mask=row < length, other=float("-inf"))'
    yield "    delta = tl.load(Delta + rows_at + row, mask=row < length, other=0.0)"
    yield f"    share = tl.exp2(tl.minimum((sink - lse) * {LOG2E}, 0.0))  # of the sink in its sum; lse is rounded"
    yield '    total += tl.where(lse == float("-inf"), 0.0, share * delta)  # a row without keys or sink has none'
    yield "tl.store(Sums + head * parts + part, -tl.sum(total, 0))"


def _sum() -> Iterator[str]:
    yield "head = tl.program_id(0)"
    yield f"part = tl.arange(0, {PROGRAMS})"
    yield "sums = tl.load(Sums + head * parts + part, mask=part < parts, other=0.0)"
    yield "tl.store(Total + head, tl.sum(sums, 0))"


def _join(dv: int) -> Iterator[str]:
    yield f"number = tl.program_id(0).to(tl.int64) * {JOINED} + tl.arange(0, {JOINED})"
    yield "valid = number < rows"
    yield "row, head = number % length, number // length % heads"
    yield "batch = number // length // heads"
    yield 'lse = tl.load(Lse + number, mask=valid, other=float("-inf"))'
    yield 'sink = tl.load(Sinks + head, mask=valid, other=float("-inf"))'
    yield "top = tl.maximum(lse, sink)"
    yield 'safe = tl.where(top == float("-inf"), 0.0, top)'
    yield f"sum2 = tl.exp2((lse - safe) * {LOG2E}) + tl.exp2((sink - safe) * {LOG2E})"
    yield f'total = tl.where(top == float("inf"), top, safe + tl.log2(sum2) * {LN2})'
    yield f'share = tl.where(lse == float("-inf"), 0.0, tl.exp2((lse - total) * {LOG2E}))'
    yield "out_at = Out + batch * Out_batch + head * Out_head + row * Out_row"
    for first, width, live in chunks(dv):
        yield f"d = {first} + tl.arange(0, {width})"
        yield f"inside = valid[:, None] & (d < {first + live})[None, :]"
        yield "here = out_at[:, None] + d[None, :] * Out_dim"
        yield "out = tl.load(here, mask=inside, other=0.0).to(tl.float32) * share[:, None]"
        yield "tl.store(here, out.to(Out.dtype.element_ty), mask=inside)"
    yield "tl.store(Lse + number, total, mask=valid)"
