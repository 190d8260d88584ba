"""Rows between ranks, and their gradients back: one `all_to_all_single` of torch.distributed each way.

Every rank takes part in every exchange, forward and backward, whatever it sends: `tie` sees to the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Message:
    """Blocks of one dtype for each peer, and the shapes (rows, ...) of those that come from each.

    sent[p], received[p]: shapes of the blocks to and from peer p.
    """

    sent: tuple[tuple[torch.Size, ...], ...]
    received: tuple[tuple[torch.Size, ...], ...]

    @property
    def splits(self) -> tuple[list[int], list[int]]:
        """Elements to each peer, and from each."""
        to, of = ([sum(map(prod, blocks)) for blocks in side] for side in (self.sent, self.received))
        return to, of

    def unpacked(self, flat: Tensor) -> list[list[Tensor]]:
        """By peer the blocks that came."""
        shapes = [shape for blocks in self.received for shape in blocks]
        ends = [0, *accumulate(map(prod, shapes))]
        blocks = iter([flat[a:b].view(shape) for (a, b), shape in zip(pairwise(ends), shapes, strict=True)])
        return [[next(blocks) for _ in peer] for peer in self.received]


class Pending:
    """An exchange that was begun."""

    def __init__(self, message: Message, blocks: Sequence[Sequence[Tensor]], group: Any) -> None:
        self.message, self.group = message, group
        self.flat = torch.cat([x.reshape(-1) for peer in blocks for x in peer])
        to, of = message.splits
        with torch.no_grad():
            self.buffer = self.flat.new_empty(sum(of))
            self.work = dist.all_to_all_single(self.buffer, self.flat.detach(), of, to, group=group, async_op=True)

    def arrived(self) -> tuple[Tensor, list[list[Tensor]]]:
        """(a scalar 0 for `tie`, by peer the blocks that came)."""
        scalar, flat = _Arrive.apply(self, self.flat)
        return scalar, self.message.unpacked(flat)


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pending: Pending, flat: Tensor) -> Any:
        pending.work.wait()
        ctx.splits, ctx.group, ctx.size = pending.message.splits, pending.group, flat.numel()
        return flat.new_zeros(()), pending.buffer

    @staticmethod
    def backward(ctx: Any, _: Any, grad: Any) -> Any:
        to, of = ctx.splits
        back = grad.new_empty(ctx.size)
        dist.all_to_all_single(back, grad.contiguous(), to, of, group=ctx.group)
        return None, back


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *scalars: Tensor) -> Tensor:
        ctx.save_for_backward(*scalars)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        # A checkpoint recomputes what was saved: here, with its exchanges, on every rank before any way back begins.
        return grad, *(torch.zeros_like(scalar) for scalar in ctx.saved_tensors)


def tie(x: Tensor, scalars: Sequence[Tensor]) -> Tensor:
    """x, whose gradient also runs through the scalars of exchanges, with which it has nothing to do: a rank that
    received nothing takes part in the way back nevertheless, as its peers expect.
    """
    return _Tie.apply(x, *scalars) if scalars else x


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *rows: Tensor) -> Any:
        ctx.rows, ctx.shape, ctx.dtype = rows, x.shape, x.dtype
        return tuple(x.index_select(2, some).permute(2, 0, 1, 3).contiguous() for some in rows)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        wide = torch.float64 if ctx.dtype == torch.float64 else torch.float32
        total = torch.zeros(ctx.shape, dtype=wide, device=grads[0].device)
        for rows, grad in zip(ctx.rows, grads, strict=True):
            total.index_add_(2, rows, grad.permute(1, 2, 0, 3).to(wide))  # no row twice in one index
        return total.to(ctx.dtype), *(None for _ in ctx.rows)


def pick(x: Tensor, rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Rows of x (B, H, S, D) for each peer, (rows, B, H, D). Gradients are added in float32, peer after peer."""
    return tuple(_Pick.apply(x, *rows))
