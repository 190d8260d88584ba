"""SplitKVSpec -> source: an entry that names the arguments and calls the body, with the types of its arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from weft.kernels.gpu.compile.source import POINTERS, Source
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.layout import PARTS
from weft.kernels.gpu.split_kv.config import Combined, config_of
from weft.kernels.gpu.split_kv.spec import GROWING, PAGING, SplitKVSpec
from weft.planning.tiling import chunks

WIDE = ("Work", "Lse", "Sinks", "Slopes")  # always float32
ALIGNED = ("Work", "Lse", "Tables")  # weft's own; sinks and slopes are a user's
COUNTED = {"int32": "*i32", "int64": "*i64"}
SLOTS = {"KeyCount": "key_count", "Offset": "offset", "Window": "window"}  # fields of `rows.Keys`


@lru_cache(maxsize=256)
def source_of(spec: SplitKVSpec) -> Source:
    """The entry with the types of its arguments; integers have a declared width and are never specialised."""
    types = {name: _type_of(name, spec) for name in spec.arguments}
    aligned = tuple(
        i for i, name in enumerate(types)
        if name in ALIGNED or (spec.aligned and name in ("Q", "K", "V", "Out"))
    )  # fmt: skip
    early = spec.chained and spec.combine
    return Source(spec.name, entry(spec), tuple(types.items()), aligned, spec.warps, spec.stages,
                  spec=json.dumps(asdict(spec), indent=1), early=early)  # fmt: skip


def _type_of(name: str, spec: SplitKVSpec) -> str:
    if name in ("Tables", "BlockTable"):
        return "*i32"
    if name in spec.counts.slots:
        return COUNTED[spec.counts.dtype]
    if name in (*spec.reads, *spec.writes):
        return "*fp32" if name in WIDE else POINTERS[spec.dtype]
    if name in ("scale", "softcap"):
        return "fp32"
    return "i32" if name in (*spec.integers, *GROWING, "capacity", *PAGING) else "i64"


# ---- the entry -------------------------------------------------------------------------------------------------------
def entry(spec: SplitKVSpec) -> str:
    """The source of a module with one kernel, `kernel`: its arguments, and the call of its body."""
    about = f"{spec.name}\n\nWritten by weft; {spec.warps} warps, {spec.stages} stages."
    imports, call = (_COMBINE, _combine(spec)) if spec.combine else (_SPLIT, _split(spec))
    return module(spec.symbol, about, imports, spec.arguments, call)


_SPLIT = """\
from weft.kernels.gpu.ops.loads import Strided
from weft.kernels.gpu.ops.scores import Scaling
from weft.kernels.gpu.split_kv.config import Config
from weft.kernels.gpu.split_kv.kernel import Results, split_kv
from weft.kernels.gpu.split_kv.rows import Deal, Keys

"""
_COMBINE = """\
from weft.kernels.gpu.ops.loads import Strided
from weft.kernels.gpu.split_kv.combine import combine
from weft.kernels.gpu.split_kv.config import Combined
from weft.kernels.gpu.split_kv.kernel import Results

"""


def _split(spec: SplitKVSpec) -> Iterator[str]:
    yield "split_kv("
    yield "    Config("
    yield from (f"        {name}={value!r}," for name, value in config_of(spec)._asdict().items())
    yield "    ),"
    yield from (f"    {_tensor(name, spec)}," for name in "QKV")
    yield "    Deal(Tables, members_at, groups, lanes, span, splits, all_heads, m),"
    yield "    Keys("
    yield from (f"        {line}," for line in _keys(spec))
    yield "    ),"
    yield f"    Scaling(scale, softcap, 0, {'Slopes' if spec.alibi else None}, (), ()),"
    yield f"    Results({'work=Work, sums=sums' if spec.split else _results(spec)}),"
    yield ")"


def _combine(spec: SplitKVSpec) -> Iterator[str]:
    yield "combine("
    yield f"    Combined({chunks(spec.dv)}, {spec.rows}, {spec.once}, {spec.chained}),"
    yield "    Work, sums, splits, all_heads, m,"
    yield f"    Results({_results(spec)}),"
    yield ")"


def _tensor(name: str, spec: SplitKVSpec) -> str:
    """A tensor with strides in elements; where rows are aligned they are told in units of 16 bytes."""
    unit = f" * {spec.unit}" if spec.unit > 1 else ""
    strides = ", ".join(f"{name}_{part}{unit}" for part in PARTS)
    return f"Strided({name}, {strides}, {1 if spec.aligned else f'{name}_dim'})"


def _keys(spec: SplitKVSpec) -> Iterator[str]:
    counts = spec.counts
    if not counts.dtype:
        yield ", ".join(f"{name}={name}" for name in GROWING)
        return
    pointers = ", ".join(f"{SLOTS[name]}={name}" for name in counts.slots)
    yield f"{pointers}, capacity=capacity, per_batch={counts.per_batch}, ring={counts.ring}"
    if counts.page:
        yield f"block_table=BlockTable, table_row=table_row, pages=pages, page={counts.page}"


def _results(spec: SplitKVSpec) -> str:
    return f"out={_tensor('Out', spec)}, lse=Lse{', sinks=Sinks' * spec.sinks}"


# ---- for people ------------------------------------------------------------------------------------------------------
def constants_of(spec: SplitKVSpec) -> dict[str, Any]:
    """What names in the functions that an entry reaches stand for, as far as the entry says it: for `listing`."""
    counts = spec.counts
    found: dict[str, Any] = {} if spec.sinks else {"results": SimpleNamespace(sinks=None), "sink": None}
    if spec.combine:
        return found | {"C": Combined(chunks(spec.dv), spec.rows, spec.once, spec.chained)}
    missing = {name: None for pointer, name in SLOTS.items() if pointer not in counts.slots}
    keys = SimpleNamespace(**missing, ring=counts.ring, page=counts.page)
    found |= {"C": config_of(spec), "keys": keys, "side": SimpleNamespace(keys=keys)}
    found |= {"PAGE": counts.page}
    return found | ({} if counts.page else {"pages": None})
