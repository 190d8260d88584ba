"""Attention as planned for any card, under any tilings, by the entry points of the Triton backend."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import nan
from unittest import mock

import torch

from weft.kernels.gpu.compile import load
from weft.planning.attention_plan import plan_attention
from weft.planning.families import hopper
from weft.planning.problem import Problem
from weft.torch import bind, eager, gpu
from weft.torch.operator import Options, modifiers

from .compare import one_kernel


def problem_of(case):
    """The problem of a Case, as the planner sees it on a GPU."""
    q, k, v = case.tensors
    sizes = q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]
    return Problem(*sizes, str(q.dtype).removeprefix("torch."), "cuda")


def planned(case, card, fixed=()):
    """(plan, Modifiers, sinks); fixed: (direction, Tiling), others as a call chooses."""
    plan = plan_attention(case.pattern, problem_of(case), card, fixed)
    sinks, slopes, *rest = (case.options.get(name) for name in ("sinks", "alibi_slopes", "scale", "softcap"))
    return plan, modifiers(plan, Options(sinks, slopes, *rest, "triton", True)), sinks


def results(case, card, fixed=(), device="cpu", backward=True):
    """{name: tensor} as `Case.weft`, on the CPU; device: where it is computed."""
    with nullcontext() if case.deterministic else one_kernel():
        return _results(case, card, fixed, device, backward)


def _results(case, card, fixed, device, backward):
    options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in case.options.items()}
    plan, how, sinks = planned(replace(case, options=options), card, fixed)
    tensors, seeds = (tuple(x.to(device) for x in some) for some in (case.tensors, case.seeds()))
    out, lse = gpu.forward(tensors, plan, how, sinks)
    found = [("out", out), ("lse", lse)]
    if backward:
        rows = out, seeds[0], lse, seeds[1] if case.with_lse else None
        *gradients, delta = gpu.backward(tensors, rows, plan, how, case.deterministic, sinks is not None)
        found += zip(("dq", "dk", "dv"), gradients, strict=True)
        if sinks is not None:
            found.append(("dsinks", gpu.sink_gradient(sinks, lse, delta)))
    return {name: x.cpu() for name, x in found}


def without_groups(*directions):
    """Warp groups that specialise have no kernel of these directions."""
    known = hopper._no_kernel

    def no_kernel(direction, problem, gpu):
        return "other kernels are tested" if direction in directions else known(direction, problem, gpu)

    return mock.patch.object(hopper, "_no_kernel", no_kernel)


# ---- programs of calls -----------------------------------------------------------------------------------------------
@contextmanager
def bound():
    """A list of the programs that calls bind meanwhile; none is found again, before or after."""
    found = []

    def kept(program, device):
        found.append(program)
        return bind.Bound(program, device)

    forget()
    with mock.patch.object(gpu, "Bound", kept):
        yield found
    forget()


@contextmanager
def launching_nothing():
    """As `bound`; kernels are neither loaded nor run."""
    nothing = mock.MagicMock()
    with bound() as found, mock.patch.object(bind, "kernel_of", lambda source, device: nothing):
        yield found


def forget():
    """Bound programs are kept by plan and layout, and in 16 bits by calls, and would be found again."""
    for kept in (gpu.bound_forward, gpu.bound_backward, gpu.bound_sinks, gpu._rows_of):
        kept.cache_clear()
    eager._calls.clear()


def unload():
    """Kernels that a GPU has loaded are kept by the text of their entries, which names fragments and not their text."""
    load.source_of.cache_clear()
    bind._loading.clear()


def computed(case, card):
    """(directions of the kernels that are prepared, results) on the GPU at hand, as planned for a card."""
    with bound() as programs:
        found = results(case, card, device="cuda")
    return [spec.direction for spec in specs_of(programs)], found


def specs_of(programs):
    """What attention's kernels of all launches were generated from, in order."""
    found = (launch.spec for program in programs for launch in program.launches)
    return [spec for spec in found if not isinstance(spec, str)]


@contextmanager
def nothing_is_set():
    """What programs write, and their workspaces, hold no number before they write it."""
    made = torch.empty_strided

    def unset(*sizes, **how):
        return made(*sizes, **how).fill_(nan)

    with mock.patch.object(bind, "EMPTY", None), mock.patch.object(torch, "empty_strided", unset):
        yield
