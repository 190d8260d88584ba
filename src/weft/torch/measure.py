"""Kernels timed on the GPU at hand: one direction of one problem, under as many tilings as one likes.

What is timed is what a call launches, by device events, each time with the second-level cache emptied before. Kernels
are compiled side by side, by processes that leave them in the store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult
from statistics import quantiles
from typing import Any, TypeAlias

import torch
from triton.backends.compiler import GPUTarget

from weft.kernels.backend import Timing
from weft.kernels.gpu.compile import load
from weft.kernels.gpu.compile.filling import begin_child
from weft.kernels.gpu.configure import fused_specs, specs_of
from weft.kernels.gpu.layout import OF_CALL, Layout, Options
from weft.kernels.gpu.program import Fill, LaunchProgram
from weft.kernels.gpu.programs.backward import (
    CLAIMED,
    backward_program,
    fused_program,
    keys_program,
    queries_program,
)
from weft.kernels.gpu.programs.forward import forward_program
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.options import Modifiers
from weft.planning.attention_plan import AttentionPlan
from weft.planning.families.hopper import SUMS
from weft.planning.problem import Problem
from weft.planning.tiling import OF_GRADIENTS, Direction, Part
from weft.torch.bind import Bound, target_of
from weft.torch.gpu import layout_of, options_of

FLUSHED = 1 << 28  # bytes written to empty the cache
ENOUGH = 0.02  # seconds of calls
# How far results of two tilings may be apart, since they round differently. A row is compared by its norm and by the
# largest norm, and lse as a number.
ALIKE, SLACK, NUMBER = 0.1, 1e-4, 0.05
PATIENCE = 300.0  # seconds after which a kernel counts as one that cannot be compiled


Call: TypeAlias = Callable[[], list[torch.Tensor]]


@dataclass(frozen=True, eq=False)
class Subject:
    """The tensors of a problem, random, by slot, with what its backward needs: out, lse, and of dq delta or stats."""

    tensors: dict[str, torch.Tensor]

    @staticmethod
    def of(plan: AttentionPlan) -> Subject:
        """Made by the plan's own kernels."""
        names = zip(("q", "k", "v", "dout"), _sizes(plan.problem), strict=True)
        found = Subject({name: _random(plan.problem, *size) for name, size in names})
        found.add(forward_program(plan, found.layout("q", "k", "v"), _options(plan)))
        found.add(queries_program(plan, found.layout(*OF_CALL), _options(plan)))
        return found

    def add(self, program: LaunchProgram) -> None:
        """Keep what a program leaves."""
        made = self.call_of(program)()
        self.tensors.update(zip((slot.name for slot in program.of_role("output")), made, strict=True))

    def layout(self, *names: str) -> Layout:
        """How some of them lie in memory."""
        return layout_of(tuple(self.tensors[name] for name in names))

    def call_of(self, program: LaunchProgram) -> Call:
        """What runs a program on these tensors and returns its outputs."""
        bound = Bound(program, self.tensors["q"].device)
        given = [self.tensors[slot.name] for slot in bound.inputs]
        return lambda: bound(given)

    def call(self, part: Part, plan: AttentionPlan) -> Call:
        """What launches one part as a call would; see `direction` and `gradients`."""
        return self.gradients(plan) if part == "gradients" else self.direction(part, plan)

    def gradients(self, plan: AttentionPlan) -> Call:
        """What launches the whole backward where the order of sums is free: dq, dk, dv."""
        options = _options(plan)._replace(deterministic=False)
        return self.call_of(backward_program(plan, self.layout(*OF_CALL), options))

    def direction(self, direction: Direction, plan: AttentionPlan) -> Call:
        """What launches one direction: out and lse, dq, or dk and dv."""
        options = _options(plan)
        if direction == "forward":
            return self.call_of(forward_program(plan, self.layout("q", "k", "v"), options))
        layout = self.layout(*OF_CALL)
        if direction == "dq":
            queries = self.call_of(queries_program(plan, layout, options))
            return lambda: queries()[:1]
        free = options._replace(deterministic=False)
        keys = keys_program(plan, layout, free, plan.transposed[0].plan.tiling in SUMS)
        if CLAIMED in keys.by_name:  # a counter that starts at 0, as the launch before leaves it
            keys = replace(keys, steps=(Fill(CLAIMED, 0.0), *keys.steps))
        return self.call_of(keys)

    def walk(self, plan: AttentionPlan) -> Call:
        """A call of the plan's fused backward, taken or not: dq, dk, dv."""
        assert plan.fused, "the pattern has no fused backward"
        return self.call_of(fused_program(plan, plan.fused, self.layout(*OF_CALL), _options(plan)))


def _sizes(p: Problem) -> Iterator[tuple[int, int, int]]:
    yield p.q_heads, p.m, p.d
    yield p.kv_heads, p.n, p.d
    yield p.kv_heads, p.n, p.dv
    yield p.q_heads, p.m, p.dv


def _random(p: Problem, heads: int, length: int, width: int) -> torch.Tensor:
    return torch.randn(p.batch, heads, length, width, device=p.device, dtype=getattr(torch, p.dtype))


def _options(plan: AttentionPlan) -> Options:
    return options_of(Modifiers(plan.problem.d**-0.5), plan)


# ---- time ------------------------------------------------------------------------------------------------------------
def seconds_of(calls: list[Call], rounds: int = 2) -> list[float]:
    """Median seconds of each call on the device; they take turns."""
    return [timing.seconds for timing in timings_of(calls, rounds)]


def timings_of(calls: list[Call], rounds: int = 2) -> list[Timing]:
    """Medians and quartiles of each call on the device; they take turns."""
    trash = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    often = []
    for call in calls:
        call()
        often.append(min(15, max(3, int(ENOUGH / rounds / max(1e-6, *_timed(call, 2, trash))))))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times, one in zip(calls, often, found, strict=True):
            one.extend(_timed(call, times, trash))
    return [timing_of(one) for one in found]


def timing_of(seconds: Sequence[float]) -> Timing:
    """Their median and quartiles; two at least."""
    low, middle, high = quantiles(seconds, n=4, method="inclusive")
    return Timing(middle, low, high)


def _timed(call: Call, times: int, trash: torch.Tensor) -> list[float]:
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
    for begin, end in pairs:
        trash.zero_()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]


# ---- compilation, many at a time -------------------------------------------------------------------------------------
class Compilers:
    """Processes that put kernels into the store, one to each core; a context, with whose end they end too.

    They begin as copies of one process that has imported all that they need. One that dies, or is interrupted, takes
    its kernel with it and nothing else.
    """

    def __init__(self, target: GPUTarget) -> None:
        self.target = target
        self.asked: dict[KernelSpec, AsyncResult[str]] = {}
        context = get_context("forkserver")
        context.set_forkserver_preload([load.__name__])
        self.pool = context.Pool(len(os.sched_getaffinity(0)), begin_child, (dict(os.environ),))

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.terminate()

    def ask(self, specs: Iterable[KernelSpec]) -> None:
        """Begin to compile what nobody asked for before; returns at once."""
        for spec in specs:
            if spec not in self.asked:
                self.asked[spec] = self.pool.apply_async(_compile, (spec, self.target))

    def reasons(self, specs: Iterable[KernelSpec], until: float = inf) -> dict[KernelSpec, str]:
        """Why kernels cannot be compiled, "" if they can; those that are not ready by then are missing."""
        wanted = list(dict.fromkeys(specs))
        self.ask(wanted)
        patient = time.monotonic() + PATIENCE
        found = {}
        for spec in wanted:
            result = self.asked[spec]
            result.wait(max(0.0, min(until, patient) - time.monotonic()))
            if result.ready():
                found[spec] = result.get()
            elif until > patient:
                found[spec] = f"no kernel after {PATIENCE:.0f} seconds"
        return found


def compile_all(specs: Iterable[KernelSpec]) -> dict[KernelSpec, str]:
    """Put kernels into the store; what cannot be compiled, with the reason."""
    with Compilers(target_of(torch.cuda.current_device())) as compilers:
        return {spec: why for spec, why in compilers.reasons(specs).items() if why}


def _compile(spec: KernelSpec, target: GPUTarget) -> str:
    try:
        load.stored(spec, target)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# ---- what the tuner asks ---------------------------------------------------------------------------------------------
class DeviceMeter:
    """`weft.kernels.backend.Meter` on the GPU at hand."""

    def __init__(self, plan: AttentionPlan) -> None:
        self.plan = plan
        self.meant: dict[Part, list[torch.Tensor]] = {}
        self.compilers = Compilers(target_of(torch.cuda.current_device()))

    def __enter__(self) -> DeviceMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self.compilers.__exit__()

    @cached_property
    def _subject(self) -> Subject:
        return Subject.of(self.plan)

    def prepare(self, direction: Direction, plans: Sequence[AttentionPlan]) -> None:
        for plan in plans:
            self.compilers.ask(_specs(direction, plan))

    def times(
        self, part: Part, plans: Sequence[AttentionPlan], until: float, rounds: int = 2
    ) -> list[Timing | str | None]:
        specs = [_specs(part, plan) for plan in plans]
        reasons = self.compilers.reasons([spec for some in specs for spec in some], until)
        found: list[Any] = []
        for plan, some in zip(plans, specs, strict=True):
            if any(spec not in reasons for spec in some):
                found.append(None)
            else:
                wrong = [reasons[spec] for spec in some if reasons[spec]]
                found.append(wrong[0] if wrong else self._call(part, plan))
        calls = [one for one in found if callable(one)]
        timed = iter(timings_of(calls, rounds) if calls else ())
        return [next(timed) if callable(one) else one for one in found]

    def _call(self, part: Part, plan: AttentionPlan) -> Call | str:
        """What launches it; why it cannot be loaded: Triton says so of too much shared memory when it loads. Or that it
        is wrong. Assemblers do translate kernels wrongly (benchmarks/notes/triton.md, T66 to T70), and tests know what
        is offered.
        """
        try:
            call = self._subject.call(part, plan)
            found = call()
            torch.cuda.synchronize()
            right = alike(found, self._meant(part))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return call if right else "it computes something else than the untuned choice"

    def _meant(self, part: Part) -> list[torch.Tensor]:
        """What the untuned choice computes; nothing where it cannot run."""
        if part not in self.meant:
            try:
                self.meant[part] = [one.clone() for one in self._subject.call(part, self.plan)()]
                torch.cuda.synchronize()
            except Exception:
                self.meant[part] = []
        return self.meant[part]


def alike(found: Sequence[torch.Tensor], meant: Sequence[torch.Tensor]) -> bool:
    """Whether results, (B, H, M) or (B, H, M, D), are what they are meant to be, but for rounding."""
    return all(
        _alike(a.float(), b.float())
        for one, other in zip(found, meant, strict=False)
        for a, b in zip(one, other, strict=True)
    )


def _alike(found: torch.Tensor, meant: torch.Tensor) -> bool:
    """The same of one batch row."""
    if meant.ndim == 2:
        return bool(((found == meant) | ((found - meant).abs() <= NUMBER)).all())
    norms = meant.norm(dim=-1)
    return bool(((found - meant).norm(dim=-1) <= ALIKE * norms + SLACK * norms.max()).all())


def _specs(part: Part, plan: AttentionPlan) -> tuple[KernelSpec, ...]:
    """The kernels of a call where the order of sums is free.

    A kernel of all gradients that is no fused backward is compiled when it is called.
    """
    if part != "gradients":
        return specs_of(plan, part, part == "dkdv")
    if plan.gradients_together:
        return fused_specs(plan)
    return tuple(spec for one in OF_GRADIENTS for spec in _specs(one, plan))


__all__ = ["Compilers", "DeviceMeter", "Subject", "compile_all", "seconds_of", "specs_of", "timings_of"]
