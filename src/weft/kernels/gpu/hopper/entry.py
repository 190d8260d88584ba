"""KernelSpec -> the entry of a kernel for Hopper: a few lines that name arguments and call the kernel's function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from textwrap import fill

from weft.kernels.gpu.arguments import ROUNDS, SPARSE, WALK, strided
from weft.kernels.gpu.descriptors import OF_KEYS, OF_QUERIES, OF_SPARSE, OF_SUMS, READ, WRITTEN, box_names, walk_names
from weft.kernels.gpu.hopper.config import Config, config_of
from weft.kernels.gpu.spec import KernelSpec

TABLES = ("Tables", "record", "parts_at", "items_at", "heads_at", *ROUNDS)
FUNCTIONS = {  # of a direction: the module, and its function
    "forward": ("fwd", "fwd"), "dq": ("bwd_apart", "bwd_apart"), "dkdv": ("bwd_dkdv", "bwd_dkdv"),
    "fused": ("bwd_fused", "bwd_fused"),
    "sparse_keys": ("bwd_sparse_keys", "bwd_sparse_keys"), "reduce_partials": ("reduce_partials", "reduce_partials"),
}  # fmt: skip


def imports(spec: KernelSpec) -> str:
    """What the module of an entry begins with, and its configuration."""
    module, function = _function(spec)
    names = ["Sizes", function] if spec.direction == "sparse_keys" else [function]
    found = [f"from weft.kernels.gpu.hopper.{module} import {', '.join(names)}"]
    if spec.direction == "fused":
        found.append("from weft.kernels.gpu.hopper.bwd_fused_loads import Sizes")
    found += [
        "from weft.kernels.gpu.hopper.config import Config",
        "from weft.kernels.gpu.hopper.ops.aggregate import constants",
    ]
    if spec.direction in ("forward", "dq", "dkdv"):
        taken = "TileScheduler, counted" if spec.counted else "TileScheduler"
        found.append(f"from weft.kernels.gpu.hopper.ops.scheduler import {taken}")
    if strided(spec):
        found.append("from weft.kernels.gpu.hopper.ops.values import Tensor")
    config = f"CONFIG = constants(Config(\n{_wrapped(config_of(spec))}\n))  # fmt: skip"
    return "\n".join((*found, "", config, "", ""))


def _function(spec: KernelSpec) -> tuple[str, str]:
    """(module, function) of a kernel."""
    apart = ("bwd_apart",) * 2 if spec.makes != "both" else FUNCTIONS[spec.direction]
    if spec.boxes and spec.direction != "forward":
        apart = ("bwd_boxes",) * 2
    module, function = (_of_sums(spec),) * 2 if spec.with_dq else apart
    return module, f"{function}_short" if spec.short else function


def _of_sums(spec: KernelSpec) -> str:
    """The kernel that adds to dQ."""
    return "bwd_lists" if spec.rank == 0 else "bwd_grid" if spec.boxes else "bwd_summed"


def _wrapped(config: Config) -> str:
    """A configuration's fields as keywords, those that differ from what they are mostly."""
    some = [one for one in fields(config) if getattr(config, one.name) != one.default]
    said = ", ".join(f"{one.name}={getattr(config, one.name)!r}" for one in some)
    return fill(f"{said},", 100, initial_indent="    ", subsequent_indent="    ")


def body(spec: KernelSpec) -> Iterator[str]:
    """The lines of an entry."""
    for name in strided(spec):
        yield f"{name.lower()} = Tensor({name}, {name}_batch, {name}_head, {name}_row)"
    yield from BODIES[spec.direction](spec)


def _forward(spec: KernelSpec) -> Iterator[str]:
    (box, *near), (*_, far_k, far_v) = box_names(1), box_names(spec.terms)
    out_box = box if spec.boxed else near[0]  # of the same shape, and written by nobody
    yield _scheduler(spec)
    yield f"{_function(spec)[1]}("
    yield f"    (q, k, v), ({', '.join((*near, far_k, far_v))}), (out, Lse, {out_box}), scheduler,"
    yield f"    (all_heads, my_length, scale, {'Sinks' if spec.sinks else 'Lse'}), cfg=CONFIG,"
    yield ")"


def _scheduler(spec: KernelSpec) -> str:
    made = f"TileScheduler({', '.join(TABLES)})"
    return f"scheduler = {f'counted({made})' if spec.counted and not spec.of_keys else made}"


def _query_gradient(spec: KernelSpec) -> Iterator[str]:
    lse_gradient, delta = ("DLse" if spec.lse_gradient else "Lse"), ("Delta" if spec.leaves_delta else "Lse")
    yield _scheduler(spec)
    grad = "(dq,)" if spec.boxes else "dq"
    yield f"{_function(spec)[1]}((Stats, out, Lse, {lse_gradient}, {delta}), ({', '.join(walk_names(OF_QUERIES))}),"
    yield f"    {grad}, scheduler,"
    yield "    (all_heads, my_length, scale), CHAINED=False, cfg=CONFIG,"
    yield ")"


def _key_gradients(spec: KernelSpec) -> Iterator[str]:
    yield _scheduler(spec)
    if spec.with_dq:
        yield f"{_of_sums(spec)}("
        made = ["dk", "dv", *walk_names(OF_SUMS), *(["Claimed"] * spec.claims)]
        yield f"    Stats, ({', '.join(walk_names(OF_KEYS))}), ({', '.join(made)}), scheduler,"
        yield f"    (all_heads, their_length, scale), CHAINED={spec.chained}, cfg=CONFIG,"
        yield ")"
        return
    if spec.makes != "both" or spec.boxes:
        grad = "(dk, dv)" if spec.boxes else f"d{spec.makes[1]}"
        yield f"{_function(spec)[1]}((Stats,), ({', '.join(walk_names(OF_KEYS))}), {grad}, scheduler,"
        yield f"    (all_heads, their_length, scale), CHAINED={spec.chained}, cfg=CONFIG,"
        yield ")"
        return
    yield "bwd_dkdv("
    yield "    (k, v, q, dout, Stats), (dk, dv), scheduler, (all_heads, their_length, scale),"
    yield f"    CHAINED={spec.chained}, cfg=CONFIG,"
    yield ")"


def _fused(spec: KernelSpec) -> Iterator[str]:
    *sizes, left, right = WALK
    lse_gradient, delta = ("DLse" if spec.lse_gradient else "Lse"), ("Delta" if spec.with_delta else "Lse")
    yield f"sizes = Sizes({', '.join(sizes)})"
    yield "bwd_fused("
    yield f"    ({', '.join(walk_names(READ))}), ({', '.join(walk_names(WRITTEN))}),"
    yield f"    (Lse, {lse_gradient}, {delta}), sizes, ({left}, {right}), scale, cfg=CONFIG,"
    yield ")"


def _sparse_keys(spec: KernelSpec) -> Iterator[str]:
    yield f"sizes = Sizes({', '.join(SPARSE)})"
    yield "bwd_sparse_keys("
    yield f"    ({', '.join(walk_names(OF_SPARSE))}), (Lse, Delta), Partial, sizes, Tables, scale, cfg=CONFIG,"
    yield ")"


def _partials(spec: KernelSpec) -> Iterator[str]:
    yield "reduce_partials(Partial, parts, (first, step, keys), (dk, dv), kv_heads, scale, cfg=CONFIG)"


BODIES = {
    "forward": _forward, "dq": _query_gradient, "dkdv": _key_gradients, "fused": _fused, "sparse_keys": _sparse_keys,
    "reduce_partials": _partials,
}  # fmt: skip
