"""Entry points of the Triton backend, with the signatures of `weft.kernels.cpu.run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from weft.kernels.options import Modifiers, join_sinks, rows_in_order_of
from weft.kernels.triton.configure import wave_spec
from weft.kernels.triton.load import arguments, kernel_of, unit
from weft.kernels.triton.spec import Direction, KernelSpec
from weft.kernels.triton.tables import Place
from weft.kernels.triton.waves import Wave, Waves, plan_waves
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import DTYPES, Problem
from weft.settings import interpreted

Tensors = tuple[torch.Tensor, ...]
Named = dict[str, torch.Tensor]
Layout = tuple[tuple[str, tuple[int, ...], bool], ...]  # see `_layout`
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
    if not tables.complete:
        out.zero_()
        lse.fill_(-torch.inf)
    fused = sinks if tables.complete else None
    # what launches that meet the same rows leave for each other
    total = (
        torch.zeros_like(out, dtype=torch.float32, memory_format=torch.contiguous_format) if tables.plan.merges else lse
    )
    here = {"Q": q, "K": k, "V": v, "Out": out, "Lse": lse, "Sum": total, "Sinks": _wide(fused, lse),
            "Slopes": _wide(how.alibi, lse)}  # fmt: skip
    _run("forward", tables, here, plan.problem, _Numbers.of(how, fused is not None))
    if sinks is not None and fused is None:
        lse = join_sinks(out, lse, sinks)
    return out, lse if with_lse else lse.new_empty((*q.shape[:2], 0))


def _wide(x: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """x in float32; any tensor where a kernel does not look at it."""
    return like if x is None else x.to(torch.float32)


def delta(out: torch.Tensor, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> torch.Tensor:
    """rowsum(d_out * out) - d_lse, (B, Hq, M) in float32; out, d_out (B, Hq, M, Dv)."""
    batch, heads, m, dv = out.shape
    found = torch.empty((batch, heads, m), dtype=torch.float32, device=out.device)
    subtracted = found if d_lse is None else d_lse.float().contiguous()
    here = {"Out": out, "DOut": d_out, "DLse": subtracted, "Delta": found}
    dtype = str(out.dtype).removeprefix("torch.")
    call = _delta_call(dtype, dv, d_lse is not None, (heads, m), _layout(here), out.device)
    if found.numel():
        call.run((-(-m // ROWS), heads, batch), here)
    return found


@lru_cache(maxsize=128)
def _delta_call(
    dtype: str, dv: int, subtracts: bool, sizes: tuple[int, int], layout: Layout, device: torch.device
) -> Call:
    aligned = _aligned(layout, DTYPES[dtype])
    spec = KernelSpec("delta", dtype, dv, dv, 1, ROWS, 16, aligned, accumulate=subtracts, warps=4)
    return _call(spec, device, {"all_heads": sizes[0], "my_length": sizes[1]}, layout)


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
    dtype = torch.float32 if tables.plan.merges else here["Q"].dtype
    made = {name: rows_in_order_of(x, x.shape[3], dtype) for name, x in wanted.items()}
    if not tables.complete:
        for x in made.values():
            x.zero_()
    here = here | made
    _run(direction, tables, here, plan.problem, _Numbers.of(how, False))
    return tuple(x.to(wanted[name].dtype) for name, x in made.items())


# ---- launches --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Loaded:
    """The waves of one direction, their tables on the device."""

    plan: Waves
    waves: tuple[tuple[Wave, torch.Tensor], ...]

    @property
    def complete(self) -> bool:
        """Whether every row is written once, by one launch."""
        return self.plan.covers and not self.plan.merges


@lru_cache(maxsize=128)
def loaded(plan: AttentionPlan, transposed: bool, device: torch.device, split: bool = False) -> Loaded:
    """The tables of a plan, put on the device once; `transposed` walks keys; split: see `plan_waves`."""
    shares = plan.transposed if transposed else plan.forward
    found = plan_waves([(share.plan, share.heads) for share in shares], plan.problem, transposed, split)
    return Loaded(found, tuple((w, torch.from_numpy(w.words).to(device)) for w in found.waves))


class _Numbers(NamedTuple):
    """The options that a kernel is made for or told."""

    shift: int
    scale: float
    softcap: float | None
    alibi: bool
    sinks: bool

    @staticmethod
    def of(how: Modifiers, sinks: bool) -> _Numbers:
        return _Numbers(how.shift, how.scale, how.softcap, how.alibi is not None, sinks)


def _spec(direction: Direction, problem: Problem, aligned: bool, numbers: _Numbers) -> KernelSpec:
    """All but what a wave adds."""
    return KernelSpec(
        direction, problem.dtype, problem.d, problem.dv, 1, 0, 0, aligned, softcap=numbers.softcap is not None,
        alibi=numbers.alibi, sinks=numbers.sinks, rescaled=numbers.scale <= 0,
        upcast=problem.dtype == "bfloat16" and interpreted(),
    )  # fmt: skip


def _run(direction: Direction, tables: Loaded, here: Named, problem: Problem, numbers: _Numbers) -> None:
    """All waves, one after the other."""
    layout = _layout(here)
    for grid, words, call in _calls(direction, tables, layout, problem, numbers):
        here["Tables"] = words
        call.run(grid, here)


def _layout(here: Named) -> Layout:
    """Strides of the tensors of four dimensions, and whether each begins on 16 bytes."""
    return tuple((name, x.stride(), not x.data_ptr() & 15) for name, x in here.items() if x.dim() == 4)


def _aligned(layout: Layout, problem_size: int) -> bool:
    """Rows are dense and every row begins on 16 bytes."""
    per = 16 // problem_size
    return all(begins and s[3] == 1 and not (s[0] % per or s[1] % per or s[2] % per) for _, s, begins in layout)


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
    direction: Direction, tables: Loaded, layout: Layout, problem: Problem, numbers: _Numbers
) -> tuple[tuple[tuple[int, int, int], torch.Tensor, Call], ...]:
    """(grid, tables, call) of every launch, prepared once for a plan and a layout of the tensors."""
    found = []
    spec = _spec(direction, problem, _aligned(layout, DTYPES[problem.dtype]), numbers)
    mine, theirs = (problem.n, problem.m) if spec.of_keys else (problem.m, problem.n)
    widest = max(strides[2] for _, strides, _ in layout)
    for wave, words in tables.waves:
        place = wave.place or Place(0, 0, 0, 0)
        one = wave_spec(spec, wave, tables.plan, widest)
        values = {
            "record": place.record, "parts": place.parts, "parts_at": place.parts_at, "items_at": place.items_at,
            "heads_at": wave.heads_at, "all_heads": problem.q_heads, "my_length": mine, "their_length": theirs,
            "shift": numbers.shift, "scale": numbers.scale, "softcap": numbers.softcap or 0.0,
        }  # fmt: skip
        for first in range(0, wave.items, GRID):
            call = _call(one, words.device, values | {"first_item": first}, layout)
            found.append((_grid(wave, first), words, call))
    return tuple(found)


def _grid(wave: Wave, first: int) -> tuple[int, int, int]:
    """Heads that go side by side, tiles, and groups of heads."""
    together = wave.members if wave.skewed else next(n for n in (4, 3, 2, 1) if wave.members % n == 0)
    return together, min(GRID, wave.items - first), wave.members // together


def _call(spec: KernelSpec, device: torch.device, numbers: Mapping[str, float], layout: Layout) -> Call:
    """The kernel of a spec with its integers and strides."""
    per, known = unit(spec), dict(numbers)
    for name, strides, _ in layout:
        known |= {f"{name}_{part}": strides[i] // per for i, part in enumerate(("batch", "head", "row"))}
        known[f"{name}_dim"] = strides[3]
    names = arguments(spec)
    places = tuple((i, name) for i, name in enumerate(names) if name[0].isupper() and "_" not in name)
    return Call(kernel_of(spec, device), tuple(known.get(name, 0) for name in names), places, device)
