"""The way from a case to its plan, its launches and their kernels: the gate's only module that knows the launch code.

A rewrite of the launch code re-implements this module. The rest of the gate depends on what `trace` and
`compile_kernel` return: a plan, the launches of each phase in their order, and kernels that pickle and compile.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from unittest import mock

from tests.triton.resources import TARGETS
from tests.triton.specs import card, layout_of, options_of, tiling_with_dq

from weft.kernels.gpu import select
from weft.kernels.gpu.compile import compiler
from weft.kernels.gpu.configure import overlaps
from weft.kernels.gpu.program import Pointer
from weft.kernels.gpu.programs import backward
from weft.kernels.gpu.programs.forward import chosen_forward
from weft.kernels.gpu.programs.split_kv import split_kv_program
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.rowwise import decode_plan

HEX = 12  # digits of a digest


@dataclass(frozen=True)
class Launched:
    """One launch. kernel: what `compile_kernel` takes. grid: programs. tables: digests of the integer tables that the
    launch reads, in the order of its arguments.
    """

    kernel: Any
    grid: tuple[int, ...]
    tables: tuple[str, ...]


@dataclass(frozen=True)
class Trace:
    """plan: None for a decoding step, which has no plan of tiles. phases: name -> launches."""

    plan: AttentionPlan | None
    phases: dict[str, list[Launched]]


def trace(case, target):
    """What a case launches on a card of an architecture. Nothing is compiled, and there are no tensors."""
    gpu = card(target)
    return _trace_step(case, gpu) if case.step else _trace_call(case, gpu)


def compile_kernel(kernel, target):
    """The compiled kernel, with `asm` and `metadata` as Triton names them. The store is not asked."""
    return compiler.compile_for(kernel, TARGETS[target])


def _trace_call(case, gpu):
    call = case.call
    plan = plan_attention(call.pattern, call.problem(), gpu)
    phases = {"forward": _forward(call, plan, gpu)}
    for phase, deterministic in (("backward", False), ("deterministic", True)):
        phases[phase] = _backward(call, plan, deterministic)
    if phases["deterministic"] == phases["backward"]:
        del phases["deterministic"]
    if case.one_kernel:
        fixed = plan_attention(call.pattern, call.problem(), gpu, (("dkdv", tiling_with_dq(call)),))
        with mock.patch.object(select, "lists_one_kernel", lambda plan: True):
            phases["one kernel"] = _backward(call, fixed, False)
    return Trace(plan, phases)


def _trace_step(case, gpu):
    """A step of decoding, prepared for a growing number of keys."""
    call = case.call
    plan = decode_plan(call.pattern, call.problem())
    program = split_kv_program(plan, layout_of(call, "qkv"), options_of(call), gpu.processors, chained=overlaps(gpu))
    return Trace(None, {"step": _launches(program)})


def _forward(call, plan, gpu):
    layout, options = layout_of(call, "qkv"), options_of(call)
    return _launches(chosen_forward(plan, layout, options, gpu.processors))


def _backward(call, plan, deterministic):
    options = options_of(call)._replace(deterministic=deterministic, with_delta=bool(call.options.get("sinks")))
    return _launches(backward.backward_program(plan, layout_of(call, "gradients"), options))


def _launches(program):
    """Those of a program, with the tables that each reads."""
    found = []
    for launch in program.launches:
        slots = [x.slot for x in launch.arguments if isinstance(x, Pointer)]
        tables = tuple(_digest(program.tables[slot].words) for slot in slots if slot in program.tables)
        found.append(Launched(launch.kernel, launch.grid, tables))
    return found


def _digest(words):
    return sha256(words.tobytes()).hexdigest()[:HEX]
