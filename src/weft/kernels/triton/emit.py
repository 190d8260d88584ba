"""KernelSpec -> the text of a kernel's entry, by its family."""

from __future__ import annotations

from collections.abc import Iterator

from weft.kernels.gpu.arguments import FEW, ROUNDS, WALK, arguments, strided
from weft.kernels.gpu.descriptors import OF_FEW, READ, WRITTEN, box_names, walk_names
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.tile.entry import written

GROUPS = {  # what a kernel whose groups specialise is made of
    "dkdv": "from weft.kernels.triton.groups import key_gradients\n\n",
    "forward": "from weft.kernels.triton.group_queries import attention\n\n",
    "short": "from weft.kernels.triton.group_queries import short_attention\n\n",
    "gradients": "from weft.kernels.triton.one_walk import gradients\n\n",
    "few_keys": "from weft.kernels.triton.few_keys import add_gradients\n\n",
    "few_sums": "from weft.kernels.triton.few_sums import join\n\n",
}


def emit(spec: KernelSpec) -> str:
    """The source of a module with one kernel, `kernel`."""
    if spec.groups:
        about = f"{spec.name}\n\nEmitted by weft; {spec.groups} warp groups, {spec.stages} stages."
        helpers = GROUPS["short" if spec.short else spec.direction]
        return module(spec.symbol, about, helpers, arguments(spec), _in_groups(spec), "gluon")
    return written(spec)


def _in_groups(spec: KernelSpec) -> Iterator[str]:
    """A kernel whose warp groups specialise, of the parts of `weft.kernels.triton.groups`."""
    if spec.direction == "few_keys":
        yield f"sizes = {', '.join(FEW)}"
        yield "add_gradients("
        yield f"    ({', '.join(walk_names(OF_FEW))}), (Lse, Delta), Partial, sizes, Tables, scale,"
        yield ")"
        return
    if spec.direction == "gradients":
        yield "gradients("
        lse_gradient, delta = ("DLse" if spec.lse_gradient else "Lse"), ("Delta" if spec.with_delta else "Lse")
        yield f"    ({', '.join(walk_names(READ))}), (Lse, {lse_gradient}, {delta}),"
        yield f"    ({', '.join(walk_names(WRITTEN))}),"
        yield f"    ({', '.join(WALK[:-2])}), ({', '.join(WALK[-2:])}), scale,"
        yield f"    LSE_GRADIENT={spec.lse_gradient}, WITH_DELTA={spec.with_delta},"
        yield ")"
        return
    for name in strided(spec):
        yield f"{name.lower()} = {name}, {name}_batch, {name}_head, {name}_row"
    if spec.direction == "few_sums":
        yield "join(Partial, parts, (first, step, keys), (dk, dv), kv_heads, scale)"
        return
    yield f"tables = Tables, record, parts_at, items_at, heads_at, {', '.join(ROUNDS)}"
    if spec.direction == "forward":
        (box, *near), (*_, far_k, far_v) = box_names(1), box_names(spec.terms)
        far = far_k, far_v
        written = ", ".join(("out", "Lse", *((box,) * spec.boxed)))
        yield "short_attention(" if spec.short else "attention("
        yield f"    (q, (k, v), ({', '.join((*near, *far))})), ({written}),"
        yield f"    tables, (all_heads, my_length, scale, {'Sinks' if spec.sinks else 'Lse'}),"
        yield f"    WIDE={spec.groups}, STAGES={spec.stages}, TERMS={spec.terms}, SINKS={spec.sinks},"
    else:
        yield "key_gradients("
        yield "    (k, v), (q, dout, Stats), (dk, dv), tables, (all_heads, their_length, scale),"
        yield f"    WIDE={spec.groups}, STAGES={spec.stages}, CHAINED={spec.chained},"
    yield ")"
