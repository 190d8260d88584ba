"""Tables of integers, one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.acsr.format import Grid
from weft.planning.tiling.gpu import FAR

Words = NDArray[np.int32]


class Writer:
    """Appends integers and says where they begin."""

    def __init__(self) -> None:
        self.words: list[Words] = []
        self.size = 0
        self.orders: dict[Grid, int] = {}

    def put(self, values: object) -> int:
        array = np.asarray(values, np.int64).reshape(-1)
        return self.put_words(np.clip(array, -FAR, FAR).astype(np.int32))

    def put_words(self, words: Words) -> int:
        """As `put`, every bit kept."""
        self.words.append(words)
        at, self.size = self.size, self.size + words.size
        return at

    def put_order(self, grid: Grid) -> int:
        """The tokens of a grid, place by place; grids that are alike share them."""
        if grid not in self.orders:
            self.orders[grid] = self.put(grid.tokens(np.arange(grid.size)))
        return self.orders[grid]

    def all(self) -> Words:
        return np.concatenate([np.zeros(0, np.int32), *self.words])


def reciprocal(step: int) -> tuple[int, int]:
    """(inverse, digits): x // step == (2 * x * inverse) >> (32 + digits), for 0 <= x < 2^31; an inverse has 32 bits.

    Rounded up, as long as what that adds to a quotient cannot reach the next one: T. Granlund, P. L. Montgomery,
    Division by invariant integers using multiplication, 1994.
    """
    digits = (step - 1).bit_length()
    return -(-(1 << (31 + digits)) // step), digits
