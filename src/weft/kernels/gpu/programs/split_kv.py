"""The program of a few rows against many keys: equal shares of the live keys, and a kernel that merges them.

Steps of decoding are planned once for a capacity. The number of keys is then a scalar, which the host gives at each
call or the kernel reads from a device slot. Grids depend on the capacity alone, so a captured graph replays the program
at every length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from weft.caching import cached
from weft.kernels.gpu.layout import PARTS, Layout, Options, dense_rows, inputs, of_rows, result
from weft.kernels.gpu.program import (
    Argument,
    Given,
    Known,
    Launch,
    LaunchProgram,
    OnDevice,
    Pointer,
    Slot,
    Strides,
    Table,
)
from weft.kernels.gpu.programs.launches import widened
from weft.kernels.gpu.split_kv.source import source_of
from weft.kernels.gpu.split_kv.spec import (
    GROWING,
    HOST,
    Counts,
    ScoreOptions,
    SplitKVSpec,
    combining,
    split_kv_spec,
)
from weft.kernels.gpu.split_kv.tables import row_tables
from weft.planning.families.split_kv import RowShape, shape_of
from weft.planning.rowwise import RowPlan

COUNTED = {"KeyCount": "key_count", "Offset": "offset", "Window": "window"}  # slots of what a kernel reads by itself


class Cache(NamedTuple):
    """A cache of keys whose number only the device knows. length: tokens that it has room for.

    Where keys lie in pages, these are the tokens that a row of the block table has room for. pages: that there are.
    table: strides of the block table (batch rows, pages of each).
    """

    length: int
    counts: Counts
    pages: int = 0
    table: Strides = ()


def split_kv_program(
    plan: RowPlan, layout: Layout, options: Options, processors: int, cache: Cache | None = None, *,
    chained: bool = False,
) -> LaunchProgram:  # fmt: skip
    """Slots q, k, v, and where there are any sinks and slopes; outputs out (B, Hq, M, Dv) and lse (B, Hq, M).

    Without a cache the host gives `GROWING` at each call of a steady plan. With one, slots key_count, offset and window
    hold what `Counts` says, one integer or one for each batch row. Where keys lie in pages, slots k and v are (pages,
    Hkv, tokens of a page, D), and slot block_table (B, pages of a row). processors: multiprocessors of the card, whose
    launches may begin while the one before ends if `chained`.
    """
    problem = plan.problem
    out = result("out", "q", problem.dv, problem, layout)
    slots = [*_inputs(plan, layout, cache), out, of_rows("lse", problem)]
    steps, names = widened(slots, ("sinks", "slopes"))
    memory = {"Q": "q", "K": "k", "V": "v", "Out": "out", "Lse": "lse", "Tables": "rows"}
    memory |= {name.capitalize(): slot for name, slot in names.items()} | {"BlockTable": "block_table"}
    strides = {name: (layout.named | {"out": out.strides})[name.lower()] for name in ("Q", "K", "V", "Out")}
    shape = shape_of(plan, processors)
    counts = HOST if cache is None else cache.counts
    chosen = ScoreOptions(options.softcap is not None, "slopes" in names, "sinks" in names, counts, chained)
    spec = split_kv_spec(plan, shape, layout.aligned and dense_rows(strides, problem.dtype), chosen)
    packed = _packed(plan, shape.heads)
    rows, sums, work = _work(plan, shape)
    if spec.split:
        slots.append(Slot.dense("work", "workspace", "float32", (work,)))
        memory["Work"] = "work"
    values = _values(plan, shape, options, packed) | {"sums": sums // 4} | _growing(plan, options, cache)
    if spec.group:
        values["members_at"] = 0  # where the terms of all heads are
    named = _Named(values, memory, strides)
    steps.append(named.launch(spec, (shape.programs, shape.splits, 1)))
    if spec.split:
        steps.append(named.launch(combining(spec, shape.splits), (rows, 1, 1)))
    slots.append(packed.table.slot("rows"))
    return LaunchProgram("split_kv", tuple(slots), tuple(steps), {"rows": packed.table})


def _inputs(plan: RowPlan, layout: Layout, cache: Cache | None) -> list[Slot]:
    """Slots of what a call is given; k and v of the cache's length, and what kernels read of it."""
    found = inputs(plan.problem, layout)
    if cache is None:
        return list(found)
    counts, batch = cache.counts, plan.problem.batch
    made = [_cached(slot, cache) if slot.name in ("k", "v") else slot for slot in found]
    size = (batch,) if counts.per_batch else (1,)
    made += [Slot.dense(COUNTED[name], "input", counts.dtype, size) for name in counts.slots]
    if counts.page:
        made.append(Slot("block_table", "input", "int32", (batch, cache.length // counts.page), cache.table))
    return made


def _cached(slot: Slot, cache: Cache) -> Slot:
    """A slot of k or v, of a cache's tokens or pages."""
    batch, heads, _, width = slot.shape
    page = cache.counts.page
    return replace(slot, shape=(cache.pages, heads, page, width) if page else (batch, heads, cache.length, width))


def _work(plan: RowPlan, shape: RowShape) -> tuple[int, int, int]:
    """(rows of all heads, where sums of values begin after the lses of shares, numbers of both)"""
    problem = plan.problem
    rows = problem.batch * problem.q_heads * problem.m
    sums = -(-rows * shape.splits // 4) * 4  # on 16 bytes
    return rows, sums, sums + rows * shape.splits * problem.dv


@dataclass(frozen=True, eq=False)
class _Packed:
    """The table of a plan's rows, where its members are, and how many."""

    table: Table
    members_at: int
    members: int


@cached(256)
def _packed(plan: RowPlan, heads: int) -> _Packed:
    words, members_at, members = row_tables(plan, heads)
    return _Packed(Table(words.astype(np.int32)), members_at, members)


def _values(plan: RowPlan, shape: RowShape, options: Options, packed: _Packed) -> dict[str, Any]:
    problem = plan.problem
    return {
        "members_at": packed.members_at, "groups": shape.programs // max(1, packed.members), "lanes": plan.lanes,
        "span": shape.span, "splits": shape.splits, "m": problem.m, "all_heads": problem.q_heads,
        "scale": options.scale, "softcap": options.softcap or 0.0,
    }  # fmt: skip


def _growing(plan: RowPlan, options: Options, cache: Cache | None) -> dict[str, Argument]:
    """From a query to its row among a term's, to the key beside it, and the number of keys."""
    if cache is not None:
        paging = {"pages": Known(cache.pages), "table_row": Known(cache.table[0])} if cache.counts.page else {}
        return {"capacity": Known(cache.length), **paging}
    if plan.steady:
        return {name: Given(name) for name in GROWING}
    return {"shift": Known(0), "beside": Known(options.shift), "length": Known(plan.problem.n)}


@dataclass(frozen=True)
class _Named:
    """What both kernels take: scalars, slots and strides by the names that kernels have for them."""

    values: Mapping[str, Any]
    memory: Mapping[str, str]
    strides: Mapping[str, Strides]

    def launch(self, spec: SplitKVSpec, grid: tuple[int, int, int]) -> Launch:
        """A launch of one of them."""
        known = dict(self.values)
        for name, stride in self.strides.items():
            known |= {f"{name}_{part}": stride[i] // spec.unit for i, part in enumerate(PARTS)}
            known[f"{name}_dim"] = stride[3]
        found = tuple(self._argument(name, spec, known) for name in spec.arguments)
        return Launch(spec, source_of(spec), grid, found)

    def _argument(self, name: str, spec: SplitKVSpec, known: Mapping[str, Any]) -> Argument:
        if name in COUNTED:
            return OnDevice(COUNTED[name])
        if name in spec.writes or name in spec.reads:
            return Pointer(self.memory[name], writes=name in spec.writes)
        value = known[name]
        return value if isinstance(value, (Known, Given)) else Known(value)
