"""A pattern in block characters: one cell for each pair where it fits, shades of density where it does not."""

from __future__ import annotations

import numpy as np

from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints

SHADES = " ░▒▓█"
PROBES = 8  # rows and columns looked at in each cell


def draw_pattern(pattern: Pattern, m: int, n: int, width: int) -> str:
    """At most `width` columns, two characters each; queries run down, keys to the right. Head 0 of batch row 0."""
    return "\n".join("".join(SHADES[shade] * 2 for shade in row) for row in shades(density(pattern, m, n, width)))


def density(pattern: Pattern, m: int, n: int, width: int) -> np.ndarray:
    """Share of live pairs in each cell of a picture of at most width x width cells, PROBES x PROBES a cell."""
    rows, cols = _probes(m, width), _probes(n, width)
    live = pattern.contains(rows.reshape(-1)[:, None], cols.reshape(-1)[None, :], m, n)
    return live.reshape(*rows.shape, *cols.shape).mean(axis=(1, 3))


def shades(share: np.ndarray) -> np.ndarray:
    """Index into SHADES: 0 only for nothing, the last only for everything."""
    middle = 1 + np.floor(share * (len(SHADES) - 2)).astype(int)
    return np.where(share <= 0, 0, np.where(share >= 1, len(SHADES) - 1, np.minimum(middle, len(SHADES) - 2)))


def _probes(length: int, width: int) -> Ints:
    """(cells, probes): the indices looked at in each cell."""
    cells = min(length, width)
    edges = np.linspace(0, length, cells + 1)
    steps = (np.arange(PROBES) + 0.5) / PROBES if length > width else np.zeros(1)
    found = edges[:-1, None] + steps[None, :] * np.diff(edges)[:, None]
    return np.minimum(found.astype(np.int64), max(0, length - 1))
