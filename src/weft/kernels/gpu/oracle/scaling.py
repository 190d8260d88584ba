"""Sums of a gradient, scaled."""

from __future__ import annotations

from math import prod

from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Call
from weft.kernels.gpu.scaling import UNIT, UNITS


def scaled(call: Call) -> None:
    """Result = Sums * scale, number by number as they lie."""
    sums, result = (call.memory.slots[call.slot(name)] for name in ("Sums", "Result"))
    numbers = UNIT * call.integer("units")
    law((sums.shape, sums.strides) == (result.shape, result.strides), "sums and result lie otherwise")
    law(numbers == prod(result.shape), "not all numbers are scaled")
    reach = sum((size - 1) * step for size, step in zip(result.shape, result.strides, strict=True))
    law(reach == numbers - 1, "there are gaps between numbers")
    law(call.grid[0] * UNIT * UNITS >= numbers, "there are too few programs")
    law(result.name in call.launch.written, f"{result.name} is written by a launch that does not say so")
    call.memory.arrays[result.name][...] = call.memory.arrays[sums.name] * call.real("scale")
