"""Other patterns for a mask than the one that recognition finds first, which is the smallest text and may be slower."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from weft.pattern.algebra import Pattern
from weft.pattern.library import blocks, causal

SIZES = (128, 64, 32)  # of blocks
MOST = 1 << 14  # blocks that are listed


def by_blocks(live: Tensor) -> Iterator[Pattern]:
    """The mask (1, 1, M, N) as listed blocks, the largest that say it, or these cut by the diagonal; on every pair.

    Nothing where batch rows or heads differ, or blocks do not say it.
    """
    if tuple(live.shape[:2]) != (1, 1):
        return
    mask = live[0, 0].cpu().numpy()
    m, n = mask.shape
    for size in SIZES:
        if m % size or n % size or not mask.size:
            continue
        cells = mask.reshape(m // size, size, n // size, size)
        some, every = cells.any((1, 3)), cells.all((1, 3))
        if some.sum() > MOST:
            continue
        pairs = [(int(i), int(j)) for i, j in np.argwhere(some)]
        if (some == every).all():
            yield blocks(size, pairs)
            return
        if m == n and _is_cut(mask, some, size):
            yield blocks(size, pairs) & causal()
            return


def _is_cut(mask: np.ndarray, some: np.ndarray, size: int) -> bool:
    """Whether the blocks, without what is above the diagonal, are the mask."""
    whole = np.repeat(np.repeat(some, size, 0), size, 1)
    return bool((np.tril(whole) == mask).all())
