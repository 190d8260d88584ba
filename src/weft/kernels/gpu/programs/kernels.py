"""The kernels of a call: all that it may launch, forward and backward, without a card."""

from __future__ import annotations

from dataclasses import dataclass

from weft.kernels.gpu.compile.source import Source
from weft.kernels.gpu.layout import Layout, Options, TableForm, Vector
from weft.kernels.gpu.program import LaunchProgram, row_major
from weft.kernels.gpu.programs.backward import backward_program
from weft.kernels.gpu.programs.forward import chosen_forward
from weft.kernels.gpu.programs.sinks import sink_gradient_program
from weft.planning.attention_plan import AttentionPlan
from weft.target import Gpu

ROW = Vector("float32", (1,))  # sinks and slopes


@dataclass(frozen=True)
class Asked:
    """What a call asks beside its plan. gradients: of q, k and v, and of the sinks if there are any; lse_gradient: they
    come through lse too. dropout: some weights are dropped. score, tables: score functions as text, and the forms of
    their tables, as `weft.torch.along` tells them; wanted: which of these learn.
    """

    gradients: bool = True
    deterministic: bool = False
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    lse_gradient: bool = False
    tf32: bool = False
    dropout: bool = False
    score: str = ""
    tables: tuple[TableForm, ...] = ()
    wanted: tuple[bool, ...] = ()


def kernels_of(plan: AttentionPlan, asked: Asked = Asked()) -> list[Source]:
    """The kernels that a call launches for contiguous tensors, in order, each once.

    Example: `kernels_of(plan)`, or `kernels_of(plan, Asked(gradients=False))` where no gradient will be wanted.
    """
    programs = [_forward(plan, asked)]
    if asked.gradients:
        programs += _gradients(plan, asked)
    return list(dict.fromkeys(launch.kernel for program in programs for launch in program.launches))


def _forward(plan: AttentionPlan, asked: Asked) -> LaunchProgram:
    layout, options = _layout(plan, 3, asked), _options(plan, asked)
    processors = plan.target.processors if isinstance(plan.target, Gpu) else 1
    return chosen_forward(plan, layout, options, processors)


def _gradients(plan: AttentionPlan, asked: Asked) -> list[LaunchProgram]:
    p = plan.problem
    rows = p.batch, p.q_heads, p.m
    layout = _layout(plan, 5, asked)._replace(sinks=None)
    if asked.lse_gradient:
        layout = layout._replace(dlse=Vector("float32", row_major(rows)))
    options = _options(plan, asked)._replace(deterministic=asked.deterministic, with_delta=asked.sinks)
    options = options._replace(wanted=asked.wanted)
    found = [backward_program(plan, layout, options)]
    return [*found, sink_gradient_program(rows, ROW)] if asked.sinks else found


def _layout(plan: AttentionPlan, tensors: int, asked: Asked) -> Layout:
    """Of q, k, v, out and dout, the first so many of them, contiguous."""
    p = plan.problem
    of_q, of_k = (p.batch, p.q_heads, p.m), (p.batch, p.kv_heads, p.n)
    sizes = (*of_q, p.d), (*of_k, p.d), (*of_k, p.dv), (*of_q, p.dv), (*of_q, p.dv)
    strides = tuple(row_major(size) for size in sizes[:tensors])
    rows = {"sinks": ROW if asked.sinks else None, "slopes": ROW if asked.alibi else None}
    return Layout(strides, True, **rows, tables=asked.tables)


def _options(plan: AttentionPlan, asked: Asked) -> Options:
    rate = 0.5 if asked.dropout else 0.0  # which rate is a number that kernels are told
    softcap = 1.0 if asked.softcap else None
    return Options(plan.problem.d**-0.5, softcap, tf32=asked.tf32, score=asked.score, dropout=rate)
