"""Steps of decoding, prepared: a few queries against long and growing keys, with nothing planned for a new length.

A step is one launch of a row-wise kernel, and one that merges its shares. Both are known but for the number of keys,
which is an argument, so a step costs the host two launches. Grids do not depend on it: a CUDA graph replays the step
at the length that it was captured at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch

from weft.caching import cached
from weft.errors import UnsupportedKernel
from weft.kernels.options import Modifiers, rows_in_order_of
from weft.kernels.triton import launch as launches
from weft.kernels.triton.launch import ADDRESS, Launch, Made, capturing, dense_rows, gpu_of, launch, on, refuse_capture
from weft.kernels.triton.loaded import put
from weft.kernels.triton.row_spec import GROWING, Numbers, RowSpec, merging, row_spec
from weft.kernels.triton.rowwise import emit, row_tables
from weft.kernels.triton.source import POINTERS, Source, kernel_of
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import DTYPES, Problem
from weft.planning.row_choice import shape_of
from weft.planning.rowwise import RowPlan, row_plan

Strides = tuple[int, ...]
WIDE = ("Work", "Lse", "Sinks", "Slopes")  # always float32
ALIGNED = ("Work", "Lse", "Tables")  # weft's own; sinks and slopes are a user's
IMAGINED = 4  # processors of Triton's interpreter


@dataclass(frozen=True, eq=False)
class Step:
    """Rows by formula, for tensors of one shape and strides; of a steady plan for any number of keys up to `capacity`.

    beside: from a query to the key beside it, unless that follows from the number of keys. work: how many numbers in
    float32 the shares leave for the merge; 0: there is one share, and no merge. tables: kept alive, because the
    launches know their address.
    """

    capacity: int
    steady: bool
    beside: int
    rows: Launch
    merge: Launch | None
    out: Made
    lse: tuple[int, ...]
    work: int
    device: torch.device
    gpu: int | None
    tables: torch.Tensor

    def __call__(
        self, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], sinks: Any = None, slopes: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse (B, Hq, M) in float32) of q, k and v, on the current stream."""
        size, stride, dtype = self.out
        out = torch.empty_strided(size, stride, dtype=dtype, device=self.device)
        lse = torch.empty(self.lse, dtype=torch.float32, device=self.device)
        work = torch.empty(self.work, dtype=torch.float32, device=self.device) if self.work else lse
        sinks = lse if sinks is None else sinks.to(torch.float32).contiguous()
        slopes = lse if slopes is None else slopes.to(torch.float32).contiguous()
        if self.gpu is None or self.gpu == launches.current_gpu():
            self._start((*tensors, work, out, lse, sinks, slopes))
        else:
            with torch.cuda.device(self.gpu):
                self._start((*tensors, work, out, lse, sinks, slopes))
        return out, lse

    def _start(self, tensors: tuple[torch.Tensor, ...]) -> None:
        length, merge = tensors[1].shape[2], self.merge
        shift = length - self.lse[2] if self.steady else 0  # the last query is beside the last key
        growing = shift, shift if self.steady else self.beside, length
        if self.gpu is None:
            self.rows.kernel[self.rows.grid](*tensors, *self.rows.rest, *growing)
            if merge is not None:
                merge.kernel[merge.grid](*tensors[3:7], *merge.rest)
            return
        if capturing(self.gpu):
            launches.CAPTURED.add(self)
        pointers = [*map(ADDRESS, tensors)]
        stream, hooked = launches._stream_of()(self.gpu), launches._hooked()
        launches.put(self.rows, stream, hooked, (*pointers, *self.rows.rest, *growing))
        if merge is not None:
            launches.put(merge, stream, hooked, (*pointers[3:7], *merge.rest))


# ---- problems with few rows ------------------------------------------------------------------------------------------
def forward(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], plan: AttentionPlan, how: Modifiers, sinks: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) as `run.forward`, by rows: for problems with too few tiles of queries to fill a GPU.

    Raises UnsupportedKernel where rows have no formula; `row_plan` says so without raising.
    """
    strides = tuple(x.stride() for x in tensors)
    aligned = not any(x.data_ptr() & 15 for x in tensors)
    numbers = Numbers(how.scale, how.softcap, how.alibi is not None, sinks is not None, how.shift)
    slopes = None if how.alibi is None else how.alibi.reshape(-1)
    return _of_plan(plan, strides, aligned, numbers, tensors[0].device)(tensors, sinks, slopes)


@cached(128)
def _of_plan(
    plan: AttentionPlan, strides: tuple[Strides, ...], aligned: bool, numbers: Numbers, device: torch.device
) -> Step:
    found = row_plan(plan) if plan.by_rows is None else plan.by_rows.plan
    if isinstance(found, str):
        raise UnsupportedKernel(
            f"attention by rows under {plan.pattern}", found, "use the kernels of tiles: weft.attention chooses them"
        )
    return prepare_step(found, dict(zip("QKV", strides, strict=True)), aligned, numbers, device)


# ---- what a step is made of ------------------------------------------------------------------------------------------
def prepare_step(
    plan: RowPlan, strides: Mapping[str, Strides], aligned: bool, numbers: Numbers, device: torch.device
) -> Step:
    """The step of a plan. strides: of Q, K and V; aligned: each begins on 16 bytes."""
    gpu, problem = gpu_of(device), plan.problem
    refuse_capture(f"decoding of {problem}", gpu)
    made = _made(problem, strides["Q"])
    known = {**strides, "Out": made[1]}
    shape = shape_of(plan, _processors(device))
    spec = row_spec(plan, shape, aligned and dense_rows(known, DTYPES[problem.dtype]), numbers)
    tables, members_at, members = _tables(plan, shape.heads, device)
    groups, splits = shape.programs // max(1, members), shape.splits
    lse = problem.batch, problem.q_heads, problem.m
    rows = problem.batch * problem.q_heads * problem.m
    sums = -(-rows * splits // 4) * 4  # the sums of values come after the lses, on 16 bytes
    values: dict[str, Any] = {
        "members_at": members_at, "groups": groups, "lanes": plan.lanes, "span": shape.span, "splits": splits,
        "m": problem.m, "all_heads": problem.q_heads, "sums": sums,
        "scale": numbers.scale, "softcap": numbers.softcap or 0.0,
        "Tables": tables if gpu is None else tables.data_ptr(),
    }  # fmt: skip
    with on(gpu):
        first = _launch(spec, (shape.programs, splits, 1), device, values, known)
        merge = _launch(merging(spec), (rows, 1, 1), device, values, known) if spec.split else None
    work = sums + rows * splits * problem.dv if spec.split else 0
    return Step(plan.capacity, plan.steady, numbers.beside, first, merge, made, lse, work, device, gpu, tables)


@cached(256)
def _tables(plan: RowPlan, heads: int, device: torch.device) -> tuple[torch.Tensor, int, int]:
    """`row_tables` on the device."""
    words, members_at, members = row_tables(plan, heads)
    return put(words, device), members_at, members


def _made(problem: Problem, stride: Strides) -> Made:
    like = torch.empty_strided((problem.batch, problem.q_heads, problem.m, problem.d), stride, device="meta")
    out = rows_in_order_of(like, problem.dv, getattr(torch, problem.dtype))
    return tuple(out.shape), out.stride(), out.dtype


def _processors(device: torch.device) -> int:
    return IMAGINED if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache(maxsize=256)
def source_of(spec: RowSpec) -> Source:
    """The emitted source with the types of its arguments; integers have a declared width and are never specialised."""
    types = {}
    for name in spec.arguments:
        if name in spec.tensors:
            types[name] = "*fp32" if name in WIDE else POINTERS[spec.dtype]
        elif name == "Tables":
            types[name] = "*i32"
        elif name in ("scale", "softcap"):
            types[name] = "fp32"
        else:
            types[name] = "i32" if name in (*spec.integers, *GROWING) else "i64"
    aligned = tuple(
        i for i, name in enumerate(types)
        if name in ALIGNED or (spec.aligned and name in ("Q", "K", "V", "Out"))
    )  # fmt: skip
    return Source(spec.name, emit(spec), tuple(types.items()), aligned, spec.warps, spec.stages,
                  spec=json.dumps(asdict(spec), indent=1))  # fmt: skip


def _launch(
    spec: RowSpec, grid: tuple[int, int, int], device: torch.device, values: Mapping[str, Any],
    strides: Mapping[str, Strides],
) -> Launch:  # fmt: skip
    """The kernel of a spec with all its arguments but tensors and what grows."""
    known = dict(values)
    for name, stride in strides.items():
        known |= {f"{name}_{part}": stride[i] // spec.unit for i, part in enumerate(("batch", "head", "row"))}
        known[f"{name}_dim"] = stride[3]
    rest = tuple(known[name] for name in spec.arguments[len(spec.tensors) :] if name not in GROWING)
    return launch(kernel_of(source_of(spec), device), grid, rest, gpu_of(device))
