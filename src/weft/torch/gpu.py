"""The Triton backend for torch: entry points with the signatures of `weft.kernels.cpu.run`.

A call needs a program beside its tensors. It follows from the plan, the layout and the options, is bound to the device
once, and is found again by these.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from weft.caching import cached
from weft.errors import UnsupportedKernel, WeftError
from weft.kernels.gpu import select
from weft.kernels.gpu.configure import overlaps
from weft.kernels.gpu.layout import Layout, Options, TableForm, Vector, rows_like
from weft.kernels.gpu.program import row_major
from weft.kernels.gpu.programs.backward import backward_program
from weft.kernels.gpu.programs.forward import chosen_forward
from weft.kernels.gpu.programs.sinks import sink_gradient_program
from weft.kernels.gpu.programs.split_kv import Cache, split_kv_program
from weft.kernels.gpu.score.slots import number_of, refuse_atomics
from weft.kernels.options import Modifiers
from weft.planning.attention_plan import AttentionPlan
from weft.planning.rowwise import RowPlan
from weft.score.text import SEPARATOR, written
from weft.torch.along import Scores, as_they_are, scores_of
from weft.torch.bind import Bound, begin_loading, gpu_of, refuse_capture
from weft.torch.card import card_of
from weft.torch.device_tables import is_capturing
from weft.torch.entries import gradients_of_tables

__all__ = ["backward", "expect_gradients", "forward", "ready", "ready_forward", "sink_gradient"]
Tensors = tuple[torch.Tensor, ...]
Strides = tuple[tuple[int, ...], ...]
IMAGINED = 4  # processors of Triton's interpreter


# ---- forward and backward --------------------------------------------------------------------------------------------
def forward(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    plan: AttentionPlan,
    how: Modifiers,
    sinks: torch.Tensor | None = None,
    with_lse: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse), as `weft.kernels.cpu.run.forward`, and lse even if it is not wanted: kernels write it."""
    slopes = None if how.alibi is None else how.alibi.reshape(-1)
    rows = [x for x in (sinks, slopes) if x is not None]
    layout, options, scores = _with_scores(plan, how, layout_of(qkv, sinks=sinks, slopes=slopes), options_of(how, plan))
    bound = bound_forward(plan, layout, options._replace(wanted=()), qkv[0].device)
    out, lse = bound((*qkv, *rows, *scores.tables, *seed_of(how)))
    return out, lse


def backward(
    saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None],
    plan: AttentionPlan,
    how: Modifiers,
    deterministic: bool = True,
    with_delta: bool = True,
) -> tuple[torch.Tensor | None, ...]:
    """(dq, dk, dv, delta, gradients of tables), as `weft.kernels.cpu.run.backward`; delta is anything if it is not
    wanted.

    rows: out, dout, lse, its gradient. The same bits every time if deterministic.
    """
    out, dout, lse, dlse = rows
    slopes = None if how.alibi is None else how.alibi.reshape(-1)
    tensors, options = (*saved, out, dout), options_of(how, plan)
    options = options._replace(deterministic=deterministic, with_delta=with_delta)
    layout, options, scores = _with_scores(plan, how, layout_of(tensors, lse=lse, dlse=dlse, slopes=slopes), options)
    bound = bound_backward(plan, layout, options, dout.device)
    dq, dk, dv, *rest = bound(
        (*tensors, *(x for x in (lse, dlse, slopes) if x is not None), *scores.tables, *seed_of(how))
    )
    names = [slot.name for slot in bound.outputs[3:]]
    found = dict(zip(names, rest, strict=True))
    sums = {name: x for name, x in found.items() if number_of(name) is not None}
    own = options_of(how, plan)._replace(wanted=wanted_of(how))
    return dq, dk, dv, found.get("delta", lse), *gradients_of_tables(own, tables_of(how), sums, plan)


def _with_scores(
    plan: AttentionPlan, how: Modifiers, layout: Layout, options: Options
) -> tuple[Layout, Options, Scores]:  # fmt: skip
    """Layout and options with score functions as kernels of the call take them."""
    scores = as_they_are(how)
    whole = layout._replace(tables=scores.forms), options._replace(wanted=scores.wanted)
    if how.rules and not select.by_components(plan, *whole):
        scores = scores_of(how, plan)
    return layout._replace(tables=scores.forms), options._replace(score=scores.score, wanted=scores.wanted), scores


def ready_forward(
    plan: AttentionPlan, how: Modifiers, strides: Strides | None, aligned: bool, device: torch.device
) -> Bound | None:
    """The bound program of out and lse, if it is launches and nothing else: call its `at_addresses`.

    strides: of q, k and v, None where all are contiguous; aligned: each begins on 16 bytes. Neither sinks nor slopes.
    Not in float32: whether tf32 may be is asked at each call.
    """
    if plan.problem.dtype == "float32":
        return None
    layout = Layout(dense_strides(plan)[:3] if strides is None else strides, aligned)
    bound = bound_forward(plan, layout, options_of(how, plan), device)
    return bound if bound.plain else None


def ready(
    plan: AttentionPlan, how: Modifiers, strides: Strides | None, aligned: bool, deterministic: bool,
    device: torch.device,
) -> Bound | None:  # fmt: skip
    """The bound program of dq, dk and dv, if it is launches and nothing else: call its `at_addresses`.

    strides: of q, k, v, out, dout, lse, None where all are contiguous; aligned: each begins on 16 bytes. Neither sinks
    nor slopes, and no gradient of lse. Not in float32: whether tf32 may be is asked at each call.
    """
    problem = plan.problem
    lse_strides = row_major((problem.batch, problem.q_heads, problem.m))
    if problem.dtype == "float32" or not aligned or (strides is not None and strides[5] != lse_strides):
        return None
    layout = Layout(dense_strides(plan) if strides is None else strides[:5], aligned)
    options = options_of(how, plan)._replace(deterministic=deterministic)
    bound = bound_backward(plan, layout, options, device)
    return bound if bound.plain else None


def check_order(plan: AttentionPlan, how: Modifiers) -> None:
    """Raise UnsupportedError where gradients of tables would be summed in no fixed order."""
    layout = Layout((), True, tables=tuple(map(form_of, tables_of(how))))
    refuse_atomics(plan, layout, options_of(how, plan)._replace(wanted=wanted_of(how)))


def expect_gradients(
    plan: AttentionPlan, how: Modifiers, qkv: Tensors, rows: tuple[bool, bool], deterministic: bool
) -> None:
    """Begin to compile the kernels of gradients, beside those of the forward; returns at once.

    rows: whether there are sinks, and slopes. out and its gradient are taken to lie as q does.
    """
    if gpu_of(qkv[0].device) is None or is_capturing():
        return
    p, layout = plan.problem, layout_of(qkv)
    out = rows_like(layout.strides[0], (p.batch, p.q_heads, p.m), p.dv)
    slopes = Vector("float32", (1,)) if rows[1] else None
    layout = layout._replace(strides=(*layout.strides, out, out), slopes=slopes)
    options = options_of(how, plan)._replace(deterministic=deterministic, with_delta=rows[0])
    with suppress(WeftError):  # who asks for gradients is told what is wrong
        program = backward_program(plan, layout, options)
        begin_loading((launch.kernel for launch in program.launches), qkv[0].device.index)


def sink_gradient(sinks: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """As `weft.kernels.options.sink_gradient`, in float32 until the end; the same bits every time."""
    form = Vector(_dtype(sinks), sinks.stride())
    (found,) = bound_sinks(tuple(lse.shape), form, lse.device)((sinks, lse.contiguous(), delta))
    return found


# ---- what a call is --------------------------------------------------------------------------------------------------
def layout_of(tensors: Tensors, **vectors: torch.Tensor | None) -> Layout:
    """How tensors (q, k, v, for gradients out and dout) and the vectors beside them lie in memory."""
    bits = 0
    for x in tensors:
        bits |= x.data_ptr()
    forms: dict[str, Any] = {name: Vector(_dtype(x), x.stride()) for name, x in vectors.items() if x is not None}
    lse = vectors.get("lse")
    if lse is not None and lse.dtype == torch.float32 and lse.is_contiguous() and not lse.data_ptr() & 15:
        del forms["lse"]
    return Layout(tuple([x.stride() for x in tensors]), not bits & 15, **forms)


def options_of(how: Modifiers, plan: AttentionPlan) -> Options:
    """What programs are made for, as torch's state says too."""
    tf32 = plan.problem.dtype == "float32" and tf32_wanted()
    score = SEPARATOR.join(written(rule.expression) for rule in how.rules)
    rate, tokens = (0.0, 0) if how.dropout is None else (how.dropout.rate, how.dropout.tokens)
    return Options(how.scale, how.softcap, how.shift, tf32, score=score, dropout=rate, tokens=tokens)


def tables_of(how: Modifiers) -> Tensors:
    """The tables of all score functions, one after the other."""
    return tuple(x for rule in how.rules for x in rule.tables)


def seed_of(how: Modifiers) -> Tensors:
    """The seed of dropout, or nothing."""
    return () if how.dropout is None else (how.dropout.seed,)


def wanted_of(how: Modifiers) -> tuple[bool, ...]:
    """Which of their gradients are wanted; () for none."""
    found = [w for rule in how.rules for w in rule.wanted or (False,) * len(rule.tables)]
    return tuple(found) if any(found) else ()


def form_of(table: torch.Tensor) -> TableForm:
    """How a table lies in memory."""
    return TableForm(_dtype(table), tuple(table.shape), table.stride())


def tf32_wanted() -> bool:
    """Whether torch's matrix products of float32 may take tf32, as FlexAttention and torch's own attention ask it.

    One state behind `torch.set_float32_matmul_precision`, `torch.backends.cuda.matmul.allow_tf32` and its successor
    `fp32_precision`; the latter answers whichever was set. NVIDIA's alone.
    """
    return torch.backends.cuda.matmul.fp32_precision == "tf32" and torch.version.hip is None


def dense_strides(plan: AttentionPlan) -> Strides:
    """Of q, k, v, out and dout where all are contiguous."""
    p = plan.problem
    of_q, of_k = (p.batch, p.q_heads, p.m), (p.batch, p.kv_heads, p.n)
    sizes = (*of_q, p.d), (*of_k, p.d), (*of_k, p.dv), (*of_q, p.dv), (*of_q, p.dv)
    return tuple(row_major(size) for size in sizes)


def _dtype(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


# ---- bound programs --------------------------------------------------------------------------------------------------
@cached(512)
def bound_forward(plan: AttentionPlan, layout: Layout, options: Options, device: torch.device) -> Bound:
    """The program of a forward on a device, by rows where the plan says so."""
    refuse_capture(f"attention on {plan.problem}", gpu_of(device))
    return Bound(chosen_forward(plan, layout, options, processors_of(device)), device)


@cached(512)
def bound_backward(plan: AttentionPlan, layout: Layout, options: Options, device: torch.device) -> Bound:
    """The program of gradients on a device."""
    refuse_capture(f"gradients of attention on {plan.problem}", gpu_of(device))
    return Bound(backward_program(plan, layout, options), device)


@cached(256)
def bound_sinks(shape: tuple[int, int, int], sinks: Vector, device: torch.device) -> Bound:
    """The program of the gradient of sinks on a device."""
    refuse_capture(f"the gradient of {shape[1]} sinks", gpu_of(device))
    return Bound(sink_gradient_program(shape, sinks), device)


def processors_of(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return IMAGINED if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def launches_overlap(device: torch.device) -> bool:
    """Whether a launch may begin while the one before it ends."""
    return device.type == "cuda" and overlaps(card_of(device.index).gpu)


# ---- a few rows against many keys ------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Step:
    """A step of decoding for tensors of one layout. A steady plan serves any number of keys up to `capacity`."""

    bound: Bound
    plan: RowPlan

    @property
    def capacity(self) -> int:
        """Keys that there may be."""
        return self.plan.capacity

    def __call__(self, qkv: Tensors, sinks: Any = None, slopes: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse (B, Hq, M) in float32) of q, k and v, on the current stream."""
        length = qkv[1].shape[2]
        shift = length - qkv[0].shape[2]  # the last query is beside the last key
        scalars = (shift, shift, length) if self.plan.steady else ()
        out, lse = self.bound((*qkv, *(x for x in (sinks, slopes) if x is not None)), scalars)
        return out, lse


def prepare_step(plan: RowPlan, layout: Layout, options: Options, device: torch.device) -> Step:
    """The step of a plan. layout: of q, k and v, and where there are any of sinks and slopes."""
    refuse_capture(f"decoding of {plan.problem}", gpu_of(device))
    program = split_kv_program(plan, layout, options, processors_of(device), chained=launches_overlap(device))
    return Step(Bound(program, device), plan)


def bind_cache(plan: RowPlan, layout: Layout, options: Options, cache: Cache, device: torch.device) -> Bound:
    """The program of a plan against a cache whose number of keys only the device knows."""
    refuse_capture(f"decoding of {plan.problem}", gpu_of(device))
    chained = launches_overlap(device)
    return Bound(split_kv_program(plan, layout, options, processors_of(device), cache, chained=chained), device)


def by_rows(qkv: Tensors, plan: AttentionPlan, how: Modifiers, sinks: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) as `forward`, by rows, chosen or not. Raises UnsupportedKernel where rows have no formula."""
    found = plan.as_rows()
    if isinstance(found, str):
        raise UnsupportedKernel(
            f"attention by rows under {plan.pattern}", found, "use the kernels of tiles: weft.attention chooses them"
        )
    slopes = None if how.alibi is None else how.alibi.reshape(-1)
    layout = layout_of(qkv, sinks=sinks, slopes=slopes)
    return _rows_of(found.plan, layout, options_of(how, plan), qkv[0].device)(qkv, sinks, slopes)


@cached(128)
def _rows_of(plan: RowPlan, layout: Layout, options: Options, device: torch.device) -> Step:
    return prepare_step(plan, layout, options, device)
