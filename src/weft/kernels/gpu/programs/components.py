"""Programs of components: one launch forward and one for all gradients, see `weft.planning.families.components`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.caching import cached
from weft.kernels.gpu.components.spec import ComponentSpec, source_of
from weft.kernels.gpu.components.tables import SIZE, words_of
from weft.kernels.gpu.layout import PARTS, Layout, Options, inputs, of_rows, result
from weft.kernels.gpu.program import Argument, Known, Launch, LaunchProgram, Pointer, Slot, Strides, Table
from weft.kernels.gpu.programs.launches import widened
from weft.kernels.gpu.score.slots import Tables, captured_by
from weft.kernels.gpu.score.spec import OF_TILES, Entry
from weft.planning.attention_plan import AttentionPlan
from weft.planning.families.components import Components
from weft.score.reads import reads_of
from weft.score.value import composed
from weft.settings import interpreted
from weft.target import Gpu

TABLES = "components"  # a slot


def components_forward(plan: AttentionPlan, layout: Layout, options: Options) -> LaunchProgram:
    """As `forward_program`."""
    problem, tiles = plan.problem, _tiles(plan)
    out = result("out", "q", problem.dv, problem, layout)
    slots, captured = [*inputs(problem, layout), out, of_rows("lse", problem)], captured_by(layout, options)
    spec = _spec("forward", plan, captured)
    memory = {"Q": "q", "K": "k", "V": "v", "Out": "out", "Lse": "lse", "Tables": TABLES, **captured.memory}
    strides = layout.named | {"out": out.strides}
    launch = _launch(plan, spec, memory, strides, _known(plan, options, captured))
    slots += [*captured.slots, _table(tiles).slot(TABLES)]
    return LaunchProgram("forward", tuple(slots), (*captured.steps, launch), {TABLES: _table(tiles)})


def components_backward(plan: AttentionPlan, layout: Layout, options: Options) -> LaunchProgram:
    """As `backward_program`. Of each read whose table's gradient is wanted the sums of each program, (parts, Hq, tiles,
    SIZE, SIZE), in a slot tiles_0, ... of its number.
    """
    problem, tiles = plan.problem, _tiles(plan)
    slots = [slot for slot in inputs(problem, layout) if slot.name != "sinks"]
    steps, names = widened(slots, ("lse", "dlse"), () if layout.lse is None else ("lse",))
    captured = captured_by(layout, options)
    made = [
        result("dq", "q", problem.d, problem, layout),
        result("dk", "k", problem.d, problem, layout),
        result("dv", "k", problem.dv, problem, layout),
    ]
    shape = _parts(plan), problem.q_heads, tiles.count, SIZE, SIZE
    entries = entries_of(options)
    sums = [Slot.dense(f"tiles_{one.number}", "output", "float32", shape) for one in entries]
    rules = captured.with_entries(entries)
    assert rules is not None, "select asks for it"
    spec = replace(_spec("gradients", plan, captured), rules=rules, lse_gradient=layout.dlse is not None)
    memory = {"Q": "q", "K": "k", "V": "v", "Out": "out", "DOut": "dout", "Lse": names["lse"], "Tables": TABLES}
    memory |= {"DLse": names.get("dlse", ""), "DQ": "dq", "DK": "dk", "DV": "dv", **captured.memory}
    memory |= {one.pointer: slot.name for one, slot in zip(entries, sums, strict=True)}
    strides = layout.named | {slot.name: slot.strides for slot in made}
    launch = _launch(plan, spec, memory, strides, _known(plan, options, captured))
    slots += [*captured.slots, *made, *sums, _table(tiles).slot(TABLES)]
    return LaunchProgram("backward", tuple(slots), (*steps, *captured.steps, launch), {TABLES: _table(tiles)})


def entries_of(options: Options) -> tuple[Entry, ...]:
    """Which reads have sums."""
    if not any(options.wanted):
        return ()
    reads = reads_of(composed(options.score))
    return tuple(Entry(number, OF_TILES) for number, read in enumerate(reads) if options.wanted[read.table])


# ---- what both share -------------------------------------------------------------------------------------------------
def _tiles(plan: AttentionPlan) -> Components:
    assert isinstance(plan.components, Components), "select asks for it"
    return plan.components


@cached(128)
def _table(tiles: Components) -> Table:
    return Table(words_of(tiles))


def _spec(direction: Any, plan: AttentionPlan, captured: Tables) -> ComponentSpec:
    problem = plan.problem
    assert captured.rules is not None, "select asks for it"
    return ComponentSpec(direction, problem.dtype, problem.d, problem.dv, captured.rules, upcast=interpreted())


def _per(plan: AttentionPlan) -> int:
    """Batch rows of a program."""
    return _tiles(plan).share(plan.problem, plan.target.processors if isinstance(plan.target, Gpu) else 1)


def _parts(plan: AttentionPlan) -> int:
    """Programs that share the batch rows of a tile."""
    return -(-plan.problem.batch // _per(plan))


def _known(plan: AttentionPlan, options: Options, captured: Tables) -> dict[str, Any]:
    problem = plan.problem
    sizes = {"batch": problem.batch, "per": _per(plan), "heads": problem.q_heads, "length": problem.m}
    return {**sizes, "shift": options.shift, "scale": options.scale, **captured.known}


def _launch(
    plan: AttentionPlan, spec: ComponentSpec, memory: Mapping[str, str], strides: Mapping[str, Strides],
    known: dict[str, Any],
) -> Launch:  # fmt: skip
    for name in spec.strided:
        known |= {f"{name}_{part}": strides[memory[name]][i] // spec.unit for i, part in enumerate(PARTS)}
    found: list[Argument] = []
    for name in spec.arguments:
        if name in spec.reads or name in spec.writes:
            found.append(Pointer(memory[name], writes=name in spec.writes))
        else:
            found.append(Known(known[name]))
    return Launch(spec, source_of(spec), (_tiles(plan).count, plan.problem.q_heads, _parts(plan)), tuple(found))


__all__ = ["components_backward", "components_forward", "entries_of"]
