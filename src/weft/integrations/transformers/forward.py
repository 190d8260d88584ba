"""The attention function that transformers calls: a mask that is known, and every keyword honoured or refused."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.attention.flex_attention import BlockMask

import weft
from weft.caching import cached
from weft.errors import UnsupportedError, WeftError
from weft.integrations.transformers.held import Mask
from weft.integrations.transformers.keywords import refuse_unknown, renamed
from weft.integrations.transformers.layered import Layered, pattern_of, seen_by
from weft.integrations.transformers.packed import serves
from weft.integrations.transformers.sharded import Ranks, ranks_of
from weft.pattern.algebra import Pattern
from weft.torch.attention import attention
from weft.torch.decode_operator import decode_steady

CAUSAL, FULL = weft.causal(align="top-left"), weft.full()
LAST = 'causal(align="bottom-right")'


def forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **told: Any
) -> tuple[Tensor, None]:
    """(out (B, M, Hq, Dv), None) of query (B, Hq, M, D), key (B, Hkv, N, D), value (B, Hkv, N, Dv).

    What transformers registers as an attention function. Of the keywords that models pass, scaling, softcap, s_aux
    (sinks), position_bias, dropout and deterministic go to `weft.attention`, with their gradients. The mask says what
    is seen; sliding_window and is_causal do so only where there is none, as `sdpa` reads them. Others change no value,
    or are refused. Raises weft's errors; they name model, layer and cure.
    """
    try:
        refuse_unknown(told)
        causal = told.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        scores: dict[str, Any] = {"scale": told.get("scaling"), "softcap": told.get("softcap")}
        scores["sinks"] = told.get("s_aux")
        layered, ranks = pattern_of(module), ranks_of(module)
        if ranks is not None:
            out = _over_ranks(ranks, (query, key, value), (attention_mask, layered, causal), {**scores, "told": told})
        elif isinstance(attention_mask, Mask) and attention_mask.slots is not None:
            out = _counted((query, key, value), attention_mask, layered, {**scores, "told": told})
        elif _in_documents(attention_mask, (query, key, value), layered, told):
            return attention_mask.packed.attend((query, key, value), **scores).contiguous(), None
        else:
            mask, key, value, bias = _read(attention_mask, (query, key, value), causal, told.get("sliding_window"))
            if layered is not None:
                mask = _narrowed(mask, layered, attention_mask, (query.shape[2], key.shape[2]))
            out = attention(
                query, key, value, mask, bias=_biased(bias, told.get("position_bias"), key.shape[2]),
                dropout=told.get("dropout") or 0, deterministic=told.get("deterministic") or None, **scores,
            )  # fmt: skip
    except WeftError as error:
        renamed(error, module)
    return out.transpose(1, 2).contiguous(), None


def _counted(
    tensors: tuple[Tensor, Tensor, Tensor], mask: Mask, layered: Layered | None, options: dict[str, Any]
) -> Tensor:
    """A step of decoding whose number of keys the device alone knows. options: of scores, and told: all others."""
    told, slots = options.pop("told"), mask.slots
    assert slots is not None
    bias, dropout = told.get("position_bias"), told.get("dropout")
    if dropout:
        _refuse(f"dropout={dropout} with a static cache", "a step of decoding drops nothing", "call model.eval()")
    text = LAST if layered is None else layered.step(mask.offsets[1] == 0)
    if bias is None and text is not None:
        return decode_steady(tensors, text, (slots.keys, slots.window), **options)
    if is_compiling():
        what = "position_bias" if bias is not None else f"the pattern {layered and layered.text}"
        _refuse(f"{what} with a static cache, inside a compiled function", "steps on counts do not take it", UNCOMPILED)
    query, key, value = tensors
    keys, seen = slots.on_host(query.shape[2])
    if layered is not None:
        offsets = keys - query.shape[2] + mask.offsets[1], mask.offsets[1]
        seen = seen & seen_by(layered, (query.shape[2], keys), offsets)
    bias = None if bias is None else bias[..., :keys]
    return attention(query, key[:, :, :keys], value[:, :, :keys], seen, bias=bias, **options)


def _over_ranks(
    ranks: Ranks,
    tensors: tuple[Tensor, Tensor, Tensor],
    said: tuple[Any, Layered | None, bool],
    options: dict[str, Any],
) -> Tensor:
    """Attention of this rank's tokens. said: the mask, the layer's pattern, whether it is causal; options: of scores,
    and told: all others.
    """
    (given, layered, causal), told = said, options.pop("told")
    given, tokens = ranks.seen(given)
    if told.get("position_bias") is not None:
        _refuse("position_bias over ranks", "no rank holds a number for each pair", "leave the model whole")
    mask = _pattern(causal, told.get("sliding_window"), tokens) if given is None else given.pattern
    if layered is not None:
        mask = _narrowed(mask, layered, given, (tokens, tokens))
    return ranks.attend(
        tensors, mask, dropout=told.get("dropout") or 0, deterministic=told.get("deterministic") or None, **options
    )


def _in_documents(
    mask: Any, tensors: tuple[Tensor, Tensor, Tensor], layered: Layered | None, told: dict[str, Any]
) -> bool:
    """Whether packed documents are computed by their running sums: what needs their lengths takes the pattern."""
    if not isinstance(mask, Mask) or mask.packed is None or layered is not None or not serves(tensors):
        return False
    return told.get("position_bias") is None and not told.get("dropout") and mask.sizes[2] == tensors[1].shape[2]


def _narrowed(mask: Any, layered: Layered, given: Any, sizes: tuple[int, int]) -> Any:
    """A mask, and what the pattern of the layer leaves of it."""
    if not isinstance(given, Mask) and given is not None:
        _refuse(
            f"the pattern {layered.text} beside attention_mask={type(given).__name__}",
            "where its queries and keys are in the sequence is not known",
            "pass attention_mask of shape (B, S), or None",
        )  # fmt: skip
    seen = seen_by(layered, sizes, (0, 0) if given is None else given.offsets)
    return mask & seen if is_compiling() else _joined(mask, seen)


@cached(256)
def _joined(mask: Pattern, seen: Pattern) -> Pattern:
    """One object, whose plan is found by its identity."""
    return mask & seen


def _read(
    given: Any, tensors: tuple[Tensor, Tensor, Tensor], causal: bool, window: int | None
) -> tuple[Any, Tensor, Tensor, Tensor | None]:
    """(mask, key, value, bias): a mask as weft takes it, and the keys that it is about."""
    query, key, value = tensors
    m, n = query.shape[2], key.shape[2]
    if isinstance(given, Mask):
        if given.sizes[1:] != (m, n):
            _refuse(f"attention over {m} x {n} pairs", f"its mask is of {given.sizes[1:]}", "report it: " + REPORT)
        if given.live is not None:
            key, value = key[:, :, : given.live], value[:, :, : given.live]
        return given.pattern, key, value, None
    if given is None:
        return *_unmasked(causal and m > 1, window, (key, value), m), None
    if isinstance(given, BlockMask):
        return given, key, value, None
    if not isinstance(given, Tensor) or given.dim() != 4:
        said = f"{tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        _refuse(f"attention_mask={said}", "it has not four axes (B, H or 1, M, N)", "pass the model a mask (B, S)")
    given = given[..., :n]
    if given.dtype is torch.bool:
        return given, key, value, None
    return FULL, key, value, given


UNCOMPILED = "leave the model uncompiled, or take a dynamic cache"
REPORT = "the model's own attention changes the number of keys; attn_implementation='eager' computes it"


def _unmasked(causal: bool, window: int | None, keys: tuple[Tensor, Tensor], m: int) -> tuple[Any, Tensor, Tensor]:
    """As `sdpa` reads a call without a mask: causal from the first key on, or every key."""
    key, value = keys
    mask = _pattern(causal, window, key.shape[2])
    return (mask, key[:, :, :m], value[:, :, :m]) if causal else (mask, key, value)


def _pattern(causal: bool, window: int | None, keys: int) -> Pattern:
    """What queries see of so many keys where no mask says it."""
    if causal:
        return CAUSAL if window is None else CAUSAL & weft.window(left=window - 1, align="top-left")
    if window is not None and window < keys:
        _refuse(f"sliding_window={window}", "no mask says on which sides it is", "pass the model's own mask")
    return FULL


def _biased(bias: Tensor | None, position_bias: Tensor | None, keys: int) -> Tensor | None:
    if position_bias is None:
        return bias
    position_bias = position_bias[..., :keys]
    return position_bias if bias is None else bias + position_bias


def _refuse(asked: str, wrong: str, cure: str) -> NoReturn:
    raise UnsupportedError(asked, wrong, cure)
