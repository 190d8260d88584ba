"""`weft.jax.dot_product_attention`: the signature of jax.nn.dot_product_attention, each argument as a pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax import Array, lax

from weft.errors import InputError, OptionError
from weft.jax.attention import attention
from weft.pattern.algebra import Pattern
from weft.pattern.composites import per_batch
from weft.pattern.library import causal, documents, full, global_tokens, padding, window
from weft.recognition import recognize_mask

ASKED = "dot_product_attention"


def dot_product_attention(  # noqa: PLR0913 - the signature of jax.nn, and three options more
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | Sequence[str] | None = None,
    return_residual: bool = False,
    logits_soft_cap: float | None = None,
    sinks: Any = None,
    segment_ids: Any = None,
) -> Any:
    """`jax.nn.dot_product_attention` at a cost that follows the live pairs; three options more.

    query (B, T, N, H), key (B, S, K, H), value (B, S, K, Hv), or all without B. bias: added to the logits of live
    pairs, broadcastable to (B, N, T, S), with gradients. mask: boolean, True may attend,
    broadcastable to (B, N, T, S); it is recognised, so it must be concrete. query_seq_lengths, key_value_seq_lengths:
    (B,) integers, concrete. local_window_size (l, r): query q attends to keys q - l to q + r, with or without
    is_causal. Where T != S positions count from the first token on both sides, as jax.nn counts them. logits_soft_cap,
    sinks (N,): as softcap and sinks of `weft.jax.attention`. segment_ids (B, T): tokens of one number see each other.

    Returns out (B, T, N, Hv). With return_residual also the logarithm of the sum of exponentiated logits, (B, T, N) in
    key's dtype and without a gradient, as jax.nn. A query without keys gives 0 and -inf, where jax.nn averages all
    values. Raises InputError for traced masks, lengths and segments: plan those with `weft.jax.plan` outside of
    jax.jit, and pass the plan to `weft.jax.attention`.

        out = weft.jax.dot_product_attention(q, k, v, is_causal=True, local_window_size=(1023, 0))
    """
    sizes = _sizes(query, key)
    parts = [
        _causal(is_causal, sizes),
        _window(local_window_size, sizes),
        _rows(
            query_seq_lengths, "query_seq_lengths", sizes, lambda n: global_tokens(n, columns=False, align=sizes.align)
        ),
        _rows(key_value_seq_lengths, "key_value_seq_lengths", sizes, padding),
        _segments(segment_ids, sizes),
        _mask(mask, sizes),
    ]
    pattern: Pattern = reduce(and_, [part for part in parts if part is not None] or [full()])
    out, lse = attention(
        query, key, value, pattern, scale=scale, softcap=logits_soft_cap, sinks=sinks, return_lse=True,
        implementation=implementation, bias=_bias(bias),
    )  # fmt: skip
    return (out, lax.stop_gradient(lse.astype(key.dtype))) if return_residual else out


class Sizes(NamedTuple):
    """Of a call: batch rows, query heads, queries, keys; and the alignment that a pattern of them declares."""

    batch: int
    heads: int
    m: int
    n: int

    @property
    def align(self) -> Any:
        """None where there is nothing to declare."""
        return None if self.m == self.n else "top-left"


def _sizes(query: Any, key: Any) -> Sizes:
    for name, x in (("query", query), ("key", key)):
        if getattr(x, "ndim", None) not in (3, 4):
            _wrong(f"{name} is no array of three or four dimensions", "pass query (B, T, N, H) and key (B, S, K, H)")
    return Sizes(1 if query.ndim == 3 else query.shape[0], query.shape[-2], query.shape[-3], key.shape[-3])


def _causal(is_causal: Any, sizes: Sizes) -> Pattern | None:
    if isinstance(is_causal, jax.core.Tracer):
        raise OptionError(
            f"{ASKED}(is_causal=a traced array)", "it decides what is compiled, so it must be known before",
            "pass True or False, or static_argnames='is_causal' to jax.jit",
        )  # fmt: skip
    return causal(align=sizes.align) if is_causal else None


def _window(size: Any, sizes: Sizes) -> Pattern | None:
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else size
    if not (isinstance(sides, tuple | list) and len(sides) == 2 and all(_is_extent(side) for side in sides)):
        raise OptionError(
            f"{ASKED}(local_window_size={size!r})", "it is neither an integer nor two, from 0 on",
            "pass (left, right): how many keys before and after each query it attends to",
        )  # fmt: skip
    return window(left=int(sides[0]), right=int(sides[1]), align=sizes.align)


def _is_extent(side: Any) -> bool:
    return isinstance(side, int | np.integer) and not isinstance(side, bool) and int(side) >= 0


def _rows(lengths: Any, name: str, sizes: Sizes, one: Callable[[int], Pattern]) -> Pattern | None:
    if lengths is None:
        return None
    found = _concrete(lengths, name)
    if found.shape != (sizes.batch,) or found.dtype.kind not in "iu" or (found < 0).any():
        _wrong(
            f"{name} is {found.dtype} of shape {found.shape}, and there are {sizes.batch} batch rows",
            f"pass {name} as ({sizes.batch},) integers from 0 on",
        )
    return _per_row([one(int(length)) for length in found])


def _segments(ids: Any, sizes: Sizes) -> Pattern | None:
    if ids is None:
        return None
    found = _concrete(ids, "segment_ids")
    found = found[None] if found.ndim == 1 else found
    if found.shape != (sizes.batch, sizes.m) or sizes.m != sizes.n or found.dtype.kind not in "iu":
        _wrong(
            f"segment_ids is {found.dtype} of shape {found.shape}, and there are {sizes.batch} batch rows, {sizes.m} "
            f"queries and {sizes.n} keys",
            "pass integers (B, T), for as many keys as queries",
        )
    return _per_row([documents(ids=row) for row in found])


def _per_row(patterns: list[Pattern]) -> Pattern:
    """One pattern if all batch rows have the same."""
    return patterns[0] if all(one == patterns[0] for one in patterns) else per_batch(patterns)


def _mask(mask: Any, sizes: Sizes) -> Pattern | None:
    if mask is None:
        return None
    found = _concrete(mask, "mask")
    if found.dtype != np.bool_:
        _wrong(f"the mask is {found.dtype}, not boolean", "pass True where a query may attend: mask.astype(bool)")
    found = found.reshape((1,) * (4 - found.ndim) + found.shape) if found.ndim < 4 else found
    wanted = (sizes.batch, sizes.heads, sizes.m, sizes.n)
    if found.ndim != 4 or any(a not in (1, b) for a, b in zip(found.shape, wanted, strict=True)):
        _wrong(f"the mask is {np.shape(mask)}", f"pass a mask that broadcasts to {wanted}")
    return recognize_mask(np.broadcast_to(found, (*found.shape[:2], sizes.m, sizes.n))).pattern


def recognized(mask: Any, query: Any, key: Any) -> Pattern:
    """The pattern of a concrete boolean mask that broadcasts to (B, N, T, S)."""
    found = _mask(mask, _sizes(query, key))
    assert found is not None
    return found


def _bias(bias: Any) -> Any:
    """jax.nn's bias may have any real dtype and two axes or more; axes before them are those of heads and rows."""
    if bias is None:
        return None
    if not isinstance(bias, Array | np.ndarray) or bias.ndim > 4 or bias.ndim < 2:
        _wrong(f"the bias is {_said(bias)}", "pass an array that broadcasts to (B, N, T, S)")
    return bias if np.issubdtype(bias.dtype, np.floating) or "float" in str(bias.dtype) else bias.astype(np.float32)


def _said(x: Any) -> str:
    return f"of shape {x.shape}" if hasattr(x, "shape") else type(x).__name__


def _concrete(x: Any, name: str) -> Any:
    """The values of an array that decide what is compiled."""
    if isinstance(x, jax.core.Tracer):
        _wrong(
            f"{name} is traced, and it decides which pairs are computed",
            f"outside of jax.jit write {name} as a pattern and plan it: planned = weft.jax.plan(pattern, query, key, "
            "value); then pass it on: weft.jax.attention(query, key, value, planned)",
        )
    if not isinstance(x, Array | np.ndarray | list | tuple):
        _wrong(f"{name} is {type(x).__name__}", f"pass {name} as an array")
    return np.asarray(x)


def _wrong(wrong: str, cure: str) -> NoReturn:
    raise InputError(f"{ASKED}(query, key, value, ...)", wrong, cure)
