"""Entry points of the Triton backend, with the signatures of `weft.kernels.cpu.run`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from weft.kernels.cpu.run import rows_in_order_of
from weft.kernels.cpu.scores import Modifiers
from weft.kernels.triton.configure import configured
from weft.kernels.triton.load import arguments, launch, unit
from weft.kernels.triton.spec import Direction, KernelSpec
from weft.kernels.triton.tables import Place
from weft.kernels.triton.waves import Wave, plan_waves
from weft.planning.attention_plan import AttentionPlan
from weft.settings import interpreted

Tensors = tuple[torch.Tensor, ...]
GRID = 65535  # programs along the second axis of a grid


@dataclass(frozen=True, eq=False)
class Loaded:
    """The waves of one direction, their tables on the device."""

    waves: tuple[tuple[Wave, torch.Tensor], ...]
    covers: bool
    merges: bool


@lru_cache(maxsize=128)
def loaded(plan: AttentionPlan, transposed: bool, device: torch.device) -> Loaded:
    """The tables of a plan, put on the device once; `transposed` walks keys."""
    shares = plan.transposed if transposed else plan.forward
    found = plan_waves([(share.plan, share.heads) for share in shares], plan.problem, transposed)
    return Loaded(tuple((w, torch.from_numpy(w.words).to(device)) for w in found.waves), found.covers, found.merges)


def forward(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    plan: AttentionPlan,
    how: Modifiers,
    sinks: torch.Tensor | None = None,
    with_lse: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse), as `weft.kernels.cpu.run.forward`."""
    q, k, v = tensors
    tables = loaded(plan, False, q.device)
    out = rows_in_order_of(q, v.shape[3], q.dtype)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if tables.merges or not tables.covers:
        out.zero_()
        lse.fill_(-torch.inf)
    # what launches that meet the same rows leave for each other
    total = torch.zeros((*q.shape[:3], v.shape[3]) if tables.merges else (1,), dtype=torch.float32, device=q.device)
    fused = sinks if tables.covers and not tables.merges else None
    here = {"Q": q, "K": k, "V": v, "Out": out, "Lse": lse, "Sum": total, "Sinks": _wide(fused, q),
            "Slopes": _wide(how.alibi, q)}  # fmt: skip
    _run_waves(_spec("forward", plan, here, how, fused is not None), tables, here, plan, how)
    if sinks is not None and fused is None:
        lse = _join_sinks(out, lse, sinks)
    return out, lse if with_lse else lse.new_empty((*q.shape[:2], 0))


def _wide(x: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.float32, device=like.device) if x is None else x.to(torch.float32)


def _join_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """lse with the sinks in it; out is scaled in place."""
    total = torch.logaddexp(lse, sinks.to(lse.dtype)[None, :, None].expand_as(lse))
    out.mul_((lse - total.clamp(min=torch.finfo(lse.dtype).min)).exp_()[..., None])
    return total


def backward(
    saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    plan: AttentionPlan,
    how: Modifiers,
) -> Tensors:
    """(dq, dk, dv), as `weft.kernels.cpu.run.backward`: two kernels, the same bits every time."""
    q, k, v = saved
    d_out, lse, delta = rows
    here = {"Q": q, "K": k, "V": v, "DOut": d_out, "Lse": lse.contiguous(), "Delta": delta.float().contiguous(),
            "Slopes": _wide(how.alibi, q)}  # fmt: skip
    (dq,) = _gradients("dq", (("DQ", q),), here, plan, how)
    dk, dv = _gradients("dkdv", (("DK", k), ("DV", v)), here, plan, how)
    return dq, dk, dv


def _gradients(
    direction: Direction, wanted: tuple[tuple[str, torch.Tensor], ...], here: dict, plan: AttentionPlan, how: Modifiers
) -> Tensors:
    """The gradients of one kernel; summed in float32 where several launches meet the same rows."""
    tables = loaded(plan, direction == "dkdv", here["Q"].device)
    made = [rows_in_order_of(x, x.shape[3], torch.float32 if tables.merges else x.dtype) for _, x in wanted]
    if tables.merges or not tables.covers:
        for x in made:
            x.zero_()
    here = here | {name: x for (name, _), x in zip(wanted, made, strict=True)}
    _run_waves(_spec(direction, plan, here, how, False), tables, here, plan, how)
    return tuple(x.to(like.dtype) for x, (_, like) in zip(made, wanted, strict=True))


def _spec(direction: Direction, plan: AttentionPlan, here: dict, how: Modifiers, sinks: bool) -> KernelSpec:
    """All but rank and tile, which a launch adds."""
    problem = plan.problem
    upcast = interpreted() and problem.dtype == "bfloat16"
    strided = [x for name, x in here.items() if x.dim() == 4 and name != "Sum"]
    return KernelSpec(
        direction, problem.dtype, problem.d, problem.dv, 1, 0, 0, all(map(_aligned, strided)),
        softcap=how.softcap is not None, alibi=how.alibi is not None, sinks=sinks, rescaled=how.scale <= 0, upcast=upcast,
    )  # fmt: skip


def _aligned(x: torch.Tensor) -> bool:
    """Rows are dense and every row begins on 16 bytes."""
    per = 16 // x.element_size()
    return (x.stride(3) == 1 or x.shape[3] == 1) and x.data_ptr() % 16 == 0 and all(s % per == 0 for s in x.stride()[:3])


def _run_waves(spec: KernelSpec, tables: Loaded, here: dict, plan: AttentionPlan, how: Modifiers) -> None:
    for wave, words in tables.waves:
        merges = tables.merges if spec.direction != "forward" else wave.merges
        one = replace(spec, **wave.kind._asdict(), packed=wave.place is None, accumulate=merges)
        _run(configured(one), wave, here | {"Tables": words}, plan, how)


def _run(spec: KernelSpec, wave: Wave, here: dict, plan: AttentionPlan, how: Modifiers) -> None:
    problem, backward = plan.problem, spec.direction == "dkdv"
    mine, theirs = (problem.n, problem.m) if backward else (problem.m, problem.n)
    place = wave.place or Place(0, 0, 0, 0)
    values = {
        "record": place.record, "parts": place.parts, "parts_at": place.parts_at, "items_at": place.items_at,
        "heads_at": wave.heads_at, "all_heads": problem.q_heads, "my_length": mine, "their_length": theirs,
        "shift": how.shift, "scale": how.scale, "softcap": how.softcap or 0.0,
    }  # fmt: skip
    per = unit(spec)
    for name, x in here.items():
        if x.dim() == 4:
            values |= {f"{name}_{part}": x.stride(i) // per for i, part in enumerate(("batch", "head", "row"))}
            values[f"{name}_dim"] = x.stride(3)
    values |= here
    together = max(1, wave.members) if wave.skewed else next(n for n in (4, 3, 2, 1) if wave.members % n == 0)
    for first in range(0, wave.items, GRID):
        values["first_item"] = first
        grid = (together, min(GRID, wave.items - first), wave.members // together)
        launch(spec, grid, [values[name] for name in arguments(spec)], here["Q"].device)
