"""LaunchProgram: what a plan becomes before a framework is known.

A program names memory by slots and lists steps over them. A front binds slots to its own arrays and runs the steps:
`weft.torch.bind` launches them on a stream. `weft.kernels.gpu.oracle` runs the same program in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.kernels.gpu.compile.source import Source

Role = Literal["input", "output", "workspace", "table"]
Strides = tuple[int, ...]
POINTEES = {  # the type that a kernel's pointer has, and the dtype of a slot
    "*fp32": "float32", "*bf16": "bfloat16", "*fp16": "float16", "*i32": "int32", "*i64": "int64",
}  # fmt: skip


# ---- memory ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Slot:
    """Memory by name: shape and strides in elements.

    An "input" and a "table" are read, an "output" is written and returned, a "workspace" is gone after the program.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    strides: Strides

    @staticmethod
    def dense(name: str, role: Role, dtype: str, shape: tuple[int, ...]) -> Slot:
        """A slot in row-major order."""
        return Slot(name, role, dtype, shape, row_major(shape))


@dataclass(frozen=True, eq=False)
class Table:
    """Integers of a plan that kernels read. Programs of one plan share the object, so a front copies it once."""

    words: NDArray[np.int32] = field(repr=False)

    def slot(self, name: str) -> Slot:
        """The slot that holds them."""
        return Slot.dense(name, "table", "int32", (int(self.words.size),))


def row_major(shape: tuple[int, ...]) -> Strides:
    """Strides of a contiguous array, as torch and numpy count them."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


# ---- arguments of a kernel -------------------------------------------------------------------------------------------
class Pointer(NamedTuple):
    """The address of a slot. writes: the kernel writes there, or adds to what is there."""

    slot: str
    writes: bool = False


class Known(NamedTuple):
    """A scalar that the plan fixes."""

    value: int | float


class Given(NamedTuple):
    """A scalar that the host passes at each call."""

    name: str


class OnDevice(NamedTuple):
    """A scalar that the kernel reads from a slot, so that the host never learns it."""

    slot: str


class Descriptor(NamedTuple):
    """A TMA descriptor of a slot from its first element on; shape and strides in elements, outermost first."""

    slot: str
    shape: tuple[int, ...]
    strides: Strides
    writes: bool = False


Argument: TypeAlias = Pointer | Known | Given | OnDevice | Descriptor


# ---- steps -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Launch:
    """A kernel over its grid; arguments in the order of `kernel.types`. spec: what the kernel was generated from.

    `compile.compiler` compiles `kernel`; the total of warps and the shared memory are known after that.
    """

    spec: Any
    kernel: Source
    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]

    @property
    def pdl(self) -> bool:
        """Whether it may begin while the launch before it ends (programmatic dependent launch)."""
        return self.kernel.early

    @property
    def written(self) -> tuple[str, ...]:
        """Slots that the kernel writes, or adds to."""
        found = (x.slot for x in self.arguments if isinstance(x, (Pointer, Descriptor)) and x.writes)
        return tuple(dict.fromkeys(found))

    def value(self, name: str) -> int | float:
        """A scalar that the plan fixes, by its name among the kernel's arguments."""
        found = self.named[name]
        assert isinstance(found, Known), f"{name} is not known to the plan"
        return found.value

    @cached_property
    def named(self) -> dict[str, Argument]:
        """Arguments by the names that the kernel has for them."""
        names = (name for name, _ in self.kernel.types)
        return dict(zip(names, self.arguments, strict=True))


class Fill(NamedTuple):
    """Every element of a slot becomes `value`."""

    slot: str
    value: float


class Convert(NamedTuple):
    """target = source * scale, in the target's dtype and strides. Both have one shape."""

    source: str
    target: str
    scale: float = 1.0


Step: TypeAlias = Launch | Fill | Convert


# ---- the program -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class LaunchProgram:
    """Steps in order over slots. Raises ValueError where a step and its slots do not fit."""

    name: str
    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    tables: Mapping[str, Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def by_name(self) -> dict[str, Slot]:
        """Slots by name."""
        return {slot.name: slot for slot in self.slots}

    def of_role(self, *roles: Role) -> tuple[Slot, ...]:
        """Slots of these roles, in order."""
        return tuple(slot for slot in self.slots if slot.role in roles)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches among the steps."""
        return tuple(step for step in self.steps if isinstance(step, Launch))

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the scalars that the host passes at each call."""
        found = (x.name for launch in self.launches for x in launch.arguments if isinstance(x, Given))
        return tuple(dict.fromkeys(found))

    @property
    def nbytes(self) -> int:
        """Bytes of workspaces."""
        width = {"float64": 8, "int64": 8, "bfloat16": 2, "float16": 2}
        return sum(prod(slot.shape) * width.get(slot.dtype, 4) for slot in self.of_role("workspace"))

    def then(self, other: LaunchProgram, outputs: tuple[str, ...]) -> LaunchProgram:
        """Both programs in turn. Slots of one name are one slot; what is no longer an output becomes a workspace.

        Launches follow each other, since they may overlap: fills and conversions go before all of them or after. Raises
        ValueError where this would change what a launch of this program sees.
        """
        found = dict(self.by_name)
        for slot in other.slots:
            found.setdefault(slot.name, slot)
        slots = tuple(_with_role(slot, outputs) for slot in found.values())
        order = [name for name in outputs if name in found]
        slots = tuple(sorted(slots, key=lambda s: order.index(s.name) if s.name in order else -1))
        (mine, body, end), (theirs, rest, after) = _parts(self.steps), _parts(other.steps)
        prepared = tuple(step for step in theirs if step not in mine)
        if _touched(body) & _made(prepared) or _touched(rest) & _made(end):
            raise ValueError(f"{self.name} and {other.name}: a launch uses what is filled or converted beside it")
        steps = (*mine, *prepared, *body, *rest, *end, *after)
        return LaunchProgram(self.name, slots, steps, {**self.tables, **other.tables})

    def __str__(self) -> str:
        lines = [self.name]
        lines += [f"  {s.role:9} {s.name}: {s.dtype}{list(s.shape)} strides {list(s.strides)}" for s in self.slots]
        return "\n".join(lines + [f"  {_line(step)}" for step in self.steps])


def _parts(steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], tuple[Step, ...], tuple[Step, ...]]:
    """Steps before the first launch, those up to the last one, and those after it; without launches all come last."""
    places = [at for at, step in enumerate(steps) if isinstance(step, Launch)]
    first, last = (places[0], places[-1] + 1) if places else (0, 0)
    return steps[:first], steps[first:last], steps[last:]


def _touched(steps: tuple[Step, ...]) -> set[str]:
    """Slots that launches among steps read or write."""
    launches = (step for step in steps if isinstance(step, Launch))
    return {x.slot for launch in launches for x in launch.arguments if not isinstance(x, (Known, Given))}


def _made(steps: tuple[Step, ...]) -> set[str]:
    """Slots that fills and conversions among steps write."""
    filled = {step.slot for step in steps if isinstance(step, Fill)}
    return filled | {step.target for step in steps if isinstance(step, Convert)}


def _with_role(slot: Slot, outputs: tuple[str, ...]) -> Slot:
    if slot.name in outputs:
        return replace(slot, role="output")
    return replace(slot, role="workspace") if slot.role == "output" else slot


def _line(step: Step) -> str:
    if isinstance(step, Fill):
        return f"fill {step.slot} with {step.value}"
    if isinstance(step, Convert):
        return f"convert {step.source} to {step.target}" + (f", times {step.scale}" if step.scale != 1.0 else "")
    told = ", ".join(f"{name}={_short(x)}" for name, x in step.named.items() if not isinstance(x, Known))
    return f"launch {step.kernel.name} {step.grid}{' early' if step.pdl else ''}: {told}"


def _short(x: Argument) -> str:
    if isinstance(x, Pointer):
        return x.slot
    return f"{type(x).__name__}({x[0]})"


# ---- checks ----------------------------------------------------------------------------------------------------------
def check(program: LaunchProgram) -> None:
    """Raise ValueError unless every step names slots that exist, of the type that its kernel takes."""
    if len(program.by_name) != len(program.slots):
        raise ValueError(f"{program.name}: two slots have one name")
    tables = {slot.name for slot in program.of_role("table")}
    if tables != set(program.tables):
        raise ValueError(f"{program.name}: slots of tables are {sorted(tables)}, tables {sorted(program.tables)}")
    for step in program.steps:
        for wrong in _wrong(step, program.by_name):
            raise ValueError(f"{program.name}: {wrong}")


def _wrong(step: Step, slots: Mapping[str, Slot]) -> Iterator[str]:
    if isinstance(step, Launch):
        yield from _wrong_arguments(step, slots)
        return
    names = (step.slot,) if isinstance(step, Fill) else (step.source, step.target)
    yield from (f"{name} is no slot" for name in names if name not in slots)
    if isinstance(step, Convert) and slots[step.source].shape != slots[step.target].shape:
        yield f"{step.source} and {step.target} have different shapes"


def _wrong_arguments(launch: Launch, slots: Mapping[str, Slot]) -> Iterator[str]:
    for (name, kind), argument in zip(launch.kernel.types, launch.arguments, strict=True):
        if isinstance(argument, (Known, Given)):
            if kind[0] == "*" or kind.startswith("tensordesc"):
                yield f"{name} of {launch.kernel.name} is memory, and is told a scalar"
            continue
        if argument.slot not in slots:
            yield f"{argument.slot}, which {launch.kernel.name} takes as {name}, is no slot"
        elif isinstance(argument, Descriptor):
            if not kind.startswith("tensordesc"):
                yield f"{name} of {launch.kernel.name} is no descriptor"
        elif POINTEES.get(kind) != slots[argument.slot].dtype:
            yield f"{name} of {launch.kernel.name} is {kind}, and {argument.slot} has {slots[argument.slot].dtype}"
