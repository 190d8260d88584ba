"""SparseAttention: a pattern and its options as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.errors import OptionError
from weft.pattern.algebra import Pattern
from weft.torch.attention import attention, check_mask
from weft.torch.inputs import check_numbers

OPTIONS = ("scale", "softcap", "alibi_slopes", "return_lse", "backend", "deterministic")


class SparseAttention(torch.nn.Module):
    """`attention` with a pattern and options kept; no parameters unless sinks are given, which become one.

    Deep-copies, pickles and exports: the pattern is an immutable value, and `pattern` may be assigned anew at any time.
    options: scale, softcap, alibi_slopes, return_lse, backend, deterministic, as for `attention`; what can be
    seen wrong without tensors is refused here, the rest at the first call.
    """

    def __init__(self, pattern: Pattern, *, sinks: Tensor | None = None, **options: Any) -> None:
        super().__init__()
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise OptionError(
                f"SparseAttention({', '.join(unknown)}=...)", "it takes no such option", f"use {', '.join(OPTIONS)}"
            )
        check_mask(pattern)
        check_numbers(options)
        slopes = options.pop("alibi_slopes", None)
        self.pattern, self.options = pattern, options
        self.register_buffer("alibi_slopes", slopes)
        self.sinks = None if sinks is None else torch.nn.Parameter(sinks)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv) -> (B, Hq, M, Dv); see `attention`."""
        return attention(q, k, v, self.pattern, sinks=self.sinks, alibi_slopes=self.alibi_slopes, **self.options)

    def extra_repr(self) -> str:
        """The pattern, and the options that were given."""
        return ", ".join([str(self.pattern), *(f"{key}={value}" for key, value in self.options.items())])
