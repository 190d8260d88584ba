"""Decoding: a few queries against keys that grow by one each step, found by a key without their number.

What is short here is the way of the host. `weft.planning.rowwise` says for which patterns nothing depends on the number
of keys. All others are planned for each number, and so are calls that want gradients.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.caching import Recent
from weft.kernels.backend import choose
from weft.kernels.cpu import flash
from weft.kernels.cpu import rows as rows_by_formula
from weft.kernels.options import Modifiers
from weft.pattern.algebra import Pattern
from weft.planning.rowwise import decode_plan
from weft.torch.eager import KEPT, Rows, is_plain, is_watched
from weft.torch.inputs import problem_of

MOST_QUERIES = 16
Tensors = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """A step of decoding for all tensors of one key, or none: they go the ordinary way. mask: kept, so that no other
    pattern takes its id.
    """

    mask: Pattern
    step: Any  # weft.kernels.cpu.rows.Step, or weft.torch.gpu.Step, whose module is imported with Triton

    def serves(self, keys: int) -> bool:
        """Whether that many keys need no new plan."""
        return self.step is None or keys <= self.step.capacity


_found: Recent[Hashable, Found] = Recent(KEPT)


def key_of(tensors: Any, mask: Pattern, rows: Any, options: tuple[Any, ...]) -> Any:
    """All that a step depends on but the number of keys; None if this is no step of decoding.

    rows: sinks, slopes. options: as they were given.
    """
    q, k, v = tensors
    try:  # what most calls are told apart by comes first
        if q.shape[2] > MOST_QUERIES or not (q.is_cuda or q.is_cpu):
            return None
        (_, _, m, _), (*kb, n, kd), (*vb, vn, vd) = q.shape, k.shape, v.shape
    except (AttributeError, IndexError, ValueError, RuntimeError):  # a check will name it
        return None
    if not (0 < m <= n == vn) or is_watched() or not (is_plain(q) and is_plain(k) and is_plain(v)):
        return None
    sinks, slopes = rows
    if not ((sinks is None or is_plain(sinks)) and (slopes is None or is_plain(slopes))):
        return None
    if _wants_gradients(q, k, v, sinks):
        return None
    return (
        id(mask), q.shape, *kb, kd, *vb, vd, q.stride(), k.stride(), v.stride(),
        (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15,
        q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, options, tuple(map(type, options)),
        sinks is not None and (sinks.shape, sinks.stride(), sinks.dtype, sinks.device),
        slopes is not None and (slopes.shape, slopes.stride(), slopes.dtype, slopes.device, slopes.requires_grad),
    )  # fmt: skip


def _wants_gradients(q: Tensor, k: Tensor, v: Tensor, sinks: Any) -> bool:
    wanted = q.requires_grad or k.requires_grad or v.requires_grad or (sinks is not None and sinks.requires_grad)
    return wanted and torch.is_grad_enabled()


def find(key: Any, keys: int) -> Found | None:
    """What is known of that key and enough for so many keys."""
    try:
        found = _found.get(key)
    except TypeError:  # an option without a hash: a check will name it
        return None
    return found if found is not None and found.serves(keys) else None


def prepare(key: Any, tensors: Tensors, mask: Pattern, rows: Rows, options: tuple[Any, ...]) -> Found:
    """Plan a call that was checked, for its number of keys and those to come; rows and options as in `key_of`.

    Raises what plans and backends refuse.
    """
    made = Found(mask, _step(tensors, mask, rows, options))
    return _found.keep(key, made)


def _step(tensors: Tensors, mask: Pattern, rows: Rows, options: tuple[Any, ...]) -> Any:
    scale, softcap, _, name, _ = options
    sinks, slopes = rows
    problem = problem_of(*tensors)
    backend = choose(name, problem).name
    if not all(x.numel() for x in tensors):
        return None
    scale = problem.d**-0.5 if scale is None else scale
    if backend == "cpu" and not flash.serves(tensors[0], tensors[2], Modifiers(scale, softcap, slopes)):
        return None
    if slopes is not None and set(mask.alignments()) != {"bottom-right"}:  # what distances are is asked elsewhere
        return None
    plan = decode_plan(mask, problem)
    if isinstance(plan, str):
        return None
    if backend == "cpu":
        return rows_by_formula.Step(plan, scale)
    from weft.kernels.gpu.layout import Options
    from weft.torch.gpu import layout_of, prepare_step

    layout = layout_of(tensors, sinks=sinks, slopes=slopes)
    return prepare_step(plan, layout, Options(scale, softcap), tensors[0].device)
