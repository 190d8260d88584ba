"""Warps, stages and registers of a kernel: what was measured best for each direction and head dimension."""

from __future__ import annotations

from dataclasses import replace

from weft.kernels.triton.spec import KernelSpec
from weft.kernels.triton.waves import Wave, Waves


def configured(spec: KernelSpec) -> KernelSpec:
    """The spec with its compiler options, on an H200 (benchmarks/notes); other cards take the same."""
    wide = max(spec.d, spec.dv)
    if spec.dtype == "float32":
        return replace(spec, warps=4 if spec.direction == "forward" else 8, stages=2)
    if wide <= 64:
        registers = 128 if spec.direction == "forward" else 168
        if not spec.aligned or spec.listed or spec.rank == 3:  # what addresses and masks need there does not fit
            registers = 0
        return replace(spec, warps=4, stages=3, registers=registers, apart=spec.direction != "forward")
    if wide <= 128:
        # two stages where three would leave room for one block on an SM only
        two = spec.direction == "dq" or (spec.direction == "forward" and spec.rank > 1)
        return replace(spec, warps=4, stages=2 if two else 3, apart=spec.direction != "forward")
    return replace(spec, warps=8, stages=2)


def wave_spec(spec: KernelSpec, wave: Wave, waves: Waves, widest: int) -> KernelSpec:
    """The spec of one wave with its compiler options; spec: all that waves share. widest: stride of rows, elements."""
    return configured(replace(
        spec, **wave.kind._asdict(), several=wave.several, packed=wave.place is None,
        accumulate=wave.merges if spec.direction == "forward" else waves.merges,
        aligned=spec.aligned and wave.span * widest < 1 << 31,
    ))  # fmt: skip
