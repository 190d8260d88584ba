"""A LaunchProgram bound to JAX: every launch is a custom call, fills and conversions are XLA's own operations.

An array stands for a slot in the order of its memory: row-major, axes sorted by stride. A slot that a launch writes for
the first time is a result of its call. One that has a value already goes in and comes out in the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from weft.errors import UnsupportedKernel
from weft.jax.gpu.message import TARGET, Binary, TensorMap, array, message, scalar
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
    OnDevice,
    Pointer,
    Slot,
    row_major,
)
from weft.target import Gpu


def run(
    program: LaunchProgram, arrays: Mapping[str, Array], gpu: Gpu, scalars: Mapping[str, int] | None = None
) -> tuple[Array, ...]:
    """The outputs of a program, in the order of its slots; works while JAX traces.

    arrays: by input slot, in the order of their memory (`physical`). scalars: what the host gives, known while tracing.
    """
    kernels = {launch.kernel for launch in program.launches}
    for source in sorted(kernels, key=lambda one: (not one.gluon, -len(one.text))):
        _begun(source, gpu)  # all of them at the same time, those that compile longest first
    slots = program.by_name
    found: dict[str, Array] = dict(arrays)
    found |= {name: jnp.asarray(table.words) for name, table in program.tables.items()}
    for step in program.steps:
        if isinstance(step, Fill):
            slot = slots[step.slot]
            found[step.slot] = jnp.full(physical(slot), step.value, slot.dtype)
        elif isinstance(step, Convert):
            found[step.target] = _converted(found[step.source], slots[step.source], slots[step.target], step.scale)
        else:
            found |= _launched(step, found, slots, gpu, scalars or {})
    return tuple(found[slot.name] for slot in program.of_role("output"))


# ---- memory ----------------------------------------------------------------------------------------------------------
def order(slot: Slot) -> tuple[int, ...]:
    """Axes of a slot in the order of its memory, outermost first."""
    return tuple(sorted(range(len(slot.shape)), key=lambda axis: slot.strides[axis], reverse=True))


def physical(slot: Slot) -> tuple[int, ...]:
    """The shape of the array that stands for a slot. Raises ValueError for memory with gaps, which no array has."""
    shape = tuple(slot.shape[axis] for axis in order(slot))
    strides = tuple(slot.strides[axis] for axis in order(slot))
    if any(a != b for a, b, size in zip(strides, row_major(shape), shape, strict=True) if size > 1):
        raise ValueError(f"slot {slot.name} {slot.shape} with strides {slot.strides} is no dense array")
    return shape


def logical(x: Array, slot: Slot) -> Array:
    """The array of a slot with its axes in the slot's own order."""
    axes = order(slot)
    return jnp.transpose(x, tuple(axes.index(axis) for axis in range(len(axes))))


def _converted(x: Array, source: Slot, target: Slot, scale: float) -> Array:
    values = logical(x, source)
    if scale != 1.0:
        values = values * scale
    return jnp.transpose(values, order(target)).astype(target.dtype)


# ---- launches --------------------------------------------------------------------------------------------------------
def _launched(
    launch: Launch, found: Mapping[str, Array], slots: Mapping[str, Slot], gpu: Gpu, scalars: Mapping[str, int]
) -> dict[str, Array]:
    """What a launch writes, by slot."""
    memory = [x for x in launch.arguments if isinstance(x, (Pointer, OnDevice, Descriptor))]
    read = [found[x.slot] for x in memory if not _writes(x)]
    written = [x.slot for x in memory if _writes(x)]
    if len(set(written)) != len(written):
        raise ValueError(f"{launch.kernel.name} writes a slot by two arguments, which one buffer cannot be")
    shapes = [jax.ShapeDtypeStruct(physical(slots[name]), slots[name].dtype) for name in written]
    again = [name in found for name in written]
    updated: list[Array] = []
    aliases: dict[int, int] = {}
    if any(again):  # then all go in, since results of a call come after all that goes in
        updated = [
            found[name] if known else jax.lax.empty(shape.shape, shape.dtype)
            for name, shape, known in zip(written, shapes, again, strict=True)
        ]
        aliases = {len(read) + i: i for i in range(len(written))}
    opaque = _opaque(launch, gpu, scalars)
    call = jax.ffi.ffi_call(TARGET, shapes, input_output_aliases=aliases)
    made = call(*read, *updated, opaque=opaque)
    return dict(zip(written, made, strict=True))


def _writes(x: Argument) -> bool:
    return isinstance(x, (Pointer, Descriptor)) and x.writes


def _opaque(launch: Launch, gpu: Gpu, scalars: Mapping[str, int]) -> bytes:
    kernel, maps = compiled(launch.kernel, gpu)
    left = iter(maps)
    parameters = []
    for at, ((_, kind), argument) in enumerate(zip(launch.kernel.types, launch.arguments, strict=True)):
        if isinstance(argument, Known):
            parameters.append(scalar(kind, argument.value))
        elif isinstance(argument, Given):
            parameters.append(scalar(kind, scalars[argument.name]))
        elif isinstance(argument, Descriptor):
            element, swizzle, box = next(left)
            parameters.append(TensorMap(element, swizzle, argument.shape, argument.strides, box).parameters())
        else:
            parameters.append(array(16 if at in launch.kernel.aligned else 0))
    return message(kernel, launch.grid, parameters)


@lru_cache(maxsize=256)
def compiled(source: Source, gpu: Gpu) -> tuple[Binary, Sequence[tuple[int, int, tuple[int, ...]]]]:
    """A kernel's machine code for a card, from the store or compiled; of each descriptor (element, swizzle, box)."""
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    from weft.kernels.gpu.compile.compiler import stored

    target = _target(gpu)
    made = stored(source, target)
    about = made.metadata
    maps = [
        (TMA_DTYPE_DEVICE_TO_HOST[one["elem_type"]], one["swizzle"], tuple(one["block_size"]))
        for one in (getattr(about, "tensordesc_meta", None) or ())
    ]
    return Binary(about.name, made.asm["cubin"], about.num_warps, about.shared, target.arch), maps


@lru_cache(maxsize=256)
def _begun(source: Source, gpu: Gpu) -> None:
    """A kernel begins to compile; `compiled` waits for it."""
    from weft.kernels.gpu.compile import ahead

    ahead.begin([source], _target(gpu))


def _target(gpu: Gpu) -> Any:
    """What Triton compiles for. Raises UnsupportedKernel for what is no card of NVIDIA's."""
    from triton.backends.compiler import GPUTarget

    vendor, _, number = gpu.architecture.partition("_")
    if vendor != "sm":
        raise UnsupportedKernel(
            f"attention from JAX on {gpu.name}", "jaxlib's call for Triton kernels takes NVIDIA's machine code here",
            'use implementation="xla"',
        )  # fmt: skip
    return GPUTarget("cuda", int(number), 32)


def card() -> Gpu:
    """The first GPU that JAX sees, as plans know it. Raises UnsupportedKernel where there is none."""
    from jaxlib import gpu_triton  # noqa: F401 - it registers the call

    from weft.target import gpu_like

    try:
        device: Any = jax.devices("gpu")[0]
    except RuntimeError:
        raise UnsupportedKernel(
            "attention by weft's kernels from JAX",
            "JAX sees no GPU",
            'use implementation="xla", install jax[cuda13], or pass target="h200" to lower for a card that is not here',
        ) from None
    capability = str(device.compute_capability).replace(".", "")
    return gpu_like(device.device_kind, f"sm_{capability}", device.core_count)
