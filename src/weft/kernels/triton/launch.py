"""Prepared launches: compiled kernels with all arguments but tensors, put on the current stream in microseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.runtime import driver

from weft.errors import UnsupportedError
from weft.kernels.triton.descriptors import Box, Placed
from weft.kernels.triton.launcher import Direct, direct

# A tensor on the current GPU by its sizes, strides and type, past the dispatcher, as inductor's code makes its own.
EMPTY = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
ADDRESS = torch.Tensor.data_ptr  # mapped, half the time of a method looked up for each tensor
# What torch.cuda's functions of these names come to call. Once there is a tensor on a GPU, there is nothing to set up.
current_gpu = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
Tensors = Sequence[torch.Tensor]
Made = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # sizes, strides, type


class Launch(NamedTuple):
    """A kernel over its grid. rest: its arguments after the tensors of `emit.TENSORS`.

    way: past kernel[grid], see `direct`. boxes: descriptors, which are the last arguments.
    """

    kernel: Any
    grid: tuple[int, int, int]
    rest: tuple[Any, ...]
    way: Direct | None = None
    boxes: tuple[Box, ...] = ()


def launch(
    kernel: Any, grid: tuple[int, int, int], rest: tuple[Any, ...], gpu: int | None, boxes: tuple[Box, ...] = ()
) -> Launch:  # fmt: skip
    """A launch; the kernel is loaded on the current device."""
    return Launch(kernel, grid, rest, None if gpu is None else direct(kernel, boxes), boxes)


@dataclass(frozen=True, eq=False)
class Prepared:
    """The launches of one direction, one after the other, for tensors that lie in one way.

    made: what they write. covers: every row is written; where not, all begin as nothing. merges: launches meet the
    same rows, and what they sum begins as nothing. gpu: its number, None under Triton's interpreter. tables: kept
    alive, because the launches know their addresses. before: what goes before these, and leaves sums of few keys for
    them; slots (N,), int32: which row of these sums is a key's, negative for none.
    """

    launches: tuple[Launch, ...]
    made: tuple[Made, ...]
    device: torch.device
    gpu: int | None
    covers: bool = True
    merges: bool = False
    tables: Any = None
    before: Prepared | None = None
    slots: torch.Tensor | None = None

    @cached_property
    def complete(self) -> bool:
        """Whether every row is written once, by one launch."""
        return self.covers and not self.merges

    def empty(self, *more: Prepared) -> list[torch.Tensor]:
        """What is written, uninitialised, by these launches and then by more on the same device."""
        made = [one for launches in (self, *more) for one in launches.made]
        if EMPTY is not None and self.device.type == "cuda" and self.gpu == current_gpu():
            return [EMPTY(*one) for one in made]
        return [torch.empty_strided(size, stride, dtype=dtype, device=self.device) for size, stride, dtype in made]


def gradient_calls(
    found: Prepared, given: Sequence[Any], written: Sequence[Any], rest: Sequence[Any]
) -> list[tuple[Prepared, tuple[Any, ...]]]:
    """What `run` launches for a gradient of keys: given, written and the rest, in the order of `emit.tensors`;
    these are tensors, or what stands for them where nothing goes `before`.
    """
    if found.before is None or found.slots is None:
        return [(found, (*given, *written, *rest))]
    (sums,) = found.before.empty()
    left = (sums.zero_(), found.slots)
    return [(found.before, (*given, *rest, *left)), (found, (*given, *written, *rest, *left))]


def run(*calls: tuple[Prepared, Tensors]) -> None:
    """Launch on the current stream, one after the other; tensors of one device, in the order of `emit.TENSORS`."""
    gpu = calls[0][0].gpu
    if gpu is None:
        for call, tensors in calls:
            for one in call.launches:
                one.kernel[one.grid](*tensors, *one.rest, *_placed(one, [x.data_ptr() for x in tensors]))
    elif gpu == current_gpu():
        _run(gpu, calls)
    else:
        with torch.cuda.device(gpu):
            _run(gpu, calls)


def _run(gpu: int, calls: Sequence[tuple[Prepared, Tensors]]) -> None:
    if is_capturing():
        CAPTURED.update(call for call, _ in calls)
    stream, hooked = _stream_of()(gpu), _hooked()
    for call, tensors in calls:
        # Addresses: of a tensor, Triton would ask its address, and then the driver whether the GPU can see it.
        pointers = [*map(ADDRESS, tensors)]
        for one in call.launches:
            put(one, stream, hooked, (*pointers, *one.rest))


def _placed(one: Launch, addresses: Sequence[Any]) -> list[Placed]:
    """A launch's descriptors, of tensors at these addresses."""
    return [box.at(addresses[box.tensor]) for box in one.boxes]


def put(one: Launch, stream: int, hooked: bool, values: tuple[Any, ...]) -> None:
    """Put a launch on a stream of the current device. values: its arguments but descriptors, addresses first."""
    kernel, grid, _, way, boxes = one
    if way is None or hooked:
        kernel[grid](*values, *_placed(one, values), stream=stream)
    elif not boxes:
        way.start(*grid, stream, *way.handles, *values)
    else:
        more = _placed(one, values) if way.maps is None else way.maps.of(values)
        way.start(*grid, stream, *way.handles, *values, *more)


def dense_rows(strides: Mapping[str, tuple[int, ...]], width: int) -> bool:
    """Whether rows are dense, every row begins on 16 bytes if the first does, and 32 bits count strides in 16 bytes;
    width: of an element.
    """
    per = 16 // width
    return all(s[3] == 1 and not any(x % per or x // per >= 1 << 31 for x in s[:3]) for s in strides.values())


def gpu_of(device: torch.device) -> int | None:
    """The number of a GPU; None for the CPU, where Triton interprets kernels."""
    return None if device.type == "cpu" else device.index


def on(gpu: int | None) -> AbstractContextManager[None]:
    """The current device, for what loads kernels."""
    return nullcontext() if gpu is None else torch.cuda.device(gpu)


@cache
def _stream_of() -> Any:
    """From the number of a GPU to the handle of its current stream, as Triton asks for it."""
    return driver.active.get_current_stream


def _hooked() -> bool:
    """Whether a profiler wants to be told of launches."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


# ---- CUDA graphs -----------------------------------------------------------------------------------------------------
# What a graph may replay: it holds addresses of tables, and does not say when it goes.
CAPTURED: set[Prepared] = set()


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
