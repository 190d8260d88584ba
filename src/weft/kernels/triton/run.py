"""Entry points of the Triton backend, with the signatures of `weft.kernels.cpu.run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from weft.kernels.cpu.run import rows_in_order_of
from weft.kernels.cpu.scores import Modifiers
from weft.kernels.triton.configure import configured
from weft.kernels.triton.load import arguments, kernel_of, unit
from weft.kernels.triton.spec import Direction, KernelSpec
from weft.kernels.triton.tables import Place
from weft.kernels.triton.waves import Wave, plan_waves
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import Problem
from weft.settings import interpreted

Tensors = tuple[torch.Tensor, ...]
Named = dict[str, torch.Tensor]
Layout = tuple[tuple[str, tuple[int, ...]], ...]  # strides of the tensors that have four dimensions, by name
GRID = 65535  # programs along the second axis of a grid
ROWS = 64  # of a tile of delta


# ---- forward and backward ------------------------------------------------------------------------------------------
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
    fused = sinks if tables.covers and not tables.merges else None
    here = {"Q": q, "K": k, "V": v, "Out": out, "Lse": lse, "Sum": _sum(tables, q, v.shape[3]),
            "Sinks": _wide(fused, lse), "Slopes": _wide(how.alibi, lse)}  # fmt: skip
    _run(_spec("forward", plan.problem, here, how, fused is not None), tables, here, plan.problem, how)
    if sinks is not None and fused is None:
        lse = _join_sinks(out, lse, sinks)
    return out, lse if with_lse else lse.new_empty((*q.shape[:2], 0))


def _sum(tables: Loaded, q: torch.Tensor, width: int) -> torch.Tensor:
    """What launches that meet the same rows leave for each other."""
    return torch.zeros((*q.shape[:3], width) if tables.merges else (1,), dtype=torch.float32, device=q.device)


def _wide(x: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """x in float32; any tensor where a kernel does not look at it."""
    return like if x is None else x.to(torch.float32)


def _join_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """lse with the sinks in it; out is scaled in place."""
    total = torch.logaddexp(lse, sinks.to(lse.dtype)[None, :, None].expand_as(lse))
    out.mul_((lse - total.clamp(min=torch.finfo(lse.dtype).min)).exp_()[..., None])
    return total


def delta(out: torch.Tensor, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> torch.Tensor:
    """rowsum(d_out * out) - d_lse, (B, Hq, M) in float32; out, d_out (B, Hq, M, Dv)."""
    batch, heads, m, dv = out.shape
    found = torch.empty((batch, heads, m), dtype=torch.float32, device=out.device)
    subtracted = found if d_lse is None else d_lse.float().contiguous()
    here = {"Out": out, "DOut": d_out, "DLse": subtracted, "Delta": found}
    dtype = str(out.dtype).removeprefix("torch.")
    aligned = _aligned(out) and _aligned(d_out)
    spec = KernelSpec("delta", dtype, dv, dv, 1, ROWS, 16, aligned, accumulate=d_lse is not None, warps=4)
    numbers = {"all_heads": heads, "my_length": m}
    call = _call(spec, out.device, numbers, _layout(here))
    if found.numel():
        call.run((-(-m // ROWS), heads, batch), here)
    return found


def backward(
    saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    plan: AttentionPlan,
    how: Modifiers,
    deterministic: bool = True,
) -> Tensors:
    """(dq, dk, dv), as `weft.kernels.cpu.run.backward`: two kernels, the same bits every time if deterministic."""
    q, k, v = saved
    d_out, lse, delta = rows
    here = {"Q": q, "K": k, "V": v, "DOut": d_out, "Lse": lse.contiguous(), "Delta": delta.contiguous(),
            "Slopes": _wide(how.alibi, delta)}  # fmt: skip
    (dq,) = _gradients({"DQ": q}, here, plan, how, loaded(plan, False, q.device))
    tables = loaded(plan, True, q.device, not deterministic)
    dk, dv = _gradients({"DK": k, "DV": v}, here, plan, how, tables)
    return dq, dk, dv


def _gradients(wanted: Named, here: Named, plan: AttentionPlan, how: Modifiers, tables: Loaded) -> Tensors:
    """The gradients of one kernel; summed in float32 where several launches meet the same rows."""
    direction: Direction = "dq" if "DQ" in wanted else "dkdv"
    dtype = torch.float32 if tables.merges else here["Q"].dtype
    made = {name: rows_in_order_of(x, x.shape[3], dtype) for name, x in wanted.items()}
    if tables.merges or not tables.covers:
        for x in made.values():
            x.zero_()
    here = here | made
    _run(_spec(direction, plan.problem, here, how, False), tables, here, plan.problem, how)
    return tuple(x.to(wanted[name].dtype) for name, x in made.items())


# ---- launches --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Loaded:
    """The waves of one direction, their tables on the device."""

    waves: tuple[tuple[Wave, torch.Tensor], ...]
    covers: bool
    merges: bool


@lru_cache(maxsize=128)
def loaded(plan: AttentionPlan, transposed: bool, device: torch.device, split: bool = False) -> Loaded:
    """The tables of a plan, put on the device once; `transposed` walks keys; split: see `plan_waves`."""
    shares = plan.transposed if transposed else plan.forward
    found = plan_waves([(share.plan, share.heads) for share in shares], plan.problem, transposed, split)
    return Loaded(tuple((w, torch.from_numpy(w.words).to(device)) for w in found.waves), found.covers, found.merges)


def _spec(direction: Direction, problem: Problem, here: Named, how: Modifiers, sinks: bool) -> KernelSpec:
    """All but what a wave adds."""
    aligned = all(_aligned(x) for name, x in here.items() if x.dim() == 4 and name != "Sum")
    return KernelSpec(
        direction, problem.dtype, problem.d, problem.dv, 1, 0, 0, aligned, softcap=how.softcap is not None,
        alibi=how.alibi is not None, sinks=sinks, rescaled=how.scale <= 0,
        upcast=problem.dtype == "bfloat16" and interpreted(),
    )  # fmt: skip


def _aligned(x: torch.Tensor) -> bool:
    """Rows are dense and every row begins on 16 bytes."""
    per = 16 // x.element_size()
    *strides, last = x.stride()
    return (last == 1 or x.shape[3] == 1) and x.data_ptr() % 16 == 0 and not any(s % per for s in strides)


def _run(spec: KernelSpec, tables: Loaded, here: Named, problem: Problem, how: Modifiers) -> None:
    """All waves, one after the other."""
    numbers = (how.shift, how.scale, how.softcap or 0.0)
    for grid, words, call in _calls(spec, tables, _layout(here), problem, numbers):
        call.run(grid, here | {"Tables": words})


def _layout(here: Named) -> Layout:
    return tuple((name, x.stride()) for name, x in here.items() if x.dim() == 4)


@dataclass(frozen=True, eq=False)
class Call:
    """A kernel with all its arguments but the tensors. places: where these go, by name."""

    kernel: Any
    values: tuple[Any, ...]
    places: tuple[tuple[int, str], ...]
    device: torch.device

    def run(self, grid: tuple[int, int, int], here: Named) -> None:
        """Launch on the current stream."""
        values = list(self.values)
        for place, name in self.places:
            values[place] = here[name]
        if self.device.type == "cuda" and self.device.index != torch.cuda.current_device():
            with torch.cuda.device(self.device):
                self.kernel[grid](*values)
        else:
            self.kernel[grid](*values)


@lru_cache(maxsize=512)
def _calls(
    spec: KernelSpec, tables: Loaded, layout: Layout, problem: Problem, numbers: tuple[int, float, float]
) -> tuple[tuple[tuple[int, int, int], torch.Tensor, Call], ...]:
    """(grid, tables, call) of every launch, prepared once for a plan and a layout of the tensors."""
    found = []
    mine, theirs = (problem.n, problem.m) if spec.of_keys else (problem.m, problem.n)
    for wave, words in tables.waves:
        place = wave.place or Place(0, 0, 0, 0)
        merges = tables.merges if spec.direction != "forward" else wave.merges
        widest = max(strides[2] for _, strides in layout)
        one = replace(spec, **wave.kind._asdict(), packed=wave.place is None, accumulate=merges,
                      aligned=spec.aligned and wave.span * widest < 1 << 31)  # fmt: skip
        values = {
            "record": place.record, "parts": place.parts, "parts_at": place.parts_at, "items_at": place.items_at,
            "heads_at": wave.heads_at, "all_heads": problem.q_heads, "my_length": mine, "their_length": theirs,
            "shift": numbers[0], "scale": numbers[1], "softcap": numbers[2],
        }  # fmt: skip
        for first in range(0, wave.items, GRID):
            call = _call(configured(one), words.device, values | {"first_item": first}, layout)
            found.append((_grid(wave, first), words, call))
    return tuple(found)


def _grid(wave: Wave, first: int) -> tuple[int, int, int]:
    """Heads that go side by side, tiles, and groups of heads."""
    together = wave.members if wave.skewed else next(n for n in (4, 3, 2, 1) if wave.members % n == 0)
    return together, min(GRID, wave.items - first), wave.members // together


def _call(spec: KernelSpec, device: torch.device, numbers: Mapping[str, float], layout: Layout) -> Call:
    """The kernel of a spec with its integers and strides."""
    per, known = unit(spec), dict(numbers)
    for name, strides in layout:
        known |= {f"{name}_{part}": strides[i] // per for i, part in enumerate(("batch", "head", "row"))}
        known[f"{name}_dim"] = strides[3]
    names = arguments(spec)
    places = tuple((i, name) for i, name in enumerate(names) if name[0].isupper() and "_" not in name)
    return Call(kernel_of(spec, device), tuple(known.get(name, 0) for name in names), places, device)
