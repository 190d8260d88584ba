"""What the layers of a transformer see: as text, and as a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import OptionError
from weft.integrations.diffusers.processors import STATE, State
from weft.integrations.diffusers.rules import pattern_of
from weft.pattern.algebra import Where
from weft.pattern.draw import drawn, edges
from weft.pattern.relation import NDBool

FRAMES, SIDE = 5, 12  # at most so many frames beside each other, and cells of text along a side of each
UNSEEN, SEEN, SELF = (0.95, 0.95, 0.94), (0.0, 0.45, 0.7), (0.84, 0.37, 0.0)  # as in weft's other pictures


@dataclass(frozen=True, eq=False)
class Seen:
    """Layers with one rule. pattern: None where they are dense. live: share of all pairs. frames: which tokens of
    frames the token in the middle of the video sees; of all frames some, by their numbers.
    """

    layers: str
    pattern: Any = None
    live: float = 1.0
    frames: tuple[tuple[int, NDBool], ...] = ()

    def __str__(self) -> str:
        if self.pattern is None:
            return f"{self.layers}: dense, every token sees every other one"
        each = [drawn(_cells(seen)).split("\n") for _, seen in self.frames]
        width = max(len(each[0][0]), len("frame 100"))
        lines = [[f"frame {number}" for number, _ in self.frames], *zip(*each, strict=True)]
        shown = "\n".join(" ".join(part.ljust(width) for part in line).rstrip() for line in lines)
        return (
            f"{self.layers}: {self.pattern}\n{self.live:.1%} of all pairs; what the token in the middle sees:\n{shown}"
        )


def picture(
    transformer: Any, grid: Sequence[int], text: int = 0, step: int | None = None, path: str | Path | None = None
) -> str:
    """For each run of layers with one rule its pattern, and the share of pairs that are live. Then what the token in
    the middle of the video sees, frame by frame.

    grid: (frames, rows, columns) of video tokens. text: text tokens beside them. step: of denoising; as set if None.
    path: also a figure, in a file that ends in .svg or .png. Example::

        print(picture(pipe.transformer, grid=(21, 30, 52), path="layers.svg"))
    """
    state: State | None = getattr(transformer, STATE, None)
    if state is None or len(grid) != 3:
        wrong = "it has no pattern" if state is None else "a video has three axes"
        cure = "call set_pattern(transformer, ...) first, and pass grid=(frames, rows, columns)"
        raise OptionError(f"picture(transformer, grid={tuple(grid)})", wrong, cure)
    found = list(_seen(state, tuple(grid), text, state.step if step is None else step))
    if path is not None:
        _draw([one for one in found if one.frames], tuple(grid), Path(path))
    return "\n\n".join(map(str, found))


def _seen(state: State, grid: tuple[int, ...], text: int, step: int) -> Iterator[Seen]:
    layers = range(len(state.now))
    first = state.model.text == "first"
    begin, tokens = text if first else 0, prod(grid) + text
    keys = np.arange(begin, begin + prod(grid))
    middle = np.full_like(keys, begin + int(np.ravel_multi_index([n // 2 for n in grid], grid)))
    for rule, run in groupby(layers, key=lambda layer: state.rule(layer, step)):
        numbers = list(run)
        name = f"layer {numbers[0]}" if len(numbers) == 1 else f"layers {numbers[0]} to {numbers[-1]}"
        if rule is None:
            yield Seen(name)
            continue
        pattern = pattern_of(rule, grid, text, first)
        holds = pattern.holds(middle, keys, Where(tokens, tokens)).reshape(grid)
        live = pattern.acsr(tokens, tokens).nnz / tokens**2
        yield Seen(name, pattern, live, tuple((frame, holds[frame]) for frame in _shown(holds)))


def _shown(holds: NDBool) -> list[int]:
    """Frames that tell most: the middle one, the first and the last that are seen, those just beyond, then others."""
    count = len(holds)
    seen = np.flatnonzero(holds.any((1, 2))).tolist()
    others = np.linspace(0, count - 1, FRAMES).round().astype(int).tolist()
    first = [count // 2, seen[0], seen[-1], seen[0] - 1, seen[-1] + 1, *others]
    return sorted(list(dict.fromkeys(frame for frame in first if 0 <= frame < count))[:FRAMES])


def _cells(seen: NDBool) -> Any:
    """The share that is seen of each cell of a frame."""
    rows, columns = (edges(length, SIDE) for length in seen.shape)
    counts = np.add.reduceat(np.add.reduceat(seen, rows[:-1], axis=0, dtype=np.int64), columns[:-1], axis=1)
    return counts / (np.diff(rows)[:, None] * np.diff(columns))


def _draw(found: list[Seen], grid: tuple[int, ...], path: Path) -> None:
    """A row of frames for each run of layers."""
    from weft.plot import headline, image, panels, save

    across = len(found[0].frames) if found else 1
    figure, axes = panels(max(1, len(found) * across), across)
    for place, axis in enumerate(axes[: len(found) * across]):
        one = found[place // across]
        frame, seen = one.frames[place % across]
        colours = np.where(seen[..., None], SEEN, UNSEEN)
        if frame == grid[0] // 2:
            colours[grid[1] // 2, grid[2] // 2] = SELF
        title = f"frame {frame}" if place % across else f"{one.layers}, {one.live:.1%} live: frame {frame}"
        image(axis, colours, title)
        axis.set_aspect("equal")  # tokens are squares
    headline(figure, "; ".join(str(one.pattern) for one in found) or "dense", "what the token in the middle sees")
    save(figure, path)
