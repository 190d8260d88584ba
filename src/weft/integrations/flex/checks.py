"""What flex_attention may be given, with the kinds of errors and the first words that torch's has."""

from __future__ import annotations

from typing import Any, get_args

from torch import Tensor
from torch.nn.attention import flex_attention as flex

from weft.errors import InputError, OptionError
from weft.integrations.flex.block_mask import BlockMask

DECIDED = ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX")  # options that follow from other arguments


def check_tensors(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Raise as torch's for tensors that do not fit together."""
    if query.is_nested or key.is_nested or value.is_nested:
        raise NotImplementedError(
            "flex_attention does not support NestedTensor inputs: pack the rows into one, with a mask of documents"
        )
    if query.device != key.device or query.device != value.device:
        raise ValueError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device}, key.device: {key.device}, and value.device: {value.device} instead."
        )
    if query.dtype != key.dtype or query.dtype != value.dtype:
        raise ValueError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype}, key.dtype: {key.dtype}, and value.dtype: {value.dtype} instead."
        )
    if query.dim() < 2 or key.dim() < 2 or value.dim() < 2:
        raise ValueError(
            "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
            f"{query.dim()}, key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "Expect query and key/value to have the same embedding dimension "
            f"but got E={query.shape[-1]} and E={key.shape[-1]}."
        )
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise NotImplementedError("NYI: query, key, and value must be 4D tensors")
    heads, shared = query.shape[1], key.shape[1]
    if heads != shared and not enable_gqa:
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got Hq={heads} and Hkv={shared}. "
            "Try setting enable_gqa=True for GQA."
        )
    if enable_gqa and heads % shared:
        raise ValueError(
            f"Expect number of query heads to be a multiple of kv heads for GQA but got Hq={heads} and Hkv={shared}."
        )


def check_block_mask(mask: Any, query: Tensor, key: Tensor) -> None:
    """Raise as torch's for a mask of other lengths or on another device, and for a slice without a mask function."""
    if not isinstance(mask, flex.BlockMask):
        raise InputError(
            f"flex_attention(block_mask={type(mask).__name__})", "it is no BlockMask",
            "pass create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN), or give booleans to weft.attention",
        )  # fmt: skip
    if mask.mask_mod is flex._sliced_mask_mod_error:
        raise RuntimeError(
            "Cannot use mask_mod from a sliced BlockMask: a slice has none; set block_mask.mask_mod, made of that of "
            "the BlockMask that was sliced"
        )
    if mask.BLOCK_SIZE[0] == mask.BLOCK_SIZE[1] == flex._LARGE_SPARSE_BLOCK_SIZE:
        return
    rows, columns = mask.seq_lengths
    m, n = query.shape[2], key.shape[2]
    if m != rows or n != columns:
        smaller = m > rows or n > columns
        cure = (
            "As the block mask was created for a smaller length than you're using it for, you likely need to create a "
            "new block mask."
            if smaller
            else "As the block mask was created for a larger length than you're using it for, you can either 1. create "
            "a new block mask with the correct length, or 2. 'adjust' the existing block mask to the correct length by "
            "calling block_mask._adjust(q_len, kv_len). This essentially 'crops' the block mask to the upper left "
            "corner, which does not work for all mask_mods!"
        )
        raise ValueError(
            f"block_mask was created for block_mask.shape={mask.shape} but got q_len={m} and kv_len={n}. {cure}"
        )
    device = mask.device if isinstance(mask, BlockMask) else mask.kv_num_blocks.device
    if query.device != device:
        raise RuntimeError(f"Expect q/k/v and block_mask to be on the same device but got {query.device} and {device}.")


def check_rows(reads: str, query: Tensor) -> None:
    """Raise where a mask function reads b or h, and its BlockMask was made for one of them. reads: these of b and h."""
    for name, option, count in (("b", "B", query.shape[0]), ("h", "H", query.shape[1])) if reads else ():
        if name in reads and count > 1:
            raise ValueError(
                f"mask_mod reads {name}, and the block_mask was created for one: its blocks are those of {name}=0. "
                f"Create it with {option}={count}."
            )


def check_kernel_options(options: Any) -> None:
    """Raise for options that FlexKernelOptions does not have, and for those that torch's refuses together."""
    known = flex.FlexKernelOptions.__annotations__
    for name in options:
        if name in DECIDED:
            raise AssertionError(f"{name} must not be in kernel_options: ask by return_aux=AuxRequest(lse=True)")
        if name not in known and name.removeprefix("fwd_").removeprefix("bwd_") not in known:
            raise OptionError(
                f"flex_attention(kernel_options={{{name!r}: ...}})", f"FlexKernelOptions has no {name}",
                "leave it out; no kernel option has an effect here",
            )  # fmt: skip
    if "BACKEND" not in options:
        return
    if options.get("FORCE_USE_FLEX_ATTENTION"):
        raise RuntimeError("BACKEND cannot be combined with legacy FORCE_USE_FLEX_ATTENTION: leave the second out")
    backends = get_args(flex._Backend)
    if options["BACKEND"] not in backends:
        raise ValueError(f"Invalid BACKEND value {options['BACKEND']!r}. Must be one of {backends}")
