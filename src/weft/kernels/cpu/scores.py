"""What forward and backward share: folding heads, staging tiles, and the scores of one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from weft.kernels.cpu.program import Box, Step

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
        size = int(np.prod(shape))
        if name not in self.held or self.held[name].numel() < size:
            self.held[name] = torch.empty(size, dtype=self.dtype)
        return self.held[name][:size].view(shape)


def staged_rows(x: torch.Tensor, box: Box, buffer: torch.Tensor) -> torch.Tensor:
    """The rows of one query tile of x: (pairs, group, tokens, d) -> (pairs, group * rows, d), copied into `buffer`."""
    view = box.of(x, 2)
    buffer.view(view.shape).copy_(view)
    return buffer


def rows_of(x: torch.Tensor, box: Box) -> torch.Tensor:
    """The view of x (pairs, group, tokens, ...) at one query tile, its axes kept apart."""
    return box.of(x, 2)


def key_slice(x: torch.Tensor, box: Box, work: Workspace, name: str) -> torch.Tensor:
    """The keys of one piece: (pairs, tokens, d) -> (pairs, size, d). A slice of one axis is used where it lies."""
    view = box.of(x, 1)
    if view.dim() == 3 and view.dtype == work.dtype:
        return view
    staged = work.take(name, x.shape[0], box.size, x.shape[2])
    staged.view(view.shape).copy_(view)
    return staged


@dataclass
class Scored:
    """Scores of one step: (pairs, group * rows, width) after every modifier; `capped` before ALiBi and mask, if capped."""

    scores: torch.Tensor
    keys: list[torch.Tensor] = field(default_factory=list)
    capped: torch.Tensor | None = None


def score(q: torch.Tensor, k: torch.Tensor, step: Step, work: Workspace, how: Modifiers, tile: tuple[Box, int]) -> Scored:
    """Scores of staged, scaled queries (pairs, group * rows, d) against the keys of a step, masked."""
    queries, group = tile
    scores = work.take("scores", q.shape[0], q.shape[1], step.width)
    found = Scored(scores)
    for i, piece in enumerate(step.pieces):
        keys = key_slice(k, piece.keys, work, f"k{i}")
        torch.bmm(q, keys.transpose(1, 2), out=scores[:, :, piece.column : piece.column + piece.keys.size])
        found.keys.append(keys)
    if how.softcap is not None:
        scores.div_(how.softcap).tanh_().mul_(how.softcap)
    rows = scores.unflatten(1, (group, queries.size))
    if how.alibi is not None:
        if how.softcap is not None:
            found.capped = scores.clone()
        rows.sub_(how.alibi[:, :, None, None] * _distance(queries, step, how.shift).to(scores.dtype))
    elif how.softcap is not None:
        found.capped = scores
    for piece in step.pieces:
        for first, last, mask in piece.masks:
            rows[..., piece.column + first : piece.column + last].add_(mask)
    return found


def _distance(queries: Box, step: Step, shift: int) -> torch.Tensor:
    """|q + shift - k| of one tile and step, on token indices."""
    q = queries.axis_indices() + shift
    k = np.concatenate([piece.keys.axis_indices() for piece in step.pieces])
    return torch.from_numpy(np.abs(q[:, None] - k[None, :]))


def pieces_of(step: Step, x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The columns of (pairs, rows, width) that belong to each piece."""
    for piece in step.pieces:
        yield x[:, :, piece.column : piece.column + piece.keys.size]
