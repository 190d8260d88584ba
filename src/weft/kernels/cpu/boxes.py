"""Boxes of tokens as views of a tensor: evenly spaced ones, or listed ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
import torch

from weft.acsr.format import Grid
from weft.pattern.bounds import Ints


@dataclass(frozen=True)
class StridedBox:
    """Tokens first + sum(index * stride) over some axes; and `count` such boxes, `pitch` tokens from one to the next.

    One view of q, k or v holds such a box, and one call copies it. It may be a box of a grid, every second token of a
    row, or all tiles of a window of one kind. Tokens that are `listed` are gathered, the same ones `count` times.
    """

    first: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    count: int = 1
    pitch: int = 0
    listed: torch.Tensor | None = None

    @staticmethod
    def on(grid: Grid, spans: Iterable[tuple[int, int, int]]) -> StridedBox:
        """Indices base, base + step, ... on each axis of a grid: (base, step, how many)."""
        pace = [prod(grid.shape[axis + 1 :]) for axis in range(len(grid.shape))]
        bases, steps, sizes = zip(*spans, strict=True)
        first = grid.origin + sum(base * tokens for base, tokens in zip(bases, pace, strict=True))
        return StridedBox(first, sizes, tuple(step * tokens for step, tokens in zip(steps, pace, strict=True)))

    @cached_property
    def size(self) -> int:
        """Tokens of one box."""
        return prod(self.sizes)

    def of(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """The view of x, whose tokens are dimension `dim`: that becomes the axes of the box, and `count` goes first.

        A copy where tokens are listed.
        """
        if self.listed is not None:
            return x.index_select(dim, self.listed).expand(self.count, *x.shape[:dim], self.size, *x.shape[dim + 1 :])
        shape, strides = x.shape, x.stride()
        token = strides[dim]
        return x.as_strided(
            (self.count, *shape[:dim], *self.sizes, *shape[dim + 1 :]),
            (self.pitch * token, *strides[:dim], *[token * s for s in self.strides], *strides[dim + 1 :]),
            x.storage_offset() + self.first * token,
        )

    def put(
        self, x: torch.Tensor, dim: int, values: torch.Tensor, *, add: bool = False, over: torch.Tensor | None = None
    ) -> None:
        """x at the box = values, values / over, or += values; no token is in it twice."""
        if self.listed is None:
            view = self.of(x, dim)
            values = values.view(view.shape)
            if over is not None:
                torch.div(values, over.view(*view.shape[:-1], 1), out=view)
            else:
                (view.add_ if add else view.copy_)(values)
            return
        rows = values if over is None else values.div_(over)
        rows = rows.reshape(*x.shape[:dim], self.size, *x.shape[dim + 1 :]).to(x.dtype)
        (x.index_add_ if add else x.index_copy_)(dim, self.listed, rows)

    @property
    def slides(self) -> bool:
        """Whether all `count` boxes lie on the tokens first, first + stride, ..."""
        return self.listed is None and len(self.strides) == 1 and self.pitch % self.strides[0] == 0

    def part(self, first: int, last: int) -> StridedBox:
        """Boxes first to last - 1."""
        return replace(self, first=self.first + first * self.pitch, count=last - first)

    def tokens(self) -> Ints:
        """The token indices, (count, size)."""
        if self.listed is not None:
            return np.broadcast_to(self.listed.numpy(), (self.count, self.size))
        found = self.first + self.pitch * np.arange(self.count)[:, None]
        for size, stride in zip(self.sizes, self.strides, strict=True):
            found = (found[:, :, None] + stride * np.arange(size)).reshape(self.count, -1)
        return found
