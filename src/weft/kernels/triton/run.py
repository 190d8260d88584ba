"""Entry points of the Triton backend, with the signatures of `weft.kernels.cpu.run`.

What a call needs beside its tensors follows from the plan, the strides and the options. It is prepared once, found by
one key (`prepared`), and run by passing pointers: a call costs the host microseconds, and many calls are as short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch

from weft.caching import cached
from weft.kernels.options import Modifiers, join_sinks, rows_in_order_of
from weft.kernels.triton import decode
from weft.kernels.triton.backward import STATS
from weft.kernels.triton.configure import chained, for_card, wave_specs
from weft.kernels.triton.descriptors import FORWARD, WRITTEN, Box
from weft.kernels.triton.descriptors import boxes as boxes_of
from weft.kernels.triton.emit import TENSORS, tensors
from weft.kernels.triton.launch import (
    Launch,
    Made,
    Prepared,
    dense_rows,
    gpu_of,
    gradient_calls,
    launch,
    on,
    refuse_capture,
    run,
)
from weft.kernels.triton.load import arguments, kernel_of
from weft.kernels.triton.loaded import Loaded, loaded, put
from weft.kernels.triton.ready import Ready, dense_strides, of_walk, ready_of
from weft.kernels.triton.sinks import sink_gradient
from weft.kernels.triton.spec import KernelSpec
from weft.kernels.triton.tables import Place
from weft.kernels.triton.walked import Walked
from weft.kernels.triton.waves import Wave, Waves
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import DTYPES, Problem
from weft.planning.tiling import Direction
from weft.planning.walk import Walk
from weft.planning.work import slots_of
from weft.settings import interpreted
from weft.target import Gpu

__all__ = ["backward", "forward", "ready", "sink_gradient"]
Tensors = tuple[torch.Tensor, ...]
Strides = tuple[tuple[int, ...], ...]
Lie = tuple[Strides, bool]  # see `lie_of`
SMALLEST = 1e-10  # scale that joins the exponential; below it, masks and sums of scores would leave float32
GRID = 65535  # programs along the second and the third axis of a grid, at most
LIKE = {"Out": "Q", "DQ": "Q", "DK": "K", "DV": "V"}  # what is written, and whose memory order it takes


# ---- forward and backward ------------------------------------------------------------------------------------------
def forward(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    plan: AttentionPlan,
    how: Modifiers,
    sinks: torch.Tensor | None = None,
    with_lse: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse), as `weft.kernels.cpu.run.forward`, and lse even if it is not wanted: kernels write it."""
    if plan.by_rows is not None:
        return decode.forward(qkv, plan, how, sinks)
    numbers = Numbers(*asked(how, plan), sinks is not None)
    found = prepared("forward", plan, lie_of(qkv), numbers, qkv[0].device)
    out, lse = found.empty()
    if not found.covers:
        out.zero_()
    if not found.complete:
        lse.fill_(-torch.inf)
    fused = sinks if found.complete else None
    # what launches that meet the same rows leave for each other
    total = torch.zeros_like(out, dtype=torch.float32, memory_format=torch.contiguous_format) if found.merges else lse
    run((found, (*qkv, out, lse, total, _wide(fused, lse), _wide(how.alibi, lse))))
    if sinks is not None and fused is None:
        lse = join_sinks(out, lse, sinks)
    return out, lse


def backward(
    saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None],
    plan: AttentionPlan,
    how: Modifiers,
    deterministic: bool = True,
    with_delta: bool = True,
) -> Tensors:
    """(dq, dk, dv, delta), as `weft.kernels.cpu.run.backward`; delta is anything if it is not wanted.

    Two kernels, the same bits every time if deterministic: that of dq makes what the other needs on its way, `Stats` or
    delta (see `backward.KeyGradient`). Unless deterministic, the other may add to dq too: see `in_one_kernel`. Of short
    windows one kernel makes all, with the same bits every time: see `weft.planning.short`.
    """
    out, d_out, lse, d_lse = rows
    lse_gradient = d_lse is not None
    lie, wanted = lie_of((*saved, out, d_out)), (lse_gradient, with_delta, deterministic)
    queries, keys, with_dq = prepared_gradients(plan, lie, asked(how, plan), wanted, d_out.device)
    odd = lse.data_ptr() & 15  # as a hook of saved tensors may leave it
    lse = lse.clone(memory_format=torch.contiguous_format) if odd else lse.contiguous()
    d_lse = lse if d_lse is None else d_lse.float().contiguous()
    given = (*saved, out, d_out, lse, d_lse)
    if keys is None:
        dq, dk, dv, *made = queries.empty()
        run((queries, of_walk(given, (dq, dk, dv, *made))))
        return dq, dk, dv, made[0] if made else lse
    dq, *made, dk, dv = queries.empty(keys)
    delta, stats = made[0], made[-1]  # where there is one of them, it stands for the other, which nobody looks at
    if not queries.complete:
        dq.zero_()
    if not queries.covers:
        stats.zero_(), delta.zero_()
        if lse_gradient and with_delta:
            delta -= d_lse
    if not keys.complete:
        dk.zero_(), dv.zero_()
    slopes = _wide(how.alibi, delta)
    more = (slopes, dq) if with_dq else (slopes,)
    of_keys = gradient_calls(keys, (*saved, d_out, lse, delta, stats), (dk, dv), more)
    dtype = saved[0].dtype  # sums of several launches are in float32
    if with_dq:
        run((queries, (*given[3:], dq, delta, stats)), *of_keys)
        dq = torch.mul(dq, how.scale, out=torch.empty_like(dq, dtype=dtype))
    else:
        run((queries, (*given, dq, delta, stats, slopes)), *of_keys)
    return (
        dq.to(dtype) if queries.merges else dq,
        dk.to(dtype) if keys.merges else dk,
        dv.to(dtype) if keys.merges else dv,
        delta,
    )


def ready(
    plan: AttentionPlan, how: Modifiers, strides: Strides | None, aligned: bool, deterministic: bool,
    device: torch.device,
) -> Ready | None:  # fmt: skip
    """What makes dq, dk and dv, if launches and nothing else do. strides: of q, k, v, out, lse, dout, None where all
    are contiguous; aligned: each begins on 16 bytes, lse aside. Neither sinks nor slopes, and no gradient of lse. Not
    in float32: whether tf32 may be is asked at each call.
    """
    dense = dense_strides(plan.problem)
    *qkvo, lse, d_out = dense if strides is None else strides
    if plan.problem.dtype == "float32" or lse != dense[4]:
        return None
    lie, wanted = ((*qkvo, d_out), aligned), (False, False, deterministic)
    queries, keys, with_dq = prepared_gradients(plan, lie, asked(how, plan), wanted, device)
    return None if with_dq else ready_of(queries, keys)


def in_one_kernel(plan: AttentionPlan) -> bool:
    """Whether the kernel that walks keys makes dQ too, where the order of sums is free."""
    return plan.in_one is not None


def _wide(x: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """x in float32, one number after the other; any tensor where a kernel does not look at it."""
    return like if x is None else x.to(torch.float32).contiguous()


def lie_of(tensors: Tensors) -> Lie:
    """How tensors lie in memory: their strides, and whether each begins on 16 bytes."""
    bits = 0
    for x in tensors:
        bits |= x.data_ptr()
    return tuple([x.stride() for x in tensors]), not bits & 15


class Numbers(NamedTuple):
    """The options that a kernel is made for or told."""

    shift: int
    scale: float
    softcap: float | None
    alibi: bool
    tf32: bool
    sinks: bool = False
    lse_gradient: bool = False
    with_dq: bool = False
    with_delta: bool = False


def asked(how: Modifiers, plan: AttentionPlan) -> tuple[Any, ...]:
    """What `Numbers` begins with."""
    tf32 = plan.problem.dtype == "float32" and tf32_wanted()
    return how.shift, how.scale, how.softcap, how.alibi is not None, tf32


def tf32_wanted() -> bool:
    """Whether torch's matrix products of float32 may take tf32, as FlexAttention and torch's own attention ask it.

    One state behind `torch.set_float32_matmul_precision`, `torch.backends.cuda.matmul.allow_tf32` and its successor
    `fp32_precision`; the latter answers whichever was set. NVIDIA's alone.
    """
    return torch.backends.cuda.matmul.fp32_precision == "tf32" and torch.version.hip is None


# ---- prepared launches -----------------------------------------------------------------------------------------------
@cached(512)
def prepared(
    direction: Direction, plan: AttentionPlan, lie: Lie, numbers: Numbers, device: torch.device, split: bool = False
) -> Prepared:
    """The launches of one direction; lie: of q, k, v and, backward, out and d_out."""
    gpu, problem = gpu_of(device), plan.problem
    plan.check_room(direction, numbers.tf32)
    refuse_capture(f"attention on {problem}", gpu)
    slots = slots_of(plan.target) if split else None
    tables = _tables(direction, plan, lie, numbers, (device, slots))
    joins = tables.plan.met is not None
    merges = tables.plan.merges and not joins
    covers = tables.plan.covers
    dtype = torch.float32 if merges and direction != "forward" else getattr(torch, problem.dtype)
    known = _known(lie)
    if direction == "dkdv" and numbers.with_dq:
        known["DQ"] = _made("DQ", known, torch.float32, problem)[1]
    made = {name: _made(name, known, dtype, problem) for name in TENSORS[direction] if name in LIKE.keys() - known}
    sums = _few(problem, tables.plan)
    known |= {name: stride for name, (_, stride, _) in (made | sums).items()}
    numbers = numbers._replace(sinks=numbers.sinks and covers and not merges)
    spec = _spec(direction, problem, lie[1] and dense_rows(known, DTYPES[problem.dtype]), numbers)
    spec = for_card(spec, direction, plan)
    if direction == "forward":
        made["Lse"] = _rows(problem, torch.float32)
    elif direction == "dq":
        made |= _row_numbers(spec, problem)
    with on(gpu):
        waves = _launches(spec, tables, known, plan, numbers)
    if not joins:
        return Prepared(tuple(chain(*waves)), tuple(made.values()), device, gpu, covers, merges, tables)
    before = Prepared(tuple(chain(*waves[:-1])), tuple(sums.values()), device, gpu, False, True, tables)
    return Prepared(tuple(waves[-1]), tuple(made.values()), device, gpu, True, False, tables, before, tables.slots)


def _tables(
    direction: Direction, plan: AttentionPlan, lie: Lie, numbers: Numbers, where: tuple[torch.device, int | None]
) -> Loaded:  # fmt: skip
    """The waves of a direction; in tiles of warp groups only where these may specialise (`configure._specialises`).
    where: the device, and slots.
    """
    shares, problem = plan.summing if numbers.with_dq else plan.towards(direction), plan.problem
    programs = plan.target.processors if isinstance(plan.target, Gpu) else 0
    found = loaded(shares, problem, direction == "dkdv", *where, programs)
    if not any(share.plan.tiling and share.plan.tiling.groups for share in shares):
        return found
    widest = max(STATS, *(stride[2] for stride in lie[0]))
    near = all(wave.span * widest < 1 << 31 for wave, _ in found.waves)
    if near and _specialise(lie, numbers, problem):
        return found
    in_step = plan.keys_in_step if direction == "dkdv" else plan.forward_in_step
    return loaded(in_step, problem, direction == "dkdv", *where)


def _specialise(lie: Lie, numbers: Numbers, problem: Problem) -> bool:
    """Whether kernels whose warp groups specialise compute such options, for tensors that lie so."""
    linear = numbers.softcap is None and not numbers.alibi and numbers.scale >= SMALLEST
    aligned = lie[1] and dense_rows(_known(lie), DTYPES[problem.dtype])
    apart = all(all(stride[:3]) for stride in lie[0])  # descriptors of rows that are one are not known to work
    return linear and aligned and apart and not interpreted()


@cached(512)
def prepared_gradients(
    plan: AttentionPlan, lie: Lie, how: tuple[Any, ...], wanted: tuple[bool, bool, bool], device: torch.device
) -> tuple[Prepared, Prepared | None, bool]:
    """What makes dq, or what it begins with, or all; what makes dk and dv; whether that makes dq too. By one key, in
    plain tuples: a lookup is 2 us. how: `asked`; wanted: a gradient of lse, delta, the same bits every time.
    """
    lse_gradient, with_delta, deterministic = wanted
    numbers = Numbers(*how, lse_gradient=lse_gradient, with_delta=with_delta)
    if plan.one_walk and _specialise(lie, numbers, plan.problem):
        return prepared_walk(plan, plan.one_walk, lie, numbers, device), None, False
    with_dq = not deterministic and in_one_kernel(plan)
    numbers = numbers._replace(with_dq=with_dq)
    if with_dq:
        queries = prepared_rows(plan.problem, lie, numbers, device, chained("delta", plan.target))
    else:
        queries = prepared("dq", plan, lie, numbers, device)
    return queries, prepared("dkdv", plan, lie, numbers, device, not deterministic), with_dq


def prepared_walk(plan: AttentionPlan, walk: Walk, lie: Lie, numbers: Numbers, device: torch.device) -> Prepared:
    """The launches that make all gradients of a walk, which is the plan's."""
    gpu, problem = gpu_of(device), plan.problem
    assert isinstance(plan.target, Gpu)
    refuse_capture(f"attention on {problem}", gpu)
    known = _known(lie)
    made = {name: _made(name, known, getattr(torch, problem.dtype), problem) for name, _ in WRITTEN}
    known |= {name: stride for name, (_, stride, _) in made.items()}
    walked = Walked(walk, problem, plan.target)
    if numbers.with_delta or walked.beside:
        made["Delta"] = _rows(problem, torch.float32)
    if walked.beside:
        made["Partial"] = (walked.partial, (1,), torch.float32)
    launches, words = [], [put(few.table(), device) for few in walk.launches]
    with on(gpu):
        for one in walked.kernels(numbers.lse_gradient, "Delta" in made):
            values = {**one.values, "scale": numbers.scale}
            if one.table is not None:
                values["Tables"] = _address(words[one.table])
            boxes = boxes_of(one.boxes, one.reach, problem, tensors(one.spec), known)
            launches.append(_launch(one.spec, one.grid, (device, boxes), values, known))
    return Prepared(tuple(launches), tuple(made.values()), device, gpu, tables=words)


@lru_cache(maxsize=512)
def prepared_rows(problem: Problem, lie: Lie, numbers: Numbers, device: torch.device, chain: bool) -> Prepared:
    """The launch that makes what dK and dV subtract, and zeros for dQ; lie: as of `prepared`; chain: it begins one."""
    gpu = gpu_of(device)
    refuse_capture(f"attention on {problem}", gpu)
    known = _known(lie)
    made = {"DQ": _made("DQ", known, torch.float32, problem)}
    known["DQ"] = made["DQ"][1]
    spec = _spec("delta", problem, lie[1] and dense_rows(known, DTYPES[problem.dtype]), numbers)
    spec = replace(spec, rows=32 if max(problem.d, problem.dv) > 128 else 64, warps=4, chained=chain)
    values = {"all_heads": problem.q_heads, "my_length": problem.m, "scale": numbers.scale}
    grid = (problem.batch * problem.q_heads * -(-problem.m // spec.rows), 1, 1)
    with on(gpu):
        launches = (_launch(spec, grid, (device, ()), values, known),)
    return Prepared(launches, (*made.values(), *_row_numbers(spec, problem).values()), device, gpu)


def _known(lie: Lie) -> dict[str, tuple[int, ...]]:
    """Strides of what a call is given."""
    return dict(zip(("Q", "K", "V", "Out", "DOut"), lie[0], strict=False))


def _row_numbers(spec: KernelSpec, problem: Problem) -> dict[str, Made]:
    """What dK and dV subtract, and what is wanted beside."""
    found = {"Delta": _rows(problem, torch.float32)} if spec.leaves_delta else {}
    return found | ({"Stats": _rows(problem, torch.bfloat16, STATS)} if spec.folded else {})


def _few(problem: Problem, plan: Waves) -> dict[str, Made]:
    """Sums of dK and dV, side by side, for the keys whose sums one wave joins."""
    if plan.met is None:
        return {}
    rows, width = int(plan.met.sum()), problem.d + problem.dv
    size = (problem.batch, problem.kv_heads, rows, width)
    return {"Sums": (size, (problem.kv_heads * rows * width, rows * width, width, 1), torch.float32)}


def _rows(problem: Problem, dtype: torch.dtype, width: int = 1) -> Made:
    """So many numbers for each query, one after the other."""
    heads, m = problem.q_heads, problem.m
    size, stride = (problem.batch, heads, m), (heads * m * width, m * width, width)
    return (size, stride, dtype) if width == 1 else ((*size, width), (*stride, 1), dtype)


def _made(name: str, known: Mapping[str, tuple[int, ...]], dtype: torch.dtype, problem: Problem) -> Made:
    """What is written, as `rows_in_order_of` makes it."""
    heads, length = (problem.q_heads, problem.m) if LIKE[name] == "Q" else (problem.kv_heads, problem.n)
    size = (problem.batch, heads, length, problem.d)
    like = torch.empty_strided(size, known[LIKE[name]], device="meta")
    made = rows_in_order_of(like, problem.dv if name in ("Out", "DV") else problem.d, dtype)
    return tuple(made.shape), made.stride(), dtype


def _spec(direction: Direction | Literal["delta"], problem: Problem, aligned: bool, numbers: Numbers) -> KernelSpec:
    """All but what a wave adds."""
    return KernelSpec(
        direction, problem.dtype, problem.d, problem.dv, 1, 0, 0, aligned, softcap=numbers.softcap is not None,
        alibi=numbers.alibi, sinks=numbers.sinks, rescaled=numbers.scale < SMALLEST,
        grouped=direction == "dkdv" and problem.group != 1, with_dq=numbers.with_dq, tf32=numbers.tf32,
        lse_gradient=direction in ("dq", "delta") and numbers.lse_gradient,
        with_delta=direction in ("dq", "delta") and numbers.with_delta,
        upcast=problem.dtype != "float32" and interpreted(),
    )  # fmt: skip


def _launches(
    spec: KernelSpec, tables: Loaded, strides: Mapping[str, tuple[int, ...]], plan: AttentionPlan, numbers: Numbers
) -> list[list[Launch]]:
    """Of all waves, one after the other."""
    found, problem = [], plan.problem
    mine, theirs = (problem.n, problem.m) if spec.of_keys else (problem.m, problem.n)
    widest = max(stride[2] for stride in strides.values())
    for wave, words in tables.waves:
        place = wave.place or Place(0, 0, 0, 0)
        values = {
            "record": place.record, "parts": place.parts, "parts_at": place.parts_at, "items_at": place.items_at,
            "heads_at": wave.heads_at, "all_heads": problem.q_heads, "my_length": mine, "their_length": theirs,
            "shift": numbers.shift, "scale": numbers.scale, "softcap": numbers.softcap or 0.0,
            "Tables": _address(words),
        }  # fmt: skip
        ones = wave_specs(spec, wave, tables.plan, widest)
        boxes: tuple[Box, ...] = ()
        if ones[0].groups and isinstance(plan.target, Gpu):
            launches = [_in_rounds(wave, values, plan.target)]
            if not spec.of_keys:
                reach = wave.reach or ()
                boxes = boxes_of(FORWARD[: 2 * len(reach)], reach, problem, tensors(ones[0]), strides)
        else:
            firsts = range(0, wave.items, GRID)
            launches = [(_grid(wave, first), values | {"first_item": first}) for first in firsts]
        where = words.device, boxes
        found.append([_launch(one, grid, where, here, strides) for one in ones for grid, here in launches])
    return found


def _address(words: torch.Tensor) -> Any:
    """As a launch is told it; under an interpreter the tensor itself."""
    return words if gpu_of(words.device) is None else words.data_ptr()


def _in_rounds(wave: Wave, values: Mapping[str, Any], gpu: Gpu) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """A program for each processor, which takes blocks in turn."""
    assert wave.blocks_at, "in_turns comes before"
    blocks = wave.items * wave.members
    return (min(gpu.processors, blocks), 1, 1), {**values, "blocks_at": wave.blocks_at, "blocks": blocks}


def _grid(wave: Wave, first: int) -> tuple[int, int, int]:
    """Heads that go side by side, tiles, and heads one after the other: the tiles of a head read the same keys. More
    heads than the third axis has room for go side by side too.
    """
    together = wave.members if wave.skewed or wave.members > GRID else 1
    return together, min(GRID, wave.items - first), wave.members // together


def _launch(
    spec: KernelSpec, grid: tuple[int, int, int], where: tuple[torch.device, tuple[Box, ...]],
    values: Mapping[str, Any], strides: Mapping[str, tuple[int, ...]],
) -> Launch:  # fmt: skip
    """The kernel of a spec with its integers and strides. where: the device, and descriptors."""
    device, boxes = where
    per, known = spec.unit, dict(values)
    for name, stride in strides.items():
        known |= {f"{name}_{part}": stride[i] // per for i, part in enumerate(("batch", "head", "row"))}
        known[f"{name}_dim"] = stride[3]
    rest = arguments(spec)[len(tensors(spec)) :]
    rest = rest[: len(rest) - len(boxes)]  # descriptors come last
    return launch(kernel_of(spec, device), grid, tuple(known.get(name, 0) for name in rest), gpu_of(device), boxes)
