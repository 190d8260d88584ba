"""Launches past Triton's own Python, which asks at each call what a kernel wants and encodes its descriptors anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
import triton

VERSIONS = ("3.6.", "3.7.")  # of Triton, whose launchers take what they are given here
KEPT = 256  # addresses of a descriptor, and of all that a launch has
Values = tuple[Any, ...]


@dataclass(frozen=True)
class DescriptorLayout:
    """A descriptor but for its address; shape and strides in elements, outermost first."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def at(self, address: int) -> Placed:
        """It, of a tensor at that address."""
        return Placed(self, address)


@dataclass(frozen=True)
class Placed:
    """A descriptor as Triton's launchers read it."""

    box: DescriptorLayout
    address: int
    padding: str = "zero"
    round_f32_to_tf32: bool = False

    @property
    def base(self) -> Placed:
        """What has the address."""
        return self

    def data_ptr(self) -> int:
        """The address."""
        return self.address

    @property
    def shape(self) -> tuple[int, ...]:
        """In elements, outermost first."""
        return self.box.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements, outermost first."""
        return self.box.strides


class Encoder:
    """A launch's descriptor as the driver reads it, encoded once for each address. facts: what Triton knows of it.

    encode: from a box, facts and an address to the arguments that stand for the descriptor; by default Triton's way.
    """

    def __init__(
        self, box: DescriptorLayout, facts: Any, encode: Callable[[DescriptorLayout, Any, int], Values] | None = None
    ) -> None:
        self.box, self.facts, self.encode = box, facts, encode or _encoded
        self.known: dict[int, Values] = {}

    def at(self, address: int) -> Values:
        """The arguments that stand for the descriptor of a tensor at that address."""
        found = self.known.get(address)
        if found is None:
            if len(self.known) >= KEPT:
                self.known.clear()
            found = self.known[address] = self.encode(self.box, self.facts, address)
        return found


def _encoded(box: DescriptorLayout, about: Any, address: int) -> Values:
    from triton.backends.nvidia.driver import make_tensordesc_arg

    return tuple(make_tensordesc_arg(box.at(address), about))


class Way(Protocol):
    """How a kernel is launched past kernel[grid]. finds_addresses: whether its invocation can be kept by addresses."""

    @property
    def finds_addresses(self) -> bool: ...

    def invocation(
        self, grid: tuple[int, int, int], stream: int, mine: Sequence[Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What starts it, and the arguments of that. mine: its arguments, of descriptors their addresses."""
        ...


class Direct(NamedTuple):
    """start(*grid, stream, *handles, *arguments) launches. boxes: descriptors by their places among the arguments.
    encoders: of these, in order; None where `start` takes descriptors as kernel[grid] does.
    """

    start: Callable[..., Any]
    handles: tuple[Any, ...]
    boxes: Mapping[int, DescriptorLayout] = MappingProxyType({})
    encoders: tuple[Encoder, ...] | None = None

    @property
    def finds_addresses(self) -> bool:
        """Whether descriptors are found by addresses."""
        return not self.boxes or self.encoders is not None

    def invocation(
        self, grid: tuple[int, int, int], stream: int, mine: Sequence[Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What starts it, and the arguments of that."""
        if self.boxes:
            mine = placed(self.boxes, mine) if self.encoders is None else self._encoded(mine, self.encoders)
        return self.start, (*grid, stream, *self.handles, *mine)

    def _encoded(self, mine: Sequence[Any], encoders: tuple[Encoder, ...]) -> list[Any]:
        found: list[Any] = []
        left = iter(encoders)
        for at, value in enumerate(mine):
            found += next(left).at(value) if at in self.boxes else (value,)
        return found


def placed(boxes: Mapping[int, DescriptorLayout], mine: Sequence[Any]) -> list[Any]:
    """Arguments with descriptors as Triton's own Python takes them; mine: of these their addresses, or tensors."""
    return [boxes[at].at(_address(x)) if at in boxes else x for at, x in enumerate(mine)]


def _address(x: Any) -> int:
    """Of a tensor, or as it was given."""
    return x.data_ptr() if isinstance(x, torch.Tensor) else x


def direct(kernel: Any, boxes: Mapping[int, DescriptorLayout]) -> Direct | None:
    """How to launch a kernel with such descriptors, which is loaded on the current device; None where only kernel[grid]
    is known to work. What it saves: benchmarks/notes/triton.md, T78.
    """
    if not triton.__version__.startswith(VERSIONS):
        return None
    launcher = kernel.run  # loads it, and only then there is a function
    hooks = kernel.packed_metadata, None, None, None  # for profilers: their data, on entering, on leaving
    plain, early = Direct(launcher, (kernel.function, *hooks), boxes), triton.__version__.startswith("3.6.")
    if not _is_bare(launcher) or not (early or boxes):
        return plain
    start, encoders = launcher.launch, None
    if boxes:
        inner = _past_descriptors(start)
        if inner is None:
            return plain
        start = inner[0]
        encoders = tuple(Encoder(box, facts) for box, facts in zip(boxes.values(), inner[1], strict=True))
    first = kernel.function, False, launcher.launch_pdl  # whether programs wait for each other, and for other launches
    if early:
        return Direct(start, (*first, None, None, *hooks), boxes, encoders)
    handles = *first, *hooks, None, None, launcher.arg_annotations, launcher.kernel_signature
    return Direct(lambda x, y, z, stream, *given: start(x, y, z, stream, *handles, given), (), boxes, encoders)


def _is_bare(launcher: Any) -> bool:
    """Whether Triton's launcher would ask for no memory beside, and calls a C function of its own."""
    wants = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid")
    return hasattr(launcher, "launch") and not any(getattr(launcher, name) for name in wants)


def _past_descriptors(wrapped: Any) -> tuple[Any, Sequence[Any]] | None:
    """(the C function, facts of descriptors) behind the loop that encodes them; None where it is not what is known."""
    names = getattr(getattr(wrapped, "__code__", None), "co_freevars", ())
    held = dict(zip(names, (cell.cell_contents for cell in wrapped.__closure__ or ()), strict=True)) if names else {}
    if not {"launcher", "tensordesc_meta"} <= held.keys():
        return None
    return held["launcher"], held["tensordesc_meta"]
