"""MultiheadSparseAttention: projections around sparse attention, and a cache of keys for its steps of decoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.acsr.placed import placed
from weft.errors import InputError, OptionError
from weft.pattern.algebra import Pattern
from weft.torch.attention import attention
from weft.torch.module import SparseAttention


class KeyCache:
    """Keys and values (B, Hkv, C, D) of the tokens so far; `length` of them, at most C.

    Made by `MultiheadSparseAttention.cache`. Setting length to a smaller number forgets the last tokens.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values, self.length = keys, values, 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v (B, Hkv, M, D) behind the others; returns all so far, as views. Raises InputError if full."""
        after = self.length + k.shape[2]
        if after > self.keys.shape[2] or k.shape[:2] != self.keys.shape[:2]:
            rows, heads, capacity = self.keys.shape[:3]
            raise InputError(
                f"KeyCache.append of {tuple(k.shape)}",
                f"it is of {rows} batch rows and {heads} heads, and has room for {capacity - self.length} tokens",
                "make a larger cache: attend.cache(batch, capacity)",
            )
        self.keys[:, :, self.length : after] = k
        self.values[:, :, self.length : after] = v
        self.length = after
        return self.keys[:, :, :after], self.values[:, :, :after]


class MultiheadSparseAttention(torch.nn.Module):
    """Self-attention of (B, S, embed_dim) under a pattern: projections to heads, attention, a projection back.

    heads: query heads. kv_heads: key and value heads, which divide heads; as many if None. head_dim: embed_dim // heads
    if None. bias: whether projections have one. options: as of `SparseAttention`: sinks, scale, softcap, alibi_slopes,
    dropout (in training alone), backend, deterministic. Parameters: q_proj, k_proj, v_proj, out_proj, as
    torch.nn.Linear. Raises OptionError for sizes, and what SparseAttention raises. Example::

        attend = MultiheadSparseAttention(768, 12, weft.causal() & weft.window(left=1023), kv_heads=4)
        out = attend(x)  # (B, S, 768)
    """

    def __init__(
        self, embed_dim: int, heads: int, pattern: Any, *, kv_heads: int | None = None, head_dim: int | None = None,
        bias: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if head_dim is None and embed_dim % heads:
            _refuse(f"heads={heads}", f"they do not divide embed_dim={embed_dim}", "pass head_dim=, or other heads")
        if kv_heads < 1 or heads % kv_heads:
            _refuse(f"kv_heads={kv_heads}", f"they do not divide heads={heads}", "pass a divisor of heads")
        for name in ("layout", "return_lse"):
            if name in options:
                _refuse(f"{name}=...", "its input is (B, S, embed_dim), and it returns that alone", f"leave out {name}")
        self.heads, self.kv_heads = heads, kv_heads
        self.head_dim = embed_dim // heads if head_dim is None else head_dim
        self.attend = SparseAttention(pattern, layout="bshd", **options)
        self.q_proj = torch.nn.Linear(embed_dim, heads * self.head_dim, bias)
        self.k_proj = torch.nn.Linear(embed_dim, kv_heads * self.head_dim, bias)
        self.v_proj = torch.nn.Linear(embed_dim, kv_heads * self.head_dim, bias)
        self.out_proj = torch.nn.Linear(heads * self.head_dim, embed_dim, bias)

    @property
    def pattern(self) -> Pattern:
        """Which query sees which key; it may be assigned anew."""
        return self.attend.pattern

    @pattern.setter
    def pattern(self, pattern: Pattern) -> None:
        self.attend.pattern = pattern

    def cache(self, batch: int, capacity: int) -> KeyCache:
        """An empty cache for `batch` rows of up to `capacity` tokens, where the parameters are and as these are."""
        shape = batch, self.kv_heads, capacity, self.head_dim
        weight = self.k_proj.weight
        return KeyCache(*(torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(2)))

    def forward(self, x: Tensor, *, cache: KeyCache | None = None, score: Any = None, bias: Any = None) -> Tensor:
        """x (B, S, embed_dim) -> (B, S, embed_dim); score, bias: as for `attention`.

        With a cache x are the tokens after those in it, and are added to it. They see tokens of the cache too, as the
        pattern says of the whole sequence. Caches are for inference: gradients do not reach tokens of former calls.
        """
        q = self.q_proj(x).unflatten(-1, (self.heads, self.head_dim))
        k, v = (proj(x).unflatten(-1, (self.kv_heads, self.head_dim)) for proj in (self.k_proj, self.v_proj))
        if cache is None:
            out = self.attend(q, k, v, score=score, bias=bias)
        else:
            out = self._cached((q, k, v), cache, {"score": score, "bias": bias})
        return self.out_proj(out.flatten(-2))

    def _cached(self, tensors: tuple[Tensor, Tensor, Tensor], cache: KeyCache, given: dict[str, Any]) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in tensors)
        before, m = cache.length, q.shape[2]
        keys, values = cache.append(k.detach(), v.detach())
        pattern = placed(self.pattern, (m, before + m), (before, 0))
        options = {**self.attend.options, "layout": "bhsd", **given}
        if not self.training:
            options["dropout"] = 0
        rows = {"sinks": self.attend.sinks, "alibi_slopes": self.attend.alibi_slopes}
        out = attention(q, keys, values, pattern, **rows, **options)
        return out.transpose(1, 2)


def _refuse(asked: str, wrong: str, cure: str) -> None:
    raise OptionError(f"MultiheadSparseAttention({asked})", wrong, cure)
