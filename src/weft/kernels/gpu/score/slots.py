"""Tables of score functions in a program: slots as a call gives them, and as kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.program import Convert, Slot, Step
from weft.kernels.gpu.score.spec import POINTERS, Captured, Rules


@dataclass(frozen=True)
class Tables:
    """What a program has for score functions. rules: of its kernels, None where there are none. memory: the slot of
    each table by its name among a kernel's arguments; known: their lengths and strides.
    """

    rules: Rules | None = None
    slots: tuple[Slot, ...] = ()
    steps: tuple[Step, ...] = ()
    memory: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, int] = field(default_factory=dict)


def captured_by(layout: Layout, options: Options) -> Tables:
    """Slots table_0, table_1, ... of a call; what kernels do not read as it is becomes a contiguous workspace."""
    if not options.score:
        return Tables()
    slots: list[Slot] = []
    steps: list[Step] = []
    captured: list[Captured] = []
    memory: dict[str, str] = {}
    known: dict[str, int] = {}
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
    return Tables(Rules(options.score, tuple(captured)), tuple(slots), tuple(steps), memory, known)


def _captured(slot: Slot) -> Captured:
    reach = sum((length - 1) * stride for length, stride in zip(slot.shape, slot.strides, strict=True))
    dense = not slot.shape or slot.strides[-1] == 1
    return Captured(slot.dtype, len(slot.shape), reach >= 1 << 31, dense)
