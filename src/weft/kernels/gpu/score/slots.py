"""Tables of score functions in a program: slots as a call gives them, and as kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from weft.errors import UnsupportedError
from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.program import Convert, Slot, Step
from weft.kernels.gpu.score.spec import (
    DENSE,
    DIAGONALS,
    OF_ROWS,
    PAIRS,
    POINTERS,
    SHARED,
    Captured,
    Entry,
    Rules,
)
from weft.planning.problem import Problem
from weft.score.dropout import scale, threshold
from weft.score.reads import Read, reads_of, shared_axes
from weft.score.value import composed


@dataclass(frozen=True)
class Tables:
    """What a program has for score functions and dropout.

    rules: of its kernels, None where there are none. memory: the slot of
    each table, and of the seed, by its name among a kernel's arguments; known: lengths, strides, what dropout asks.
    """

    rules: Rules | None = None
    slots: tuple[Slot, ...] = ()
    steps: tuple[Step, ...] = ()
    memory: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, float] = field(default_factory=dict)

    def with_entries(self, entries: tuple[Entry, ...]) -> Rules | None:
        """The rules of a kernel that sums gradients of what some reads gave."""
        return None if self.rules is None else replace(self.rules, entries=entries)


def captured_by(layout: Layout, options: Options) -> Tables:
    """Slots table_0, table_1, ... of a call, and seed; what kernels do not read as it is becomes a workspace."""
    slots: list[Slot] = []
    steps: list[Step] = []
    captured: list[Captured] = []
    memory: dict[str, str] = {}
    known: dict[str, float] = {}
    for number, form in enumerate(layout.tables):
        slot = Slot(f"table_{number}", "input", form.dtype, form.shape, form.strides)
        slots.append(slot)
        if form.dtype not in POINTERS:
            dtype = "float32" if form.dtype == "float64" else "int32"
            slots.append(Slot.dense(f"{slot.name}_{dtype}", "workspace", dtype, form.shape))
            steps.append(Convert(slot.name, slots[-1].name))
            slot = slots[-1]
        name = f"Captured{number}"
        memory[name] = slot.name
        known |= {f"{name}_n{axis}": length for axis, length in enumerate(slot.shape)}
        known |= {f"{name}_s{axis}": stride for axis, stride in enumerate(slot.strides)}
        captured.append(_captured(slot))
    if options.dropout:
        slots.append(Slot.dense("seed", "input", "int64", (1,)))
        memory["Seed"] = "seed"
        known |= {"dropped_below": threshold(options.dropout), "kept_scale": scale(options.dropout)}
    rules = Rules(options.score, tuple(captured)) if options.score else None
    return Tables(rules, tuple(slots), tuple(steps), memory, known)


def _captured(slot: Slot) -> Captured:
    reach = sum((length - 1) * stride for length, stride in zip(slot.shape, slot.strides, strict=True))
    dense = not slot.shape or slot.strides[-1] == 1
    return Captured(slot.dtype, len(slot.shape), reach >= 1 << 31, dense)


# ---- gradients of tables ---------------------------------------------------------------------------------------------
ATOMIC = (SHARED, DIAGONALS, PAIRS)  # several programs add to one place, in no fixed order


def entries_of(
    problem: Problem, layout: Layout, options: Options, side: Literal["dq", "dkdv"]
) -> tuple[tuple[Entry, ...], list[Slot]]:
    """What the kernel of one side sums for gradients of tables, and slots entries_0, ..., of the number of each read.

    Sums of rows are (B, Hq, M or N), of diagonals (B, Hq, M + N - 1), of pairs as their tables, dense ones (B, Hq, M,
    N) or, where heads share them, (M, N).
    """
    if not any(options.wanted):
        return (), []
    found = {}
    for number, read in enumerate(reads_of(composed(options.score))):
        if options.wanted[read.table] and (read.kind == "columns") == (side == "dkdv"):
            kind = _kind_of(read, problem, layout, options)
            shape = _shape(kind, read, problem, layout)
            found[Entry(number, kind)] = Slot.dense(f"entries_{number}", "output", "float32", shape)
    return tuple(sorted(found, key=lambda one: one.kind)), [*found.values()]


def _kind_of(read: Read, problem: Problem, layout: Layout, options: Options) -> int:
    if read.kind in ("rows", "columns"):
        return OF_ROWS
    if read.kind == "diagonals":
        return DIAGONALS
    if read.kind == "dense" and layout.tables[read.table].shape[-2:] == (problem.m, problem.n):
        expression = composed(options.score)
        axes = shared_axes(expression, expression.steps[read.step])
        assert axes is not None, "a dense read is at (b, h, q, k)"
        shared = [one and size > 1 for one, size in zip(axes, (problem.batch, problem.q_heads), strict=True)]
        if not any(shared):
            return DENSE
        if all(one or size == 1 for one, size in zip(shared, (problem.batch, problem.q_heads), strict=True)):
            return SHARED
    return PAIRS


def _shape(kind: int, read: Read, problem: Problem, layout: Layout) -> tuple[int, ...]:
    p = problem
    if kind == OF_ROWS:
        return p.batch, p.q_heads, p.n if read.kind == "columns" else p.m
    if kind == DIAGONALS:
        return p.batch, p.q_heads, max(0, p.m + p.n - 1)
    if kind == PAIRS:
        return layout.tables[read.table].shape
    return (p.m, p.n) if kind == SHARED else (p.batch, p.q_heads, p.m, p.n)


def refuse_atomics(problem: Problem, layout: Layout, options: Options) -> None:
    """Raise UnsupportedError where gradients of tables would be sums in no fixed order, and one was asked for."""
    entries, _ = entries_of(problem, layout, options, "dq")
    for one in entries:
        if options.deterministic and one.kind in ATOMIC:
            table = layout.tables[reads_of(composed(options.score))[one.number].table]
            raise UnsupportedError(
                f"deterministic gradients of a table of shape {table.shape} on a GPU",
                "several programs add to its entries, in no fixed order",
                "pass deterministic=False, or detach the table, or use the CPU backend",
            )
