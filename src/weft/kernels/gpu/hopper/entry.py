"""KernelSpec -> the entry of a kernel for Hopper: a few lines that name arguments and call the kernel's function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from textwrap import fill

from weft.kernels.gpu.arguments import ROUNDS, strided
from weft.kernels.gpu.hopper.config import Config, config_of
from weft.kernels.gpu.spec import KernelSpec

TABLES = ("Tables", "record", "parts_at", "items_at", "heads_at", *ROUNDS)


def imports(spec: KernelSpec) -> str:
    """What the module of an entry begins with, and its configuration."""
    return (
        "from weft.kernels.gpu.hopper.bwd_dkdv import bwd_dkdv\n"
        "from weft.kernels.gpu.hopper.config import Config\n"
        "from weft.kernels.gpu.hopper.ops.aggregate import constants\n"
        "from weft.kernels.gpu.hopper.ops.scheduler import TileScheduler\n"
        "from weft.kernels.gpu.hopper.ops.values import Tensor\n\n"
        f"CONFIG = constants(Config(\n{_wrapped(config_of(spec))}\n))  # fmt: skip\n\n"
    )


def _wrapped(config: Config) -> str:
    """A configuration's fields as keywords."""
    said = ", ".join(f"{one.name}={getattr(config, one.name)!r}" for one in fields(config))
    return fill(f"{said},", 100, initial_indent="    ", subsequent_indent="    ")


def body(spec: KernelSpec) -> Iterator[str]:
    """The lines of an entry."""
    for name in strided(spec):
        yield f"{name.lower()} = Tensor({name}, {name}_batch, {name}_head, {name}_row)"
    yield f"scheduler = TileScheduler({', '.join(TABLES)})"
    yield "bwd_dkdv("
    yield "    (k, v, q, dout, Stats), (dk, dv), scheduler, (all_heads, their_length, scale),"
    yield f"    CHAINED={spec.chained}, cfg=CONFIG,"
    yield ")"
