"""KernelSpec -> the text of an entry that calls a kernel of this family."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weft.kernels.gpu.arguments import arguments
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.tile.config import config_of, literal


def written(spec: KernelSpec) -> str:
    """The source of a module with one kernel, `kernel`."""
    names, body = BODIES[spec.direction]
    home = "weft.kernels.gpu.tile"
    helpers = "".join(f"from {home}.{module} import {', '.join(some)}\n" for module, some in names.items())
    helpers = f"from weft.kernels.gpu.ops.loads import Strided\nfrom {home}.config import Config\n{helpers}\n"
    about = f"{spec.name}\n\nWritten by weft; {spec.warps} warps, {spec.stages} stages."
    return module(spec.symbol, about, helpers, arguments(spec), body(spec))


def _delta(spec: KernelSpec) -> Iterator[str]:
    yield "delta("
    yield from _indented(literal(config_of(spec)))
    yield "    Tensors("
    for name in ("Out", "DOut", "DQ"):
        yield f"        {_strided(spec, name)},"
    yield f"        {_made(spec, 'Numbers', 'Lse', 'DLse', 'Delta', 'Stats')},"
    yield "    ),"
    yield "    all_heads, my_length, scale,"
    yield ")"


def _strided(spec: KernelSpec, name: str) -> str:
    dim = "1" if spec.aligned else f"{name}_dim"
    return f"Strided({name}, {name}_batch, {name}_head, {name}_row, {dim})"


def _made(spec: KernelSpec, kind: str, *names: str) -> str:
    """A tuple of arguments; None stands for one that the kernel has not."""
    known = arguments(spec)
    return f"{kind}({', '.join(name if name in known else 'None' for name in names)})"


def _indented(lines: list[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


# direction -> names that its entry imports, by module of this package, and its body
BODIES: dict[str, tuple[dict[str, tuple[str, ...]], Callable[[KernelSpec], Iterator[str]]]] = {
    "delta": ({"delta": ("Tensors", "delta"), "row_numbers": ("Numbers",)}, _delta),
}
