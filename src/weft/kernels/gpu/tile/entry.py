"""KernelSpec -> the text of an entry: it says the kernel's Config, names its arguments, and calls the kernel's body."""

from __future__ import annotations

from collections.abc import Iterator

from weft.kernels.gpu.arguments import DROPPING, arguments, strided
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.tile.config import config_of, fragment_of, literal

Field = str | tuple[str, ...]
NUMBERS = "Lse", "DLse", "Delta", "Stats"
ENTRIES = "entries"  # sums of gradients of tables
# direction -> (module of the body, its name, fields of the `Tensors` of that module)
BODIES: dict[str, tuple[str, str, tuple[Field, ...]]] = {
    "forward": ("fwd", "attention", ("Q", "K", "V", "Out", "Lse", "Sinks", "Sum")),
    "dq": ("bwd_dq", "query_gradient", ("Q", "K", "V", "Out", "DOut", "DQ", NUMBERS, ENTRIES)),
    "dkdv": (
        "bwd_dkdv", "key_gradients", ("Q", "K", "V", "DOut", "DQ", "DK", "DV", NUMBERS, "Sums", "Slots", ENTRIES),
    ),
    "delta": ("delta", "delta", ("Out", "DOut", "DQ", NUMBERS, "Claimed")),
}  # fmt: skip
LAUNCH = "Tables, record, parts, parts_at, items_at, heads_at, first_item, all_heads, my_length, their_length"


def written(spec: KernelSpec) -> str:
    """The source of a module with one kernel, `kernel`."""
    about = f"{spec.name}\n\nWritten by weft; {spec.warps} warps, {spec.stages} stages."
    imports, found = "".join(f"from weft.kernels.gpu.{line}\n" for line in _imports(spec)), fragment_of(spec)
    functions = "" if found is None else f"\n{found.text}\n"
    return module(spec.symbol, about, f"{imports}{functions}\n", arguments(spec), _body(spec))


def _imports(spec: KernelSpec) -> Iterator[str]:
    home, name, fields = BODIES[spec.direction]
    walks, found = spec.direction != "delta", fragment_of(spec)
    yield "ops.loads import Strided"
    if found is not None and found.helpers:
        yield f"ops.pairs import {', '.join(found.helpers)}"
    if walks:
        yield "ops.scores import Scaling"
    yield f"tile.{home} import Tensors, {name}"
    yield "tile.config import Config"
    if walks:
        yield "tile.places import LaunchArgs"
    if NUMBERS in fields:
        yield "tile.row_numbers import Numbers"


def _body(spec: KernelSpec) -> Iterator[str]:
    _, name, fields = BODIES[spec.direction]
    first, *more = literal(config_of(spec))
    yield f"C: tl.constexpr = {first}"
    yield from more
    yield f"{name}("
    yield "    C,"
    yield "    Tensors("
    for field in fields:
        yield f"        {_tensor(spec, field)},"
    yield "    ),"
    dropping = ("Seed", *DROPPING) if spec.dropout else ()
    if spec.direction == "delta":
        yield "    all_heads, my_length, scale,"
    else:
        yield f"    LaunchArgs({LAUNCH}),"
        yield f"    Scaling(scale, softcap, shift, {_tensor(spec, 'Slopes')}, {_captured(spec)}, {_tuple(dropping)}),"
    yield ")"


def _tensor(spec: KernelSpec, field: Field) -> str:
    """A tensor as a body takes it; None for one that this kernel does not take."""
    if not isinstance(field, str):
        return f"Numbers({', '.join(_tensor(spec, name) for name in field)})"
    if field == ENTRIES:
        return _tuple(() if spec.rules is None else spec.rules.sums)
    if field in strided(spec):
        dim = "()" if spec.aligned else f"{field}_dim"  # nothing reads it: Triton 3.6 would lose a number there
        return f"Strided({field}, {field}_batch, {field}_head, {field}_row, {dim})"
    return field if field in arguments(spec) else "None"


def _captured(spec: KernelSpec) -> str:
    """All that functions of pairs are told of their tables."""
    return _tuple(() if spec.rules is None else (*spec.rules.pointers, *spec.rules.scalars))


def _tuple(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)}{',' * (len(names) == 1)})"
