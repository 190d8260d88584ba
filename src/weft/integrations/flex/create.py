"""create_block_mask: a mask function, recognised at once."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.attention import flex_attention as flex

from weft.integrations.flex import graphs
from weft.integrations.flex.block_mask import BlockMask, Unmade, key_of, like, located, recognize


def create_block_mask(  # noqa: PLR0913 - FlexAttention's signature
    mask_mod: Callable[..., Any], B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = 128, _compile: bool = False, separate_full_blocks: bool = True,
    **order: Any,
) -> Any:  # fmt: skip
    """The BlockMask of a mask function, as torch.nn.attention.flex_attention.create_block_mask makes it.

    - mask_mod: a function of (b, h, q_idx, kv_idx), True = may attend. It is recognised now, at these sizes.
    - B, H: batch rows and heads that it tells apart, None or 1 where it tells none apart. device: of the lists.
    - BLOCK_SIZE: of queries and keys, or both. separate_full_blocks: whether full blocks are listed apart.
    - compute_dq_write_order, dq_kv_order: order in which FlashAttention's kernels add dQ; listed as torch does.

    Inside torch.compile torch's makes the lists. Raises AssertionError for a function of other arguments, InputError
    for a mask that can neither be recognised nor held as booleans. Example::

        block_mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 8192, 8192)
    """
    given = (mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE)
    told = order if separate_full_blocks else {**order, "separate_full_blocks": False}  # torch 2.11 has no such option
    if is_dynamo_compiling():
        return graphs.with_pattern(flex.create_block_mask(*given, **told))
    if _compile:
        warnings.warn("_compile has no effect: nothing is compiled for a mask", DeprecationWarning, stacklevel=2)
    _check_order(order)
    if arguments_of(mask_mod) != 4:
        raise AssertionError(f"create-block_mask requires a mask_mod function! Got {mask_mod}")
    if order.get("compute_dq_write_order"):
        return like(flex.create_block_mask(*given, **told))
    batch, heads = (1 if x is None else x for x in (B, H))
    size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    device = located(device or torch.accelerator.current_accelerator(check_available=True) or "cpu")
    found, reads = recognize(mask_mod, (batch, heads, Q_LEN, KV_LEN), device)
    made = BlockMask.__new__(BlockMask)
    made.__dict__.update(
        seq_lengths=(Q_LEN, KV_LEN), BLOCK_SIZE=size, mask_mod=mask_mod, dq_kv_order_spt=None,
        _seen=(key_of(mask_mod), ()),
        _pattern=found, _reads=reads,
        _unmade=Unmade(batch, heads, device, separate_full_blocks),
    )  # fmt: skip
    return made


def _check_order(order: dict[str, Any]) -> None:
    unknown = order.keys() - {"compute_dq_write_order", "dq_kv_order"}
    if unknown:
        raise TypeError(f"create_block_mask() got an unexpected keyword argument {min(unknown)!r}")
    if not isinstance(order.get("dq_kv_order", True), bool):
        raise ValueError("dq_kv_order must be a bool when using create_block_mask")


def arguments_of(function: Any) -> int:
    """How many arguments a function demands: 4 of a mask function, 5 of a score function."""
    demanded = sum(p.default is p.empty for p in inspect.signature(function).parameters.values())
    if demanded not in (4, 5):
        raise AssertionError(f"Expected 4 or 5 positional args, got {demanded}")
    return demanded
