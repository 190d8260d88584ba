"""The gradient of sinks by one kernel, after those of the other gradients: of torch's operations it takes seven, each a
launch, and most of them read and write all rows (`weft.kernels.options.sink_gradient`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

from weft.kernels.triton.fragments import LOG2E, module
from weft.kernels.triton.launch import Prepared, gpu_of, launch, on, refuse_capture, run
from weft.kernels.triton.source import Source, kernel_of

TILE, WARPS = 4096, 8  # rows, 16 of each thread
ALONE = 4  # tiles of a head that one program takes, so that nothing is left to add
PROGRAMS = 512  # of longer heads, which fill any card
POINTERS, SIZES = ("Sinks", "Lse", "Delta", "Sums"), ("batch", "heads", "length")


def sink_gradient(sinks: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """As `weft.kernels.options.sink_gradient`, in float32 until the end; the same bits every time."""
    found = _prepared(tuple(lse.shape), lse.device)
    (sums,) = found.empty()
    run((found, (sinks.to(torch.float32).contiguous(), lse.contiguous(), delta, sums)))
    return (sums if sums.dim() == 1 else sums.sum(1)).to(sinks.dtype)


@lru_cache(maxsize=256)
def _prepared(shape: tuple[int, int, int], device: torch.device) -> Prepared:
    """The launch over rows (B, Hq, M), which leaves a sum, or several, of each head."""
    gpu, (batch, heads, length) = gpu_of(device), shape
    refuse_capture(f"the gradient of {heads} sinks", gpu)
    tiles = batch * -(-length // TILE)
    parts = 1 if tiles <= ALONE else max(1, min(tiles, PROGRAMS // max(1, heads)))
    size = (heads,) if parts == 1 else (heads, parts)
    with on(gpu):
        one = launch(kernel_of(source(), device), (heads, parts, 1), shape, gpu)
    made = (size, (parts, 1)[-len(size) :], torch.float32)
    return Prepared((one,) * (heads > 0), (made,), device, gpu)


@lru_cache(maxsize=1)
def source() -> Source:
    """The emitted source."""
    types = (*((name, "*fp32") for name in POINTERS), *((name, "i32") for name in SIZES))
    name = "sink_gradient"
    about = f"{name}\n\nEmitted by weft; {WARPS} warps."
    text = module("weft_sinks_grad", about, "", (*POINTERS, *SIZES), _kernel())
    return Source(name, text, types, (), WARPS, 1)


def _kernel() -> Iterator[str]:
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
