"""KernelSpec -> kernel: its source and the types of its arguments; `compile.compiler` does the rest."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING

from weft.kernels.gpu.arguments import DROPPING, FLOATS, PLAIN, ROUNDS, arguments, described, tensors
from weft.kernels.gpu.compile.emit import emit
from weft.kernels.gpu.compile.source import POINTERS, Source
from weft.kernels.gpu.descriptors import box_kind
from weft.kernels.gpu.spec import KernelSpec

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import CompiledKernel

THEIRS = ("DLse", "Sinks", "Slopes", "Seed")  # used where they lie, wherever that is
GROUP_WARPS = 4  # as products take rows by 64
WIDE = ("Lse", "DLse", "Delta", "Sum", "Sinks", "Slopes", "Sums", "Partial")  # always float32


@lru_cache(maxsize=256)
def source_of(spec: KernelSpec) -> Source:
    """The emitted source, with what Triton is told of it; callers' rows of numbers may begin anywhere."""
    types = tuple(signature(spec).items())
    aligned = tuple(
        i for i, (name, kind) in enumerate(types)
        if kind[0] == "*" and (spec.aligned or name == "Tables") and name not in THEIRS and name[:8] != "Captured"
    )  # fmt: skip
    said = json.dumps(asdict(spec), indent=1)
    early = spec.chained and spec.of_keys  # the first of a chain follows launches that are not ours
    warps = GROUP_WARPS if spec.groups else spec.warps  # of the first group, which makes the others
    shared = spec.short or spec.direction == "fused"
    return Source(
        spec.name, emit(spec), types, aligned, warps, spec.stages, spec.registers, said, early, bool(spec.groups),
        shared, bool(spec.groups and spec.with_dq),
    )  # fmt: skip


def signature(spec: KernelSpec) -> dict[str, str]:
    """The type of every argument: integers have a declared width and are never specialised."""
    kinds, boxes = {}, [name for some in described(spec) for name in some]
    for name in arguments(spec):
        if name == "Tables":
            kinds[name] = "*i32"
        elif name == "Stats":
            kinds[name] = "*fp32" if spec.stats32 else "*bf16"
        elif name == "Seed":
            kinds[name] = "*i64"
        elif name in DROPPING:
            kinds[name] = "i32" if name == DROPPING[0] else "fp32"
        elif name in ("Slots", "Claimed"):
            kinds[name] = "*i32"
        elif spec.rules is not None and name in (*spec.rules.pointers, *spec.rules.scalars, *spec.rules.sums):
            kinds[name] = spec.rules.type_of(name)
        elif name in tensors(spec):
            summed = spec.accumulate and name in ("DQ", "DK", "DV")
            wide = name in WIDE or summed or (spec.with_dq and name == "DQ")
            kinds[name] = "*fp32" if wide else POINTERS[spec.dtype]
        elif name in FLOATS:
            kinds[name] = "fp32"
        elif name in boxes:
            kinds[name] = box_kind(name, spec)
        else:
            kinds[name] = "i32" if name in (*PLAIN, *ROUNDS) or spec.aligned else "i64"
    return kinds


def compile_for(spec: KernelSpec, target: GPUTarget) -> CompiledKernel:
    """The kernel, compiled; needs no GPU."""
    from weft.kernels.gpu.compile import compiler  # it imports Triton

    return compiler.compile_for(source_of(spec), target)


def stored(spec: KernelSpec, target: GPUTarget) -> CompiledKernel:
    """The kernel from the store, or compiled and put there; needs no GPU."""
    from weft.kernels.gpu.compile import compiler  # it imports Triton

    return compiler.stored(source_of(spec), target)


__all__ = ["arguments", "compile_for", "signature", "source_of", "stored"]
