"""SparseAttention: a pattern and its options as a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.errors import OptionError
from weft.pattern.algebra import Pattern
from weft.torch.attention import attention
from weft.torch.call import check_mask, unwrapped
from weft.torch.extras import check_rate
from weft.torch.frameworks import refuse_script
from weft.torch.inputs import check_choices, check_numbers, check_row
from weft.torch.key_cache import decode_attention
from weft.torch.keywords import refuse_unknown
from weft.torch.layouts import check_layout

if TYPE_CHECKING:
    from weft.recognition import Recognized

RANKS = ("group", "mesh", "dim", "shards", "strategy")
OPTIONS = ("scale", "softcap", "alibi_slopes", "return_lse", "backend", "deterministic", "layout", "dropout", *RANKS)
NARROW = (torch.bfloat16, torch.float16)


class SparseAttention(torch.nn.Module):
    """`attention` with a pattern and options kept; no parameters unless sinks are given, which are one or become one.

    Deep-copies, pickles and exports: the pattern is an immutable value, and `pattern` may be assigned anew at any time.
    options: scale, softcap, alibi_slopes, return_lse, backend, deterministic and layout, as for `attention`. dropout:
    in training alone. group, or mesh and dim: ranks that hold a sequence together, each with its own tokens. shards,
    strategy: of such ranks, see `weft.distributed.attention`. What can be seen wrong without tensors is refused here,
    the rest at the first call. Sinks and slopes keep their digits where a model is converted:
    `module.to(torch.bfloat16)` or `.half()` leave them in float32. Example::

        attend = SparseAttention(weft.causal() & weft.window(left=1023), sinks=torch.zeros(heads), layout="bshd")
        out = attend(q, k, v)  # (B, M, Hq, Dv)
    """

    def __init__(self, pattern: Pattern | Recognized, *, sinks: Tensor | None = None, **options: Any) -> None:
        super().__init__()
        refuse_unknown("SparseAttention", {name: x for name, x in options.items() if name not in OPTIONS}, OPTIONS)
        kept: Pattern = unwrapped(pattern)
        check_mask(kept, "SparseAttention")
        check_numbers(options)
        check_rate(options.get("dropout", 0.0))
        check_choices(options.get("backend", "auto"), options.get("deterministic"))
        check_layout(options.get("layout", "bhsd"), "SparseAttention")
        slopes = options.pop("alibi_slopes", None)
        for name, x in (("sinks", sinks), ("alibi_slopes", slopes)):
            if x is not None:
                check_row(name, x)
        self.pattern, self.options = kept, options
        alone = [name for name in RANKS if name in options]
        if alone and not self.is_over_ranks:
            raise OptionError(
                f"SparseAttention({alone[0]}=...)", "it is not said which ranks hold the sequence",
                "pass group=torch.distributed.group.WORLD, or mesh and dim",
            )  # fmt: skip
        self.register_buffer("alibi_slopes", slopes)
        self.sinks = sinks if sinks is None or isinstance(sinks, torch.nn.Parameter) else _parameter(sinks)

    def forward(  # noqa: PLR0913 - as `attention`
        self, q: Tensor, k: Tensor, v: Tensor, *, extra_keys: Tensor | None = None, extra_values: Tensor | None = None,
        score: Any = None, bias: Any = None,
    ) -> Any:  # fmt: skip
        """q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv) -> (B, Hq, M, Dv), or as `layout` says; see `attention`.

        With return_lse: (out, lse). score, bias: as for `attention`; their tables are parameters of whoever calls.
        """
        rows: dict[str, Any] = {"sinks": self.sinks, "alibi_slopes": self.alibi_slopes}
        extra: dict[str, Any] = {"extra_keys": extra_keys, "extra_values": extra_values, "score": score, "bias": bias}
        options = self.options if self.training else {**self.options, "dropout": 0}
        if self.is_over_ranks:
            from weft.distributed import attention as over_ranks

            return over_ranks(q, k, v, self.pattern, **rows, **extra, **options)
        return attention(q, k, v, self.pattern, **rows, **extra, **options)

    @property
    def is_over_ranks(self) -> bool:
        """Whether ranks of a group hold the tokens."""
        return self.options.get("group") is not None or self.options.get("mesh") is not None

    def decode(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, key_count: Any, **counts: Any) -> Any:
        """`weft.decode_attention` with the pattern and options kept, for a cache whose length the device alone knows.

        q (B, Hq, M, D), k_cache (B, Hkv, C, D), v_cache (B, Hkv, C, Dv), whatever the layout is. counts: offset,
        window, ring, block_table. The pattern is to be aligned "bottom-right". No gradients, no dropout.
        """
        kept = {
            name: x for name, x in self.options.items() if name not in ("layout", "dropout", "deterministic", *RANKS)
        }
        rows = {"sinks": self.sinks, "alibi_slopes": self.alibi_slopes}
        return decode_attention(q, k_cache, v_cache, self.pattern, key_count, **rows, **counts, **kept)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SparseAttention:
        """As torch's, but sinks and slopes stay as wide as they are."""
        super()._apply(lambda x: _kept_wide(x, fn(x)), recurse)
        return self

    def __prepare_scriptable__(self) -> Any:
        """`torch.jit.script` calls it: refused by name."""
        refuse_script(self)

    def extra_repr(self) -> str:
        """The pattern, and the options that were given."""
        return ", ".join([str(self.pattern), *(f"{key}={value}" for key, value in self.options.items())])


def _kept_wide(x: Tensor, converted: Tensor) -> Tensor:
    """What became of x, with the dtype of x where a conversion would take digits off it."""
    if converted.dtype in NARROW and x.is_floating_point() and x.dtype not in NARROW:
        return x.to(converted.device)
    return converted


def _parameter(sinks: Tensor) -> torch.nn.Parameter:
    if not sinks.is_floating_point():
        raise OptionError(
            f"SparseAttention(sinks={sinks.dtype})", "a parameter is of a floating dtype", "pass sinks.float()"
        )
    return torch.nn.Parameter(sinks)
