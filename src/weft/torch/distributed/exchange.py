"""Rows between ranks: one `all_to_all_single` of torch.distributed. Every rank takes part in every exchange."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Blocks = Sequence[Sequence[Tensor]]  # of one dtype, by peer
Shapes = Sequence[Sequence[torch.Size]]
# Cycles that computing waits, so that an exchange begins first. Programs stay on their processors until a kernel ends,
# and would keep the exchange and its peers waiting as long.
HEAD_START = 10_000


class Pending:
    """An exchange that was begun. flat: what is sent, one peer's after the other's; to, of: elements that go to each
    peer, and that come from each.
    """

    def __init__(self, flat: Tensor, to: Sequence[int], of: Sequence[int], group: Any) -> None:
        self.flat, self.buffer = flat, flat.new_empty(sum(of))
        of, to = list(of), list(to)
        if not flat.is_cuda:
            self.work = dist.all_to_all_single(self.buffer, flat, of, to, group=group, async_op=True)
            return
        stream = _beside(flat.device)
        stream.wait_stream(torch.cuda.current_stream(flat.device))
        with torch.cuda.stream(stream):
            dist.all_to_all_single(self.buffer, flat, of, to, group=group)
            self.done = stream.record_event()

    def begins_first(self) -> None:
        """Let what is computed from now on begin later than the exchange."""
        if self.flat.is_cuda:
            torch.cuda._sleep(HEAD_START)

    def arrived(self) -> Tensor:
        """What came, one peer's after the other's."""
        if self.flat.is_cuda:
            torch.cuda.current_stream(self.flat.device).wait_event(self.done)
        else:
            self.work.wait()
        return self.buffer


@lru_cache(maxsize=64)
def _beside(device: torch.device) -> torch.cuda.Stream:
    """The stream of exchanges. Its kernels take processors before others do that are ready at the same time."""
    return torch.cuda.Stream(device, priority=-1)


def sent(blocks: Blocks, shapes: Shapes, group: Any) -> Pending:
    """Blocks on their way to each peer. shapes: of those that come."""
    return Pending(packed(blocks), elements(shapes_of(blocks)), elements(shapes), group)


def elements(shapes: Shapes) -> list[int]:
    """Of all blocks of each peer."""
    return [sum(map(prod, peer)) for peer in shapes]


def shapes_of(blocks: Blocks) -> Shapes:
    """The shapes of blocks."""
    return [[x.shape for x in peer] for peer in blocks]


def packed(blocks: Blocks) -> Tensor:
    """Blocks of any strides one after the other, each copied once."""
    every = [x for peer in blocks for x in peer]
    flat = every[0].new_empty(sum(x.numel() for x in every))
    for place, x in zip(flat.split([x.numel() for x in every]), every, strict=True):
        if x.numel():
            place.view(x.shape).copy_(x)
    return flat


def unpacked(flat: Tensor, shapes: Shapes) -> list[list[Tensor]]:
    """By peer the blocks that lie one after the other."""
    ends = [0, *accumulate(prod(shape) for peer in shapes for shape in peer)]
    blocks = iter([flat[a:b] for a, b in pairwise(ends)])
    return [[next(blocks).view(shape) for shape in peer] for peer in shapes]


class Travel(torch.autograd.Function):
    """An exchange and its gradients' way back, nothing computed meanwhile. Blocks are one peer's after another's."""

    @staticmethod
    def forward(ctx: Any, sent: Shapes, received: Shapes, group: Any, *blocks: Tensor) -> Any:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return tuple(x for peer in _swapped(blocks, sent, received, group) for x in peer)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        back = _swapped(grads, ctx.received, ctx.sent, ctx.group)
        return None, None, None, *(x for peer in back for x in peer)


def _swapped(blocks: Sequence[Tensor], sent: Shapes, received: Shapes, group: Any) -> list[list[Tensor]]:
    each = iter(blocks)
    flat = packed([[next(each) for _ in peer] for peer in sent])
    return unpacked(Pending(flat, elements(sent), elements(received), group).arrived(), received)


def travelled(blocks: Blocks, shapes: Shapes, group: Any) -> list[list[Tensor]]:
    """By peer the blocks that came, with gradients."""
    came = iter(Travel.apply(shapes_of(blocks), shapes, group, *(x for peer in blocks for x in peer)))
    return [[next(came) for _ in peer] for peer in shapes]
