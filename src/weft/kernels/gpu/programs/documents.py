"""The program that makes items of documents on the device; no length of theirs is known to the host."""

from __future__ import annotations

from functools import lru_cache

from weft.caching import cached
from weft.kernels.gpu.compile.source import Source
from weft.kernels.gpu.documents.spec import ITEM, ItemsSpec, Sizes, bounds_of
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.program import Known, Launch, LaunchProgram, OnDevice, Pointer, Slot, Table
from weft.pattern.algebra import Pattern

BLOCK = 64  # tiles of a program, see `documents.kernel`
TYPES = (("OfQueries", "*i32"), ("OfKeys", "*i32"), ("Bounds", "*i32"), ("tiles", "i32"), ("Items", "*i32"))


def document_items_program(pattern: Pattern, sizes: Sizes, spec: ItemsSpec) -> LaunchProgram:
    """Slots of_queries and of_keys (documents + 1,), running sums in int32; output items (documents, tiles, ITEM).

    Raises UnsupportedError for a pattern that `documents.spec` does not know.
    """
    tiles = -(-sizes.queries // spec.rows)
    sums = (sizes.documents + 1,)
    bounds = _table(pattern, sizes)
    slots = (
        Slot.dense("of_queries", "input", "int32", sums),
        Slot.dense("of_keys", "input", "int32", sums),
        Slot.dense("items", "output", "int32", (sizes.documents, tiles, ITEM)),
        bounds.slot("bounds"),
    )
    told = OnDevice("of_queries"), OnDevice("of_keys"), Pointer("bounds"), Known(tiles), Pointer("items", writes=True)
    launch = Launch(spec, _source(spec), (-(-tiles // BLOCK), sizes.documents, 1), told)
    steps = (launch,) if tiles and sizes.documents else ()
    return LaunchProgram("document_items", slots, steps, {"bounds": bounds})


@cached(128)
def _table(pattern: Pattern, sizes: Sizes) -> Table:
    return Table(bounds_of(pattern, sizes))


@lru_cache(maxsize=64)
def _source(spec: ItemsSpec) -> Source:
    names = tuple(name for name, _ in TYPES)
    about = f"{spec.name}\n\nWritten by weft; 4 warps."
    call = f"items_of(OfQueries, OfKeys, Bounds, Items, tiles, ROWS={spec.rows}, COLS={spec.cols})"
    imports = "from weft.kernels.gpu.documents.kernel import items_of\n\n"
    return Source(spec.name, module(f"weft_{spec.name}", about, imports, names, [call]), TYPES, (2, 4), 4, 1)
