"""Launches past Triton's own Python, which asks at each call what a kernel wants and encodes its descriptors anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton

VERSIONS = ("3.6.", "3.7.")  # of Triton, whose launchers take what they are given here
KEPT = 256  # addresses of a descriptor, and of all that a launch has
Values = tuple[Any, ...]


@dataclass(frozen=True)
class Box:
    """A descriptor but for its address. tensor: which of a launch's pointers it is of; shape, strides: in elements."""

    tensor: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def at(self, address: int) -> Placed:
        """It, of a tensor at that address."""
        return Placed(self, address)


@dataclass(frozen=True)
class Placed:
    """A descriptor as Triton's launchers read it."""

    box: Box
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


class Maps:
    """A launch's descriptors as the driver reads them, encoded once for each address, and found together where tensors
    lie together again.
    """

    def __init__(self, boxes: Sequence[Box], facts: Sequence[Any]) -> None:
        """facts: what Triton's launcher knows of each."""
        self.each: list[tuple[Box, Any, dict[int, Values]]] = [
            (box, about, {}) for box, about in zip(boxes, facts, strict=True)
        ]
        self.tensors = 1 + max(box.tensor for box in boxes)
        self.together: dict[tuple[int, ...], Values] = {}

    def of(self, addresses: tuple[int, ...]) -> Values:
        """Arguments that stand for the descriptors of tensors at these addresses, which other arguments may follow."""
        key = addresses[: self.tensors]
        return self.together.get(key) or _kept(self.together, key, self._joined(key))

    def _joined(self, addresses: tuple[int, ...]) -> Values:
        found: Values = ()
        for box, about, known in self.each:
            address = addresses[box.tensor]
            found += known.get(address) or _kept(known, address, _encoded(box, about, address))
        return found


def _kept(known: dict[Any, Values], key: Any, values: Values) -> Values:
    """The values, which are found by that key from now on; other threads may forget them any time."""
    if len(known) >= KEPT:
        known.clear()
    known[key] = values
    return values


def _encoded(box: Box, about: Any, address: int) -> Values:
    from triton.backends.nvidia.driver import make_tensordesc_arg

    return tuple(make_tensordesc_arg(box.at(address), about))


class Direct(NamedTuple):
    """start(*grid, stream, *handles, *arguments) launches. maps: of descriptors; None where `start` takes them as
    kernel[grid] does.
    """

    start: Callable[..., Any]
    handles: tuple[Any, ...]
    maps: Maps | None = None


def direct(kernel: Any, boxes: Sequence[Box]) -> Direct | None:
    """How to launch a kernel with such descriptors, which is loaded on the current device; None where only kernel[grid]
    is known to work. What it saves: benchmarks/notes/triton.md.
    """
    if not triton.__version__.startswith(VERSIONS):
        return None
    launcher = kernel.run  # loads it, and only then there is a function
    told = kernel.packed_metadata, None, None, None  # and hooks: what they are told, on entering, on leaving
    plain, early = Direct(launcher, (kernel.function, *told)), triton.__version__.startswith("3.6.")
    if not _is_bare(launcher) or not (early or boxes):
        return plain
    start, maps = launcher.launch, None
    if boxes:
        inner = _past_descriptors(start)
        if inner is None:
            return plain
        start, maps = inner[0], Maps(boxes, inner[1])
    first = kernel.function, False, launcher.launch_pdl  # whether programs wait for each other, and for other launches
    if early:
        return Direct(start, (*first, None, None, *told), maps)
    handles = *first, *told, None, None, launcher.arg_annotations, launcher.kernel_signature
    return Direct(lambda x, y, z, stream, *given: start(x, y, z, stream, *handles, given), (), maps)


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
