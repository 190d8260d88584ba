"""Problems, computed by weft's kernels as `run.emulated` runs them, and held to the tolerance policy."""

from dataclasses import replace

import torch
from tests.kernels.compare import one_kernel
from tests.triton.specs import card

from weft.kernels.options import Modifiers
from weft.kernels.triton import run
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.testing.tolerance import assert_close


def results(case, arch=90, backward=True, fixed=()):
    """{name: tensor} as `Case.weft`, by the entry points of the Triton backend; sinks have no gradient here."""
    if not case.deterministic:
        with one_kernel():
            return results(replace(case, deterministic=True), arch, backward, fixed)
    plan, how, sinks = _planned(case, arch, fixed)
    out, lse = run.forward(tuple(case.tensors), plan, how, sinks)
    if not backward:
        return {"out": out, "lse": lse}
    d_out, *d_lse = case.seeds()
    rows = out, d_out, lse, d_lse[0] if d_lse else None
    dq, dk, dv, _ = run.backward(tuple(case.tensors), rows, plan, how, True, sinks is not None)
    return {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


def _planned(case, arch, fixed):
    q, k, v = case.tensors
    sizes = q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]
    problem = Problem(*sizes, str(q.dtype).removeprefix("torch."), "cuda")
    plan = plan_attention(case.pattern, problem, card(f"sm_{arch}"), fixed)
    slopes, options = case.options.get("alibi_slopes"), case.options
    alibi = None if slopes is None else slopes.float().reshape(k.shape[1], -1)
    scale = options.get("scale", q.shape[3] ** -0.5)
    return plan, Modifiers(scale, options.get("softcap"), alibi, case.shift), options.get("sinks")


def check(case, found, tf32=False):
    """Raise AssertionError unless these are what dense attention gives."""
    truth, plain = case.dense(torch.float64), case.dense(case.tensors[0].dtype)
    for name, x in found.items():
        assert_close(name, x, truth[name], plain[name], tf32)
