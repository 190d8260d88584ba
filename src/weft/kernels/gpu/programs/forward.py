"""The program of a forward: out and lse of q, k and v."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from math import inf

from weft.kernels.gpu import select
from weft.kernels.gpu.configure import for_card, overlaps
from weft.kernels.gpu.layout import Layout, Options, dense_rows, inputs, of_rows, result
from weft.kernels.gpu.program import Fill, LaunchProgram, Slot
from weft.kernels.gpu.programs.components import components_forward
from weft.kernels.gpu.programs.launches import Bindings, Packed, tables_of, wave_launches, widened
from weft.kernels.gpu.programs.sinks import join_sinks
from weft.kernels.gpu.programs.split_kv import split_kv_program
from weft.kernels.gpu.score.slots import captured_by, with_dropout
from weft.kernels.gpu.spec import KernelSpec
from weft.planning.attention_plan import AttentionPlan
from weft.planning.families import components, split_kv
from weft.settings import interpreted


def chosen_forward(plan: AttentionPlan, layout: Layout, options: Options, processors: int) -> LaunchProgram:
    """The program of the family that the plan takes. processors: multiprocessors of the card."""
    family = select.forward(plan, layout, options)
    if family == components.NAME:
        return components_forward(plan, layout, options)
    if family == split_kv.NAME:
        assert plan.by_rows is not None, "what is selected is taken"
        return split_kv_program(plan.by_rows.plan, layout, options, processors, chained=overlaps(plan.target))
    return forward_program(plan, layout, options)


def forward_program(
    plan: AttentionPlan, layout: Layout, options: Options, found: Packed | None = None
) -> LaunchProgram:  # fmt: skip
    """By tiles. Slots q, k and v; sinks and slopes (Hq,) and tables, where there are any. Outputs out (B, Hq, M, Dv)
    and lse (B, Hq, M).

    layout: of q, k and v. found: tables, if not the plan's. Raises UnsupportedKernel where the card has no room for the
    plan's kernels.
    """
    problem, own = plan.problem, found is None
    if found is None:
        plan.check_room("forward", options.tf32)
        found = tables_of("forward", plan, layout, options, summing=False)
    complete = found.waves.covers and not found.waves.merges
    out = result("out", "q", problem.dv, problem, layout)
    slots = [*inputs(problem, layout), out, of_rows("lse", problem)]
    steps, names = widened(slots, ("sinks", "slopes"))
    captured = captured_by(layout, options)
    slots += captured.slots
    steps += captured.steps
    memory = {"Q": "q", "K": "k", "V": "v", "Out": "out", "Lse": "lse", **captured.memory}
    if "slopes" in names:
        memory["Slopes"] = names["slopes"]
    if "sinks" in names and complete:
        memory["Sinks"] = names["sinks"]
    if not found.waves.covers:
        steps.append(Fill("out", 0.0))
    if not complete:
        steps.append(Fill("lse", -inf))
    if found.waves.merges:
        slots.append(Slot.dense("sum", "workspace", "float32", out.shape))
        steps.append(Fill("sum", 0.0))
        memory["Sum"] = "sum"
    strides = layout.named | {"out": out.strides}
    bound = Bindings(memory, {name: strides[name.lower()] for name in ("Q", "K", "V", "Out")}, captured.known)
    spec = replace(_spec(plan, layout, options, bound), rules=captured.rules, paged=found.page)
    spec = with_dropout(spec, plan, "forward", options, own)
    waves, tables = wave_launches(spec, found, bound, plan, options)
    steps += chain.from_iterable(waves)
    if "sinks" in names and not complete:
        steps.append(join_sinks(problem, out.strides, names["sinks"]))
    slots += [table.slot(name) for name, table in tables.items()]
    return LaunchProgram("forward", tuple(slots), tuple(steps), tables)


def _spec(plan: AttentionPlan, layout: Layout, options: Options, bound: Bindings) -> KernelSpec:
    """All but what a wave adds."""
    problem = plan.problem
    spec = KernelSpec(
        "forward", problem.dtype, problem.d, problem.dv, 1, 0, 0,
        aligned=layout.aligned and dense_rows(bound.strides, problem.dtype),
        softcap=options.softcap is not None, alibi="Slopes" in bound.slots, sinks="Sinks" in bound.slots,
        rescaled=options.rescaled, tf32=options.tf32,
        upcast=problem.dtype != "float32" and interpreted(),
    )  # fmt: skip
    return for_card(spec, "forward", plan)
