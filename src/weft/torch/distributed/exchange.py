"""Rows between ranks: one `all_to_all_single` of torch.distributed. Every rank takes part in every exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from weft.pattern.bounds import Ints
from weft.torch.device_tables import kept

Blocks = Sequence[Sequence[Tensor]]  # of one dtype, by peer
Shapes = Sequence[Sequence[torch.Size]]
Rows: TypeAlias = "slice | Tensor"
Peers = Sequence[Sequence[Tensor]]  # by peer keys, values and queries (B, H, rows, D)


class Pending:
    """An exchange that was begun. flat: what is sent, see `packed`; shapes: of the blocks that come from each peer;
    sent: of those that go to each.
    """

    def __init__(self, flat: Tensor, sent: Shapes, shapes: Shapes, group: Any) -> None:
        self.flat, self.shapes = flat, shapes
        to, of = ([sum(map(prod, peer)) for peer in side] for side in (sent, shapes))
        self.buffer = self.flat.new_empty(sum(of))
        self.work = dist.all_to_all_single(self.buffer, self.flat, of, to, group=group, async_op=True)

    def arrived(self) -> Tensor:
        """What came, see `unpacked`."""
        self.work.wait()
        return self.buffer


def sent(blocks: Blocks, shapes: Shapes, group: Any) -> Pending:
    """Blocks on their way to each peer."""
    return Pending(packed(blocks), shapes_of(blocks), shapes, group)


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


def rows_first(x: Tensor, rows: int) -> torch.Size:
    """The shape of some rows of x (B, H, S, D) as they travel."""
    return torch.Size((rows, *x.shape[:2], x.shape[3]))


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
    return unpacked(Pending(flat, sent, received, group).arrived(), received)


def travelled(blocks: Blocks, shapes: Shapes, group: Any) -> list[list[Tensor]]:
    """By peer the blocks that came, with gradients."""
    came = iter(Travel.apply(shapes_of(blocks), shapes, group, *(x for peer in blocks for x in peer)))
    return [[next(came) for _ in peer] for peer in shapes]


# ---- rows of a tensor ------------------------------------------------------------------------------------------------
def rows_at(places: Ints, device: torch.device) -> Rows:
    """Rows at ascending places: a slice where they are one run."""
    if not places.size:
        return slice(0, 0)
    if places[-1] - places[0] + 1 == places.size:
        return slice(int(places[0]), int(places[-1]) + 1)
    return tensor_of(places, device)


def taken(x: Tensor, rows: Rows) -> Tensor:
    """Some rows of x (B, H, S, ...)."""
    return x[:, :, rows] if isinstance(rows, slice) else x.index_select(2, rows)


def added(x: Tensor, rows: Rows, values: Tensor) -> None:
    """Add to some rows of x, no row twice: the sum of two numbers is rounded once in any dtype."""
    if not values.shape[2]:
        return
    if isinstance(rows, slice):
        x[:, :, rows].add_(values)
    else:
        x.index_add_(2, rows, values.to(x.dtype))


# ---- rows that are sent ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Sent:
    """rows: places for each peer, and how many. alone: for each peer the places that no other has, and where these are
    in what it sends back. shared: places that several have; among: for each peer which of these, and where they are.
    """

    rows: tuple[Rows, ...]
    counts: tuple[int, ...]
    alone: tuple[tuple[Rows, Rows], ...]
    shared: Tensor
    among: tuple[tuple[Rows, Rows], ...]

    @classmethod
    def of(cls, places: Sequence[Ints], device: torch.device) -> Sent:
        """From the places of the rows that each peer is sent."""
        union, times = np.unique(np.concatenate(places), return_counts=True)
        shared = union[times > 1]
        alone: list[tuple[Rows, Rows]] = []
        among: list[tuple[Rows, Rows]] = []
        for rows in places:
            also = np.isin(rows, shared, assume_unique=True)
            mine = (rows[~also], np.flatnonzero(~also)), (np.searchsorted(shared, rows[also]), np.flatnonzero(also))
            for found, (at, where) in zip((alone, among), mine, strict=True):
                found.append((rows_at(at, device), rows_at(where, device)))
        sent_rows = tuple(rows_at(one, device) for one in places)
        return cls(sent_rows, tuple(map(len, places)), tuple(alone), tensor_of(shared, device), tuple(among))

    def write(self, x: Tensor, into: Sequence[Tensor]) -> None:
        """Write rows of x (B, H, S, D) for each peer, (rows, B, H, D)."""
        turned = x.permute(2, 0, 1, 3)
        for rows, place in zip(self.rows, into, strict=True):
            if isinstance(rows, slice):
                if place.numel():
                    place.copy_(turned[rows])
            else:
                torch.index_select(turned, 0, rows, out=place)

    def add(self, x: Tensor, came: Sequence[Tensor]) -> None:
        """Add what came back from each peer to the rows; to rows of several in float32, peer after peer."""
        blocks = [rows.permute(1, 2, 0, 3) for rows in came]
        for (at, where), rows in zip(self.alone, blocks, strict=True):
            added(x, at, taken(rows, where))
        if self.shared.numel():
            total = x.index_select(2, self.shared).to(torch.promote_types(x.dtype, torch.float32))
            for (at, where), rows in zip(self.among, blocks, strict=True):
                added(total, at, taken(rows, where))
            x.index_copy_(2, self.shared, total.to(x.dtype))


def tensor_of(places: Ints, device: torch.device) -> Tensor:
    """An index that is kept: not one of inference mode, which no graph may save."""
    with torch.inference_mode(False):
        return kept(lambda: torch.as_tensor(places, device=device), device)
