"""What a generated kernel is told, in order: see `arguments`."""

from __future__ import annotations

from weft.kernels.gpu.descriptors import OF_KEYS, OF_QUERIES, OF_SPARSE, OF_SUMS, READ, WRITTEN, box_names, walk_names
from weft.kernels.gpu.spec import KernelSpec

SHARED = ("Sums", "Slots")  # sums that launches leave for the last one, and the row of each key in them
STRIDED = {
    "forward": ("Q", "K", "V", "Out"),
    "dq": ("Q", "K", "V", "Out", "DOut", "DQ"),
    "dkdv": ("Q", "K", "V", "DOut", "DK", "DV"),
    "delta": ("Out", "DOut", "DQ"),
    "fused": (),  # which descriptors reach
    "sparse_keys": (),
    "reduce_partials": ("DK", "DV"),
}
PLAIN = ("record", "parts", "parts_at", "items_at", "heads_at", "first_item", "all_heads", "my_length", "their_length",
         "shift")  # fmt: skip
ADDED_BOX = "DQ_box"  # what sparse keys add to
ROUNDS = ("blocks_at", "blocks")  # of blocks that programs take in turn
SPARSE = ("items", "parts", "tokens", "kv_heads", "share", "place", "lane")  # see `hopper.bwd_sparse_keys`
SUMS = ("parts", "first", "step", "keys", "kv_heads")
WALK = (
    "items",
    "runs",
    "per",
    "tiles",
    "shift",
    "tokens",
    "kv_heads",
    "share",
    "left",
    "right",
)  # see `bwd_fused`
FLOATS = ("scale", "softcap")
DROPPING = ("dropped_below", "kept_scale")  # see `ops.dropout`


def reads(spec: KernelSpec) -> tuple[str, ...]:
    """Names of the pointers that a kernel reads only."""
    direction, sums = (
        spec.direction,
        ("Slots",) * (spec.adds_shared or spec.leaves_shared) + ("Sums",) * spec.adds_shared,
    )
    rows = ("Lse", *(("DLse",) * spec.lse_gradient))
    captured = () if spec.rules is None else spec.rules.pointers
    slopes, tables = (*(("Slopes",) * spec.alibi), *captured, *(("Seed",) * spec.dropout)), ("Tables",)
    if direction == "forward":
        return ("Q", "K", "V", *(("Sinks",) * spec.sinks), *slopes, *tables)
    if direction == "dq":
        return ("Q", "K", "V", "Out", "DOut", *rows, *slopes, *tables)
    if direction == "dkdv":
        of_rows = ("Stats",) if spec.folded else ("Lse", "Delta")
        return ("Q", "K", "V", "DOut", *of_rows, *slopes, *sums, *tables)
    if direction == "delta":
        return ("Out", "DOut", *rows)
    return {"fused": rows, "sparse_keys": ("Lse", "Delta", *tables), "reduce_partials": ("Partial",)}[direction]


def writes(spec: KernelSpec) -> tuple[str, ...]:
    """Names of the pointers that a kernel writes, or adds to."""
    direction, sums = spec.direction, () if spec.rules is None else spec.rules.sums
    numbers = ("Delta",) * spec.leaves_delta + ("Stats",) * spec.folded
    if direction == "forward":
        return ("Out", "Lse", *(("Sum",) * spec.accumulate))
    claimed = ("Claimed",) * spec.claims  # the counter of blocks
    if direction in ("dq", "delta"):
        return ("DQ", *numbers, *sums, *claimed)
    if direction == "dkdv":
        made = {"both": ("DK", "DV"), "dk": ("DK",), "dv": ("DV",)}[spec.makes]
        summed = ("DQ",) * (spec.with_dq and not spec.groups)
        return (*(("Sums",) if spec.leaves_shared else made), *summed, *sums, *claimed)
    if direction == "fused":
        return ("Delta",) * spec.with_delta
    return ("Partial",) if direction == "sparse_keys" else ("DK", "DV")


def tensors(spec: KernelSpec) -> tuple[str, ...]:
    """Names of all pointers but that of tables: the kernel's memory."""
    return tuple(name for name in (*reads(spec), *writes(spec)) if name != "Tables")


def strided(spec: KernelSpec) -> tuple[str, ...]:
    """Those of them that may lie anyhow."""
    known = (*STRIDED[spec.direction], *SHARED[:1], *(("DQ",) * spec.of_keys))
    return tuple(x for x in dict.fromkeys(known) if x in tensors(spec))


def arguments(spec: KernelSpec) -> tuple[str, ...]:
    """Names of the kernel's arguments: pointers read, scalars, descriptors read, pointers and descriptors written.

    So every slot that is written comes after all that are read.
    Frameworks that know a kernel by its inputs and outputs want this order.
    """
    read, written = described(spec)
    return (*reads(spec), *scalars(spec), *read, *writes(spec), *written)


def scalars(spec: KernelSpec) -> tuple[str, ...]:
    """Names of integers and numbers among them."""
    strides = [f"{x}_{part}" for x in strided(spec) for part in _stride_names(spec)]
    if spec.direction == "delta":
        return ("all_heads", "my_length", *strides, "scale")
    if spec.direction == "fused":
        return (*WALK, "scale")
    if spec.direction == "sparse_keys":
        return (*SPARSE, "scale")
    if spec.direction == "reduce_partials":
        return (*SUMS, *strides, "scale")
    captured = () if spec.rules is None else spec.rules.scalars
    dropping = DROPPING if spec.dropout else ()
    return (*PLAIN, *(ROUNDS if spec.groups else ()), *strides, *captured, *dropping, *FLOATS)


def described(spec: KernelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the descriptors of what is read, and of what is written."""
    if spec.direction == "fused":
        return walk_names(READ), walk_names(WRITTEN)
    if spec.direction == "sparse_keys":
        return tuple(x for x in walk_names(OF_SPARSE) if x != ADDED_BOX), (ADDED_BOX,)
    if spec.groups and spec.of_keys and (spec.with_dq or spec.makes != "both" or spec.boxes):
        return walk_names(OF_KEYS), walk_names(OF_SUMS) if spec.with_dq else ()
    if spec.groups and spec.direction == "dq":
        return walk_names(OF_QUERIES), ()
    if spec.groups and spec.direction == "forward":
        written, *read = box_names(spec.terms)
        return tuple(read), (written,) * spec.boxed
    return (), ()


def _stride_names(spec: KernelSpec) -> tuple[str, ...]:
    return ("batch", "head", "row") if spec.aligned else ("batch", "head", "row", "dim")
