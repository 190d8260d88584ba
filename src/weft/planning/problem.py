"""Problem: the shapes and dtypes of one attention call, checked once."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Problem:
    """q: (batch, q_heads, m, d), k: (batch, kv_heads, n, d), v: (batch, kv_heads, n, dv), all of one dtype."""

    batch: int
    q_heads: int
    kv_heads: int
    m: int
    n: int
    d: int
    dv: int
    dtype: str = "float32"
    device: str = "cpu"

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.q_heads // max(1, self.kv_heads)

    def __str__(self) -> str:
        heads = f"{self.q_heads}" if self.group == 1 else f"{self.q_heads}:{self.kv_heads}"
        dims = f"{self.d}" if self.d == self.dv else f"{self.d}/{self.dv}"
        return f"B={self.batch} H={heads} M={self.m} N={self.n} D={dims} {self.dtype} on {self.device}"
