"""What the layers of a transformer see, as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from weft.errors import OptionError
from weft.integrations.diffusers.processors import STATE, State
from weft.integrations.diffusers.rules import Rule, pattern_of
from weft.pattern.algebra import Where
from weft.pattern.draw import drawn, edges

FRAMES, SIDE = 5, 12  # at most so many frames side by side, and cells along a side of each


def picture(transformer: Any, grid: Sequence[int], text: int = 0, step: int | None = None) -> str:
    """For each run of layers with one rule: its pattern, the share of pairs that are live, and what the token in the
    middle of the video sees, frame by frame.

    grid: (frames, rows, columns) of video tokens. text: text tokens beside them. step: of denoising; as set if None.
    Example::

        print(picture(pipe.transformer, grid=(21, 30, 52)))
    """
    state: State | None = getattr(transformer, STATE, None)
    if state is None or len(grid) != 3:
        wrong = "it has no pattern" if state is None else "a video has three axes"
        cure = "call set_pattern(transformer, ...) first, and pass grid=(frames, rows, columns)"
        raise OptionError(f"picture(transformer, grid={tuple(grid)})", wrong, cure)
    now = state.step
    state.step = now if step is None else step
    try:
        count = len(list(state.model.attentions(transformer)))
        rules = [(layer, state.rule(layer)) for layer in range(count)]
    finally:
        state.step = now
    parts = []
    for rule, run in groupby(rules, key=lambda one: one[1]):
        layers = [layer for layer, _ in run]
        name = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
        parts.append(f"{name}: {_seen(rule, tuple(grid), text, state.model.text == 'first')}")
    return "\n\n".join(parts)


def _seen(rule: Rule | None, grid: tuple[int, ...], text: int, first: bool) -> str:
    if rule is None:
        return "dense, every token sees every other one"
    pattern, tokens = pattern_of(rule, grid, text, first), prod(grid) + text
    live = pattern.acsr(tokens, tokens).nnz / tokens**2
    begin = text if first else 0
    middle = begin + int(np.ravel_multi_index([n // 2 for n in grid], grid))
    keys = np.arange(begin, begin + prod(grid))
    holds = pattern.holds(np.full_like(keys, middle), keys, Where(tokens, tokens)).reshape(grid)
    frames = np.unique(np.linspace(0, grid[0] - 1, FRAMES).round().astype(int))
    each = [drawn(_cells(holds[frame])).split("\n") for frame in frames]
    width = max(len(each[0][0]), len(f"frame {grid[0]}"))
    lines = [" ".join(f"frame {frame}".ljust(width) for frame in frames)]
    lines += [" ".join(line.ljust(width) for line in row) for row in zip(*each, strict=True)]
    return f"{pattern}\n{live:.1%} of all pairs; what the token in the middle sees:\n" + "\n".join(lines)


def _cells(seen: Any) -> Any:
    """The share that is seen of each cell of a frame."""
    rows, columns = (edges(length, SIDE) for length in seen.shape)
    counts = np.add.reduceat(np.add.reduceat(seen, rows[:-1], axis=0, dtype=np.int64), columns[:-1], axis=1)
    return counts / (np.diff(rows)[:, None] * np.diff(columns))
