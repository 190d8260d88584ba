"""The program of gradients: dq, dk and dv of q, k, v, out, lse and dout.

Two kernels make them, with the same bits every time. That of dq leaves what the other subtracts from scores and their
gradients, in `stats` or `delta`. Where the order of sums is free, the kernel that walks keys may add to dq too.
The fused backward makes those of short windows in one walk over queries: `weft.planning.families.fused_backward`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Literal

from weft.kernels.gpu import select
from weft.kernels.gpu.configure import chained, for_card
from weft.kernels.gpu.constants import PAIR, STATS
from weft.kernels.gpu.descriptors import boxes as boxes_of
from weft.kernels.gpu.descriptors import walk_names
from weft.kernels.gpu.hopper.launch import FusedLaunches
from weft.kernels.gpu.layout import Layout, Options, dense_rows, inputs, of_rows, result
from weft.kernels.gpu.program import Convert, Fill, LaunchProgram, Role, Slot, Step, Strides, Table
from weft.kernels.gpu.programs.components import components_backward
from weft.kernels.gpu.programs.launches import (
    Bindings,
    Packed,
    kernel_launch,
    tables_of,
    wave_launches,
    widened,
)
from weft.kernels.gpu.scaling import scaled
from weft.kernels.gpu.score.slots import Tables, captured_by, entries_of, number_of, refuse_atomics, with_dropout
from weft.kernels.gpu.spec import KernelSpec
from weft.planning.attention_plan import AttentionPlan
from weft.planning.families import components, fused_backward, one_kernel
from weft.planning.families.fused_backward import FusedBackward
from weft.planning.problem import Problem
from weft.settings import interpreted
from weft.target import Gpu

Part = Literal["dq", "dkdv", "delta"]
CLAIMED = "claimed"  # the slot of the counter of blocks


def backward_program(plan: AttentionPlan, layout: Layout, options: Options) -> LaunchProgram:
    """Slots q, k, v, out, dout, lse, and dlse and slopes if the layout has them; outputs dq, dk, dv.

    With `options.with_delta` also delta (B, Hq, M): what the gradient of sinks takes; with `options.wanted` sums that
    gradients of tables come of, see `weft.kernels.gpu.score.slots`. Raises UnsupportedKernel where the card has no room
    for the plan's kernels.
    """
    refuse_atomics(plan, layout, options)
    family = select.gradients(plan, layout, options)
    if family == components.NAME:
        return components_backward(plan, layout, options)
    if family == fused_backward.NAME:
        assert plan.fused_backward is not None, "what is selected is listed"
        return fused_program(plan, plan.fused_backward, layout, options)
    if family == one_kernel.NAME:
        return summing_program(plan, layout, options)
    queries, keys = queries_program(plan, layout, options), keys_program(plan, layout, options, False)
    entries = (slot.name for one in (queries, keys) for slot in one.slots if number_of(slot.name) is not None)
    return queries.then(keys, (*outputs_of(options), *sorted(entries, key=len)))


def outputs_of(options: Options) -> tuple[str, ...]:
    """Gradients of q, k and v, and what that of sinks takes."""
    return ("dq", "dk", "dv", *(("delta",) * options.with_delta))


def summing_program(
    plan: AttentionPlan, layout: Layout, options: Options, found: Packed | None = None
) -> LaunchProgram:  # fmt: skip
    """All gradients by the kernel that walks keys and adds to dq. found: its tables, if not the plan's."""
    outputs = outputs_of(options)
    keys = keys_program(plan, layout, options, True, found)
    both = row_sums_program(plan, layout, options, CLAIMED in keys.by_name).then(keys, outputs)
    dq = result("dq", "q", plan.problem.d, plan.problem, layout)
    scale = 1.0 if plan.sums_of_lists else options.scale  # of lists what is added has the scale
    sums = both.by_name["dq_float32"]
    last = LaunchProgram("dq", (sums, dq), (scaled(sums, dq, scale, plan.target),))
    return both.then(last, outputs)


# ---- parts -----------------------------------------------------------------------------------------------------------
def queries_program(
    plan: AttentionPlan, layout: Layout, options: Options, found: Packed | None = None
) -> LaunchProgram:  # fmt: skip
    """dq by tiles of queries, with what `keys_program` reads: delta, stats or both.

    found: tables, if not the plan's.
    """
    problem, own = plan.problem, found is None
    if found is None:
        plan.check_room("dq", options.tf32)
        found = tables_of("dq", plan, layout, options, summing=False)
    covers, merges = found.waves.covers, found.waves.merges
    slots, steps, memory, captured = _given(problem, layout, options)
    dq, converted = _summed("dq", "q", problem.d, problem, layout, merges)
    slots += dq
    memory["DQ"] = dq[-1].name
    strides = layout.named | {"dq": dq[-1].strides}
    spec = for_card(_spec("dq", plan, layout, options, strides), "dq", plan)
    entries, sums = entries_of(plan, layout, options, "dq")
    spec = with_dropout(replace(spec, rules=captured.with_entries(entries)), plan, "dq", options, own)
    memory |= _kept_sums(slots, steps, sums)
    slots += _row_numbers(spec, problem, memory)
    if not covers or merges:
        steps.append(Fill(memory["DQ"], 0.0))
    if not covers:
        steps += _nothing(spec, layout, options)
    bound = Bindings(memory, {_kernel_name(name): strides[name] for name in strides}, captured.known)
    waves, tables = wave_launches(spec, found, bound, plan, options)
    slots += [table.slot(name) for name, table in tables.items()]
    return LaunchProgram("backward", tuple(slots), (*steps, *chain.from_iterable(waves), *converted), tables)


def keys_program(
    plan: AttentionPlan, layout: Layout, options: Options, summing: bool, found: Packed | None = None
) -> LaunchProgram:  # fmt: skip
    """dk and dv by tiles of keys, of delta or stats; summing: and dq_float32, which it adds to. found: tables, if not
    the plan's.
    """
    problem, own = plan.problem, found is None
    if found is None:
        plan.check_room("dkdv", options.tf32)
        found = tables_of("dkdv", plan, layout, options, summing)
    adds_shared = found.sum_rows is not None
    merges = found.waves.merges and not adds_shared
    slots, steps, memory, captured = _given(problem, layout, options)
    dk, dk_converted = _summed("dk", "k", problem.d, problem, layout, merges)
    dv, dv_converted = _summed("dv", "k", problem.dv, problem, layout, merges)
    slots += [*dk, *dv]
    memory |= {"DK": dk[-1].name, "DV": dv[-1].name}
    strides = layout.named | {"dk": dk[-1].strides, "dv": dv[-1].strides}
    if summing:
        slots.append(_float32_dq(problem, layout))
        memory["DQ"], strides["dq"] = slots[-1].name, slots[-1].strides
    claims = summing and found.groups
    if claims:
        slots.append(_counter())
        memory["Claimed"] = CLAIMED
    tables: dict[str, Table] = {}
    if found.sum_rows is not None:
        slots.append(_sums(problem, found))
        steps.append(Fill("key_sums", 0.0))
        memory |= {"Sums": "key_sums", "Slots": "sum_rows"}
        strides["sums"], tables["sum_rows"] = slots[-1].strides, found.sum_rows
    if not found.waves.covers or merges:
        steps += [Fill(memory["DK"], 0.0), Fill(memory["DV"], 0.0)]
    spec = for_card(_spec("dkdv", plan, layout, options, strides, summing), "dkdv", plan)
    entries, sums = entries_of(plan, layout, options, "dkdv")
    # sums of several launches come one after the other
    spec = replace(
        spec, rules=captured.with_entries(entries), chained=spec.chained and not entries,
        stats32=summing and plan.sums_of_lists, claims=claims,
    )  # fmt: skip
    spec = with_dropout(spec, plan, "dkdv", options, own)
    memory |= _kept_sums(slots, steps, sums)
    slots += [replace(slot, role="input") for slot in _row_numbers(spec, problem, memory)]
    bound = Bindings(memory, {_kernel_name(name): strides[name] for name in strides}, captured.known)
    waves, more = wave_launches(spec, found, bound, plan, options)
    tables |= more
    slots += [table.slot(name) for name, table in tables.items()]
    steps += [*chain.from_iterable(waves), *dk_converted, *dv_converted]
    return LaunchProgram("backward", tuple(slots), tuple(steps), tables)


def row_sums_program(plan: AttentionPlan, layout: Layout, options: Options, claims: bool = False) -> LaunchProgram:
    """Delta or stats, and zeros in dq_float32, which the kernel that walks keys adds to. claims: and in the counter
    from which its programs claim blocks.
    """
    problem = plan.problem
    slots, steps, memory, _ = _given(problem, layout, options)
    dq = _float32_dq(problem, layout)
    strides = layout.named | {"dq": dq.strides}
    spec = _spec("delta", plan, layout, options, strides, summing=True)
    spec = replace(
        spec, rows=32 if max(problem.d, problem.dv) > 128 else 64, warps=4, chained=chained("delta", plan.target),
        stats32=plan.sums_of_lists, claims=claims,
    )  # fmt: skip
    slots += [replace(dq, role="output"), *_row_numbers(spec, problem, memory)]
    memory["DQ"] = dq.name
    if claims:
        slots.append(replace(_counter(), role="output"))
        memory["Claimed"] = CLAIMED
    values = {"all_heads": problem.q_heads, "my_length": problem.m, "scale": options.scale}
    grid = (problem.batch * problem.q_heads * -(-problem.m // spec.rows), 1, 1)
    bound = Bindings(memory, {_kernel_name(name): strides[name] for name in strides})
    return LaunchProgram("backward", tuple(slots), (*steps, kernel_launch(spec, grid, values, bound)))


def fused_program(plan: AttentionPlan, walk: FusedBackward, layout: Layout, options: Options) -> LaunchProgram:
    """All gradients, by the fused backward of the plan."""
    problem = plan.problem
    assert isinstance(plan.target, Gpu)
    walked = FusedLaunches(walk, problem, plan.target)
    slots, steps, memory, _ = _given(problem, layout, options)
    made = [
        result("dq", "q", problem.d, problem, layout),
        result("dk", "k", problem.d, problem, layout),
        result("dv", "k", problem.dv, problem, layout),
    ]
    memory |= {"DQ": "dq", "DK": "dk", "DV": "dv"}
    with_delta = options.with_delta or bool(walked.beside)
    if with_delta:
        role: Role = "output" if options.with_delta else "workspace"
        made.append(replace(of_rows("delta", problem), role=role))
        memory["Delta"] = "delta"
    if walked.beside:
        made.append(Slot.dense("partial", "workspace", "float32", walked.partial))
        memory["Partial"] = "partial"
    tables = {f"sparse_keys_{number}": Table(sparse.table()) for number, sparse in enumerate(walk.launches)}
    strides = layout.named | {slot.name: slot.strides for slot in made[:3]}
    bound = Bindings(memory, {_kernel_name(name): strides[name] for name in strides})
    for one in walked.kernels(layout.dlse is not None, with_delta):
        values = {**one.values, "scale": options.scale, "Tables": f"sparse_keys_{one.table}"}
        boxes = boxes_of(one.boxes, walk_names(one.boxes), one.reach, problem, bound.strides)
        steps.append(kernel_launch(one.spec, one.grid, values, bound, boxes))
    slots += [*made, *(table.slot(name) for name, table in tables.items())]
    return LaunchProgram("backward", tuple(slots), tuple(steps), tables)


def _kept_sums(slots: list[Slot], steps: list[Step], sums: list[Slot]) -> dict[str, str]:
    """Enter what kernels add to for gradients of tables, zeros before; their names among a kernel's arguments."""
    slots += sums
    steps += [Fill(slot.name, 0.0) for slot in sums]
    return {f"Entries{number_of(slot.name)}": slot.name for slot in sums}


# ---- what parts share ------------------------------------------------------------------------------------------------
def _given(problem: Problem, layout: Layout, options: Options) -> tuple[list[Slot], list[Step], dict[str, str], Tables]:
    """Slots of what a call is given, steps that bring its vectors to contiguous float32, kernels' names for all, and
    what score functions read.
    """
    slots = [slot for slot in inputs(problem, layout) if slot.name != "sinks"]
    copied = () if layout.lse is None else ("lse",)
    steps, names = widened(slots, ("lse", "dlse", "slopes"), copied)
    memory = {_kernel_name(name): name for name in layout.named}
    captured = captured_by(layout, options)
    slots += captured.slots
    steps += captured.steps
    memory |= {_kernel_name(name): slot for name, slot in names.items()} | dict(captured.memory)
    return slots, steps, memory, captured


def _kernel_name(slot: str) -> str:
    """What kernels call a slot: Q, K, V, Out, DOut, Lse, DLse, DQ, DK, DV, Slopes, Sums."""
    plain = slot.removeprefix("d") if slot in ("dq", "dk", "dv", "dout", "dlse") else slot
    return ("D" if plain != slot else "") + plain.capitalize()


def _summed(
    name: str, side: Literal["q", "k"], width: int, problem: Problem, layout: Layout, merges: bool
) -> tuple[list[Slot], list[Step]]:  # fmt: skip
    """A gradient's slots, of which launches write the last one; and the steps after these launches.

    The gradient has the memory order of a side. Where launches merge, they add in float32, and the sum is converted.
    """
    made = result(name, side, width, problem, layout)
    if not merges or problem.dtype == "float32":
        return [made], []
    wide = replace(made, name=f"{name}_float32", role="workspace", dtype="float32")
    return [made, wide], [Convert(wide.name, name)]


def _float32_dq(problem: Problem, layout: Layout) -> Slot:
    """What the kernel that walks keys adds dq to, before the scale."""
    made = result("dq_float32", "q", problem.d, problem, layout, "float32")
    return replace(made, role="workspace")


def _counter() -> Slot:
    """How many blocks were claimed."""
    return Slot.dense(CLAIMED, "workspace", "int32", (1,))


def _row_numbers(spec: KernelSpec, problem: Problem, memory: dict[str, str]) -> list[Slot]:
    """What dk and dv subtract, and what is wanted beside; entered in `memory`."""
    found = []
    if spec.leaves_delta:
        memory["Delta"] = "delta"
        found.append(of_rows("delta", problem))
    if spec.folded:
        memory["Stats"] = "stats"
        form = ("float32", PAIR) if spec.stats32 else ("bfloat16", STATS)
        found.append(of_rows("stats", problem, *form))
    return found


def _nothing(spec: KernelSpec, layout: Layout, options: Options) -> list[Step]:
    """What rows without keys have in delta and stats: of delta less the gradient of lse, which sinks take."""
    steps: list[Step] = [Fill("stats", 0.0)] if spec.folded else []
    if not spec.leaves_delta:
        return steps
    if layout.dlse is not None and options.with_delta:
        return [*steps, Convert("dlse", "delta", -1.0)]
    return [*steps, Fill("delta", 0.0)]


def _sums(problem: Problem, found: Packed) -> Slot:
    """Sums of dk and dv, side by side, of the keys that launches share; the last wave adds them."""
    assert found.waves.shared_rows is not None
    shape = problem.batch, problem.kv_heads, int(found.waves.shared_rows.sum()), problem.d + problem.dv
    return Slot.dense("key_sums", "workspace", "float32", shape)


def _spec(
    part: Part, plan: AttentionPlan, layout: Layout, options: Options, strides: dict[str, Strides],
    summing: bool = False,
) -> KernelSpec:  # fmt: skip
    """All but what a wave adds."""
    problem = plan.problem
    with_rows = part in ("dq", "delta")
    return KernelSpec(
        part, problem.dtype, problem.d, problem.dv, 1, 0, 0,
        aligned=layout.aligned and dense_rows(strides, problem.dtype), softcap=options.softcap is not None,
        alibi=layout.slopes is not None, rescaled=options.rescaled, grouped=part == "dkdv" and problem.group != 1,
        with_dq=summing, tf32=options.tf32,
        lse_gradient=with_rows and layout.dlse is not None, with_delta=with_rows and options.with_delta,
        upcast=problem.dtype != "float32" and interpreted(),
    )  # fmt: skip


__all__ = ["backward_program", "keys_program", "queries_program", "row_sums_program", "fused_program"]
