"""flax.nnx: an `attention_fn` for `nnx.MultiHeadAttention`. Nothing of flax is imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp

from weft.errors import InputError, OptionError, UnsupportedError
from weft.jax.attention import attention
from weft.jax.dot_product import recognized
from weft.jax.inputs import check_mask
from weft.jax.mask import PlannedMask
from weft.pattern.algebra import Pattern
from weft.pattern.library import causal, full

OPTIONS = ("scale", "softcap", "sinks", "alibi_slopes", "implementation")
# Keywords of flax's attention functions that change nothing here: products always have all of their digits.
IGNORED = ("precision",)


def attention_fn(mask: Pattern | PlannedMask | None = None, **options: Any) -> Callable[..., Any]:
    """What `nnx.MultiHeadAttention(attention_fn=...)` takes: attention under `mask`, with the options of
    `weft.jax.attention`: scale, softcap, sinks, alibi_slopes, implementation.

    Without a mask here, the one of the call is used. `layer(x, mask=...)` takes a pattern, a planned mask, or a
    concrete boolean array (..., N, T, S), which is recognised. It heeds `is_causal`. A planned mask may be an argument
    of a jitted step, as packed documents are, and retraces nothing.

    Dropout in training takes flax's `dropout_rng`; every head and batch row drops pairs of its own, as flax does with
    broadcast_dropout=False. Raises OptionError for unknown options. When it is called, it raises UnsupportedError for
    dropout that is broadcast and for weights that are to be sown. It raises InputError for a mask beside a mask.

        layer = nnx.MultiHeadAttention(
            num_heads=8, in_features=512, decode=False, rngs=rngs,
            attention_fn=weft.jax.nnx.attention_fn(weft.causal() & weft.window(left=255)),
        )
    """
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        _option(f"attention_fn({', '.join(unknown)}=...)", "it takes no such option", f"use {', '.join(OPTIONS)}")
    if mask is not None:
        check_mask(mask, "attention_fn")
    return partial(_attend, own=mask, options=options)


def _attend(query: Any, key: Any, value: Any, bias: Any = None, *, own: Any, options: Any, **given: Any) -> Any:
    """(..., T, N, Hv); arguments as flax's dot_product_attention, [batch..., length, heads, features]."""
    mask, is_causal = given.pop("mask", None), given.pop("is_causal", False)
    dtype, promote = given.pop("dtype", None), given.pop("promote_dtype", None) or _promoted
    dropout = _dropout(given)
    query, key, value = promote((query, key, value), dtype=dtype)
    lead = query.shape[:-3]
    q, k, v = (x.reshape(-1, *x.shape[-3:]) if len(lead) != 1 else x for x in (query, key, value))
    if bias is not None:
        bias = bias.reshape(-1, *bias.shape[-3:]) if bias.ndim > 4 else bias
    out = attention(q, k, v, _mask(own, mask, is_causal, q, k), bias=bias, **dropout, **options)
    return out.reshape(*lead, *out.shape[1:])


def _promoted(arrays: Any, *, dtype: Any) -> Any:
    dtype = jnp.result_type(*arrays) if dtype is None else dtype
    return tuple(jnp.asarray(x, dtype) for x in arrays)


def _dropout(given: dict[str, Any]) -> dict[str, Any]:
    """dropout and seed of a call; raise for keywords that would change the result and are not implemented."""
    given = {name: value for name, value in given.items() if name not in IGNORED and value is not None}
    rate, deterministic = given.pop("dropout_rate", 0.0), given.pop("deterministic", False)
    rng, broadcast = given.pop("dropout_rng", None), given.pop("broadcast_dropout", True)
    if given.pop("module", None) is not None:
        _refuse("module=..., to sow weights", "weights are never held", "leave sow_weights=True out")
    for name in given:
        _refuse(f"{name}=...", f"{name} is not implemented", f"leave {name} out")
    if not rate or deterministic:
        return {}
    if broadcast:
        _refuse(
            f"dropout_rate={rate}, broadcast_dropout=True", "heads and batch rows do not share what they drop",
            "pass broadcast_dropout=False to MultiHeadAttention",
        )  # fmt: skip
    return {"dropout": rate, "seed": rng}


def _mask(own: Any, given: Any, is_causal: Any, q: Any, k: Any) -> Any:
    """The one mask of a call."""
    if own is not None and given is not None:
        raise InputError(
            "attention_fn(pattern)(..., mask=...)",
            "two masks are given, the pattern and one with the call (as decoding with a cache adds)",
            "leave one of them out: attention_fn() heeds the mask of the call, weft.jax.attention is for decoding",
        )
    found = full() if own is None and given is None else given if own is None else own
    if not isinstance(found, Pattern | PlannedMask):
        found = recognized(found, q, k)
    if not is_causal:
        return found
    if isinstance(found, PlannedMask):
        raise InputError(
            "attention_fn()(..., mask=planned, is_causal=True)", "a planned mask cannot be made causal any more",
            "plan weft.causal() & the pattern, and leave is_causal out",
        )  # fmt: skip
    return found & causal(align=None if q.shape[1] == k.shape[1] else "top-left")


def _refuse(asked: str, wrong: str, cure: str) -> None:
    raise UnsupportedError(f"attention_fn(...)(..., {asked})", wrong, cure)


def _option(asked: str, wrong: str, cure: str) -> None:
    raise OptionError(asked, wrong, cure)
