"""Functions of flash-attn's shape over weft, and weft as torch's flash implementation, on request.

`flash_attn_func` and `flash_attn_varlen_func` take what those of the package flash-attn take, on a CPU too. Every
keyword is honoured or refused by name. Example, in place of `from flash_attn import flash_attn_varlen_func`::

    from weft.integrations.flash_attn import flash_attn_varlen_func

    out = flash_attn_varlen_func(q, k, v, sums, sums, longest, longest, causal=True, window_size=(255, 0))
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

import weft
from weft.errors import OptionError, UnsupportedError
from weft.pattern.algebra import Pattern
from weft.torch.attention import attention
from weft.torch.varlen import varlen_attention

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "register"]

FUNCTION = ("dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic",
            "return_attn_probs")  # fmt: skip
ANYWHERE = 2**31 - 1  # a window that leaves out nothing: it says where distances are counted from


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Any:
    """Attention of q (B, M, Hq, D) over k (B, N, Hkv, D) and v (B, N, Hkv, Dv), as flash-attn's function of that name.

    Then by place or by name: dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None (Hq,), deterministic=False, return_attn_probs=False. The last query is beside the last key. A
    query without a key gives 0.

    Returns out (B, M, Hq, Dv); with return_attn_probs (out, lse (B, Hq, M), None), since probabilities are never made.
    Raises OptionError for other keywords, and what `weft.attention` raises. Example::

        out = flash_attn_func(q, k, v, causal=True, window_size=(255, 0))
    """
    given, asked = _options("flash_attn_func", FUNCTION, args, options)
    found = attention(q, k, v, _pattern(asked), layout="bshd", dropout=asked.get("dropout_p") or 0, **given)
    if not given["return_lse"]:
        return found
    out, lse = found
    return out, lse.transpose(1, 2), None


def flash_attn_varlen_func(  # noqa: PLR0913 - as flash-attn's
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    *args: Any, **options: Any,
) -> Any:  # fmt: skip
    """Attention inside documents packed one after the other: q (T, Hq, D), k (S, Hkv, D), v (S, Hkv, Dv).

    cu_seqlens_q and cu_seqlens_k are running sums of lengths, (documents + 1,), on the CPU or on q's device. Then as
    `flash_attn_func`, and block_table=None (documents, P), int32: then k and v are pages (pages, page_size, Hkv, D). In
    every document the last query is beside the last key.

    Returns out (T, Hq, Dv); with return_attn_probs (out, lse (Hq, T), None). Raises what `weft.varlen_attention` does.
    """
    given, asked = _options("flash_attn_varlen_func", (*FUNCTION, "block_table"), args, options)
    if asked.get("block_table") is not None:
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    most_q, most_k = (None if most is None else int(most) for most in (max_seqlen_q, max_seqlen_k))
    found = varlen_attention(
        q, k, v, cu_seqlens_q, cu_seqlens_k, _pattern(asked), max_seqlen_q=most_q, max_seqlen_k=most_k,
        dropout=asked.get("dropout_p") or 0, block_table=asked.get("block_table"), **given,
    )  # fmt: skip
    if not given["return_lse"]:
        return found
    out, lse = found
    return out, lse.transpose(0, 1), None


def register(name: str = "WEFT") -> str:
    """Make `torch.nn.attention.activate_flash_attention_impl(name)` known, and return the name; it activates nothing.

    Once activated, `torch.nn.attention.varlen.varlen_attn` and calls of SDPA that take the flash backend run on weft
    where they are on a GPU. What weft does not serve (dropout, pages, split counts) goes to the implementation before
    it, and a warning says so once. Example::

        torch.nn.attention.activate_flash_attention_impl(weft.integrations.flash_attn.register())
    """
    from torch.nn.attention import register_flash_attention_impl

    from weft.integrations.flash_dispatch import install

    register_flash_attention_impl(name, register_fn=install)
    return name


# ---- what was asked --------------------------------------------------------------------------------------------------
def _options(function: str, names: tuple[str, ...], args: Any, options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(weft's options, those that were given)"""
    asked = {**dict(zip(names, args, strict=False)), **options}
    wrong = sorted(options.keys() - set(names))
    if wrong or len(args) > len(names):
        said = f"{wrong[0]}=..." if wrong else f"{len(args)} options by place"
        raise OptionError(f"{function}({said})", "flash-attn's function has no such option", f"use {', '.join(names)}")
    twice = [name for name in names[: len(args)] if name in options]
    if twice:
        raise OptionError(f"{function}({twice[0]}=...)", "it is given by place too", f"pass {twice[0]} once")
    _check_window(function, asked.get("window_size"))
    given = {
        "scale": asked.get("softmax_scale"),
        "softcap": asked.get("softcap") or None,
        "alibi_slopes": _slopes(function, asked.get("alibi_slopes")),
        "deterministic": asked.get("deterministic") or None,
        "return_lse": bool(asked.get("return_attn_probs")),
    }
    return given, asked


def _check_window(function: str, window: Any) -> None:
    """Raise OptionError unless it is a pair of integers, or None for no window."""
    pair = isinstance(window, (tuple, list)) and len(window) == 2
    if window is not None and not (pair and all(side is None or hasattr(side, "__index__") for side in window)):
        raise OptionError(
            f"{function}(window_size={window!r})", "a window is two integers, tokens to the left and to the right",
            "pass window_size=(left, right), with -1 for no limit on a side",
        )  # fmt: skip


def _slopes(function: str, slopes: Tensor | None) -> Tensor | None:
    if slopes is not None and slopes.dim() != 1:
        raise UnsupportedError(
            f"{function}(alibi_slopes={tuple(slopes.shape)})", "slopes are one for each head, alike in all batch rows",
            "pass alibi_slopes of shape (Hq,)",
        )  # fmt: skip
    return slopes


def _pattern(asked: dict[str, Any]) -> Pattern:
    left, right = asked.get("window_size") or (-1, -1)
    left, right = (None if side is None or side < 0 else int(side) for side in (left, right))
    return window_of(bool(asked.get("causal")), left, right)


def window_of(causal: bool, left: int | None, right: int | None, align: Any = "bottom-right") -> Pattern:
    """The pattern of flash-attn's causal and window_size; None: no limit on that side."""
    if causal:
        seen: Pattern = weft.causal(align=align)
        return seen if left is None else seen & weft.window(left=left, align=align)
    if left is None and right is None:
        left = ANYWHERE
    return weft.window(left, right, align=align)
