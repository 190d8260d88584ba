"""NATTEN's operations: na1d, na2d, na3d, attention, merge_attentions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

import weft
from weft.caching import cached
from weft.errors import InputError
from weft.integrations.natten import context
from weft.integrations.natten.checks import (
    check_attention_kwargs,
    check_fits,
    check_knobs,
    check_layouts,
    check_tensors,
    neighbourhood,
)
from weft.integrations.natten.utils.varlen import lengths_of, varlen

FULL, CAUSAL = weft.full(), weft.causal(align="top-left")
OF_ATTENTION = (
    "backend", "q_tile_size", "kv_tile_size", "backward_q_tile_size", "backward_kv_tile_size", "backward_kv_splits",
    "backward_use_pt_reduction", "run_persistent_kernel", "kernel_schedule", "torch_compile",
)  # fmt: skip
LAYOUT = """Neighbourhood attention over {rank} axes of tokens, as NATTEN's na{rank}d.

    - query (B, {grid}, Hq, D), key (B, {grid}, Hkv, D), value (B, {grid}, Hkv, Dv); Hq is a multiple of Hkv.
    - kernel_size, stride, dilation, is_causal: one value, or a tuple of one for each axis. A window holds kernel_size
      keys, dilation tokens apart; at a border it is pushed inwards. scale: D ** -0.5 if None.
    - additional_keys (B, E, Hkv, D), additional_values (B, E, Hkv, Dv): tokens that every query sees too.
    - attention_kwargs, backend, tiles, kernel_schedule, torch_compile: checked, without effect.

    Returns (B, {grid}, Hq, Dv); with return_lse also the logarithm of the sum of exponentiated scores, (B, {grid}, Hq).
    Raises ValueError for shapes and arguments, NotImplementedError for backends that NATTEN does not have. Example::

        out = na{rank}d(query, key, value, kernel_size=7, dilation=2)
    """


@cached(1024)
def _pattern(grid: tuple[int, ...], *arguments: tuple[Any, ...]) -> Any:
    """One object for one question, since prepared calls are found by it."""
    return weft.neighborhood(grid, *arguments)


def neighborhood_attention(
    tensors: Sequence[Tensor], arguments: tuple[Any, ...], scale: float | None = None,
    extra: tuple[Tensor | None, Tensor | None] = (None, None), *, return_lse: bool = False,
) -> Any:  # fmt: skip
    """Of checked query, key, value and (kernel_size, stride, dilation, is_causal), a tuple each: out, or (out, lse)."""
    rank = len(arguments[0])
    grid = tuple(tensors[0].shape[1 : 1 + rank])
    check_fits(grid, *arguments[:3])
    pattern = weft.neighborhood(grid, *arguments) if is_compiling() else _pattern(grid, *arguments)
    # (B, H, tokens, D), a copy only where strides do not allow a view: no other layout is found again as quickly
    q, k, v = (x.flatten(1, rank).transpose(1, 2) for x in tensors)
    more = {
        name: x.transpose(1, 2) for name, x in zip(("extra_keys", "extra_values"), extra, strict=True) if x is not None
    }
    found: Any = weft.attention(
        q, k, v, pattern, scale=scale or None, return_lse=return_lse, deterministic=_deterministic(), **more
    )
    if return_lse:
        return tuple(x.transpose(1, 2).unflatten(1, grid) for x in found)
    return found.transpose(1, 2).unflatten(1, grid)


def _operation(rank: int) -> Callable[..., Any]:
    """na1d, na2d or na3d."""
    name = f"na{rank}d"

    def operation(  # noqa: PLR0913 - NATTEN's signature
        query: Tensor, key: Tensor, value: Tensor, kernel_size: Any, stride: Any = 1, dilation: Any = 1,
        is_causal: Any = False, scale: float | None = None, additional_keys: Tensor | None = None,
        additional_values: Tensor | None = None, attention_kwargs: dict[str, Any] | None = None,
        backend: str | None = None, q_tile_shape: Any = None, kv_tile_shape: Any = None,
        backward_q_tile_shape: Any = None, backward_kv_tile_shape: Any = None, backward_kv_splits: Any = None,
        backward_use_pt_reduction: bool = False, run_persistent_kernel: bool = True, kernel_schedule: Any = None,
        torch_compile: bool = False, return_lse: bool = False,
    ) -> Any:  # fmt: skip
        check_tensors(name, rank, {"query": query, "key": key, "value": value})
        check_layouts(name, rank, (query, key, value))
        if (additional_keys is None) != (additional_values is None):
            missing = "additional_values" if additional_values is None else "additional_keys"
            raise InputError(f"{name}(...)", f"{missing} is missing", "pass both of them, or neither")
        if additional_keys is not None:
            extra = {"additional_keys": additional_keys, "additional_values": additional_values}
            check_tensors(name, 1, extra)
        check_attention_kwargs(attention_kwargs, OF_ATTENTION)
        check_knobs(name, "fna", {
            "backend": backend, "q_tile_shape": q_tile_shape, "kv_tile_shape": kv_tile_shape,
            "backward_q_tile_shape": backward_q_tile_shape, "backward_kv_tile_shape": backward_kv_tile_shape,
            "backward_kv_splits": backward_kv_splits, "backward_use_pt_reduction": backward_use_pt_reduction,
            "run_persistent_kernel": run_persistent_kernel, "kernel_schedule": kernel_schedule,
            "torch_compile": torch_compile,
        })  # fmt: skip
        arguments = neighbourhood(rank, kernel_size, stride, dilation, is_causal)
        both = additional_keys, additional_values
        return neighborhood_attention((query, key, value), arguments, scale, both, return_lse=return_lse)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = LAYOUT.format(rank=rank, grid=", ".join("XYZ"[:rank]))
    return operation


na1d, na2d, na3d = _operation(1), _operation(2), _operation(3)


def attention(  # noqa: PLR0913 - NATTEN's signature
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, scale: float | None = None,
    seqlens_Q: Tensor | None = None, seqlens_KV: Tensor | None = None, cumulative_seqlen_Q: Tensor | None = None,
    cumulative_seqlen_KV: Tensor | None = None, max_seqlen_Q: int | None = None, max_seqlen_KV: int | None = None,
    backend: str | None = None, q_tile_size: Any = None, kv_tile_size: Any = None, backward_q_tile_size: Any = None,
    backward_kv_tile_size: Any = None, backward_kv_splits: Any = None, backward_use_pt_reduction: bool = False,
    run_persistent_kernel: bool = True, kernel_schedule: Any = None, torch_compile: bool = False,
    return_lse: bool = False,
) -> Any:  # fmt: skip
    """Attention over all keys, or over those up to the query, as NATTEN's attention.

    - query (B, S, Hq, D), key (B, T, Hkv, D), value (B, T, Hkv, Dv). is_causal aligns at the top left.
    - seqlens_Q, seqlens_KV: int32 lengths of packed sequences, B = 1; or their running sums from 0 with the longest of
      each, which a compiled function needs.
    - The other arguments: checked, without effect.

    Returns (B, S, Hq, Dv); with return_lse also (B, S, Hq). Raises ValueError for what does not fit. Example::

        out = attention(query, key, value, is_causal=True)
    """
    tensors = {"query": query, "key": key, "value": value}
    check_tensors("attention", 1, tensors)
    check_knobs("attention", "fmha", {
        "backend": backend, "q_tile_size": q_tile_size, "kv_tile_size": kv_tile_size,
        "backward_q_tile_size": backward_q_tile_size, "backward_kv_tile_size": backward_kv_tile_size,
        "backward_kv_splits": backward_kv_splits, "backward_use_pt_reduction": backward_use_pt_reduction,
        "run_persistent_kernel": run_persistent_kernel, "kernel_schedule": kernel_schedule,
        "torch_compile": torch_compile,
    })  # fmt: skip
    given = (cumulative_seqlen_Q, cumulative_seqlen_KV, max_seqlen_Q, max_seqlen_KV)
    sums = lengths_of((query, key, value), (seqlens_Q, seqlens_KV), given)
    pattern = CAUSAL if is_causal else FULL
    options: dict[str, Any] = {"scale": scale or None, "deterministic": _deterministic(), "return_lse": return_lse}
    if sums is not None:
        return varlen((query, key, value), pattern, sums, options)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    found: Any = weft.attention(q, k, v, pattern, **options)
    return tuple(x.transpose(1, 2) for x in found) if return_lse else found.transpose(1, 2)


def merge_attentions(
    outputs: Sequence[Tensor], lse_tensors: Sequence[Tensor], torch_compile: bool = True, use_autograd_fix: bool = True
) -> tuple[Tensor, Tensor]:
    """Attention over the union of disjoint sets of keys, from outputs (B, S, H, D) and lse_tensors (B, S, H) of each.

    At least two of each. Gradients flow to every output and lse, whatever the two flags say. Raises ValueError for what
    does not fit. Example::

        out, lse = merge_attentions([out_a, out_b], [lse_a, lse_b])
    """
    if len(outputs) < 2 or len(outputs) != len(lse_tensors):
        wrong = f"there are {len(outputs)} outputs and {len(lse_tensors)} lse_tensors"
        raise InputError("merge_attentions(outputs, lse_tensors)", wrong, "pass at least two, one lse for each output")
    for i, (out, lse) in enumerate(zip(outputs, lse_tensors, strict=True)):
        if out.dim() != 4 or lse.dim() != 3:
            wrong = f"outputs[{i}] has {out.dim()} dimensions and its lse {lse.dim()}"
            raise InputError("merge_attentions(outputs, lse_tensors)", wrong, "pass (B, S, H, D) and (B, S, H)")
    return weft.merge(list(outputs), list(lse_tensors))


def _deterministic() -> bool | None:
    """As NATTEN's switch says, else as torch's."""
    return True if context.are_deterministic_algorithms_enabled() else None
