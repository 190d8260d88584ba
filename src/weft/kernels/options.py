"""What all backends that compute with torch tensors share: the options of scores, and what results look like."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

ACCUMULATE = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}


@dataclass(frozen=True, eq=False)
class Modifiers:
    """What is done to scores. alibi: (pairs, group) slopes, with `shift` added to query indices; None for none."""

    scale: float
    softcap: float | None = None
    alibi: torch.Tensor | None = None
    shift: int = 0

    def of_head(self, pair: int, head: int) -> Modifiers:
        """Those of one head of one pair."""
        if self.alibi is None:
            return self
        return replace(self, alibi=self.alibi[pair : pair + 1, head : head + 1])

    def times(self, unit: float) -> Modifiers:
        """Those that make every score `unit` times as large."""
        cap = None if self.softcap is None else self.softcap * unit
        return replace(
            self, scale=self.scale * unit, softcap=cap, alibi=None if self.alibi is None else self.alibi * unit
        )


def rows_in_order_of(q: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """(B, Hq, M, width), uninitialised, with B, H and M ordered in memory as in q. Fake tensors use it too."""
    order = sorted(range(3), key=q.stride, reverse=True)
    return torch.empty_permuted((*q.shape[:3], width), (*order, 3), dtype=dtype, device=q.device)


def join_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """lse with the sinks in it; out is scaled in place."""
    total = torch.logaddexp(lse, sinks.to(lse.dtype)[None, :, None].expand_as(lse))
    out.mul_((lse - total.clamp(min=torch.finfo(lse.dtype).min)).exp_()[..., None])  # nothing and no sink: still 0
    return total


def sink_gradient(sinks: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """-(share of the sink in each row) * delta, over batch rows and queries: (Hq,), in the dtype of the sinks. lse,
    delta: (B, Hq, M).
    """
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # a row without keys or sink has no share
    share = (sinks.to(lse.dtype)[None, :, None] - lse).clamp_(max=0.0).exp_()  # large lse are rounded
    return -(share * delta).sum((0, 2)).to(sinks.dtype)
