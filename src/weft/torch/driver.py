"""NVIDIA's driver without a compiler: machine code is loaded and launched, and descriptors encoded, by libcuda alone.

Triton launches through C that the host's compiler builds. That takes 0.4 s for each kernel and 1 s for the driver, and
fails where there is no compiler. This module says to the driver what that C says. It uses ctypes and not cuda-bindings.
Launches are kept as the driver reads them, so a warm one is a single foreign call, which no package makes cheaper.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import addressof, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from functools import cache
from struct import Struct
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST
from triton.compiler import CompiledKernel
from triton.runtime.errors import OutOfResources

from weft.torch.launcher import KEPT, DescriptorLayout, Encoder

NEEDED = ("cuFuncGetParamInfo", "cuLaunchKernelEx", "cuTensorMapEncodeTiled")  # the first came with CUDA 12.4
# What a launch may ask for that none here provides.
BESIDE = ("launch_cooperative_grid", "global_scratch_size", "profile_scratch_size")
FORMS = {"i32": "i", "i64": "q", "fp32": "f"}  # of arguments; pointers are "Q"
SMALL = 48 << 10  # bytes of shared memory that need no consent
DESCRIPTOR, LINE = 128, 64  # bytes of a descriptor, and to what its address is aligned
SPARE = 2  # pointers to memory beside, which a kernel takes last and none here reads

# Numbers of cuda.h
OPT_IN, SHARED_STATIC, DYNAMIC, THREADS, PREFER_SHARED = 97, 1, 8, 0, 1
EARLY = 6  # programmatic stream serialization: a launch may begin before the one before it ends
BUFFER, BUFFER_SIZE, INVALID_VALUE = 1, 2, 1
L2_128 = 2


class _Attribute(ctypes.Structure):
    _fields_ = [("id", c_int), ("pad", c_char * 4), ("value", c_int), ("rest", c_char * 60)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint), ("stream", c_void_p),
        ("attributes", c_void_p), ("count", c_uint),
    ]  # fmt: skip


class _Extra(c_void_p * 5):  # type: ignore[misc]
    """Where the arguments of a launch are, as the driver reads it; `kept` are they."""


# ---- the library -----------------------------------------------------------------------------------------------------
@cache
def library() -> Any:
    """libcuda; None without it, or where it is too old."""
    if torch.version.cuda is None:
        return None
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return found if all(hasattr(found, name) for name in NEEDED) else None


def _ask(name: str, *arguments: Any) -> None:
    """Raises RuntimeError with the driver's word for what went wrong."""
    _check(getattr(library(), name)(*arguments), None, None)


def _check(code: int, function: Any, arguments: Any) -> None:
    if code:
        said = c_char_p()
        library().cuGetErrorName(code, byref(said))
        raise RuntimeError(f"CUDA's driver says {(said.value or b'error').decode()} ({code})")


@cache
def _start() -> Callable[..., None]:
    """cuLaunchKernelEx, as it is called at each launch."""
    found = library().cuLaunchKernelEx
    found.argtypes, found.errcheck = [c_void_p] * 4, _check
    return found


def shared_memory(gpu: int) -> int:
    """Bytes that a program may have on a GPU."""
    found = c_int()
    _ask("cuDeviceGetAttribute", byref(found), OPT_IN, gpu)
    return found.value


def target_of(gpu: int) -> GPUTarget:
    """What kernels are compiled for on a GPU, as Triton names it, whose own answer would build its driver."""
    major, minor = torch.cuda.get_device_capability(gpu)
    return GPUTarget("cuda", 10 * major + minor, 32)


# ---- a kernel --------------------------------------------------------------------------------------------------------
class Function(NamedTuple):
    """A loaded kernel. parameters: (offset, size) in bytes. early: it may begin before the launch before it ends."""

    handle: int
    threads: int
    shared: int
    early: bool
    parameters: tuple[tuple[int, int], ...]


_functions: WeakKeyDictionary[CompiledKernel, dict[int, Function | None]] = WeakKeyDictionary()


def function_of(kernel: CompiledKernel, gpu: int) -> Function | None:
    """The kernel on a GPU, loaded once; None where Triton has to load and launch it.

    Raises OutOfResources, as Triton does, for a kernel that the GPU has no room for.
    """
    if library() is None:
        return None
    found = _functions.setdefault(kernel, {})
    if gpu not in found:
        about = kernel.metadata
        plain = not any(getattr(about, name, 0) for name in BESIDE) and getattr(about, "num_ctas", 1) == 1
        found[gpu] = _loaded(kernel, gpu) if plain else None
    return found[gpu]


def _loaded(kernel: CompiledKernel, gpu: int) -> Function:
    about, (module, handle) = kernel.metadata, (c_void_p(), c_void_p())
    room = shared_memory(gpu)
    if about.shared > room:
        raise OutOfResources(about.shared, room, "shared memory")
    _enter(gpu)
    _ask("cuModuleLoadData", byref(module), c_char_p(kernel.kernel))
    _ask("cuModuleGetFunction", byref(handle), module, c_char_p(about.name.encode()))
    threads = about.num_warps * about.target.warp_size
    if threads > (most := _fact(handle, THREADS)):
        raise OutOfResources(threads, most, "threads")
    if about.shared > SMALL:
        _ask("cuFuncSetCacheConfig", handle, PREFER_SHARED)
        _ask("cuFuncSetAttribute", handle, DYNAMIC, room - _fact(handle, SHARED_STATIC))
    assert handle.value is not None
    return Function(handle.value, threads, about.shared, bool(getattr(about, "launch_pdl", False)), _parameters(handle))


def _enter(gpu: int) -> None:
    """A thread that torch has not used yet is in no context."""
    context = c_void_p()
    _ask("cuCtxGetCurrent", byref(context))
    if not context.value:
        _ask("cuDevicePrimaryCtxRetain", byref(context), gpu)
        _ask("cuCtxSetCurrent", context)


def _fact(handle: c_void_p, attribute: int) -> int:
    found = c_int()
    _ask("cuFuncGetAttribute", byref(found), attribute, handle)
    return found.value


def _parameters(handle: c_void_p) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    offset, size = c_size_t(), c_size_t()
    while (code := library().cuFuncGetParamInfo(handle, c_size_t(len(found)), byref(offset), byref(size))) == 0:
        found.append((offset.value, size.value))
    if code != INVALID_VALUE:  # which is said of the first that there is not
        _check(code, None, None)
    return tuple(found)


# ---- its launches ----------------------------------------------------------------------------------------------------
def launch_of(
    function: Function, kinds: Sequence[str], boxes: dict[int, DescriptorLayout], facts: Sequence[Any]
) -> DriverLaunch | None:
    """How a function is launched. kinds: of its arguments, as Triton names them; boxes: of those that are descriptors,
    by their places, and what Triton knows of each. None where the function does not take such arguments.
    """
    encoders = {at: Encoder(box, about, _arguments) for (at, box), about in zip(boxes.items(), facts, strict=True)}
    if any(one.facts is None for one in encoders.values()):
        return None
    packing = _packing(function, [form for at, kind in enumerate(kinds) for form in _forms(kind, boxes.get(at))])
    return None if packing is None else DriverLaunch(function, packing, encoders)


def _forms(kind: str, box: DescriptorLayout | None) -> list[str]:
    """How an argument lies in memory, as `struct` says it; a descriptor is followed by its sizes and strides."""
    if box is not None:
        return [f"{DESCRIPTOR}s", *"i" * len(box.shape), *"q" * len(box.strides)]
    return ["Q" if kind[0] == "*" else FORMS.get(kind, "")]


def _packing(function: Function, forms: list[str]) -> Struct | None:
    """Arguments as the function has them; None where sizes differ."""
    spare = len(function.parameters) - len(forms)
    if not (all(forms) and 0 <= spare <= SPARE):
        return None
    text, end = "=", 0
    for form, (offset, size) in zip([*forms, *"Q" * spare], function.parameters, strict=True):
        if Struct(f"={form}").size != size or offset < end:
            return None
        text, end = f"{text}{offset - end}x{form}", offset + size
    return Struct(text)


class DriverLaunch:
    """A launch but for its grid, stream and arguments."""

    finds_addresses = True

    def __init__(self, function: Function, packing: Struct, encoders: dict[int, Encoder]) -> None:
        self.function, self.packing, self.encoders = function, packing, encoders
        self.buffer, self.size = c_char * packing.size, c_size_t(packing.size)
        beside = sum(len(one.box.shape) + len(one.box.strides) for one in encoders.values())
        self.count = len(function.parameters) - beside  # of arguments, a descriptor as one, and of spare ones
        self.configs: dict[tuple[Any, ...], Any] = {}

    def invocation(
        self, grid: tuple[int, int, int], stream: int, mine: Sequence[Any]
    ) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """What starts it, and the arguments of that."""
        if not all(grid):
            return _nothing, ()
        values = self._encoded(mine) if self.encoders else mine
        buffer = self.buffer()
        self.packing.pack_into(buffer, 0, *values, *(0,) * (self.count - len(mine)))
        extra = _Extra(BUFFER, addressof(buffer), BUFFER_SIZE, addressof(self.size), 0)
        extra.kept = buffer
        return _start(), (self._config(grid, stream), self.function.handle, None, extra)

    def _encoded(self, mine: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for at, value in enumerate(mine):
            one = self.encoders.get(at)
            found += (value,) if one is None else one.at(value)
        return found

    def _config(self, grid: tuple[int, int, int], stream: int) -> Any:
        found = self.configs.get((*grid, stream))
        if found is None:
            if len(self.configs) >= KEPT:
                self.configs.clear()
            found = self.configs[*grid, stream] = byref(self._configured(grid, stream))
        return found

    def _configured(self, grid: tuple[int, int, int], stream: int) -> _Config:
        f = self.function
        made = _Config((c_uint * 3)(*grid), (c_uint * 3)(f.threads, 1, 1), f.shared, stream, None, 0)
        if f.early:
            made.kept = _Attribute(EARLY, b"", 1, b"")
            made.attributes, made.count = addressof(made.kept), 1
        return made


def _nothing() -> None:
    """A launch of no program, which the driver refuses."""


def _arguments(box: DescriptorLayout, facts: Any, address: int) -> tuple[Any, ...]:
    """What stands for a descriptor among arguments: it is followed by its sizes and strides."""
    return (encoded(box, facts, address), *box.shape, *box.strides)


def encoded(box: DescriptorLayout, facts: Any, address: int) -> bytes:
    """A descriptor of a tensor at an address; axes are told innermost first, strides in bytes and but for the first."""
    rank, room = len(box.shape), (c_char * (DESCRIPTOR + LINE))()
    at = -addressof(room) % LINE
    sizes, tile = (c_uint64 * rank)(*reversed(box.shape)), (c_uint32 * rank)(*reversed(facts["block_size"]))
    strides = (c_uint64 * rank)(*(x * facts["elem_size"] for x in reversed(box.strides[:-1])))
    kind, every = TMA_DTYPE_DEVICE_TO_HOST[facts["elem_type"]], (c_uint32 * rank)(*(1,) * rank)
    _ask(
        "cuTensorMapEncodeTiled", c_void_p(addressof(room) + at), kind, c_uint32(rank), c_void_p(address), sizes,
        strides, tile, every, 0, facts["swizzle"], L2_128, 0,
    )  # fmt: skip
    return room.raw[at : at + DESCRIPTOR]
