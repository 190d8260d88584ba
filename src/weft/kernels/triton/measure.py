"""Kernels timed on the GPU at hand: one direction of one problem, under as many tilings as one likes.

What is timed is what a call launches, by device events, each time with the second-level cache emptied before. Kernels
are compiled side by side, by processes that leave them in the store.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult
from statistics import quantiles
from typing import Any, TypeAlias

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from weft.kernels.backend import Timing
from weft.kernels.triton import emit, load, run
from weft.kernels.triton.configure import specs_of, walk_specs
from weft.kernels.triton.launch import Prepared, gradient_calls
from weft.kernels.triton.launch import run as launch
from weft.kernels.triton.spec import KernelSpec
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import Problem
from weft.planning.tiling import OF_GRADIENTS, Direction, Part

FLUSHED = 1 << 28  # bytes written to empty the cache
ENOUGH = 0.02  # seconds of calls
# How far results of tilings may be apart, which round sums and weights otherwise: a row, of its norm and of the largest
# one's; a number such as lse.
ALIKE, SLACK, NUMBER = 0.1, 1e-4, 0.05
PATIENCE = 300.0  # seconds after which a kernel counts as one that cannot be compiled


Call: TypeAlias = Callable[[], list[torch.Tensor]]


@dataclass(frozen=True, eq=False)
class Subject:
    """The tensors of a problem, random, with what its backward needs."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    d_out: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    made: tuple[torch.Tensor, ...]  # by dQ: dq, and for dK and dV delta or stats

    @staticmethod
    def of(plan: AttentionPlan) -> Subject:
        """Made by the plan's own kernels."""
        q, k, v, d_out = (_random(plan.problem, *size) for size in _sizes(plan.problem))
        out, lse = run.forward((q, k, v), plan, _how(plan.problem))
        prepared = _prepared("dq", plan, (q, k, v, out, d_out))
        made = tuple(prepared.empty())
        launch((prepared, (q, k, v, out, d_out, lse, lse, made[0], made[1], made[-1], lse)))
        return Subject(q, k, v, d_out, out, lse, made)

    def call(self, part: Part, plan: AttentionPlan) -> Call:
        """What launches one part as a call would; see `direction` and `gradients`."""
        return self.gradients(plan) if part == "gradients" else self.direction(part, plan)

    def gradients(self, plan: AttentionPlan) -> Call:
        """What launches the whole backward where the order of sums is free, into memory of its own: dq, dk, dv."""
        given = (self.q, self.k, self.v), (self.out, self.d_out, self.lse, None)
        how = _how(plan.problem)
        return lambda: list(run.backward(*given, plan, how, deterministic=False, with_delta=False)[:3])

    def direction(self, direction: Direction, plan: AttentionPlan) -> Call:
        """What launches one direction, into memory that is written again each time; returns that: out and lse, dq, or
        dk and dv, in float32 where launches add to them.
        """
        kept = (self.q, self.k, self.v)
        lie = kept if direction == "forward" else (*kept, self.out, self.d_out)
        prepared = _prepared(direction, plan, lie)
        written, of_rows = prepared.empty(), (self.made[1], self.made[-1])
        results = written[: 1 if direction == "dq" else 2]
        if direction == "forward":
            total = torch.zeros_like(written[0], dtype=torch.float32) if prepared.merges else self.lse
            tensors = (*kept, *written, total, self.lse, self.lse)
        elif direction == "dq":
            tensors = (*lie, self.lse, self.lse, *written[:2], written[-1], self.lse)
        else:
            given = (*kept, self.d_out, self.lse, *of_rows)

            def keys() -> list[torch.Tensor]:
                launch(*gradient_calls(prepared, given, _cleared(prepared, written), (self.lse,)))
                return results

            return keys

        def queries() -> list[torch.Tensor]:
            _cleared(prepared, written, direction == "forward")
            launch((prepared, tensors))
            return results

        return queries

    def walk(self, plan: AttentionPlan) -> Call:
        """What launches the plan's one walk, taken or not, into memory that is written again each time: dq, dk, dv."""
        assert plan.walk, "one walk has no such pattern"
        given = (self.q, self.k, self.v, self.out, self.d_out)
        numbers = run.Numbers(*run.asked(_how(plan.problem), plan))
        prepared = run.prepared_walk(plan, plan.walk, run.lie_of(given), numbers, self.q.device)
        written = prepared.empty()
        unmade = (self.lse,) * (len(emit.IN_WALKS) - len(given) - 2 - len(written))  # which nobody looks at

        def every() -> list[torch.Tensor]:
            launch((prepared, (*given, self.lse, self.lse, *written, *unmade)))
            return written[:3]

        return every


def _cleared(prepared: Prepared, written: list[torch.Tensor], lse: bool = False) -> list[torch.Tensor]:
    """What is written, as the launches want to find it; lse: whether its second is that."""
    if not prepared.complete:
        for number, one in enumerate(written):
            one.fill_(-torch.inf if lse and number == 1 else 0.0)
    return written


def _sizes(p: Problem) -> Iterator[tuple[int, int, int]]:
    yield p.q_heads, p.m, p.d
    yield p.kv_heads, p.n, p.d
    yield p.kv_heads, p.n, p.dv
    yield p.q_heads, p.m, p.dv


def _random(p: Problem, heads: int, length: int, width: int) -> torch.Tensor:
    return torch.randn(p.batch, heads, length, width, device=p.device, dtype=getattr(torch, p.dtype))


def _how(problem: Problem) -> run.Modifiers:
    return run.Modifiers(problem.d**-0.5)


def _prepared(direction: Direction, plan: AttentionPlan, tensors: tuple[torch.Tensor, ...]) -> Prepared:
    numbers = run.Numbers(*run.asked(_how(plan.problem), plan))
    return run.prepared(direction, plan, run.lie_of(tensors), numbers, tensors[0].device, direction == "dkdv")


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
        self.pool = context.Pool(len(os.sched_getaffinity(0)), signal.signal, (signal.SIGINT, signal.SIG_IGN))

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
    with Compilers(driver.active.get_current_target()) as compilers:
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
        self.compilers = Compilers(driver.active.get_current_target())

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
        is wrong: assemblers do translate kernels wrongly (benchmarks/notes/triton.md), and tests know what is offered.
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
    """The kernels as a call has them where the order of sums is free; one of all gradients that is no walk is
    compiled when it is called.
    """
    if part != "gradients":
        return specs_of(plan, part, part == "dkdv")
    if plan.gradients_together:
        return walk_specs(plan)
    return tuple(spec for one in OF_GRADIENTS for spec in _specs(one, plan))


__all__ = ["Compilers", "DeviceMeter", "Subject", "compile_all", "seconds_of", "specs_of", "timings_of"]
