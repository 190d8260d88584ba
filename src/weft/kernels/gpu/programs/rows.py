"""Programs that move rows of a tensor by lists of places, and merge results over keys into rows; both in place."""

from __future__ import annotations

from weft.kernels.gpu.compile.source import Source
from weft.kernels.gpu.program import Launch, LaunchProgram, Slot, Strides
from weft.kernels.gpu.programs.sinks import arguments
from weft.kernels.gpu.rows import TENSOR, Way, merge_source, take_source
from weft.planning.problem import DTYPES

Lies = tuple[tuple[int, ...], Strides]  # the shape of a tensor and its strides in elements


def unit_of(dtype: str, every: tuple[Lies, ...], aligned: bool) -> int:
    """Elements of 16 bytes where all rows begin at such, else 1. aligned: whether the tensors do."""
    per = 16 // DTYPES[dtype]
    return per if aligned and not any(x % per for _, strides in every for x in strides[:3]) else 1


def take_program(
    dtype: str, every: tuple[Lies, Lies, Lies], places: tuple[int, int], aligned: bool, adds: bool
) -> LaunchProgram:  # fmt: skip
    """Slots out, first, second (B, H, rows, D), places (R, several) and into (R,). Each row of out that `into` names
    becomes the sum of rows of first and second, by places. Negative ones are rows of zeros. adds: to what is there.
    """
    slots = [Slot(name, "input", dtype, *lies) for name, lies in zip(("out", "first", "second"), every, strict=True)]
    slots += [Slot.dense("places", "input", "int32", places), Slot.dense("into", "input", "int32", places[:1])]
    way = Way.of(every[0][0][3], unit_of(dtype, every, aligned), places[1], adds)
    return _program(take_source(dtype, every[0][0][3], way), slots, way, every[1][0][2])


def merge_program(dtype: str, every: tuple[Lies, Lies, Lies, Lies], rows: int, aligned: bool) -> LaunchProgram:
    """Slots out, lse, more, low and into (R,): results over other keys are merged into the rows that `into` names."""
    names, dtypes = ("out", "lse", "more", "low"), (dtype, "float32", dtype, "float32")
    slots = [Slot(name, "input", one, *lies) for name, one, lies in zip(names, dtypes, every, strict=True)]
    slots.append(Slot.dense("into", "input", "int32", (rows,)))
    way = Way.of(every[0][0][3], unit_of(dtype, every[::2], aligned))
    return _program(merge_source(dtype, every[0][0][3], way), slots, way, 0)


def _program(kernel: Source, slots: list[Slot], way: Way, border: int) -> LaunchProgram:
    (batch, heads, *_), (rows, *_) = slots[0].shape, slots[-1].shape
    known = {"rows": rows, "heads": heads, "border": border}
    for slot in slots:
        unit = way.unit if len(slot.shape) > 3 else 1
        if len(slot.shape) > 2:
            names = (f"{slot.name.capitalize()}_{part}" for part in TENSOR)
            known |= {name: x // unit for name, x in zip(names, slot.strides, strict=False)}
    memory = {slot.name.capitalize(): slot.name for slot in slots}
    grid = (-(-rows // way.block) * batch * heads, 1, 1)
    launch = Launch(kernel.name, kernel, grid, arguments(kernel.types, memory, known))
    return LaunchProgram(kernel.name, tuple(slots), (launch,) if grid[0] else ())
