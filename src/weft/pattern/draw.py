"""Pictures of block characters: one cell for each pair where it fits, shades of density where it does not.

Cells are numbers, 0 for nothing and others for kinds (terms, classes of tiles). `Paint` gives a run of characters its
colours; by default there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeAlias

import numpy as np

from weft.pattern.bounds import Ints

SHADES = " ░▒▓█"
# What the characters of a drawing mean, below it.
OF_SHADES = "queries run down, keys to the right; █ every pair of a cell is live, ▓ ▒ ░ some are, blank none"
OF_PAIRS = "queries run down, keys to the right; █ a live pair"
OF_HALVES = "queries run down, keys to the right; █ two live pairs, ▀ ▄ the upper or lower one of two queries"

Paint: TypeAlias = Callable[[str, int, int], str]  # characters, kind of their ink, kind of their ground -> text


def plain(text: str, ink: int, ground: int) -> str:
    """No colours."""
    return text


def drawn(share: np.ndarray) -> str:
    """Two characters a cell, which is about a square, by the share of it that is live."""
    return "\n".join("".join(SHADES[shade] * 2 for shade in row) for row in shades(share))


def shades(share: np.ndarray) -> np.ndarray:
    """Index into SHADES: 0 only for nothing, the last only for everything."""
    middle = 1 + np.floor(share * (len(SHADES) - 2)).astype(int)
    return np.where(share <= 0, 0, np.where(share >= 1, len(SHADES) - 1, np.minimum(middle, len(SHADES) - 2)))


def edges(length: int, cells: int) -> Ints:
    """Where `cells` even cells, or as many as there are tokens, begin, and the end of the last."""
    count = min(length, cells)
    return np.arange(count + 1, dtype=np.int64) * length // max(1, count)


def commonest(kinds: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """The commonest kind but 0 in each cell of a picture of at most rows x cols cells of kinds (height, width). 0
    stands only where nothing else is.
    """
    q, k = (edges(length, cells)[:-1] for length, cells in zip(kinds.shape, (rows, cols), strict=True))
    counts = [
        np.add.reduceat(np.add.reduceat(kinds == kind, k, axis=1, dtype=np.int64), q, axis=0)
        for kind in range(1, int(kinds.max(initial=0)) + 1)
    ]
    return np.stack([np.zeros((q.size, k.size), np.int64), *counts]).argmax(axis=0)


# ---- lines of text -----------------------------------------------------------------------------------------------
def whole_blocks(kinds: np.ndarray, paint: Paint = plain) -> list[str]:
    """Two characters a cell, which is about a square."""
    return [_line(((("█" if kind else " ") * 2, kind, 0) for kind in row), paint) for row in kinds.tolist()]


def half_blocks(kinds: np.ndarray, paint: Paint = plain) -> list[str]:
    """One character for two cells, one above the other."""
    if len(kinds) % 2:
        kinds = np.concatenate([kinds, np.zeros_like(kinds[:1])])
    if paint is plain:
        kinds = np.minimum(kinds, 1)  # kinds differ by colour alone
    rows = zip(kinds[::2].tolist(), kinds[1::2].tolist(), strict=True)
    return [_line((_half(*pair) for pair in zip(*two, strict=True)), paint) for two in rows]


def _half(above: int, below: int) -> tuple[str, int, int]:
    if above == below:
        return ("█" if above else " "), above, 0
    return ("▀", above, below) if above else ("▄", below, 0)


def shaded(kinds: np.ndarray, share: np.ndarray, paint: Paint = plain) -> list[str]:
    """One character a cell, its shade by share."""
    rows = zip(kinds.tolist(), shades(share).tolist(), strict=True)
    return [_line(((SHADES[s], kind, 0) for kind, s in zip(*row, strict=True)), paint) for row in rows]


def glyphs(kinds: np.ndarray, alphabet: str) -> list[str]:
    """One character a cell, by its kind."""
    return ["".join(alphabet[kind] for kind in row) for row in kinds.tolist()]


def _line(cells: Iterable[tuple[str, int, int]], paint: Paint = plain) -> str:
    """Cells of one colour are painted together."""
    return "".join(
        paint("".join(text for text, _, _ in run), *colours) for colours, run in groupby(cells, key=lambda c: c[1:])
    )


def framed(lines: list[str], width: int, queries: tuple[int, int], keys: tuple[int, int]) -> list[str]:
    """The lines, each `width` characters wide, in a frame that names the first and last query and key."""
    above, last = f"key {keys[0]}", str(keys[1])
    gap = width - len(above) - len(last)
    names = [f"query {queries[0]}", *[""] * (len(lines) - 2), str(queries[1])][: len(lines)]
    gutter = max(map(len, names))
    body = [f"{name:>{gutter}} │{line}│" for name, line in zip(names, lines, strict=True)]
    marks, edge = above + (" " * gap + last if gap > 0 else ""), "─" * width
    return [f"{'':{gutter}}  {marks}", f"{'':{gutter}} ┌{edge}┐", *body, f"{'':{gutter}} └{edge}┘"]
