"""The launch that scales and rounds sums of gradients (`weft.kernels.gpu.ops.scaling`)."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from weft.kernels.gpu.compile.source import POINTERS, Source
from weft.kernels.gpu.configure import overlaps
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.program import Convert, Known, Launch, Pointer, Slot, Step, row_major
from weft.target import Gpu, Target

UNIT, UNITS, WARPS = 8, 256, 4  # numbers that a thread stores at once; of these a program's, two of each thread
MOST = 1 << 31  # units, which 32 bits count


@lru_cache(maxsize=8)
def scaled_source(dtype: str, chained: bool) -> Source:
    """The kernel for results of a 16-bit type. chained: a launch may begin while the one before it ends."""
    name = f"scaled_{dtype}" + "_chained" * chained
    types = {"Sums": "*fp32", "units": "i32", "scale": "fp32", "Result": POINTERS[dtype]}
    about = f"{name}\n\nWritten by weft; {WARPS} warps."
    helpers = "from weft.kernels.gpu.ops.scaling import scaled\n\n"
    body = f"scaled(Sums, Result, units, scale, {UNIT}, {UNITS}, {chained})"
    text = module(f"weft_{name}", about, helpers, tuple(types), [body])
    aligned = tuple(i for i, kind in enumerate(types.values()) if kind[0] == "*")
    return Source(name, text, tuple(types.items()), aligned, WARPS, 1, early=chained)


def scaled(sums: Slot, result: Slot, scale: float, target: Target | Gpu) -> Step:
    """result = sums * scale, of float32 as 16 bits, as the last step of a program's launches. Both are made by it.

    A conversion by the framework where they lie otherwise than each other, or not in units without gaps.
    """
    numbers = prod(result.shape)
    axes = [(step, size) for step, size in zip(result.strides, result.shape, strict=True) if size > 1]
    axes.sort(reverse=True)
    dense = tuple(step for step, _ in axes) == row_major(tuple(size for _, size in axes))
    alike = sums.strides == result.strides
    if not (alike and dense) or result.dtype == "float32" or numbers % UNIT or not 0 < numbers // UNIT < MOST:
        return Convert(sums.name, result.name, scale)
    kernel = scaled_source(result.dtype, overlaps(target))
    given = Pointer(sums.name), Known(numbers // UNIT), Known(scale), Pointer(result.name, writes=True)
    return Launch(kernel.name, kernel, (-(-numbers // (UNIT * UNITS)), 1, 1), given)
