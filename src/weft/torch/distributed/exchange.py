"""Rows between ranks, and their gradients back: one `all_to_all_single` of torch.distributed each way.

Every rank takes part in every exchange, forward and backward, whatever it sends: `tie` sees to the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from weft.pattern.bounds import Ints
from weft.torch.device_tables import kept


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
        self.message = message
        self.way = _Way(*message.splits, group)
        self.flat = _Begin.apply(self.way, torch.cat([x.reshape(-1) for peer in blocks for x in peer]))

    def arrived(self) -> tuple[Tensor, list[list[Tensor]]]:
        """(a scalar 0 for `tie`, by peer the blocks that came)."""
        scalar, flat = _Arrive.apply(self.way, self.flat)
        return scalar, self.message.unpacked(flat)


class _Way:
    """One exchange and the way back of its gradients. Each begins in one node of the graph and ends in another, so
    that whatever autograd computes between the two runs meanwhile.
    """

    def __init__(self, to: list[int], of: list[int], group: Any) -> None:
        self.to, self.of, self.group = to, of, group
        self.work: Any = None
        self.buffer: Tensor | None = None

    def begin(self, flat: Tensor, to: list[int], of: list[int]) -> Tensor:
        """Send elements of flat; returns the tensor that holds what comes once the way ended."""
        came = flat.new_empty(sum(of))
        self.work = dist.all_to_all_single(came, flat, of, to, group=self.group, async_op=True)
        return came

    def end(self) -> None:
        """Wait for what was begun."""
        work, self.work = self.work, None
        if work is not None:
            work.wait()


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, way: _Way, flat: Tensor) -> Tensor:
        ctx.way = way
        way.buffer = way.begin(flat, way.to, way.of)
        return flat.view_as(flat)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        ctx.way.end()
        return None, grad


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, way: _Way, flat: Tensor) -> Any:
        way.end()
        buffer, way.buffer = way.buffer, None  # kept by what holds the result alone, which holds this node
        ctx.way = way
        return flat.new_zeros(()), buffer

    @staticmethod
    def backward(ctx: Any, _: Any, grad: Any) -> Any:
        way = ctx.way
        back = way.begin(grad.contiguous(), way.of, way.to)
        if torch.is_anomaly_enabled():  # which reads gradients between nodes
            way.end()
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


@dataclass(frozen=True, eq=False)
class Sent:
    """rows: places for each peer. union: all of them, ascending; at: for each peer where its rows are in that."""

    rows: tuple[Tensor, ...]
    union: Tensor
    at: tuple[Tensor, ...]

    @classmethod
    def of(cls, places: Sequence[Ints], device: torch.device) -> Sent:
        """From the places of the rows that each peer is sent."""
        union = np.unique(np.concatenate(places))
        at = tuple(tensor_of(np.searchsorted(union, rows), device) for rows in places)
        return cls(tuple(tensor_of(rows, device) for rows in places), tensor_of(union, device), at)


def tensor_of(places: Ints, device: torch.device) -> Tensor:
    """An index that is kept: not one of inference mode, which no graph may save."""
    with torch.inference_mode(False):
        return kept(lambda: torch.as_tensor(places, device=device), device)


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: Sent) -> Any:
        ctx.sent, ctx.shape = sent, x.shape
        ctx.set_materialize_grads(False)
        return x.view_as(x), *(x.index_select(2, rows).permute(2, 0, 1, 3).contiguous() for rows in sent.rows)

    @staticmethod
    def backward(ctx: Any, own: Any, *grads: Any) -> Any:
        given = [(at, grad) for at, grad in zip(ctx.sent.at, grads, strict=True) if grad is not None]
        if not given:
            return own, None
        if own is None:
            own = given[0][1].new_zeros(ctx.shape)
        wide = torch.float64 if own.dtype == torch.float64 else torch.float32
        total = own.index_select(2, ctx.sent.union).to(wide)
        for at, grad in given:
            total.index_add_(2, at, grad.permute(1, 2, 0, 3).to(wide))  # no row twice in one index
        # in place: only parts of this call have gradients of the view, each of its own making
        return own.index_copy_(2, ctx.sent.union, total.to(own.dtype)), None


def pick(x: Tensor, sent: Sent) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(x, rows of x (B, H, S, D) for each peer, each (rows, B, H, D)).

    Whoever uses x further uses what is returned: its gradient and those of the rows are added there, in float32, peer
    after peer, and no other row of the gradient is touched again.
    """
    whole, *blocks = _Pick.apply(x, sent)
    return whole, tuple(blocks)
