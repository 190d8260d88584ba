"""equinox: attention under a pattern as a module."""

from __future__ import annotations

from typing import Any

import equinox
from jax import Array

from weft.errors import OptionError
from weft.jax.attention import attention
from weft.jax.inputs import check_mask, check_numbers
from weft.jax.mask import PlannedMask
from weft.pattern.algebra import Pattern

OPTIONS = ("scale", "softcap", "alibi_slopes", "return_lse", "layout", "implementation", "deterministic")


class SparseAttention(equinox.Module):  # type: ignore[misc]  # equinox is not looked at
    """`weft.jax.attention` with a mask and options kept; no parameters unless sinks are given.

    pattern: a weft pattern, which is static, or a planned mask, which is an array like any other. options: scale,
    softcap, alibi_slopes, return_lse, layout, implementation, deterministic, as for `weft.jax.attention`. Called with q
    (T, N, H), k (S, K, H), v (S, K, Hv), as equinox's modules are without a batch. A batch may be in front; jax.vmap
    serves as well. A mask given with the call is used instead.

        attend = weft.jax.equinox.SparseAttention(weft.causal() & weft.window(left=255))
        out = jax.vmap(attend)(q, k, v)
    """

    sinks: Array | None
    alibi_slopes: Array | None
    planned: PlannedMask | None
    pattern: Pattern | None = equinox.field(static=True)
    options: tuple[tuple[str, Any], ...] = equinox.field(static=True)

    def __init__(self, pattern: Pattern | PlannedMask, *, sinks: Array | None = None, **options: Any) -> None:
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise OptionError(
                f"SparseAttention({', '.join(unknown)}=...)", "it takes no such option", f"use {', '.join(OPTIONS)}"
            )
        check_mask(pattern, "SparseAttention")
        check_numbers(options)
        self.sinks, self.alibi_slopes = sinks, options.pop("alibi_slopes", None)
        self.planned = pattern if isinstance(pattern, PlannedMask) else None
        self.pattern = None if isinstance(pattern, PlannedMask) else pattern
        self.options = tuple(sorted(options.items()))

    def __call__(self, q: Array, k: Array, v: Array, mask: Any = None) -> Any:
        """As `weft.jax.attention`."""
        for kept in (self.planned, self.pattern):
            mask = kept if mask is None else mask
        return attention(
            q, k, v, mask, sinks=self.sinks, alibi_slopes=self.alibi_slopes,
            **dict(self.options),
        )  # fmt: skip
