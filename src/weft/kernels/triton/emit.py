"""KernelSpec -> the text of a kernel's entry, by its family."""

from __future__ import annotations

from collections.abc import Iterator

from weft.kernels.gpu.arguments import FEW, arguments, strided
from weft.kernels.gpu.descriptors import OF_FEW, walk_names
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.hopper import entry
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.tile import entry as tile

GROUPS = {  # what a kernel whose groups specialise is made of
    "few_keys": "from weft.kernels.triton.few_keys import add_gradients\n\n",
    "few_sums": "from weft.kernels.triton.few_sums import join\n\n",
}


def emit(spec: KernelSpec) -> str:
    """The source of a module with one kernel, `kernel`."""
    if spec.groups:
        about = f"{spec.name}\n\nEmitted by weft; {spec.groups} warp groups, {spec.stages} stages."
        if spec.direction in ("forward", "dkdv", "gradients"):
            return module(spec.symbol, about, entry.imports(spec), arguments(spec), entry.body(spec), "gluon")
        helpers = GROUPS[spec.direction]
        return module(spec.symbol, about, helpers, arguments(spec), _in_groups(spec), "gluon")
    return tile.written(spec)


def _in_groups(spec: KernelSpec) -> Iterator[str]:
    """A kernel whose warp groups specialise, of the parts of `weft.kernels.gpu.hopper`."""
    if spec.direction == "few_keys":
        yield f"sizes = {', '.join(FEW)}"
        yield "add_gradients("
        yield f"    ({', '.join(walk_names(OF_FEW))}), (Lse, Delta), Partial, sizes, Tables, scale,"
        yield ")"
        return
    for name in strided(spec):
        yield f"{name.lower()} = {name}, {name}_batch, {name}_head, {name}_row"
    if spec.direction == "few_sums":
        yield "join(Partial, parts, (first, step, keys), (dk, dv), kv_heads, scale)"
