"""From a plan's waves to the launches of a program: packed tables, grids, and arguments by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.caching import cached
from weft.kernels.gpu import select
from weft.kernels.gpu.arguments import described, reads, scalars, writes
from weft.kernels.gpu.compile.load import source_of
from weft.kernels.gpu.configure import wave_specs, with_room
from weft.kernels.gpu.descriptors import (
    FORWARD,
    OF_KEYS,
    OF_QUERIES,
    OF_SUMS,
    TensorDescriptor,
    batch_by_places,
    box_names,
    walk_names,
)
from weft.kernels.gpu.descriptors import boxes as boxes_of
from weft.kernels.gpu.layout import PARTS, Layout, Options
from weft.kernels.gpu.program import (
    Argument,
    Convert,
    Descriptor,
    Known,
    Launch,
    OnDevice,
    Pointer,
    Slot,
    Step,
    Strides,
    Table,
)
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.tables.batches import Wave, Waves, plan_waves
from weft.kernels.gpu.tables.pack import Place
from weft.kernels.gpu.tables.tile_scheduler import in_turns
from weft.planning.attention_plan import AttentionPlan
from weft.planning.families.hopper import resident
from weft.planning.heads import Share
from weft.planning.problem import Problem
from weft.planning.tiling import Direction
from weft.planning.work import slots_of
from weft.target import Gpu

GRID = 65535  # programs along the second and the third axis of a grid, at most


# ---- tables ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Packed:
    """Waves and their tables.

    sum_rows: for each key the row of the sums that others leave, negative for none; see `Waves.shared_rows`. groups:
    warp groups that specialise compute them. page: see `KernelSpec.paged`.
    """

    waves: Waves
    tables: tuple[Table, ...]
    sum_rows: Table | None
    groups: bool = False
    page: int = 0


@cached(128)
def packed(
    shares: tuple[Share, ...], problem: Problem, transposed: bool, split: int | None = None, processors: int = 0
) -> Packed:
    """The waves of one direction with their tables. processors: on which persistent kernels take blocks in turn."""
    found = plan_waves(shares, problem, transposed, split)
    waves = Waves(tuple(in_turns(wave, processors) for wave in found.waves), found.covers, found.shared_rows)
    tables = tuple(Table(wave.words) for wave in waves.waves)
    if found.shared_rows is None:
        return Packed(waves, tables, None)
    rows = np.where(found.shared_rows, np.cumsum(found.shared_rows) - 1, -1)
    return Packed(waves, tables, Table(rows.astype(np.int32)))


def tables_of(direction: Direction, plan: AttentionPlan, layout: Layout, options: Options, summing: bool) -> Packed:
    """The tables of one direction, in the tiles that are selected.

    summing: the kernel that walks keys makes dQ too.
    """
    problem, transposed = plan.problem, direction == "dkdv"
    split = slots_of(plan.target) if transposed and not options.deterministic else None
    processors = plan.target.processors if isinstance(plan.target, Gpu) else 0
    if summing:
        groups = plan.sums_by_groups
        found = packed(plan.summing, problem, transposed, None if groups else split, processors if groups else 0)
        return replace(found, groups=groups)
    every = select.tiles(direction, plan, layout, options)
    pairs = ((packed(one.shares, problem, transposed, split, processors), one.groups) for one in every)
    near = (pair for pair in pairs if not pair[1] or select.are_near(pair[0].waves, layout))
    one, groups = next(near)
    return replace(one, groups=groups)


# ---- vectors of a call ------------------------------------------------------------------------------------------
def widened(
    slots: list[Slot], names: tuple[str, ...], copied: tuple[str, ...] = ()
) -> tuple[list[Step], dict[str, str]]:
    """Steps that bring vectors of a call to contiguous float32, and the slots to read instead.

    Workspaces are added to `slots`. copied: vectors that are copied in any case, as those off 16 bytes.
    """
    steps: list[Step] = []
    found = {}
    for slot in [slot for slot in slots if slot.name in names and slot.role == "input"]:
        plain = Slot.dense(f"{slot.name}_float32", "workspace", "float32", slot.shape)
        if (slot.dtype, slot.strides) == (plain.dtype, plain.strides) and slot.name not in copied:
            found[slot.name] = slot.name
            continue
        slots.append(plain)
        steps.append(Convert(slot.name, plain.name))
        found[slot.name] = plain.name
    return steps, found


# ---- arguments -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bindings:
    """What kernels' names of memory stand for: slots, and strides in elements. known: scalars by name."""

    slots: Mapping[str, str]
    strides: Mapping[str, Strides]
    known: Mapping[str, float] = field(default_factory=dict)


def kernel_launch(
    spec: KernelSpec, grid: tuple[int, int, int], values: Mapping[str, Any], bound: Bindings,
    boxes: Sequence[TensorDescriptor] = (),
) -> Launch:  # fmt: skip
    """A launch. values: scalars by name, and under "Tables" the slot of tables; boxes: of descriptors. Without a first
    item it begins with the first there is.
    """
    per, known = spec.unit, {"first_item": 0, **values, **bound.known}
    for name, stride in bound.strides.items():
        known |= {f"{name}_{part}": stride[i] // per for i, part in enumerate(PARTS)}
        known[f"{name}_dim"] = stride[3]
    found: list[Argument] = [_read(name, known, bound) for name in reads(spec)]
    found += [Known(known[name]) for name in scalars(spec)]
    named = {box.name: box for box in boxes}
    read, written = ([named[name] for name in names] for names in described(spec))
    found += [Descriptor(bound.slots[box.tensor], box.shape, box.strides) for box in read]
    found += [Pointer(bound.slots[name], writes=True) for name in writes(spec)]
    found += [Descriptor(bound.slots[box.tensor], box.shape, box.strides, writes=True) for box in written]
    return Launch(spec, source_of(spec), grid, tuple(found))


def _read(name: str, known: Mapping[str, Any], bound: Bindings) -> Argument:
    """What a kernel reads, by its name."""
    if name == "Seed":
        return OnDevice(bound.slots[name])
    return Pointer(known[name] if name == "Tables" else bound.slots[name])


def wave_launches(
    spec: KernelSpec, found: Packed, bound: Bindings, plan: AttentionPlan, options: Options
) -> tuple[list[list[Launch]], dict[str, Table]]:
    """The launches of each wave, and their tables by slot. spec: all that waves share."""
    made, tables = [], {}
    widest = max(stride[2] for stride in bound.strides.values())
    for number, (wave, table) in enumerate(zip(found.waves.waves, found.tables, strict=True)):
        slot = f"{spec.direction}_tables_{number}"
        tables[slot] = table
        values = _values(wave, spec, plan.problem, options) | {"Tables": slot}
        specs = wave_specs(spec, wave, found.waves, widest, found.groups)
        by_places = batch_by_places(wave.reach or (), plan.problem, bound.strides["Q"]) if found.groups else False
        specs = tuple(with_room(one, plan) for one in specs)
        ones = [replace(one, boxed=not options.one_argument, batch_by_places=by_places) for one in specs]
        boxes: tuple[TensorDescriptor, ...] = ()
        if ones[0].groups and isinstance(plan.target, Gpu):
            grids = [_persistent(wave, plan.target)]
            reach = wave.reach or ()
            if spec.with_dq or ones[0].makes != "both" or spec.direction == "dq" or (ones[0].boxes and spec.of_keys):
                of_keys = (*OF_KEYS, *OF_SUMS) if spec.with_dq else OF_KEYS
                which = of_keys if spec.of_keys else OF_QUERIES
                boxes = boxes_of(which, walk_names(which), reach, plan.problem, bound.strides)
            elif not spec.of_keys:
                names = box_names(ones[0].terms)
                boxes = boxes_of(FORWARD[: 2 * len(reach)], names, reach, plan.problem, bound.strides)
        else:
            grids = [(_grid(wave, first), {"first_item": first}) for first in range(0, wave.items, GRID)]
        made.append([kernel_launch(one, grid, values | more, bound, boxes) for one in ones for grid, more in grids])
    return made, tables


def _values(wave: Wave, spec: KernelSpec, problem: Problem, options: Options) -> dict[str, Any]:
    mine, theirs = (problem.n, problem.m) if spec.of_keys else (problem.m, problem.n)
    place = wave.place or Place(0, 0, 0, 0)
    return {
        "record": place.record, "parts": place.parts, "parts_at": place.parts_at, "items_at": place.items_at,
        "heads_at": wave.heads_at, "all_heads": problem.q_heads, "my_length": mine, "their_length": theirs,
        "shift": options.shift, "scale": options.scale, "softcap": options.softcap or 0.0,
    }  # fmt: skip


def _persistent(wave: Wave, gpu: Gpu) -> tuple[tuple[int, int, int], dict[str, int]]:
    """As many programs as processors run at once, which take blocks in turn."""
    assert wave.blocks_at, "in_turns comes before"
    blocks = wave.items * wave.members
    programs = gpu.processors * resident(wave.kind.tiling)
    return (min(programs, blocks), 1, 1), {"blocks_at": wave.blocks_at, "blocks": blocks}


def _grid(wave: Wave, first: int) -> tuple[int, int, int]:
    """Heads side by side, tiles, and heads one after the other, whose tiles read the same keys.

    More heads than the third axis has room for go side by side too.
    """
    together = wave.members if wave.skewed or wave.members > GRID else 1
    return together, min(GRID, wave.items - first), wave.members // together
