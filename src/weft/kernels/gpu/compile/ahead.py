"""Kernels that compile at the same time, before anybody asks for the first of them.

Threads do it. Of a compilation only the walk over the syntax tree holds Python's lock, and these walks follow each
other (`weft.kernels.gpu.compile.stages`). LLVM releases the lock; the assembler and the disassembler are processes. So
the check of one kernel overlaps the compilation of the next.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel

from weft.kernels.gpu.compile import compiler as compiling
from weft.kernels.gpu.compile.source import Source


def compile_all(sources: Iterable[Source], target: GPUTarget) -> None:
    """Have kernels ready: `source.stored` finds each at once, in the store or, without one, in this process.

    Raises nothing where a kernel cannot be compiled: `source.stored` says so, to whoever asks for that kernel.
    """
    wait(begin(sources, target))


def begin(sources: Iterable[Source], target: GPUTarget) -> list[Future[CompiledKernel]]:
    """Start `compile_all` and go on; `source.stored` waits for a kernel that is under way.

    The kernels that compile longest come first: those in Gluon, then those of much text.
    """
    wanted = sorted(dict.fromkeys(sources), key=lambda one: (not one.gluon, -len(one.text)))
    if not compiling.storable():  # somebody watches Triton compile, one kernel after the other
        return []
    jobs = {compiling.key_of(one, target): one for one in wanted}
    jobs = {key: one for key, one in jobs.items() if key not in compiling.UNDER_WAY}
    if not jobs:
        return []
    threads = ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1) + 1, "weft-compile")
    for key, one in jobs.items():
        compiling.UNDER_WAY[key] = threads.submit(compiling.found_or_made, key, one, target)
    threads.shutdown(wait=False)  # its threads end with their jobs
    return [compiling.UNDER_WAY[key] for key in jobs]
