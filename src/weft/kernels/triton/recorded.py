"""The kernels of a call, without a card: the call is made on tensors without memory, and its launches are written down.

This asks the entry points that real calls take, so it cannot disagree with them. A description of a call's launches
that needs no torch may take its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any
from unittest import mock

import torch

from weft.kernels.options import Modifiers
from weft.kernels.triton import decode, load, run, sinks
from weft.kernels.triton.source import Source
from weft.planning.attention_plan import AttentionPlan
from weft.target import Gpu

META = torch.device("meta")
_NOTED: list[Source] = []  # what is launched; prepared launches outlive a recording
_RECORDING = RLock()


@dataclass(frozen=True)
class Asked:
    """What a call asks beside its plan. gradients: of q, k and v, and of the sinks if there are any; lse_gradient: they
    come through lse too.
    """

    gradients: bool = True
    deterministic: bool = False
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    lse_gradient: bool = False
    tf32: bool = False


def kernels_of(plan: AttentionPlan, asked: Asked = Asked()) -> list[Source]:
    """The kernels that a call launches for contiguous tensors, in order, each once: `kernels_of(plan)`, or
    `kernels_of(plan, Asked(gradients=False))` where no gradient will be wanted.
    """
    problem = plan.problem
    heads, m, n, dtype = (problem.batch, problem.q_heads), problem.m, problem.n, getattr(torch, problem.dtype)
    q, dout = (torch.empty(*heads, m, width, dtype=dtype, device=META) for width in (problem.d, problem.dv))
    k, v = (
        torch.empty(problem.batch, problem.kv_heads, n, d, dtype=dtype, device=META) for d in (problem.d, problem.dv)
    )
    slopes = torch.empty(problem.kv_heads, problem.group, dtype=torch.float64, device=META) if asked.alibi else None
    how = Modifiers(problem.d**-0.5, 1.0 if asked.softcap else None, slopes)
    logits = torch.empty(problem.q_heads, device=META) if asked.sinks else None
    with _recording(plan.target, asked.tf32) as noted:
        out, lse = run.forward((q, k, v), plan, how, logits)
        if asked.gradients:
            rows = out, dout, lse, lse if asked.lse_gradient else None
            *_, delta = run.backward((q, k, v), rows, plan, how, asked.deterministic, asked.sinks)
            if logits is not None:
                sinks.sink_gradient(logits, lse, delta)
        return list(dict.fromkeys(noted))


class _Noted:
    """Stands for a kernel: a launch of it is written down."""

    def __init__(self, kernel: Any, device: torch.device) -> None:
        self.source = kernel if isinstance(kernel, Source) else load.source_of(kernel)

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *values: _NOTED.append(self.source)


@contextmanager
def _recording(target: Any, tf32: bool) -> Iterator[list[Source]]:
    """Launches meanwhile, in this process, are written down for a card and do nothing."""
    assert isinstance(target, Gpu)
    with _RECORDING, ExitStack() as stack:
        for module in (run, decode, sinks):
            stack.enter_context(mock.patch.object(module, "kernel_of", _Noted))
        stack.enter_context(mock.patch.object(run, "tf32_wanted", lambda: tf32))
        stack.enter_context(mock.patch.object(decode, "_processors", lambda device: target.processors))
        _NOTED.clear()
        yield _NOTED
