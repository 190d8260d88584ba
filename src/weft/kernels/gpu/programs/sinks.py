"""What sinks add to a program: they join rows that several launches made, and have a gradient."""

from __future__ import annotations

from weft.kernels.gpu.layout import PARTS, Vector
from weft.kernels.gpu.program import Argument, Convert, Known, Launch, LaunchProgram, Pointer, Slot, Strides
from weft.kernels.gpu.programs.launches import widened
from weft.kernels.gpu.sinks import ALONE, JOINED, PROGRAMS, TILE, gradient_source, join_source, sum_source
from weft.planning.problem import Problem


def join_sinks(problem: Problem, strides: Strides, sinks: str) -> Launch:
    """The launch that adds sinks to finished rows: lse gains them, and out is scaled.

    strides: of out. sinks: the slot of contiguous float32.
    """
    rows = problem.batch * problem.q_heads * problem.m
    kernel = join_source(problem.dtype, problem.dv)
    of_out = dict(zip((*(f"Out_{part}" for part in PARTS), "Out_dim"), strides, strict=True))
    known = {"rows": rows, "heads": problem.q_heads, "length": problem.m, **of_out}
    memory = {"Out": "out", "Lse": "lse", "Sinks": sinks}
    return Launch(kernel.name, kernel, (-(-rows // JOINED), 1, 1), arguments(kernel.types, memory, known))


def sink_gradient_program(shape: tuple[int, int, int], sinks: Vector) -> LaunchProgram:
    """Slots sinks (Hq,), lse and delta (B, Hq, M) in float32, output dsinks (Hq,) in the dtype of the sinks.

    shape: (B, Hq, M). A sum of each head is made of several where rows are many; the same bits every time.
    """
    batch, heads, length = shape
    tiles = batch * -(-length // TILE)
    parts = 1 if tiles <= ALONE else max(1, min(tiles, PROGRAMS // max(1, heads)))
    slots = [
        Slot("sinks", "input", sinks.dtype, (heads,), sinks.strides),
        Slot.dense("lse", "input", "float32", shape),
        Slot.dense("delta", "input", "float32", shape),
        Slot.dense("dsinks", "output", sinks.dtype, (heads,)),
    ]
    total = "dsinks"
    if sinks.dtype != "float32":
        total = "dsinks_float32"
        slots.append(Slot.dense(total, "workspace", "float32", (heads,)))
    steps, names = widened(slots, ("sinks",))
    memory = {"Sinks": names["sinks"], "Lse": "lse", "Delta": "delta", "Sums": total if parts == 1 else "sums"}
    kernel, known = gradient_source(), {"batch": batch, "heads": heads, "length": length}
    steps.append(Launch(kernel.name, kernel, (heads, parts, 1), arguments(kernel.types, memory, known)))
    if parts > 1:
        slots.append(Slot.dense("sums", "workspace", "float32", (heads, parts)))
        kernel = sum_source()
        memory = {"Sums": "sums", "Total": total}
        steps.append(Launch(kernel.name, kernel, (heads, 1, 1), arguments(kernel.types, memory, {"parts": parts})))
    if total != "dsinks":
        steps.append(Convert(total, "dsinks"))
    return LaunchProgram("sink_gradient", tuple(slots), tuple(steps) if heads else ())


def arguments(
    types: tuple[tuple[str, str], ...], memory: dict[str, str], known: dict[str, int]
) -> tuple[Argument, ...]:
    """Arguments of a kernel by their names; pointers after its scalars are written."""
    last = max(i for i, (_, kind) in enumerate(types) if kind[0] != "*")
    return tuple(
        Pointer(memory[name], writes=i > last) if kind[0] == "*" else Known(known[name])
        for i, (name, kind) in enumerate(types)
    )


__all__ = ["join_sinks", "sink_gradient_program"]
