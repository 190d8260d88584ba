"""Whether weft or the graph computes an attention faster, and in which form: measured on random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from weft.errors import WeftError
from weft.fusion.timing import compiled_alone, seconds_of
from weft.pattern.algebra import Pattern
from weft.torch import eager
from weft.torch.inputs import problem_of
from weft.torch.operator import Options

MARGIN = 0.98  # of the time of the graph, that weft takes at most


def like(given: Sequence[Tensor]) -> list[Tensor]:
    """Random tensors of such sizes, in the order in which products before attention write them: (B, S, H, D)."""
    random = torch.Generator(given[0].device).manual_seed(0)
    made = []
    for x in given:
        b, h, s, d = x.shape
        made.append(torch.randn(b, s, h, d, dtype=x.dtype, device=x.device, generator=random).transpose(1, 2))
    return made


def of_graph(unfused: GraphModule, tensors: Sequence[Tensor], masks: Sequence[Tensor], rest: Sequence[Any]) -> float:
    """Seconds of an attention as the graph has it. rest: numbers that it takes beside."""
    given = [*tensors, *masks, *rest]
    call: Callable[..., Any] = unfused if rest else compiled_alone(unfused, given)
    return seconds_of([partial(call, *given)])


def of_pattern(pattern: Pattern, tensors: Sequence[Tensor], softcap: float | None) -> float:
    """Seconds of weft's attention; infinite where it is refused."""
    q, k, v = tensors
    try:
        key = ("measured", id(pattern), q.shape, k.shape, v.shape, q.dtype, q.device, softcap)
        call = eager.prepare(key, problem_of(q, k, v), pattern, Options(None, None, None, softcap, "auto", False))
        return seconds_of([lambda: eager.attend(call, (q, k, v), (None, None), False, False)])
    except (WeftError, RuntimeError):
        return float("inf")


def said(weft: float, graph: float) -> str:
    """Both times, in words."""
    return f"{1e6 * weft:.1f} us, where the graph takes {1e6 * graph:.1f}"
