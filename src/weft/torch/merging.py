"""Attention over the union of disjoint sets of keys, from what attention over each of them gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.errors import InputError
from weft.torch.frameworks import leaf

MINUS_INFINITY = float("-inf")


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """(out, lse) of attention over all keys, from (out, lse) over disjoint parts of them; any number of parts.

    outs: tensors of one shape (..., Dv) in one dtype, in any layout. lses: for each its log-sum-exp, with the axes of
    out but the last. `weft.attention(..., return_lse=True)` returns both so. The result has the dtypes of outs and
    lses. Sums are in float32 (float64 for float64).

    A row without keys in a part has lse -inf there, and that part's out is not read. A row without keys in all parts
    gives out 0, lse -inf and zero gradients. Gradients flow to all outs and lses. Only one part may have had sinks.
    Raises InputError for shapes, dtypes or devices that do not fit. Example::

        near = weft.attention(q, k, v, weft.causal() & weft.window(63), return_lse=True)
        far = weft.attention(q, k, v, weft.causal(offset=-64), return_lse=True)
        out, lse = weft.merge(*zip(near, far))  # weft.causal()
    """
    traced = leaf(merge, (outs, lses), {})
    if traced is not None:
        return traced[0], traced[1]
    outs, lses = _listed("outs", outs), _listed("lses", lses)
    _check(outs, lses)
    if len(outs) == 1:
        return outs[0], lses[0]
    wide = torch.float64 if lses[0].dtype == torch.float64 else torch.float32
    rows = torch.stack([lse.to(wide) for lse in lses])
    largest = rows.detach().amax(0)
    largest = largest.masked_fill(largest == MINUS_INFINITY, 0.0)
    weights = (rows - largest).exp()
    total = weights.sum(0)
    seen = total != 0
    total = torch.where(seen, total, 1.0)  # before the logarithm, so that its gradient is a number
    lse = torch.where(seen, total.log() + largest, MINUS_INFINITY)
    shares = (weights / total).unsqueeze(-1).unbind(0)
    parts = [
        out.masked_fill((part == MINUS_INFINITY).unsqueeze(-1), 0.0) * share
        for out, part, share in zip(outs, lses, shares, strict=True)
    ]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged + part
    return merged.to(outs[0].dtype), lse.to(lses[0].dtype)


def _listed(name: str, parts: Any) -> list[Tensor]:
    if not isinstance(parts, (list, tuple)) or not all(isinstance(x, Tensor) for x in parts):
        _wrong(f"{name} is {type(parts).__name__}", "pass lists of tensors: weft.merge([out, more], [lse, more_lse])")
    return list(parts)


def _check(outs: list[Tensor], lses: list[Tensor]) -> None:
    if not outs or len(outs) != len(lses):
        _wrong(f"there are {len(outs)} outs and {len(lses)} lses", "pass one lse for each out, of one part or more")
    first = outs[0]
    for name, x, of in [(f"outs[{i}]", x, first) for i, x in enumerate(outs)] + [
        (f"lses[{i}]", x, lses[0]) for i, x in enumerate(lses)
    ]:
        if not x.dtype.is_floating_point or x.dtype != of.dtype:
            _wrong(f"{name} is {x.dtype}, the first is {of.dtype}", "give all parts one floating dtype")
        if x.device != first.device:
            _wrong(f"{name} is on {x.device}, outs[0] on {first.device}", "move all parts to one device")
    for i, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        if out.shape != first.shape:
            wrong = f"outs[{i}] is {tuple(out.shape)}, outs[0] is {tuple(first.shape)}"
            _wrong(wrong, "merge parts of the same queries, heads and values")
        if out.shape[:-1] != lse.shape:
            wrong = f"lses[{i}] is {tuple(lse.shape)} where outs[{i}] is {tuple(out.shape)}"
            _wrong(wrong, "pass lse with the axes of out but the last; lse.transpose(1, 2) if heads stand elsewhere")


def _wrong(wrong: str, cure: str) -> None:
    raise InputError("merge(outs, lses)", wrong, cure)
