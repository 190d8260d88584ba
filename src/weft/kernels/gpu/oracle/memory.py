"""Memory of a program in numpy, and what one launch sees of it.

Arrays are float64 in the slot's shape; strides are checked and not followed. Outputs and workspaces begin as NaN, so a
number that no step wrote reaches the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.kernels.gpu.layout import PARTS
from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.program import Argument, Descriptor, Given, Known, Launch, LaunchProgram, OnDevice, Pointer, Slot

Reals: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Scalars = Mapping[str, int | float]
UNWRITTEN = -(1 << 40)  # beyond all memory
KEYS = ("k", "v")  # slots that a call may bind to fewer tokens, where the host gives their number


# ---- all slots of a program ------------------------------------------------------------------------------------------
class Memory:
    """Arrays by slot.

    Raises ValueError where an input is missing, is no slot, or has another shape.
    """

    def __init__(self, program: LaunchProgram, inputs: Mapping[str, NDArray[Any]]) -> None:
        self.slots = program.by_name
        names = {slot.name for slot in program.of_role("input")}
        if set(inputs) != names:
            raise ValueError(f"{program.name} takes {sorted(names)}, and was given {sorted(inputs)}")
        self.tables = {name: table.words.astype(np.int64) for name, table in program.tables.items()}
        self.arrays: dict[str, NDArray[Any]] = {}
        for slot in program.of_role("input"):
            self.arrays[slot.name] = _bound(slot, np.asarray(inputs[slot.name]), bool(program.given))
        for slot in program.of_role("output", "workspace"):
            self.arrays[slot.name] = np.full(slot.shape, np.nan)


def _bound(slot: Slot, values: NDArray[Any], growing: bool) -> NDArray[Any]:
    """A copy of an input. growing: the host gives the number of keys, and keys may be fewer than their slot has."""
    shape = list(slot.shape)
    if growing and slot.name in KEYS and values.ndim == len(shape):
        shape[2] = min(shape[2], values.shape[2])
    if values.shape != tuple(shape):
        raise ValueError(f"{slot.name} has shape {slot.shape}, and was given {values.shape}")
    integers = slot.dtype.startswith("int")
    if integers and values.dtype.kind not in "iu":
        raise ValueError(f"{slot.name} holds {slot.dtype}, and was given {values.dtype}")
    return np.array(values, np.int64 if integers else np.float64, order="C")


# ---- a slot during one launch ----------------------------------------------------------------------------------------
class Array:
    """Numbers of a slot by place, during one launch. axes: how many of its axes a place names.

    Programs of a launch run side by side. So none may load what any of them stores, and two may store to one place only
    what is the same. written: the launch says that it writes the slot.
    """

    def __init__(self, name: str, values: NDArray[Any], axes: int, written: bool) -> None:
        self.name, self.values, self.written = name, values, written
        self.shape = values.shape[:axes]
        self.stored = np.zeros(self.shape, np.bool_)

    def load(self, *place: int | Ints) -> Reals:
        """Numbers at places, which broadcast."""
        self._check(place)
        law(not self.stored[place].any(), f"{self.name} is loaded where the same launch stores")
        return np.array(self.values[place], np.float64)

    def store(self, values: Reals, *place: int | Ints) -> None:
        """Write numbers."""
        self._check(place, writes=True)
        again = self.stored[place]
        if again.any():
            before, now = np.broadcast_arrays(self.values[place], values)
            same = np.array_equal(before[again], now[again], equal_nan=True)
            law(same, f"two programs of a launch store to {self.name}, and not the same")
        self.values[place] = values
        self.stored[place] = True

    def add(self, values: Reals, *place: int | Ints) -> None:
        """Add numbers in any order, as atomic additions do."""
        self._check(place, writes=True)
        np.add.at(self.values, tuple(np.asarray(x) for x in place), values)

    def _check(self, place: tuple[int | Ints, ...], writes: bool = False) -> None:
        law(self.written or not writes, f"{self.name} is written by a launch that does not say so")
        law(len(place) == len(self.shape), f"{self.name} has {len(self.shape)} axes of places")
        for at, size in zip(place, self.shape, strict=True):
            inside = not np.size(at) or (np.min(at) >= 0 and np.max(at) < size)
            law(inside, f"{self.name} of shape {self.values.shape} is met outside of its memory")


# ---- tensor descriptors ----------------------------------------------------------------------------------------------
class DescriptorView:
    """A tensor descriptor (batch row, head, place, lane, dim) of a slot, read and written `tile` places at a time.

    Raises BrokenLaw where it reaches beyond the slot, or its strides are no steps of the slot's tokens.
    """

    def __init__(self, array: Array, slot: Slot, described: Descriptor, tile: int = 64) -> None:
        name, strides = described.slot, described.strides
        law(len(strides) == len(described.shape) == 5, f"a descriptor of {name} has five axes")
        token = slot.strides[2]
        same = (strides[0], strides[1], strides[3], strides[4]) == (*slot.strides[:3], slot.strides[3])
        law(same and strides[2] % token == 0, f"a descriptor of {name} has other strides than its slot")
        law(described.shape[:2] == slot.shape[:2], f"a descriptor of {name} has other batch rows or heads")
        law(described.shape[4] == slot.shape[3], f"a descriptor of {name} has another width")
        self.array, self.step, self.tile = array, strides[2] // token, tile
        self.places, self.lanes = described.shape[2:4]
        last = (self.places - 1) * self.step + self.lanes - 1
        law(last < slot.shape[2], f"a descriptor of {name} reaches token {last} of {slot.shape[2]}")

    def tokens(self, place: int, lane: int) -> Ints:
        """The tokens of a tile, -1 where the descriptor has none."""
        places = place + np.arange(self.tile)
        there = (places >= 0) & (places < self.places) & (0 <= lane < self.lanes)
        return np.where(there, places * self.step + lane, -1)

    def load(self, batch: int, head: int, place: int, lane: int) -> Reals:
        """A tile (tile, dims), zeros where the descriptor has no token."""
        tokens = self.tokens(place, lane)
        found = np.zeros((self.tile, self.array.values.shape[-1]))
        found[tokens >= 0] = self.array.load(batch, head, tokens[tokens >= 0])
        return found

    def store(self, values: Reals, batch: int, head: int, place: int, lane: int) -> None:
        """Write a tile; what lies beyond the descriptor is dropped."""
        tokens = self.tokens(place, lane)
        self.array.store(values[tokens >= 0], batch, head, tokens[tokens >= 0])

    def add(self, values: Reals, batch: int, head: int, place: int, lane: int) -> None:
        """Add to a tile; what lies beyond the descriptor is dropped."""
        tokens = self.tokens(place, lane)
        self.array.add(values[tokens >= 0], batch, head, tokens[tokens >= 0])


# ---- a launch --------------------------------------------------------------------------------------------------------
class Call:
    """One launch: its arguments by the names that the kernel has for them. scalars: what the host gives."""

    def __init__(self, launch: Launch, memory: Memory, scalars: Scalars) -> None:
        self.launch, self.memory, self.scalars = launch, memory, scalars
        self.spec: Any = launch.spec
        self.grid = launch.grid
        for name in launch.written:
            law(memory.slots[name].role in ("output", "workspace"), f"{name} is written, and is an input")
        self._arrays: dict[tuple[str, int], Array] = {}
        self._tables: dict[str, Ints] = {}

    def integer(self, name: str) -> int:
        """A scalar that the plan fixes or the host gives."""
        return int(self.real(name))

    def real(self, name: str) -> float:
        """The same, with a fraction."""
        found = self._argument(name)
        if isinstance(found, Given):
            return self.scalars[found.name]
        law(isinstance(found, Known), f"{name} is no scalar that the host knows")
        assert isinstance(found, Known)
        return found.value

    def counted(self, name: str, place: int) -> int:
        """An integer of a device slot."""
        found = self._argument(name)
        law(isinstance(found, OnDevice), f"{name} is not read from a device slot")
        assert isinstance(found, OnDevice)
        values = self.memory.arrays[found.slot]
        law(0 <= place < values.size, f"{name} is read beyond its {values.size} integers")
        return int(values[place])

    def indices(self, name: str, row: int) -> Ints:
        """Integers of a call's slot (rows, columns); row: the stride that the kernel has for its rows."""
        slot = self.memory.slots[self.slot(name)]
        law(slot.role == "input" and slot.dtype == "int32", f"{slot.name} holds no integers of the call")
        law(slot.strides == (row, 1), f"{slot.name} has strides {slot.strides}, and the kernel {(row, 1)}")
        found: Ints = self.memory.arrays[slot.name]
        return found

    def table(self, name: str = "Tables") -> Ints:
        """Integers of the plan, or of a workspace that a launch before this one left."""
        slot = self.slot(name)
        found = self.memory.tables.get(slot, self._tables.get(slot))
        if found is None:
            words = self.memory.arrays[slot]
            if getattr(self.spec, "counted", False):  # what is not listed is not read, and anything
                words = np.where(np.isnan(words), UNWRITTEN, words)
            law(not np.isnan(words).any(), f"{slot} is read as tables, and some of it was not written")
            found = self._tables[slot] = words.astype(np.int64)
        return found

    def captured(self, name: str) -> tuple[Slot, NDArray[Any]]:
        """A table that a score function reads: its slot, and its numbers."""
        slot = self.memory.slots[self.slot(name)]
        return slot, self.memory.arrays[slot.name]

    def tensor(self, name: str) -> Array:
        """A slot (B, H, tokens, dims) by batch row, head and token. Its strides are those that the kernel has."""
        slot = self.memory.slots[self.slot(name)]
        unit = getattr(self.spec, "unit", 1)
        for part, stride in zip((*PARTS, "dim"), slot.strides, strict=True):
            if f"{name}_{part}" in self.launch.named:
                told = self.integer(f"{name}_{part}") * (1 if part == "dim" else unit)
                law(told == stride, f"{name}_{part} is {told}, and {slot.name} has {stride}")
            else:
                law(part != "dim" or stride == 1 or f"{name}_row" not in self.launch.named, f"{name} is not dense")
        return self._array(slot.name, 3)

    def flat(self, name: str, width: int = 0) -> Array:
        """A contiguous slot by number, or by numbers of `width` side by side."""
        slot = self.memory.slots[self.slot(name)]
        dense = Slot.dense(slot.name, slot.role, slot.dtype, slot.shape)
        law(slot.strides == dense.strides, f"{slot.name} is read as contiguous, and has strides {slot.strides}")
        return self._array(slot.name, -width)

    def described(self, name: str) -> tuple[Descriptor, Slot, Array]:
        """A tensor descriptor, and the slot that it is of."""
        found = self._argument(name)
        law(isinstance(found, Descriptor), f"{name} is no descriptor")
        assert isinstance(found, Descriptor)
        return found, self.memory.slots[found.slot], self._array(found.slot, 3)

    def box(self, name: str) -> DescriptorView:
        """A tensor descriptor of a line."""
        found, slot, array = self.described(name)
        of_keys = self.spec.with_dq or self.spec.makes != "both"
        of_queries = self.spec.direction in ("forward", "dq")
        walked = (name[0] in "KV") if of_queries else (of_keys and name[0] not in "KV")
        return DescriptorView(array, slot, found, self.spec.cols if walked else 64)

    def _argument(self, name: str) -> Argument:
        law(name in self.launch.named, f"{self.launch.kernel.name} has no argument {name}")
        return self.launch.named[name]

    def slot(self, name: str) -> str:
        """The slot of a pointer."""
        found = self._argument(name)
        law(isinstance(found, Pointer), f"{name} is no pointer")
        assert isinstance(found, Pointer)
        return found.slot

    def _array(self, slot: str, form: int) -> Array:
        """form: so many axes of places; 0: numbers one by one; negative: so many numbers to each place."""
        if (slot, form) not in self._arrays:
            values = self.memory.arrays[slot]
            if form <= 0:
                values = values.reshape(-1, -form) if form else values.reshape(prod(values.shape))
            self._arrays[slot, form] = Array(slot, values, max(1, form), slot in self.launch.written)
        return self._arrays[slot, form]
