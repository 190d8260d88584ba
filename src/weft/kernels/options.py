"""What all backends that compute with torch tensors share: the options of scores, and what results look like."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.score.dropout import HEADER
from weft.score.evaluate import Rule

ACCUMULATE = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}


@dataclass(frozen=True, eq=False)
class Dropping:
    """rate: the share of weights that is dropped. seed: one int64 number in a tensor, of a part of a sequence followed
    by `weft.score.dropout.whole_indices`, where the law is too.
    """

    rate: float
    seed: torch.Tensor

    @property
    def tokens(self) -> int:
        """How many numbers of queries and keys follow the seed; 0: they have their own."""
        return max(0, self.seed.numel() - HEADER)


@dataclass(frozen=True, eq=False)
class Modifiers:
    """What is done to scores, in this order: scale, softcap, rules, alibi; and to weights: dropout.

    alibi: (Hq,) slopes, None for none. shift: what alignment adds to query indices. rules: score functions with their
    tables, each of the result of the one before it.
    """

    scale: float
    softcap: float | None = None
    alibi: torch.Tensor | None = None
    shift: int = 0
    rules: tuple[Rule, ...] = ()
    dropout: Dropping | None = None


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
