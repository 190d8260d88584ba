"""What forward and backward share: folding heads, staging tiles, and the scores of one step."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
import torch

from weft.kernels.cpu.program import Box, Step, Tile

Tiles: TypeAlias = tuple[Tile, ...]
Steps: TypeAlias = tuple[Step, ...]  # one of each tile

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


class Workspace:
    """Buffers that are made once a call and handed out as views."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.held: dict[str, torch.Tensor] = {}

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """A contiguous view of `shape`, with whatever was in it."""
        size = prod(shape)
        if name not in self.held or self.held[name].numel() < size:
            self.held[name] = torch.empty(size, dtype=self.dtype)
        return self.held[name][:size].view(shape)


def rows_of(x: torch.Tensor, box: Box) -> torch.Tensor:
    """The view of x (pairs, group, tokens, ...) at one query tile, its axes kept apart."""
    return box.of(x, 2)


def query_rows(x: torch.Tensor, tiles: Tiles, work: Workspace, name: str) -> torch.Tensor:
    """x (pairs, group, tokens, d) at the queries of tiles as (tiles * pairs, group * rows, d).

    A view where one tile lies in memory as a matrix product wants it, else staged.
    """
    first = rows_of(x, tiles[0].queries)
    if len(tiles) == 1 and first.dim() == 4 and x.shape[1] == 1 and x.dtype == work.dtype:
        return first.select(1, 0)
    staged = work.take(name, len(tiles), x.shape[0], x.shape[1] * tiles[0].queries.size, x.shape[3])
    for tile, part in zip(tiles, staged, strict=True):
        view = rows_of(x, tile.queries)
        part.view(view.shape).copy_(view)
    return staged.flatten(0, 1)


def key_rows(x: torch.Tensor, steps: Steps, work: Workspace, name: str) -> torch.Tensor:
    """x (pairs, tokens, d) at the keys of steps as (steps * pairs, width, d); a view or staged, as `query_rows`."""
    pieces = steps[0].pieces
    if len(steps) == len(pieces) == 1 and x.dtype == work.dtype:
        view = pieces[0].keys.of(x, 1)
        if view.dim() == 3:
            return view
    staged = work.take(name, len(steps), x.shape[0], steps[0].width, x.shape[2])
    for step, part in zip(steps, staged, strict=True):
        for piece in step.pieces:
            view = piece.keys.of(x, 1)
            part.narrow(1, piece.column, piece.keys.size).unflatten(1, view.shape[1:-1]).copy_(view)
    return staged.flatten(0, 1)


def add_key_rows(total: torch.Tensor, steps: Steps, parts: torch.Tensor) -> None:
    """total (pairs, tokens, d) at the keys of steps += parts (steps * pairs, width, d), in the order of the steps."""
    for step, part in zip(steps, parts.unflatten(0, (len(steps), -1)), strict=True):
        for piece in step.pieces:
            view = piece.keys.of(total, 1)
            view.add_(part.narrow(1, piece.column, piece.keys.size).unflatten(1, view.shape[1:-1]))


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of one step, (tiles * pairs, group * rows, width), after every modifier; `capped` before ALiBi and mask.

    Products write contiguous buffers only: into a strided output torch multiplies one matrix of a batch at a time, on
    another pool of threads, which was measured to cost 1.5 times the whole.
    """

    scores: torch.Tensor
    keys: torch.Tensor
    capped: torch.Tensor | None = None


def score(q: torch.Tensor, k: torch.Tensor, tiles: Tiles, steps: Steps, work: Workspace, how: Modifiers) -> Scored:
    """Scores of the queries (tiles * pairs, group * rows, d) against the keys of one step of each tile, masked."""
    keys = key_rows(k, steps, work, "k")
    scores = work.take("scores", q.shape[0], q.shape[1], steps[0].width)
    torch.baddbmm(scores, q, keys.transpose(1, 2), beta=0, alpha=how.scale, out=scores)
    capped = None
    if how.softcap is not None:
        scores.div_(how.softcap).tanh_().mul_(how.softcap)
        capped = scores if how.alibi is None else scores.clone()
    group = q.shape[1] // tiles[0].queries.size
    rows = scores.view(q.shape[0], group, tiles[0].queries.size, steps[0].width)
    if how.alibi is not None:
        slopes = how.alibi.to(scores.dtype)[:, :, None, None]
        for tile, step, part in zip(tiles, steps, rows.unflatten(0, (len(tiles), -1)), strict=True):
            part.sub_(slopes * _distance(tile.queries, step, how.shift).to(scores.dtype))
    for piece in steps[0].pieces:  # tiles computed together have the same masks
        for first, last, mask in piece.masks:
            rows.narrow(3, piece.column + first, last - first).add_(mask)
    return Scored(scores, keys, capped)


def _distance(queries: Box, step: Step, shift: int) -> torch.Tensor:
    """|q + shift - k| of one tile and step, on token indices."""
    q = queries.axis_indices() + shift
    k = np.concatenate([piece.keys.axis_indices() for piece in step.pieces])
    return torch.from_numpy(np.abs(q[:, None] - k[None, :]))
