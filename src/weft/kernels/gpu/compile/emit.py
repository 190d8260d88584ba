"""KernelSpec -> the text of a kernel's entry, by its family."""

from __future__ import annotations

from weft.kernels.gpu.arguments import arguments
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.hopper import entry as hopper
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.tile import entry as tile


def emit(spec: KernelSpec) -> str:
    """The source of a module with one kernel, `kernel`."""
    if not spec.groups:
        return tile.written(spec)
    about = f"{spec.name}\n\nEmitted by weft; {spec.groups} warp groups, {spec.stages} stages."
    return module(spec.symbol, about, hopper.imports(spec), arguments(spec), hopper.body(spec), "gluon")
