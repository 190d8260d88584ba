"""A LaunchProgram bound to one device: its kernels loaded, its tables there, its steps run on the current stream.

A call costs the host microseconds, and many calls are as short. So the arguments of a launch are put together once for
the addresses of a call, and found again by these. Allocators return the same memory again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from operator import itemgetter
from threading import Lock
from typing import Any

import torch
from triton import knobs
from triton.runtime import driver as triton_driver

from weft.errors import UnsupportedError
from weft.kernels.gpu.compile import ahead
from weft.kernels.gpu.compile.compiler import module_of, stored
from weft.kernels.gpu.compile.source import Source
from weft.kernels.gpu.program import (
    Argument,
    Convert,
    Descriptor,
    Fill,
    Given,
    Known,
    Launch,
    LaunchProgram,
    Step,
)
from weft.torch import driver
from weft.torch.device_tables import is_capturing, on_device
from weft.torch.launcher import DescriptorLayout, Way, direct, placed

# A tensor on the current GPU by its sizes, strides and type, past the dispatcher, as inductor's code makes its own.
EMPTY = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
ADDRESS = torch.Tensor.data_ptr  # mapped, half the time of a method looked up for each tensor
current_gpu = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)  # as `is_capturing`
KEPT = 256  # addresses that a program was called with
Tensors = Sequence[torch.Tensor]
Run = Callable[[list[torch.Tensor], tuple[Any, ...], int, bool], None]  # all tensors, all values, stream, hooked

# What a graph may replay: it holds addresses of tables, and does not say when it goes.
CAPTURED: set[Bound] = set()


class Bound:
    """A program on one device. Call it with tensors for its input slots, in order; it returns the outputs.

    plain: steps are launches alone, past kernel[grid], and the host gives no scalars.
    """

    def __init__(self, program: LaunchProgram, device: torch.device) -> None:
        self.program, self.device = program, device
        self.gpu = gpu_of(device)
        refuse_capture(program.name, self.gpu)
        slots = program.of_role("input"), program.of_role("output"), program.of_role("workspace")
        self.inputs, self.outputs, _ = slots
        self.made = [(s.shape, s.strides, getattr(torch, s.dtype)) for s in (*self.outputs, *slots[2])]
        self.tables = {name: on_device(table, device) for name, table in program.tables.items()}
        order = [s.name for some in slots for s in some]
        names = [*order, *program.given]
        self.index = {name: at for at, name in enumerate(names)}
        self.constants: list[Any] = []
        with on(self.gpu):
            if self.gpu is not None:
                begin_loading((launch.kernel for launch in program.launches), self.gpu)
            self.steps: list[Run] = [self._prepared(step) for step in program.steps]
        launches = [step for step in self.steps if isinstance(step, Started)]
        self.plain = len(launches) == len(self.steps) and not program.given and all(one.is_direct for one in launches)
        self.kept: dict[tuple[int, ...], list[tuple[Any, tuple[Any, ...]]]] = {}
        self.stream = None if self.gpu is None else _stream_of()

    # ---- a call ------------------------------------------------------------------------------------------------------
    def __call__(self, given: Tensors, scalars: tuple[int, ...] = ()) -> list[torch.Tensor]:
        """The outputs, on the current stream. scalars: in the order of `LaunchProgram.given`."""
        if self.gpu is None or self.gpu == current_gpu():
            return self._run(given, scalars)
        with torch.cuda.device(self.gpu):
            return self._run(given, scalars)

    def _run(self, given: Tensors, scalars: tuple[int, ...]) -> list[torch.Tensor]:
        if self.gpu is None:
            return self._interpreted(given, scalars)
        if self.plain and not watched():
            return self._launched([*map(ADDRESS, given)])
        if is_capturing():
            CAPTURED.add(self)
        tensors = [*given, *self._made()]
        values = (*map(ADDRESS, tensors), *scalars, *self.constants)
        stream, hooked = self.stream(self.gpu), watched()  # type: ignore[misc]
        for step in self.steps:
            step(tensors, values, stream, hooked)
        return tensors[len(given) : len(given) + len(self.outputs)]

    def _launched(self, at: list[int]) -> list[torch.Tensor]:
        """The outputs of a plain program. at: addresses of what is given."""
        if is_capturing():
            CAPTURED.add(self)
        made = self._made()
        key = (self.stream(self.gpu), *at, *map(ADDRESS, made))  # type: ignore[misc]
        for start, arguments in self.kept.get(key) or self._invocations(key):
            start(*arguments)
        return made[: len(self.outputs)]

    def at_addresses(self, at: list[int]) -> list[torch.Tensor] | None:
        """The outputs of a plain program on the current GPU for memory at these addresses; None where more is to do."""
        if self.gpu != current_gpu() or watched():
            return None
        return self._launched(at)

    def _made(self) -> list[torch.Tensor]:
        """Outputs and workspaces, uninitialised, on the current GPU."""
        if EMPTY is not None:
            return [EMPTY(*one) for one in self.made]
        return [torch.empty_strided(*one[:2], dtype=one[2], device=self.device) for one in self.made]

    def _invocations(self, key: tuple[int, ...]) -> list[tuple[Any, tuple[Any, ...]]]:
        """What starts each launch, and the arguments of that; found by stream and addresses from now on."""
        stream, *addresses = key
        values = (*addresses, *self.constants)
        found = [step.invocation(values, stream) for step in self.steps if isinstance(step, Started)]
        if len(self.kept) >= KEPT:
            self.kept.clear()
        self.kept[key] = found
        return found

    def _interpreted(self, given: Tensors, scalars: tuple[int, ...]) -> list[torch.Tensor]:
        """By Triton's interpreter, which takes tensors where a GPU takes addresses."""
        made = [torch.empty_strided(size, stride, dtype=dtype) for size, stride, dtype in self.made]
        tensors = [*given, *made]
        for step in self.steps:
            step(tensors, (*tensors, *scalars, *self.constants), 0, True)
        return made[: len(self.outputs)]

    # ---- steps -------------------------------------------------------------------------------------------------------
    def _prepared(self, step: Step) -> Run:
        if isinstance(step, Fill):
            return Filled(self.index[step.slot], step.value)
        if isinstance(step, Convert):
            return Converted(self.index[step.source], self.index[step.target], step.scale)
        return self._started(step)

    def _started(self, launch: Launch) -> Started:
        """A launch with places of its arguments among all values of a call."""
        places, boxes = [], {}
        for at, argument in enumerate(launch.arguments):
            places.append(self._place(argument))
            if isinstance(argument, Descriptor):
                boxes[at] = DescriptorLayout(argument.shape, argument.strides)
        kernel = kernel_of(launch.kernel, self.device)
        way = None if self.gpu is None else way_of(kernel, launch.kernel, boxes, self.gpu)
        return Started(kernel, launch.grid, itemgetter(*places), boxes, way)

    def _place(self, argument: Argument) -> int:
        """Where an argument is among all values of a call: addresses, given scalars, and what is always the same."""
        if isinstance(argument, Known):
            return self._constant(argument.value)
        if isinstance(argument, Given):
            return self.index[argument.name]
        table = self.tables.get(argument.slot)
        if table is None:
            return self.index[argument.slot]
        return self._constant(table if self.gpu is None else table.data_ptr())

    def _constant(self, value: Any) -> int:
        self.constants.append(value)
        return len(self.index) + len(self.constants) - 1


class Started:
    """A launch of a loaded kernel. pick: its arguments among all values of a call, of descriptors their addresses.

    boxes: descriptors by their places among the arguments.
    """

    __slots__ = ("boxes", "grid", "kernel", "pick", "way")

    def __init__(
        self, kernel: Any, grid: tuple[int, int, int], pick: Any, boxes: dict[int, DescriptorLayout], way: Way | None
    ) -> None:
        self.kernel, self.grid, self.pick, self.boxes, self.way = kernel, grid, pick, boxes, way

    @property
    def is_direct(self) -> bool:
        """Whether it goes past kernel[grid], with descriptors that are found by addresses."""
        return self.way is not None and self.way.finds_addresses

    def invocation(self, values: tuple[Any, ...], stream: int) -> tuple[Any, tuple[Any, ...]]:
        """What starts it, and the arguments of that."""
        assert self.way is not None
        return self.way.invocation(self.grid, stream, self.pick(values))

    def __call__(self, tensors: list[torch.Tensor], values: tuple[Any, ...], stream: int, hooked: bool) -> None:
        if self.way is not None and not hooked:
            start, arguments = self.invocation(values, stream)
            start(*arguments)
            return
        mine = self.pick(values)
        on_stream = {} if self.way is None and not stream else {"stream": stream}
        self.kernel[self.grid](*(placed(self.boxes, mine) if self.boxes else mine), **on_stream)


class Filled:
    """`Fill`."""

    def __init__(self, at: int, value: float) -> None:
        self.at, self.value = at, value

    def __call__(self, tensors: list[torch.Tensor], values: tuple[Any, ...], stream: int, hooked: bool) -> None:
        tensors[self.at].fill_(self.value)


class Converted:
    """`Convert`."""

    def __init__(self, source: int, target: int, scale: float) -> None:
        self.source, self.target, self.scale = source, target, scale

    def __call__(self, tensors: list[torch.Tensor], values: tuple[Any, ...], stream: int, hooked: bool) -> None:
        source, target = tensors[self.source], tensors[self.target]
        if self.scale == 1.0:
            target.copy_(source)
        else:
            torch.mul(source, self.scale, out=target)


# ---- kernels on a device ---------------------------------------------------------------------------------------------
KERNELS = 256  # that are kept loaded
_loading: dict[tuple[Source, int], Future[Any]] = {}
_lock = Lock()


def begin_loading(sources: Iterable[Source], gpu: int) -> list[Future[Any]]:
    """Compile kernels, or take them from the store, and load them on a GPU, at the same time; returns at once."""
    each = list(dict.fromkeys(sources))
    with torch.cuda.device(gpu), _lock:
        wanted = [one for one in each if (one, gpu) not in _loading]
        if wanted:
            target = target_of(gpu)
            ahead.begin(wanted, target)
            threads = ThreadPoolExecutor(len(wanted), "weft-load")
            _loading.update({(one, gpu): threads.submit(_load, one, gpu, target) for one in wanted})
            threads.shutdown(wait=False)  # its threads end with their jobs
        found = [_loading[one, gpu] for one in each]
        for old in [key for key, job in _loading.items() if job.done()][: max(0, len(_loading) - KERNELS)]:
            del _loading[old]
    return found


def _load(source: Source, gpu: int, target: Any) -> Any:
    kernel = stored(source, target)
    with torch.cuda.device(gpu):
        if driver.function_of(kernel, gpu) is None:
            kernel.run  # noqa: B018 - Triton builds a launcher for it, and loads it on the current device
    return kernel


def loaded(source: Source, gpu: int) -> Any:
    """The kernel of a source on one GPU. Raises what its compilation raised."""
    (job,) = begin_loading((source,), gpu)
    try:
        return job.result()
    except BaseException:
        with _lock:
            _loading.pop((source, gpu), None)  # so that it is tried again
        raise


def kernel_of(source: Source, device: torch.device) -> Any:
    """What `kernel[grid](*arguments)` runs on the current stream; on the CPU Triton interprets it."""
    return module_of(source).kernel if device.type == "cpu" else loaded(source, device.index or 0)


def way_of(kernel: Any, source: Source, boxes: dict[int, DescriptorLayout], gpu: int) -> Way | None:
    """How a loaded kernel is launched: by the driver alone, else by Triton's launcher; None for kernel[grid]."""
    function = driver.function_of(kernel, gpu)
    if function is not None:
        facts = kernel.metadata.tensordesc_meta if boxes else ()
        found = driver.launch_of(function, [kind for _, kind in source.types], boxes, facts)
        if found is not None:
            return found
    return direct(kernel, boxes)


def target_of(gpu: int) -> Any:
    """What kernels are compiled for on a GPU."""
    return driver.target_of(gpu) if driver.library() is not None else triton_driver.active.get_current_target()


def gpu_of(device: torch.device) -> int | None:
    """The number of a GPU; None for the CPU, where Triton interprets kernels."""
    return None if device.type == "cpu" else device.index


def on(gpu: int | None) -> AbstractContextManager[None]:
    """The current device, for what loads kernels."""
    return nullcontext() if gpu is None else torch.cuda.device(gpu)


@cache
def _stream_of() -> Any:
    """From the number of a GPU to the handle of its current stream, as Triton asks for it."""
    return torch._C._cuda_getCurrentRawStream


def watched() -> bool:
    """Whether a profiler wants to be told of launches."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


# ---- checks ----------------------------------------------------------------------------------------------------------
def capturing(gpu: int | None) -> bool:
    """Whether launches go into a CUDA graph at present."""
    return gpu is not None and is_capturing()


def refuse_capture(what: str, gpu: int | None) -> None:
    """Raise during capture, where nothing can be copied from the host or loaded."""
    if capturing(gpu):
        raise UnsupportedError(
            f"{what} while a CUDA graph is captured",
            "its tables and kernels are not on the GPU yet, and a capture cannot put them there",
            "call it once before the capture, forward and backward, with tensors of the same shapes and strides",
        )
