"""KernelSpec -> the entry of a kernel for Hopper: a few lines that name arguments and call the kernel's function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from textwrap import fill

from weft.kernels.gpu.arguments import ROUNDS, strided
from weft.kernels.gpu.descriptors import box_names
from weft.kernels.gpu.hopper.config import Config, config_of
from weft.kernels.gpu.spec import KernelSpec

TABLES = ("Tables", "record", "parts_at", "items_at", "heads_at", *ROUNDS)
OPS = (
    "from weft.kernels.gpu.hopper.config import Config\n"
    "from weft.kernels.gpu.hopper.ops.aggregate import constants\n"
    "from weft.kernels.gpu.hopper.ops.scheduler import TileScheduler\n"
    "from weft.kernels.gpu.hopper.ops.values import Tensor\n\n"
)


def imports(spec: KernelSpec) -> str:
    """What the module of an entry begins with, and its configuration."""
    module, function = _function(spec)
    config = f"CONFIG = constants(Config(\n{_wrapped(config_of(spec))}\n))  # fmt: skip\n\n"
    return f"from weft.kernels.gpu.hopper.{module} import {function}\n{OPS}{config}"


def _function(spec: KernelSpec) -> tuple[str, str]:
    """(module, function) of a kernel."""
    if spec.direction == "forward":
        return "fwd", "fwd_short" if spec.short else "fwd"
    return "bwd_dkdv", "bwd_dkdv"


def _wrapped(config: Config) -> str:
    """A configuration's fields as keywords, those that differ from what they are mostly."""
    some = [one for one in fields(config) if getattr(config, one.name) != one.default]
    said = ", ".join(f"{one.name}={getattr(config, one.name)!r}" for one in some)
    return fill(f"{said},", 100, initial_indent="    ", subsequent_indent="    ")


def body(spec: KernelSpec) -> Iterator[str]:
    """The lines of an entry."""
    for name in strided(spec):
        yield f"{name.lower()} = Tensor({name}, {name}_batch, {name}_head, {name}_row)"
    yield f"scheduler = TileScheduler({', '.join(TABLES)})"
    yield f"{_function(spec)[1]}("
    if spec.direction == "forward":
        (box, *near), (*_, far_k, far_v) = box_names(1), box_names(spec.terms)
        out_box = box if spec.boxed else near[0]  # of the same shape, and written by nobody
        yield f"    (q, k, v), ({', '.join((*near, far_k, far_v))}), (out, Lse, {out_box}), scheduler,"
        yield f"    (all_heads, my_length, scale, {'Sinks' if spec.sinks else 'Lse'}), cfg=CONFIG,"
    else:
        yield "    (k, v, q, dout, Stats), (dk, dv), scheduler, (all_heads, their_length, scale),"
        yield f"    CHAINED={spec.chained}, cfg=CONFIG,"
    yield ")"
