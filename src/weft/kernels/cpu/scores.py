"""What forward and backward share: folding heads, staging tiles, and the scores of one step."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
import torch

from weft.kernels.cpu.program import Box, Step, Tile
from weft.kernels.options import Modifiers

Tiles: TypeAlias = tuple[Tile, ...]  # runs of tiles of one shape
Steps: TypeAlias = tuple[Step, ...]  # one of each run of tiles


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
        return self.held[name].narrow(0, 0, size).view(shape)


def rows_of(x: torch.Tensor, box: Box) -> torch.Tensor:
    """The view of x (pairs, group, tokens, ...) at query tiles: (tiles, pairs, group, axes of the box, ...)."""
    return box.of(x, 2)


def split(x: torch.Tensor, tiles: Tiles | Steps) -> list[torch.Tensor]:
    """x (tiles * pairs, ...) by runs of tiles."""
    counts = [tile.count for tile in tiles]
    pairs = x.shape[0] // sum(counts)
    return x.split_with_sizes([count * pairs for count in counts])


def query_rows(x: torch.Tensor, tiles: Tiles, work: Workspace, name: str) -> torch.Tensor:
    """x (pairs, group, tokens, d) at the queries of tiles as (tiles * pairs, group * rows, d).

    A view where one tile lies in memory as a matrix product wants it, else staged.
    """
    views = [rows_of(x, tile.queries) for tile in tiles]
    if len(tiles) == tiles[0].count == 1 and views[0].dim() == 5 and x.shape[1] == 1 and x.dtype == work.dtype:
        return views[0].flatten(0, 2)
    count = sum(tile.count for tile in tiles)
    staged = work.take(name, count * x.shape[0], x.shape[1] * tiles[0].queries.size, x.shape[3])
    for view, part in zip(views, split(staged, tiles), strict=True):
        part.view(view.shape).copy_(view)
    return staged


def key_rows(x: torch.Tensor, steps: Steps, work: Workspace, name: str) -> torch.Tensor:
    """x (pairs, tokens, d) at the keys of steps as (tiles * pairs, width, d); a view or staged, as `query_rows`."""
    count = sum(step.count for step in steps)
    if count == len(steps[0].pieces) == 1 and x.dtype == work.dtype:
        view = steps[0].pieces[0].keys.of(x, 1)
        if view.dim() == 4:
            return view.flatten(0, 1)
    staged = work.take(name, count * x.shape[0], steps[0].width, x.shape[2])
    for step, part in zip(steps, split(staged, steps), strict=True):
        for piece in step.pieces:
            view = piece.keys.of(x, 1)
            part.narrow(1, piece.column, piece.keys.size).view(view.shape).copy_(view)
    return staged


def add_key_rows(total: torch.Tensor, steps: Steps, parts: torch.Tensor) -> None:
    """total (pairs, tokens, d) at the keys of steps += parts (tiles * pairs, width, d), one tile after the other.

    Neighbours share keys, so they cannot be added at once.
    """
    for step, part in zip(steps, split(parts, steps), strict=True):
        for piece in step.pieces:
            here = part.narrow(1, piece.column, piece.keys.size)
            if piece.keys.listed is not None:
                total.index_add_(1, piece.keys.listed, here.unflatten(0, (step.count, -1)).sum(0))
                continue
            views = piece.keys.of(total, 1)
            here = here.view(views.shape)
            for view, new in zip(views.unbind(), here.unbind(), strict=True):
                view.add_(new)


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
        for tile, step, part in zip(tiles, steps, split(rows, tiles), strict=True):
            distance = _distance(tile.queries, step, how.shift).to(scores.dtype)[:, None, None]
            part.unflatten(0, (tile.count, -1)).sub_(slopes * distance)
    for piece in steps[0].pieces:  # tiles computed together have the same masks
        for first, last, mask in piece.masks:
            rows.narrow(3, piece.column + first, last - first).add_(mask)
    return Scored(scores, keys, capped)


def _distance(queries: Box, step: Step, shift: int) -> torch.Tensor:
    """|q + shift - k| of a run of tiles and one step, on token indices: (tiles, rows, width)."""
    q = queries.tokens() + shift
    k = np.concatenate([piece.keys.tokens() for piece in step.pieces], axis=1)
    return torch.from_numpy(np.abs(q[:, :, None] - k[:, None, :]))
