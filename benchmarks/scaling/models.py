"""Blocks to train: those of a Gemma-3-like model, whose layers see 1024 tokens but for every sixth, and of video."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import gelu, rms_norm
from torch.utils.checkpoint import checkpoint

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    hidden: int
    inner: int
    heads: tuple[int, int]
    dim: int


class Block(nn.Module):
    """Attention and a gated network, each behind a norm. Positions are the caller's: queries come rotated in models,
    which costs the same whoever computes attention, so that it is left out.
    """

    def __init__(self, sizes: Sizes, attend: Attend) -> None:
        super().__init__()
        (q, kv), d = sizes.heads, sizes.dim
        self.sizes, self.attend = sizes, attend
        self.qkv = nn.Linear(sizes.hidden, (q + 2 * kv) * d, bias=False)
        self.out = nn.Linear(q * d, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.hidden, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        (q, kv), d = self.sizes.heads, self.sizes.dim
        rows = self.qkv(rms_norm(x, x.shape[-1:])).unflatten(-1, (q + 2 * kv, d)).transpose(1, 2)
        parts = [part.contiguous() for part in rows.split((q, kv, kv), dim=1)]
        x = x + self.out(self.attend(*parts).transpose(1, 2).flatten(2))
        gate, up = self.up(rms_norm(x, x.shape[-1:])).chunk(2, dim=-1)
        return x + self.down(gelu(gate) * up)


def train(blocks: Sequence[Block], x: Tensor) -> Callable[[], Any]:
    """A step: forward and backward with checkpoints, and gradients of parameters added over ranks."""
    parameters = [p for block in blocks for p in block.parameters()]

    def step() -> None:
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False) if len(blocks) > 1 else block(y)
        y.float().square().mean().backward()
        for p in parameters:
            dist.all_reduce(p.grad)
            p.grad = None

    return step
