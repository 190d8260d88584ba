"""A store filled with the kernels of many calls, by as many processes as there are processors; needs no GPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from triton.backends.compiler import GPUTarget

from weft import store
from weft.kernels.gpu.compile import compiler as compiling
from weft.kernels.gpu.compile.source import Source

MAIN = "weft.kernels.gpu.compile.compiler"  # what a process imports before it compiles


class Made(NamedTuple):
    """A kernel that was compiled. refused: why it was not, or ""."""

    name: str
    seconds: float
    refused: str = ""


@dataclass
class Filled:
    """What became of the kernels of some calls. found: they were in the store already."""

    found: list[str] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)

    @property
    def refused(self) -> dict[str, str]:
        """Why kernels could not be compiled, by name."""
        return {one.name: one.refused for one in self.made if one.refused}


def target_of(architecture: str) -> GPUTarget:
    """Triton's name for an architecture, such as "sm_90" or "gfx942"."""
    if architecture.startswith("sm_"):
        return GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
    return GPUTarget("hip", architecture, 64)


def fill(
    sources: Iterable[Source], target: GPUTarget, jobs: int = 0, show: Callable[[int, int], None] = lambda *at: None
) -> Filled:
    """Have all kernels in the store that the settings name, each once.

    jobs: processes, 0: one for each processor. show: is told how many kernels are compiled of how many so far.
    """
    filled = Filled()
    wanted: dict[str, Source] = {}
    for one in sources:
        wanted.setdefault(compiling.key_of(one, target), one)
    for key in [key for key in wanted if store.opened().get(key) is not None]:
        filled.found.append(wanted.pop(key).name)
    # the longest first, as far as one can tell before
    left = sorted(wanted.values(), key=lambda one: (not one.gluon, -len(one.text)))
    show(0, len(left))
    for made in _all_made(left, target, min(jobs or os.cpu_count() or 1, len(left))):
        filled.made.append(made)
        show(len(filled.made), len(left))
    return filled


def _all_made(sources: list[Source], target: GPUTarget, jobs: int) -> Iterator[Made]:
    """Each when it is done."""
    if jobs < 2:
        yield from (made(one, target) for one in sources)
        return
    # children of a process that only imported what compiles: nobody's threads are copied, and they begin at once
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([MAIN])
    # the server may have started before this process changed its environment: whoever used it first started it
    pool = ProcessPoolExecutor(jobs, context, initializer=begin_child, initargs=(dict(os.environ),))
    try:
        for one in as_completed([pool.submit(made, source, target) for source in sources]):
            yield one.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def begin_child(environment: dict[str, str]) -> None:
    """Give a child of a fork server the environment of the process that asked for it, and leave interrupts to that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)


def made(one: Source, target: GPUTarget) -> Made:
    """Compile a kernel into the store. What goes wrong is said, since other kernels may do."""
    began, wrong = perf_counter(), ""
    try:
        compiling.stored(one, target)
        if store.opened().get(compiling.key_of(one, target)) is None:
            wrong = f"{store.opened().root} did not keep it"
    except Exception as error:  # Triton's, LLVM's, the assembler's or ours
        wrong = str(error) or type(error).__name__
    return Made(one.name, perf_counter() - began, wrong)
