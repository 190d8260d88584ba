"""Attention as planned for any card, under any tilings, by the entry points of the Triton backend."""

from contextlib import nullcontext
from dataclasses import replace

import torch

from weft.kernels.triton import run
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.torch.operator import Options, modifiers

from .compare import one_kernel


def problem_of(case):
    """The problem of a Case, as the planner sees it on a GPU."""
    q, k, v = case.tensors
    sizes = q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]
    return Problem(*sizes, str(q.dtype).removeprefix("torch."), "cuda")


def planned(case, gpu, fixed=()):
    """(plan, Modifiers, sinks); fixed: (direction, Tiling), others as a call chooses."""
    plan = plan_attention(case.pattern, problem_of(case), gpu, fixed)
    sinks, slopes, *rest = (case.options.get(name) for name in ("sinks", "alibi_slopes", "scale", "softcap"))
    return plan, modifiers(plan, Options(sinks, slopes, *rest, "triton", True)), sinks


def results(case, gpu, fixed=(), device="cpu", backward=True):
    """{name: tensor} as `Case.weft`, on the CPU; device: where it is computed."""
    with nullcontext() if case.deterministic else one_kernel():
        return _results(case, gpu, fixed, device, backward)


def _results(case, gpu, fixed, device, backward):
    options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in case.options.items()}
    plan, how, sinks = planned(replace(case, options=options), gpu, fixed)
    tensors, seeds = (tuple(x.to(device) for x in some) for some in (case.tensors, case.seeds()))
    out, lse = run.forward(tensors, plan, how, sinks)
    found = [("out", out), ("lse", lse)]
    if backward:
        rows = out, seeds[0], lse, seeds[1] if case.with_lse else None
        *gradients, delta = run.backward(tensors, rows, plan, how, case.deterministic, sinks is not None)
        found += zip(("dq", "dk", "dv"), gradients, strict=True)
        if sinks is not None:
            found.append(("dsinks", run.sink_gradient(sinks, lse, delta)))
    return {name: x.cpu() for name, x in found}
